"""Figures of a system in parts of the machine's own, measured just before: they differ less from hour to hour.

A ratio that is far above the usual one is a warning and no failure: what else goes on on the machine can do that, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.compare.results import SystemResult
from bench.floor import Floor
from bench.load.results import Measured

USUAL_PARSES: Final[Mapping[str, float]] = {"async-64": 14, "async-1024": 8, "batch": 7}
"""Rows whose price is the leader's processor time, and how many header and body floors that is on a busy machine."""

USUAL_WRITES: Final[Mapping[str, float]] = {"sync-1": 8}
"""Rows whose price is the wait for the disk and the network, and how many durable writes and round trips that is."""

OURS: Final = "ours"
WARN_FROM: Final = 2.0
"""Times the usual."""


@dataclass(frozen=True, slots=True)
class FloorRatio:
    """One row in parts of the floor."""

    row: str
    what: str
    times: float
    usual: float

    @property
    def is_high(self) -> bool:
        """It is far above the usual."""
        return self.times > WARN_FROM * self.usual

    @property
    def text(self) -> str:
        """Return it as a line."""
        warning = "WARNING: " if self.is_high else ""
        return f"{warning}{self.row}: {self.what} is {self.times:.1f} floors (usual {self.usual:g})"


def write_floor_us(floor: Floor) -> float:
    """Return the least that an acknowledgement can take: a write, and the ways to the leader and to a follower."""
    return floor.write_us + 2 * floor.round_trip_us


def floor_ratios(system: SystemResult) -> list[FloorRatio]:
    """Return the rows that have a usual ratio, which is that of our own brokers; pure."""
    if system.floor is None or system.name != OURS:
        return []
    found: list[FloorRatio] = []
    for row in system.rows:
        if row.measured is None or row.problem is not None:
            continue
        p50_us = row.measured.over(lambda each: each.p50_us).median
        if row.row in USUAL_WRITES:
            times = p50_us / write_floor_us(system.floor)
            found.append(FloorRatio(row.row, "p50", times, USUAL_WRITES[row.row]))
        elif row.row in USUAL_PARSES and (leader_us := _leader_us(row.measured)):
            times = leader_us / system.floor.parse_us
            what = "the leader's time of a message"
            found.append(FloorRatio(row.row, what, times, USUAL_PARSES[row.row]))
    return found


def _leader_us(figures: Measured) -> float | None:
    return figures.leader_us.median if figures.leader_us else None
