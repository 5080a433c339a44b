"""How much happened in the last minute, and how long it took. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 60


@dataclass(slots=True)
class _Second:
    number: int
    count: int = 0
    calls: int = 0
    spent_s: float = 0.0


class Rate:
    """Counts by the second, for one minute."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque()

    def add(self, now_s: float, count: int, spent_s: float) -> None:
        """Count one call, of `count` messages or pulls."""
        number = int(now_s)
        if not self._seconds or self._seconds[-1].number != number:
            self._forget(number)
            self._seconds.append(_Second(number))
        last = self._seconds[-1]
        last.count += count
        last.calls += 1
        last.spent_s += spent_s

    def count(self, now_s: float) -> int:
        """Return the count of messages or pulls in the last minute."""
        self._forget(int(now_s))
        return sum(each.count for each in self._seconds)

    def mean_ms(self, now_s: float) -> float:
        """Return the mean time of a call of the last minute; 0 without any."""
        self._forget(int(now_s))
        calls = sum(each.calls for each in self._seconds)
        return 1000 * sum(each.spent_s for each in self._seconds) / calls if calls else 0.0

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0].number <= now - WINDOW_S:
            self._seconds.popleft()


@dataclass(frozen=True, slots=True)
class ConsumeRates:
    """The rates of a topic's messages: consumed, and failed."""

    consumed: Rate = field(default_factory=Rate)
    failed: Rate = field(default_factory=Rate)
