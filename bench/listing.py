"""`dledger-bench list`: the smaller benches beside it, each of which is a module with one question."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.exits import EXIT_OK

FOLDER = Path(__file__).parent
PARTS_OF_OTHERS = {"cli", "pysyncobj_peer", "pysyncobj_counter", "grpc_load", "empty_proxy"}


def add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    text = "the smaller benches, each a module with one question"
    parser = commands.add_parser("list", help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run)


def small_benches() -> Iterator[tuple[str, str]]:
    """Yield the command of each module that can be run, and its question."""
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text()
        if path.stem not in PARTS_OF_OTHERS and "\nif __name__ ==" in source:
            question = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
            yield f"python -m bench.{path.stem}", question
    yield (
        "python -m bench.pipeline",
        "the jobs on Spark: exactly-once, scan, decode, source, archive",
    )


def run(_: argparse.Namespace) -> int:
    """Print them."""
    table = Table(show_header=False, box=None)
    for command, question in small_benches():
        table.add_row(command, question)
    Console(emoji=False).print(table)
    return EXIT_OK
