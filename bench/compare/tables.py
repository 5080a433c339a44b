"""Shows a comparison: the table, what was skipped, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from bench.compare.floors import floor_ratios
from bench.compare.results import BenchRowResult, Ratio, SystemComparison, SystemResult
from bench.load.results import Measured, Spread

NOTHING: Final = "-"
COLUMNS: Final = (
    ("load", True),
    ("system", True),
    ("messages/s", False),
    ("spread", False),
    ("p50 us", False),
    ("p99 us", False),
    ("leader us", False),
    ("follower us", False),
    ("leader MiB", False),
    ("rate x", False),
    ("p50 x", False),
    ("leader x", False),
)


def print_comparison(result: SystemComparison, console: Console, *, markdown: bool = False) -> None:
    """Print everything."""
    if not result.is_empty:
        console.print(comparison_table(result, markdown=markdown))
    for line in notes_of(result):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def comparison_table(result: SystemComparison, *, markdown: bool = False) -> Table:
    """Return the table: each row of each system, the systems of a row beneath each other."""
    measured = [system for system in result.systems if system.rows]
    first = measured[0].name if measured else ""
    table = Table(
        title=None
        if markdown
        else f"Medians; leader, follower: processor time of a message; x: {first} in parts of the other",
        title_justify="left",
        box=box.MARKDOWN if markdown else box.SIMPLE_HEAD,
    )
    for name, is_text in COLUMNS:
        table.add_column(name, justify="left" if is_text else "right", no_wrap=is_text)
    ratios = {(ratio.row, ratio.system): ratio for ratio in result.ratios}
    labels = {row.row: row.label for system in measured for row in system.rows}
    for name in labels:
        for number, system in enumerate(measured):
            label = labels[name] if number == 0 or markdown else ""
            table.add_row(label, system.name, *_cells(system, name, ratios))
        table.add_section()
    return table


def _cells(system: SystemResult, name: str, ratios: Mapping[tuple[str, str], Ratio]) -> list[str]:
    """Return the figures of one line."""
    row, ratio = system.row(name), ratios.get((name, system.name))
    if row is not None and row.measured is not None:
        figures = row.measured
        return [
            *_rate_cells(figures),
            f"{figures.over(lambda each: each.p50_us).median:,.0f}",
            f"{figures.over(lambda each: each.p99_us).median:,.0f}",
            *(
                NOTHING if each is None else f"{each.median:.1f}"
                for each in (figures.leader_us, figures.follower_us)
            ),
            NOTHING if row.memory is None else f"{row.memory.own_mib:,.0f}",
            ratio_text(ratio.rate if ratio else None),
            ratio_text(ratio.p50 if ratio else None),
            ratio_text(ratio.leader if ratio else None),
        ]
    if row is not None and row.memory is not None:
        text, mapped = f"{row.memory.own_mib:,.0f} MiB", f"mapped {row.memory.mapped_mib:,.0f}"
        against = ratio_text(ratio.memory if ratio else None)
        return [text, mapped, *[NOTHING] * 5, against, NOTHING, NOTHING]
    return [_reason(row), *[NOTHING] * 9]


def _rate_cells(figures: Measured) -> list[str]:
    """Return rate and spread; where a round is one event, its time's spread alone."""
    mark = "" if figures.problem is None else " !"
    if figures.is_of_events:
        return [NOTHING + mark, spread_text(figures.over(lambda each: each.p50_us))]
    return [f"{figures.per_second.median:,.0f}{mark}", spread_text(figures.per_second)]


def _reason(row: BenchRowResult | None) -> str:
    if row is None:
        return "not reached"
    return "failed" if row.failed else "skipped"


def spread_text(spread: Spread) -> str:
    """Return how far the rounds are from each other; nothing where there is one."""
    return NOTHING if spread.low == spread.high else f"{spread.percent:.0f} %"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio with as many digits as it is worth."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def notes_of(result: SystemComparison) -> list[str]:
    """Return in sentences what the table does not say."""
    lines: list[str] = []
    for system in result.systems:
        if system.skipped:
            lines.append(f"{system.name} skipped: {system.skipped}")
            continue
        text = f"{system.name}: {system.description}"
        if system.floor is not None:
            floor = system.floor
            text += (
                f"; just before, a durable write took {floor.write_us:,.0f} us, a round trip "
                f"{floor.round_trip_us:,.0f} us"
            )
        lines.append(text)
        lines += [f"{system.name}, {one.text}" for one in floor_ratios(system)]
        reasons = dict.fromkeys(row.skipped for row in system.rows if row.skipped)
        for reason in reasons:
            rows = ", ".join(row.row for row in system.rows if row.skipped == reason)
            lines.append(f"{system.name}, {rows} skipped: {reason}")
    checked = sum(
        row.measured.checked for each in result.systems for row in each.rows if row.measured
    )
    machine = result.machine
    lines.append(
        f"{checked} acknowledged messages were looked up; {machine.cores} cores, load "
        f"{machine.load_before:.1f} before and {machine.load_after:.1f} after: compare ratios, not rates"
    )
    lines += [f"NOT TO BE BELIEVED: {problem}" for problem in result.problems]
    if result.is_interrupted:
        lines.append("interrupted: every process was ended")
    return lines
