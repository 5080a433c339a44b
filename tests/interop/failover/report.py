"""The report of a measurement: a table for people, values for programs. It must not know how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from jepsen.checkers.percentiles import percentile
from tests.interop.failover.judgement import Round, Verdict

_HEADINGS = (
    *(
        "client",
        "acked",
        "failed",
        "in flight",
        "p50 s",
        "p99 s",
        "max s",
        "caught",
        "p99 of others",
    ),
    *("lost", "twice", "disorder", "moved"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One stream: which client, whether it has an order, and what came of it."""

    client: str
    is_ordered: bool
    verdict: Verdict

    def as_json(self) -> dict[str, object]:
        gaps_s = self.verdict.gaps_s
        return {"client": self.client, "is_ordered": self.is_ordered, **asdict(self.verdict)} | {
            "gap_p50_s": _ranked(gaps_s, 50, 3),
            "gap_p99_s": _ranked(gaps_s, 99, 3),
            "gap_p99_of_others_s": _ranked(self.verdict.gaps_of_others_s, 99, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement.

    Attributes:
        conditions: what was measured, and on what.
    """

    conditions: dict[str, object]
    rounds: Sequence[Round]
    rows: Sequence[Row]

    def as_json(self) -> dict[str, object]:
        return {
            "conditions": self.conditions,
            "rounds": [asdict(each) for each in self.rounds],
            "streams": [row.as_json() for row in self.rows],
        }

    def print(self, console: Console) -> None:
        """Print a row per stream, and below it what its application was told.

        failed: sends that ended in an error, without those `in flight` at the fault. caught: rounds in which the fault
        met a send in flight that then waited in vain. twice: acknowledged, and stored more than once. disorder: stored
        in a queue after a later one of its shard. moved: shards that stand in several queues.
        """
        console.print(", ".join(f"{name} {value}" for name, value in self.conditions.items()))
        table = Table(title="Longest time without an acknowledged send, by rounds")
        for heading in _HEADINGS:
            table.add_column(heading)
        for row in self.rows:
            found, gaps_s = row.verdict, row.verdict.gaps_s
            table.add_row(
                f"{row.client}{' ordered' if row.is_ordered else ''}",
                *(str(count) for count in (found.acknowledged, found.failed, found.in_flight)),
                *(str(_ranked(gaps_s, percent, 2)) for percent in (50, 99)),
                f"{max(gaps_s, default=0.0):.2f}",
                str(sum(found.caught)),
                str(_ranked(found.gaps_of_others_s, 99, 2)),
                *(str(count) for count in (found.lost, found.duplicated)),
                "-" if found.disorders is None else str(found.disorders),
                str(found.moved_shards) if row.is_ordered else "-",
            )
        console.print(table)
        for row in self.rows:
            for text, count in row.verdict.texts.items():
                console.print(f"{row.client}: {count} times {text}", markup=False, highlight=False)


def _ranked(gaps_s: Sequence[float], percent: int, digits: int) -> float | None:
    """Return a percentile of gaps; None if there are none, as when every round met a send in flight."""
    return round(percentile(gaps_s, percent), digits) if gaps_s else None
