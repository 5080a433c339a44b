"""What a run looked like, for people: progress while it runs, then timeline, counts and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from jepsen.checker import Verdict
from jepsen.history import Event
from jepsen.progress import Progress, percentile
from jepsen.promises import Promises

ANOMALIES_SHOWN: Final = 20


def live_line(progress: Progress, phase: str, seconds: float) -> RenderableType:
    """Return the one line that moves while a run goes on."""
    acknowledged = sum(progress.acknowledged.values())
    leader = f"{progress.leader} in term {progress.term}" if progress.leader else "none yet"
    return Text.assemble(
        (f"{seconds:5.1f} s ", "bold"),
        (f"{phase:<22}", "cyan"),
        f" leader {leader:<16} kills {progress.kills}  acknowledged {acknowledged}",
        f"  unknown {progress.unknown}",
    )


def timeline(events: Sequence[Event], gaps_ms: Sequence[float | None]) -> Table:
    """Return kills, restarts and leaders in their order, each kill with its gap."""
    table = Table(title="Timeline", title_justify="left")
    table.add_column("s", justify="right")
    table.add_column("what")
    table.add_column("term", justify="right")
    table.add_column("no acknowledged send for", justify="right")
    gaps = iter(gaps_ms)
    for event in events:
        seconds = f"{event.t_ms / 1000:.2f}"
        match event.kind:
            case "kill":
                gap = next(gaps, None)
                said = f"{gap:.0f} ms" if gap is not None else "until the next kill"
                table.add_row(seconds, f"[red]kill -9[/red] {event.node}", str(event.term), said)
            case "restart":
                table.add_row(seconds, f"{event.node} started again", "", "")
            case "leader":
                what = f"[green]{event.node} leads[/green]"
                table.add_row(seconds, what, str(event.term), "")
            case "note":
                table.add_row(seconds, event.text, "", "")
            case _:
                pass
    return table


def counts(verdict: Verdict) -> Table:
    """Return the table of what was sent, acknowledged, received, lost and duplicated."""
    table = Table(title="Messages", title_justify="left")
    rows = ("sent", "acknowledged", "unknown", "refused", "received", "lost")
    causes = ("stored twice", "rekeyed", "delivered twice")
    producers = sorted(verdict.tallies.items())
    table.add_column("")
    for producer, _ in producers:
        table.add_column(producer, justify="right")
    for name in (*rows, *causes):
        values = [getattr(tally, name.replace(" ", "_")) for _, tally in producers]
        label = "  sent again under another key" if name == "rekeyed" else name
        table.add_row(label, *map(str, values))
    return table


def stream_lines(promises: Promises) -> list[str]:
    """Return a line of counts for each stream."""
    lines = []
    for stream, counts in promises.counts.items():
        values = msgspec.to_builtins(counts)
        late = values.pop("late_ms", None)
        texts = [f"{name.replace('_', ' ')} {value}" for name, value in values.items()]
        if late:
            texts += [f"{name} {value} ms after the due time" for name, value in late.items()]
        lines.append(f"{stream}: {', '.join(texts)}")
    return lines


def gaps_line(gaps_ms: Sequence[float | None]) -> str:
    """Return the summary of the unavailability of all kills."""
    known = [gap for gap in gaps_ms if gap is not None]
    if not known:
        return "no kill was followed by an acknowledged send"
    return (
        f"{len(known)} of {len(gaps_ms)} kills overcome; time to the next acknowledged send: "
        f"p50 {percentile(known, 50):.0f} ms, max {max(known):.0f} ms"
    )


def print_report(
    console: Console,
    events: Sequence[Event],
    verdict: Verdict,
    gaps_ms: Sequence[float | None],
    promises: Promises,
) -> None:
    """Print everything after a run."""
    console.print(timeline(events, gaps_ms))
    console.print(counts(verdict))
    for line in stream_lines(promises):
        console.print(line, highlight=False)
    console.print(gaps_line(gaps_ms))
    for anomaly in verdict.anomalies[:ANOMALIES_SHOWN]:
        console.print(f"[red]{anomaly.check}[/red]: {anomaly.text}", highlight=False)
    if len(verdict.anomalies) > ANOMALIES_SHOWN:
        console.print(f"... and {len(verdict.anomalies) - ANOMALIES_SHOWN} more")
    match verdict.valid:
        case True:
            text = "nothing acknowledged was lost, every queue was consumed in order"
            if promises.counts:
                text += ", every transaction, due time and key kept its promise"
            console.print(f"[bold green]VALID[/bold green]: {text}")
        case False:
            console.print(
                f"[bold red]INVALID[/bold red]: {len(verdict.anomalies)} promises were broken"
            )
        case None:
            of = f" of {', '.join(promises.idle)}" if promises.idle else ""
            console.print(
                f"[bold yellow]UNKNOWN[/bold yellow]: nothing{of} was acknowledged, the run proves nothing"
            )
