"""A histogram of durations: how many there were of at most so long. Pure: who measures has the clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf


class Durations:
    """Durations in milliseconds, since the start; adding some costs the same however many there are.

    Attributes:
        bounds_ms: rising; a duration counts for the first bound that it does not exceed.
        counts: for each bound, and last those that exceed all.
        total_ms: of all durations together.
    """

    __slots__ = ("bounds_ms", "counts", "total_ms")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        assert sorted(set(bounds_ms)) == list(bounds_ms), f"the bounds {bounds_ms} do not rise"
        self.bounds_ms = tuple(bounds_ms)
        self.counts = [0] * (len(self.bounds_ms) + 1)
        self.total_ms = 0.0

    def add(self, took_ms: float, count: int = 1) -> None:
        """Count so many things that took so long each."""
        self.counts[bisect_left(self.bounds_ms, took_ms)] += count
        self.total_ms += took_ms * count

    @property
    def count(self) -> int:
        """The count of all durations."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return for each bound how many durations do not exceed it; the last bound is infinite."""
        return list(zip((*self.bounds_ms, inf), accumulate(self.counts), strict=True))
