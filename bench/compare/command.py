"""The options of commands that take systems through rows, and what these print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from bench.compare.plots import plot_curves, plot_file
from bench.compare.results import SystemComparison
from bench.compare.runners import CONTENDERS
from bench.compare.running import Plan, compare
from bench.compare.tables import print_comparison
from bench.exits import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNKNOWN
from bench.load.native import lacking_generator
from bench.load.running import RoundPlan
from bench.options import add_common, chosen, positive, setup_of, whole
from bench.progress import StageBar

PIPE_WIDTH: Final = 200
"""Of the table where there is no terminal: narrower, its figures are cut."""


def add_options(parser: argparse.ArgumentParser, default: Sequence[str], *, heat_s: float) -> None:
    """Add the options of every command that takes systems through rows; `rows_of` is set by the command."""
    parser.add_argument(
        "--systems",
        type=lambda text: chosen(text, CONTENDERS, "system"),
        default=[CONTENDERS[name] for name in default],
        metavar="NAMES",
        help=f"with commas between them, or all: {', '.join(CONTENDERS)} (default {','.join(default)}); "
        "the others are held against the first",
    )
    parser.add_argument(
        "--seconds", type=positive, default=4.0, help="of each round (default %(default)s)"
    )
    parser.add_argument("--rounds", type=whole, default=3, help="of each row (default %(default)s)")
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=4.0,
        help="seconds of each row before its first round (default %(default)s)",
    )
    parser.add_argument(
        "--heat",
        type=positive,
        default=heat_s,
        help="seconds of all loads before the first row: virtual machines need them (default %(default)s)",
    )
    parser.add_argument("--markdown", action="store_true", help="the table for a page")
    parser.add_argument(
        "--plot",
        type=plot_file,
        metavar="FILE",
        help="draw rate against latency, a line for each system: .png or .svg (needs matplotlib)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, and print; return the exit code."""
    plan = Plan(
        contenders=options.systems,
        rows=options.rows_of(options),
        pace=RoundPlan(options.warm_up, options.seconds, options.rounds),
        heat_s=options.heat,
        setup=setup_of(options),
        keep=made(options.keep),
    )
    console = Console(stderr=True, emoji=False)
    if lack := lacking_generator():
        console.print(f"{lack}: one in Python stands in, without the rows of many connections")
    total_s = len(plan.contenders) * plan.system_s
    console.print(f"about {total_s / 60:.0f} minutes", highlight=False)
    with StageBar(console, total_s) as stages:
        result = compare(plan, stages, " ".join(["dledger-bench", *sys.argv[1:]]))
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    out = Console(stderr=options.json, emoji=False)
    if not out.is_terminal:
        out = Console(stderr=options.json, emoji=False, width=PIPE_WIDTH)
    print_comparison(result, out, markdown=options.markdown)
    if options.plot is not None and not result.is_empty:
        plot_curves(options.plot, result)
    return exit_code(result)


def made(folder: Path | None) -> Path | None:
    """Make the folder that is kept."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def exit_code(result: SystemComparison) -> int:
    """Return the exit code: interrupted, something is wrong, nothing was measured, or fine."""
    if result.is_interrupted:
        return EXIT_INTERRUPTED
    if result.problems:
        return EXIT_FOUND
    return EXIT_UNKNOWN if result.is_empty else EXIT_OK
