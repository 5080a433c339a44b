"""`dledger-jepsen checklist`: shows rows of the list, prints what held, and writes docs/faults.md."""

from __future__ import annotations

import argparse
import platform
import random
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jepsen.checklist.page import page
from jepsen.checklist.rows import ROWS, ChecklistRow
from jepsen.checklist.scenarios import scenarios_of
from jepsen.checklist.showing import (
    RowResult,
    Shown,
    joined,
    show_by_run,
    show_by_scenario,
    show_by_simulation,
    show_by_tests,
)

HOLDS, BROKEN, UNKNOWN = 0, 1, 2
SECTIONS: Final = tuple(dict.fromkeys(row.section for row in ROWS))
WAYS: Final = ("process", "simulator", "tests")
SEEDS: Final = 1_000_000
_COLOURS: Final = {"holds": "green", "broken": "red", "unknown": "yellow"}


class NoRowError(ValueError):
    """There is no row of that number."""


class RecordedResults(msgspec.Struct, frozen=True):
    """The last results of all rows: the file from which the page is written."""

    seen_on: str
    rows: dict[int, RowResult]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("checklist", help=f"the {len(ROWS)} faults, row by row")
    parser.add_argument(
        "--row", type=int, action="append", default=[], metavar="N", help="its number"
    )
    parser.add_argument("--section", choices=SECTIONS, action="append", default=[])
    parser.add_argument("--way", choices=WAYS, action="append", default=[], help="only so")
    parser.add_argument("--seed", type=int, help="drawn when not given")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="histories, logs and stores")
    parser.add_argument(
        "--record", type=Path, metavar="DOCS", help="write DOCS/faults.json and DOCS/faults.md"
    )
    parser.add_argument("--json", action="store_true", help="results on stdout")


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the rows that were asked for; returns the exit status.

    Raises:
        NoRowError: there is no such row.
    """
    rows = rows_asked_for(options.row, options.section)
    seed = random.randrange(SEEDS) if options.seed is None else options.seed
    root = options.keep or Path(tempfile.mkdtemp(prefix="dledger-checklist-"))
    ways = tuple(options.way) or WAYS
    console.print(f"seed {seed}, histories and logs in {root}", highlight=False)
    results: dict[int, RowResult] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("rows", total=len(rows))
        for row in rows:
            progress.update(task, description=f"row {row.number}: {escape(row.fault[:50])}")
            results[row.number] = show(row, root, seed=seed, ways=ways)
            progress.console.print(_line(row, results[row.number]))
            progress.advance(task)
            if options.record is not None:
                record(options.record, results)
    console.print(_table(rows, results))
    if options.json:
        sys.stdout.write(msgspec.json.encode(list(results.values())).decode() + "\n")
    return exit_code(list(results.values()))


def show(row: ChecklistRow, root: Path, *, seed: int, ways: Sequence[str]) -> RowResult:
    """Show one row in the ways that are asked for."""
    shown: list[Shown] = []
    if "process" in ways:
        for scenario in scenarios_of(row.number):
            folder = root / f"{row.number:02} {scenario.name}".replace(" ", "-")
            shown.append(show_by_scenario(scenario, folder, seed=seed))
        for workload, nemesis in row.runs:
            folder = root / f"{row.number:02}-{workload}-{nemesis}"
            shown.append(show_by_run(workload, nemesis, folder, seed=seed))
    if "simulator" in ways and row.sim:
        shown.append(show_by_simulation(row))
    if "tests" in ways and row.tests:
        shown.append(show_by_tests(row))
    return joined(row, shown)


def exit_code(results: Sequence[RowResult]) -> int:
    """Return 1 when a row is broken, else 2 when nobody knows of one, else 0."""
    verdicts = {result.verdict for result in results}
    if "broken" in verdicts:
        return BROKEN
    return UNKNOWN if "unknown" in verdicts else HOLDS


def record(docs: Path, results: dict[int, RowResult]) -> None:
    """Replace old results by new ones, and rewrite the page."""
    file = docs / "faults.json"
    before = (
        msgspec.json.decode(file.read_bytes(), type=RecordedResults).rows if file.exists() else {}
    )
    seen_on = (
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.system()}"
    )
    # What a row still lacks may have changed since it was last seen.
    seen = {row.number: row for row in ROWS}
    joined_rows = {
        number: joined(seen[number], result.shown)
        for number, result in sorted((before | results).items())
    }
    recorded = RecordedResults(seen_on, joined_rows)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(recorded), indent=1) + b"\n")
    (docs / "faults.md").write_text(page(recorded.rows, seen_on=seen_on))


def rows_asked_for(numbers: Sequence[int], sections: Sequence[str]) -> list[ChecklistRow]:
    """Return the rows with these numbers and in these sections; all of them when neither is named.

    Raises:
        NoRowError: there is no such row.
    """
    known = {row.number for row in ROWS}
    if unknown := sorted(set(numbers) - known):
        raise NoRowError(f"there is no row {unknown[0]}: the last one is {ROWS[-1].number}")
    if not numbers and not sections:
        return list(ROWS)
    return [row for row in ROWS if row.number in numbers or row.section in sections]


def _line(row: ChecklistRow, result: RowResult) -> str:
    colour = _COLOURS.get(result.verdict, "cyan")
    lines = [f"{row.number:>2} [{colour}]{result.verdict}[/{colour}] {escape(row.fault)}"]
    lines += [
        f"     {each.way}: {each.verdict}, {each.seconds:.0f} s, {escape(each.text)}"
        for each in result.shown
    ]
    return "\n".join(lines)


def _table(rows: Sequence[ChecklistRow], results: dict[int, RowResult]) -> Table:
    table = Table(title="The list", title_justify="left")
    for heading in ("#", "fault", "verdict", "shown by"):
        table.add_column(heading)
    for row in rows:
        result = results[row.number]
        colour = _COLOURS.get(result.verdict, "cyan")
        ways = ", ".join(dict.fromkeys(each.way for each in result.shown)) or escape(row.unbuilt)
        verdict = f"[{colour}]{result.verdict}[/{colour}]"
        table.add_row(str(row.number), escape(row.fault), verdict, ways)
    return table
