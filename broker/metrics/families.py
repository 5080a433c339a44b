"""Families of series that all carry the labels of one node, in parts of bounded size, and not too many of each.

It must not know what is counted, nor how it is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from dledger.runtime.durations import Durations

PART_SERIES: Final = 128
"""Series of one part: a millisecond or so until they are text."""

Row = tuple[Sequence[str], float]
"""The values of a family's own labels, and the figure."""


class Families:
    """Makes the families of one node.

    Attributes:
        left_out: how many series of which family were over the limit when it was made last.
    """

    def __init__(self, labels: Mapping[str, str], *, series_max: int) -> None:
        """Set up for one node.

        Args:
            labels: in front of those of each family.
            series_max: of one family; more are left out and counted.
        """
        assert series_max > 0, f"a family of {series_max} series"
        self.left_out: dict[str, int] = {}
        self._names = tuple(labels)
        self._values = tuple(labels.values())
        self._series_max = series_max

    def gauge(self, name: str, meaning: str, value: float) -> Metric:
        """Return a figure that may fall."""
        family = GaugeMetricFamily(name, meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def counter(self, name: str, meaning: str, value: float) -> Metric:
        """Return a figure that only grows; its name is shown with `_total`."""
        family = CounterMetricFamily(name, meaning, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def gauges(
        self, name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]
    ) -> Iterator[Metric]:
        """Return such figures, one for each row; without a row the name is given still."""
        return self._in_parts(GaugeMetricFamily, name, meaning, labels=labels, rows=rows)

    def counters(
        self, name: str, meaning: str, labels: Sequence[str], rows: Iterable[Row]
    ) -> Iterator[Metric]:
        """Return such figures, one for each row; without a row the name is given still."""
        return self._in_parts(CounterMetricFamily, name, meaning, labels=labels, rows=rows)

    def _in_parts(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        meaning: str,
        *,
        labels: Sequence[str],
        rows: Iterable[Row],
    ) -> Iterator[Metric]:
        """Return families with at most PART_SERIES series each, at most `series_max` together."""
        names, every = (*self._names, *labels), iter(rows)
        left = self._series_max
        while True:
            family = kind(name, meaning, labels=names)
            count = 0
            for values, figure in islice(every, min(left, PART_SERIES)):
                family.add_metric((*self._values, *values), figure)
                count += 1
            left -= count
            if count or left == self._series_max:
                yield family
            if count < PART_SERIES:
                break
        self.note_left_out(name, sum(1 for _ in every) if not left else 0)

    def note_left_out(self, name: str, count: int) -> None:
        """Note how many series of a family are over the limit; 0: none any more."""
        self.left_out.pop(name, None)
        if count:
            self.left_out[name] = count

    def histograms(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str],
        rows: Iterable[tuple[Sequence[str], Durations]],
        *,
        in_seconds: bool,
    ) -> Iterator[Metric]:
        """Return histograms, one part for each row; in milliseconds, as RocketMQ's are, or in seconds."""
        scale = 1000.0 if in_seconds else 1.0
        names, is_first = (*self._names, *labels), True
        for values, durations in rows:
            family = HistogramMetricFamily(name, meaning, labels=names)
            buckets = [
                ("+Inf" if bound == inf else f"{bound / scale:g}", count)
                for bound, count in durations.cumulative()
            ]
            family.add_metric((*self._values, *values), buckets, durations.total_ms / scale)
            yield family
            is_first = False
        if is_first:
            yield HistogramMetricFamily(name, meaning, labels=names)
