"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from bench.systems.brokers import Setup

T = TypeVar("T")
ALL: Final = "all"
FLUSHES: Final = {"default": None, "sync": True, "async": False}


def chosen(text: str, known: Mapping[str, T], what: str) -> list[T]:
    """Return what the names stand for, in their order.

    Raises:
        argparse.ArgumentTypeError: one is not known, or stands twice.
    """
    if text == ALL:
        return list(known.values())
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise argparse.ArgumentTypeError(
            f"no {what} is called {wrong[0] if wrong else text!r}; there are: {', '.join(known)}"
        )
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"a {what} stands twice in {text}")
    return [known[name] for name in names]


def positive(text: str) -> float:
    """Return a number above 0.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def whole(text: str) -> int:
    """Return a whole number above 0.

    Raises:
        ValueError: it is none.
    """
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def several(text: str) -> list[int]:
    """Return whole numbers above 0 with commas between them.

    Raises:
        ValueError: one is none.
    """
    return [whole(each) for each in text.split(",")]


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what all commands have that run groups."""
    parser.add_argument(
        "--size", type=whole, default=1024, help="bytes of a message's body (default %(default)s)"
    )
    parser.add_argument(
        "--nodes", type=whole, default=3, help="copies of each message (default %(default)s)"
    )
    parser.add_argument(
        "--durability",
        choices=tuple(FLUSHES),
        default="default",
        help="on disk before the answer (sync), or not (async); by default as each system's name says",
    )
    parser.add_argument(
        "--heap-mb", type=whole, default=1024, help="of each Java broker (default %(default)s)"
    )
    parser.add_argument(
        "--interop",
        type=Path,
        default=default_interop(),
        metavar="DIR",
        help="with what make peers and make interop have fetched (default %(default)s)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep stores and logs in this folder"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON on standard output")


def default_interop() -> Path:
    """Return the folder of the clone that this package lies in; elsewhere it is that of the working directory."""
    clone = Path(__file__).resolve().parents[1]
    return (clone if (clone / "Makefile").exists() else Path()) / ".interop"


def setup_of(options: argparse.Namespace) -> Setup:
    """Return the setup of the groups."""
    return Setup(
        nodes=options.nodes,
        is_flushed=FLUSHES[options.durability],
        heap_mb=options.heap_mb,
        interop=options.interop,
    )
