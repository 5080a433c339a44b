"""One pair of counters over the last minute, hour and day, as tools read them (315). Pure.

Samples are taken now and then, and kept where something has changed: what is idle costs nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_SPANS: Final = ((MINUTE_MS, 10_000), (HOUR_MS, 600_000), (DAY_MS, HOUR_MS))
"""Each span, and the distance of its samples, as RocketMQ has them."""


class Totals(NamedTuple):
    """A pair of counters: messages and their bytes; it only grows."""

    messages: int
    size_bytes: int


class Growth(NamedTuple):
    """The growth of a pair within a span.

    Attributes:
        span_ms: the span, or less if nobody has counted for so long.
    """

    messages: int
    size_bytes: int
    span_ms: int

    @property
    def per_second(self) -> float:
        """The messages by second."""
        return self.messages * 1000 / self.span_ms if self.span_ms else 0.0


class CounterWindows:
    """The samples of one pair of counters.

    Invariants: times and totals of each span's samples rise; of those older than the span only the newest is kept.
    """

    __slots__ = ("_samples", "last_ms")

    def __init__(self, begun_ms: int, begun: Totals) -> None:
        """Begin to count with what there was at a time."""
        self._samples = [deque([(begun_ms, begun)]) for _ in _SPANS]
        self.last_ms = begun_ms

    @property
    def latest(self) -> Totals:
        """The counters as they were sampled last."""
        return self._samples[0][-1][1]

    def sample(self, now_ms: int, totals: Totals) -> None:
        """Note the counters, if they have changed."""
        for samples, (span_ms, distance_ms) in zip(self._samples, _SPANS, strict=True):
            last_ms, last = samples[-1]
            if totals != last and (now_ms - last_ms >= distance_ms or span_ms == MINUTE_MS):
                samples.append((now_ms, totals))
                self.last_ms = now_ms
            while len(samples) > 1 and samples[1][0] <= now_ms - span_ms:
                samples.popleft()

    def growth(self, now_ms: int, now: Totals) -> tuple[Growth, Growth, Growth]:
        """Return how much they have grown within the last minute, hour and day."""
        minute, hour, day = (
            _growth(samples, span, now_ms, now)
            for samples, span in zip(self._samples, _SPANS, strict=True)
        )
        return minute, hour, day


def _growth(
    samples: deque[tuple[int, Totals]], span: tuple[int, int], now_ms: int, now: Totals
) -> Growth:
    """Count from the newest sample that is as old as the span; from the oldest if none is.

    What it says held until the look before the next sample. If the span begins between these two looks, nobody knows
    how much came before: all of it is counted, and the time from the earlier look on.
    """
    span_ms, distance_ms = span
    begin_ms = now_ms - span_ms
    at = 0
    while at + 1 < len(samples) and samples[at + 1][0] <= begin_ms:
        at += 1
    first_ms, first = samples[at]
    if at + 1 < len(samples):
        begin_ms = min(begin_ms, samples[at + 1][0] - distance_ms)
    return Growth(
        max(0, now.messages - first.messages),
        max(0, now.size_bytes - first.size_bytes),
        now_ms - max(first_ms, begin_ms),
    )
