"""The time that members take to make entries durable, and the rule by which one is too slow for the others.

All are measured alike, the leader itself too: from the moment at which a member is given an entry until
it surely holds it. So a slow disk stands out beside the others, while a slow network, a busy machine or
a group whose disks are all slow does not: who leads changes nothing then.

Pure functions of what was measured, with the time as an argument. Choosing the member that is to lead instead is
transfer.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dledger.raft.ids import NO_INDEX, Index

FACTOR: Final = 4
"""A slow member takes so many times as long as the fastest majority of the others."""

SLOW_COUNT: Final = 3
"""Slow measures in a row that are no chance ..."""

SLOW_TIMES: Final = 10
"""... when they go on for so many times `slow_disk_ms`."""

STUCK_TIMES: Final = 7
"""An entry that is not durable after so many times `slow_disk_ms` is enough alone."""

FORGET_MS: Final = 30_000
"""Age from which on a measure says nothing of a disk."""

WEIGHT: Final = 0.25
"""Of the newest measure in the moving average."""


@dataclass(slots=True)
class SaveTimer:
    """The time that one member takes to save. One entry is timed at a time, as TCP times its segments.

    Attributes:
        slow_ms: a measure of so much is slow.
        measured_ms: when the latest measure ended; None: there is none.
        latest_ms, average_ms: of what was measured.
        slow_count: how many of the latest measures were slow, without a fast one between.
        slow_since_ms: when the first of these began.
        slow_least_ms: the shortest of these.
    """

    slow_ms: int
    measured_ms: int | None = None
    latest_ms: int = 0
    average_ms: float = 0.0
    slow_count: int = 0
    slow_since_ms: int = 0
    slow_least_ms: int = 0
    _index: Index = NO_INDEX
    _given_ms: int = 0

    def given(self, index: Index, now_ms: int) -> None:
        """Note that entries up to `index` were sent; they are timed unless earlier ones are still being timed."""
        if self._index == NO_INDEX:
            self._index = index
            self._given_ms = now_ms

    def holds(self, index: Index, now_ms: int) -> None:
        """Note that the member surely holds everything up to `index`."""
        if self._index == NO_INDEX or index < self._index:
            return
        self._index = NO_INDEX
        took_ms = now_ms - self._given_ms
        assert took_ms >= 0, f"entry {index} is durable {-took_ms} ms before it was given"
        is_first = self.measured_ms is None
        self.average_ms = (
            took_ms if is_first else self.average_ms + WEIGHT * (took_ms - self.average_ms)
        )
        self.measured_ms, self.latest_ms = now_ms, took_ms
        if took_ms < self.slow_ms:
            self.slow_count = 0
            return
        if not self.slow_count:
            self.slow_since_ms, self.slow_least_ms = self._given_ms, took_ms
        self.slow_count += 1
        self.slow_least_ms = min(self.slow_least_ms, took_ms)

    def waits_ms(self, now_ms: int) -> int:
        """Return for how many ms the timed entry has waited to become durable; 0 when none is timed."""
        return 0 if self._index == NO_INDEX else now_ms - self._given_ms

    def takes_ms(self, now_ms: int) -> int:
        """Return the save time in ms: the longest of the average, the last one and the present wait."""
        return max(round(self.average_ms), self.latest_ms, self.waits_ms(now_ms))

    def is_known(self, since_ms: int) -> bool:
        """Return whether anything was measured since then."""
        return self.measured_ms is not None and self.measured_ms >= since_ms


@dataclass(frozen=True, slots=True)
class Slowness:
    """A member that is too slow: how long it takes, and how long the fastest majority of the others."""

    own_ms: int
    others_ms: int


def leader_slowness(
    own: SaveTimer, others: Iterable[SaveTimer], *, majority: int, now_ms: int
) -> Slowness | None:
    """Return how slow a leader's disk is, if another member should lead because of that; else None.

    Only if a majority exists without it and has been faster all the while: where its own disk is needed
    for each commit, nothing is won by another leader.

    Args:
        own: of the leader itself.
        others: of the other voters.
        majority: how many voters each commit needs.
        now_ms: the time.
    """
    if own.slow_count >= SLOW_COUNT and now_ms - own.slow_since_ms >= SLOW_TIMES * own.slow_ms:
        since_ms, own_ms = own.slow_since_ms, own.slow_least_ms
    elif own.waits_ms(now_ms) >= STUCK_TIMES * own.slow_ms:
        own_ms = own.waits_ms(now_ms)
        since_ms = now_ms - own_ms
    else:
        return None
    others_ms = _majority_ms(others, majority=majority, since_ms=since_ms, now_ms=now_ms)
    return _beside(own_ms, others_ms)


def is_too_slow_to_lead(
    member: SaveTimer, others: Iterable[SaveTimer], *, majority: int, now_ms: int
) -> bool:
    """Return whether a member that could be given the lead would have to hand over before long.

    Args:
        member: the one in question.
        others: of all other voters, the leader included.
        majority: how many voters each commit needs.
        now_ms: the time.
    """
    since_ms = now_ms - FORGET_MS
    own_ms = member.takes_ms(now_ms) if member.is_known(since_ms) else member.waits_ms(now_ms)
    if own_ms < member.slow_ms:
        return False
    others_ms = _majority_ms(others, majority=majority, since_ms=since_ms, now_ms=now_ms)
    return _beside(own_ms, others_ms) is not None


def _majority_ms(
    others: Iterable[SaveTimer], *, majority: int, since_ms: int, now_ms: int
) -> int | None:
    """Return how many ms a commit takes without this node; None if too few others have confirmed anything since."""
    times_ms = sorted(other.takes_ms(now_ms) for other in others if other.is_known(since_ms))
    return times_ms[majority - 1] if len(times_ms) >= majority else None


def _beside(own_ms: int, others_ms: int | None) -> Slowness | None:
    if others_ms is None or own_ms < FACTOR * others_ms:
        return None
    return Slowness(own_ms, others_ms)
