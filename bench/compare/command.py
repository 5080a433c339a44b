"""`dledger-bench compare`: its options, and what it prints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from bench.compare.results import SystemComparison
from bench.compare.rows import ROWS
from bench.compare.runners import CONTENDERS, DEFAULT
from bench.compare.running import Plan, compare
from bench.compare.tables import print_comparison
from bench.exits import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNKNOWN
from bench.load.native import lacking_generator
from bench.load.running import RoundPlan
from bench.options import add_common, chosen, positive, setup_of, whole
from bench.progress import StageBar

EXAMPLES: Final = """
examples:
  dledger-bench compare                                   the whole table: ten minutes on a quiet machine
  dledger-bench compare --markdown > table.md             to be pasted into a page
  dledger-bench compare --rows sync-1,sync-64 --rounds 5  two rows, more often
  dledger-bench compare --systems ours --seconds 1 --rounds 1 --warm-up 0.5 --heat 1
  dledger-bench compare --systems ours,pysyncobj --rows sync-1,async-64,async-1024
"""
PIPE_WIDTH: Final = 150
"""Of the table where there is no terminal: at 80 columns its figures are cut."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="the table: ours beside Apache RocketMQ and others, in one run",
        description="Compare systems: the same loads by the same generators, one system after the other; medians, "
        "spread, processor time for each message, memory, and the ratios.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--systems",
        type=lambda text: chosen(text, CONTENDERS, "system"),
        default=[CONTENDERS[name] for name in DEFAULT],
        metavar="NAMES",
        help=f"with commas between them, or all: {', '.join(CONTENDERS)} (default {','.join(DEFAULT)}); "
        "the others are held against the first",
    )
    parser.add_argument(
        "--rows",
        type=lambda text: chosen(text, {row.name: row for row in ROWS}, "row"),
        default=list(ROWS),
        metavar="NAMES",
        help=f"with commas between them (default all: {', '.join(row.name for row in ROWS)})",
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
        default=20.0,
        help="seconds of all loads before the first row: virtual machines need them (default %(default)s)",
    )
    parser.add_argument("--markdown", action="store_true", help="the table for a page")
    add_common(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, and print; return the exit code."""
    plan = Plan(
        contenders=options.systems,
        rows=options.rows,
        pace=RoundPlan(options.warm_up, options.seconds, options.rounds),
        heat_s=options.heat,
        setup=setup_of(options),
        body_bytes=options.size,
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
