"""Rates over the last 10 seconds, minute and ten minutes, as tools read them (28). Pure."""

from __future__ import annotations

from collections import deque

_WINDOWS_MS = (10_000, 60_000, 600_000)
SAMPLE_MS = 5_000


class RateWindows:
    """Samples of one counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def sample(self, now_ms: int, count: int) -> None:
        """Note the counter; called every SAMPLE_MS or so."""
        last_ms = self._samples[-1][0] if self._samples else now_ms
        assert now_ms >= last_ms, f"a sample of {now_ms} ms follows one of {last_ms} ms"
        self._samples.append((now_ms, count))
        while self._samples[0][0] < now_ms - _WINDOWS_MS[-1]:
            self._samples.popleft()

    def text(self) -> str:
        """Return the rates per second over 10 s, 1 min and 10 min, separated by blanks."""
        return " ".join(f"{self._per_second(window_ms):.2f}" for window_ms in _WINDOWS_MS)

    def _per_second(self, window_ms: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        last_ms, last = self._samples[-1]
        first_ms, first = next(s for s in self._samples if s[0] >= last_ms - window_ms)
        return (last - first) * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0
