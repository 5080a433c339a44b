"""Figures over time, in bounded memory: a ring of samples for each name, and rates from counters. Pure.

It must not know who looks, nor where a figure comes from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping
from typing import Final

SAMPLES_MAX: Final = 900
SERIES_MAX: Final = 512
RATES_MAX: Final = 65_536
"""Counters that are remembered; whoever names more has them without a rate."""


class SampleHistory:
    """The last samples of some series, all taken at the same times.

    Attributes:
        times_ms: when each sample was taken, the oldest first.
    """

    def __init__(self, samples_max: int = SAMPLES_MAX, series_max: int = SERIES_MAX) -> None:
        self.times_ms = array("q")
        self._samples_max = samples_max
        self._series_max = series_max
        self._series: dict[str, array[float]] = {}

    def add(self, at_ms: int, values: Mapping[str, float | None]) -> None:
        """Note what was measured; a series without a value has a gap, and one of which nothing is left is dropped."""
        self.times_ms.append(at_ms)
        for name in values.keys() - self._series.keys():
            if len(self._series) < self._series_max:
                self._series[name] = array("d", [math.nan]) * (len(self.times_ms) - 1)
        for name, series in list(self._series.items()):
            value = values.get(name)
            series.append(math.nan if value is None else value)
            del series[: -self._samples_max]
            if all(map(math.isnan, series)):
                del self._series[name]
        del self.times_ms[: -self._samples_max]

    def series(self, name: str) -> array[float]:
        """Return the samples of a series, one for each time; NaN where there was none."""
        found = self._series.get(name)
        return array("d", [math.nan]) * len(self.times_ms) if found is None else found

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all series that begin with a prefix, sorted."""
        return tuple(sorted(name for name in self._series if name.startswith(prefix)))


class Rates:
    """The growth of counters per second, between the last two times that each was seen."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, int, float | None]] = {}

    def note(self, name: Hashable, at_ms: int, count: int) -> float | None:
        """Note a counter, and return its rate; None: seen for the first time, or it has gone back."""
        known = self._seen.get(name)
        if known is None and len(self._seen) >= RATES_MAX:
            return None
        rate = None
        if known is not None and at_ms > known[0] and count >= known[1]:
            rate = (count - known[1]) * 1000 / (at_ms - known[0])
        self._seen[name] = (at_ms, count, rate)
        return rate

    def rate(self, name: Hashable) -> float | None:
        """Return the last rate of a counter; None: there is none yet."""
        known = self._seen.get(name)
        return None if known is None else known[2]

    def forget_before(self, at_ms: int) -> None:
        """Drop the counters that were last seen before a time: their topics and groups are gone."""
        self._seen = {name: seen for name, seen in self._seen.items() if seen[0] >= at_ms}
