"""How long sends took lately, in RocketMQ's 13 classes, as tools read them (28). Pure.

RocketMQ begins anew each minute, when it writes them into its log, and so does this: what is shown is of the minute
that runs.
"""

from __future__ import annotations

from typing import Final

from dledger.runtime.durations import Durations

PERIOD_MS: Final = 60_000
BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)

_NAMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)


class PutTimes:
    """Counts sends that were stored by the time from their arrival to their answer."""

    def __init__(self) -> None:
        self._durations = Durations(BOUNDS_MS)
        self._next_ms: int | None = None

    def add(self, took_ms: int, count: int) -> None:
        """Count so many sends that took so long each."""
        self._durations.add(took_ms, count)

    def sample(self, now_ms: int) -> None:
        """Begin anew where a minute is over; `now_ms` rises."""
        if self._next_ms is None:
            self._next_ms = now_ms + PERIOD_MS
        elif now_ms >= self._next_ms:
            self._next_ms = now_ms + PERIOD_MS
            self._durations = Durations(BOUNDS_MS)

    def text(self) -> str:
        """Return the classes as RocketMQ writes them: [<=0ms]:3 [0~10ms]:20 ... [10s~]:0."""
        pairs = zip(_NAMES, self._durations.counts, strict=True)
        return " ".join(f"[{name}]:{count}" for name, count in pairs)
