"""The terminal: one moving line while a run goes on, tables afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from jepsen.checkers.work import NAME as WORK
from jepsen.history.ops import NEMESIS, Op
from jepsen.history.values import BEGINS_INJECTION, LeaderSeen, Strike, shaped
from jepsen.reports.summary import Summary
from jepsen.run import Conductor, RunSettings, Show

COLORS: Final = {"valid": "green", "invalid": "red", "unknown": "yellow", "skipped": "cyan"}
ANOMALIES_SHOWN: Final = 8


class _Watched:
    """Counts of a history that grows; reads what is new at each look."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.strikes = 0
        self.in_force: list[str] = []
        self._leaders: dict[str, str] = {}  # by group
        self._read = 0

    @property
    def leader(self) -> str:
        """The leader, or the leader of each of several groups."""
        return ", ".join(self._leaders.values()) or "nobody"

    def read(self, ops: Sequence[Op]) -> None:
        for op in islice(ops, self._read, None):
            if op.is_client:
                self.ended[op.type] += 1
            elif op.process == NEMESIS:
                self._note_fault(op)
            elif op.f in {"leader", "leaderless"}:
                seen = shaped(op.value, LeaderSeen)
                group = seen.get("group", "")
                self._leaders.pop(group, None)
                if op.f == "leader":
                    in_term = f"in term {seen['term']}" if not group else f"{group}"
                    self._leaders[group] = f"{op.node} {in_term}"
        self._read = len(ops)

    def _note_fault(self, op: Op) -> None:
        self.strikes += op.value == BEGINS_INJECTION
        do = shaped(op.value, Strike).get("do")
        if do == "cure" and op.f in self.in_force:
            self.in_force.remove(op.f)
        elif do == "inject" and op.f not in self.in_force:
            self.in_force.append(op.f)


@contextmanager
def progress_of(
    settings: RunSettings, console: Console, *, expected_s: float | None = None
) -> Iterator[Show]:
    """Show a moving line on a terminal, and nothing elsewhere.

    Args:
        settings: of the run.
        console: where to.
        expected_s: how long things are broken, when that is known to be shorter than the limit.
    """
    total_s = settings.time_limit_s if expected_s is None else expected_s
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    watched = _Watched()
    name = escape(f"{settings.workload} / {settings.nemesis}")
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task: TaskID = bar.add_task(name, total=total_s, state="starting")

        def show(conductor: Conductor) -> None:
            watched.read(conductor.log.ops)
            ended = watched.ended
            state = f"{conductor.phase}  ok {ended['ok']} fail {ended['fail']} info {ended['info']}"
            state += f"  faults {watched.strikes}  leader {watched.leader}"
            if watched.in_force:
                state += f"  [red]{escape(' + '.join(watched.in_force))}[/red]"
            is_breaking = conductor.phase == "breaking"
            seconds = conductor.log.now_ns() / 1e9
            bar.update(task, completed=min(seconds, total_s), state=state)
            if not is_breaking and conductor.phase != "starting":
                bar.update(task, completed=total_s)

        yield show


def print_summary(summary: Summary, folder: object, console: Console) -> None:
    """Print the result of one run."""
    color = COLORS[summary.verdict]
    table = Table(show_edge=False, pad_edge=False)
    for column in ("checker", "promise", "found", "counted"):
        table.add_column(column)
    for check in summary.checks:
        mark = {
            True: "[green]kept[/green]",
            False: "[red]broken[/red]",
            None: "[yellow]unknown[/yellow]",
        }
        counts = ", ".join(
            f"{name} {value}" for name, value in check.counts.items() if not isinstance(value, dict)
        )
        found = f"{len(check.anomalies)} anomalies" if check.anomalies else check.why_unknown
        table.add_row(check.name, mark[check.valid], escape(found), escape(counts))
    if summary.checks:
        console.print(table)
    anomalies = [anomaly for check in summary.checks for anomaly in check.anomalies]
    for anomaly in anomalies[:ANOMALIES_SHOWN]:
        console.print(f"[red]{escape(anomaly.kind)}[/red]: {escape(anomaly.text)}", highlight=False)
    if len(anomalies) > ANOMALIES_SHOWN:
        console.print(f"... and {len(anomalies) - ANOMALIES_SHOWN} more")
    faults = ", ".join(f"{name} {count}" for name, count in summary.faults.items()) or "none"
    console.print(f"{summary.operations} operations, faults: {faults}", highlight=False)
    if summary.work:
        console.print(escape(summary.work), highlight=False, soft_wrap=True)
    why = f": {escape(summary.why)}" if summary.why else ""
    console.print(f"[bold {color}]{summary.verdict.upper()}[/bold {color}]{why}", highlight=False)
    console.print(f"report: {folder}/report.html", highlight=False, soft_wrap=True)


def print_suite(summaries: Sequence[Summary], console: Console) -> None:
    """Print the table of a suite."""
    table = Table(title="dledger-jepsen suite", title_justify="left")
    for column, right in (
        ("workload", False),
        ("nemesis", False),
        ("verdict", False),
        ("operations", True),
        ("of those asked for", True),
        ("faults", True),
        ("why", False),
    ):
        table.add_column(column, justify="right" if right else "left")
    for summary in summaries:
        color = COLORS[summary.verdict]
        table.add_row(
            summary.settings.workload,
            summary.settings.nemesis,
            f"[{color}]{summary.verdict}[/{color}]",
            str(summary.operations),
            _done_percent(summary),
            str(sum(summary.faults.values())),
            escape(summary.why),
        )
    console.print(table)


def _done_percent(summary: Summary) -> str:
    counts = next((check.counts for check in summary.checks if check.name == WORK), {})
    return f"{counts['done_percent']} %" if counts else ""
