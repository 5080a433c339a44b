"""Writes docs/faults.md from the rows and what was last seen of each. Pure: data in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from jepsen.checklist.rows import ROWS, ChecklistRow
from jepsen.checklist.showing import RowResult

_TITLES: Final = {
    "process": "Processes",
    "network": "Network",
    "clock": "Clocks",
    "disk": "Disks",
    "input": "Protocol and bad input",
    "operations": "Resources, membership, operations",
}

_HEAD: Final = """\
# The {count} faults

What this project is measured against, row by row. Every row expects, unless it says otherwise, that no acknowledged
message is lost, no committed offset goes back, nothing is stored twice under one UNIQ_KEY, and all replicas have
equal digests after healing. A command writes this page; to see a row for yourself:

    dledger-jepsen checklist --row 9             # one row, every way that shows it
    dledger-jepsen checklist --section disk      # a section
    make checklist                               # all of them, and this page anew: about an hour

A row is shown by real processes under load (a scenario in `jepsen/checklist/`, judged by the checkers of the queue
workload and by what the row expects in addition), by the simulator (200 seeds with that fault alone; `make sim` mixes
all), by tests, or by several of these. *skipped* means that the machine of the last run lacked something, *in part*
that a part of the row is not done or not shown; the row says which.
"""


def page(results: Mapping[int, RowResult], *, seen_on: str) -> str:
    """Return the page.

    Args:
        results: what was last seen, by row; a row that is missing has not been run.
        seen_on: date and machine of the last run, in words.
    """
    parts = [_HEAD.replace("{count}", str(len(ROWS))), f"Last run: {seen_on}. {_tally(results)}\n"]
    for section, rows in groupby(ROWS, key=lambda row: row.section):
        parts.append(f"## {_TITLES[section]}\n")
        parts.append("| # | fault | also expected | injected by | result |")
        parts.append("|---|---|---|---|---|")
        parts += [_line(row, results.get(row.number)) for row in rows]
        parts.append("")
    parts.append("## Commands\n")
    parts.append("What was run for each row, and what it said.\n")
    parts += [_commands(row, results.get(row.number)) for row in ROWS]
    return "\n".join(parts) + "\n"


def _tally(results: Mapping[int, RowResult]) -> str:
    verdicts = [results[row.number].verdict if row.number in results else "not run" for row in ROWS]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."


def _line(row: ChecklistRow, result: RowResult | None) -> str:
    verdict = "not run" if result is None else result.verdict
    ways = "" if result is None else ", ".join(dict.fromkeys(each.way for each in result.shown))
    shown = f"**{verdict}**" + (f" ({ways})" if ways else "")
    if row.unbuilt:
        shown = f"**not built**: {row.unbuilt}"
    elif row.gap:
        shown += f": {row.gap}"
    return f"| {row.number} | {row.fault} | {row.expectation} | {row.how} | {shown} |"


def _commands(row: ChecklistRow, result: RowResult | None) -> str:
    if row.unbuilt or result is None:
        return ""
    lines = [f"**{row.number}. {row.fault}**\n"]
    lines += [
        f"- `{each.command}`: {each.verdict}, {each.seconds:g} s. {each.text}".rstrip()
        for each in result.shown
    ]
    return "\n".join(lines) + "\n"
