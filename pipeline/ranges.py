"""Ranges of queues, split and packed into the partitions of tasks. Pure.

A Python task costs 30 to 100 ms whatever it reads, so one task reads several queues. The plan depends on
nothing but start, end and the options: a batch that is run again gives the same rows to the same partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Offsets `start` to `end` of a queue, without `end`.

    Invariant: start <= end.
    """

    queue: MessageQueue
    start: QueueOffset
    end: QueueOffset

    def __post_init__(self) -> None:
        assert self.start <= self.end, f"{self} ends before it starts"

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


def ranges_between(
    start: Mapping[MessageQueue, QueueOffset], end: Mapping[MessageQueue, QueueOffset]
) -> list[QueueRange]:
    """Return the ranges between two sets of offsets, in order of their queues; empty ones are left out.

    `start` has every queue of `end`.
    """
    return [
        QueueRange(queue, start[queue], end[queue])
        for queue in sorted(end)
        if end[queue] > start[queue]
    ]


def split(ranges: Iterable[QueueRange], parts_min: int) -> list[QueueRange]:
    """Cut large ranges, so that there are about `parts_min` of nearly one size."""
    whole = list(ranges)
    total = sum(map(len, whole))
    if len(whole) >= parts_min or not total:
        return whole
    parts: list[QueueRange] = []
    for one in whole:
        count = min(max(round(parts_min * len(one) / total), 1), len(one))
        cuts = [one.start + len(one) * place // count for place in range(count + 1)]
        parts.extend(
            replace(one, start=QueueOffset(first), end=QueueOffset(last))
            for first, last in pairwise(cuts)
        )
    assert sum(map(len, parts)) == total, f"{sum(map(len, parts))} of {total} offsets are left"
    return parts


def pack(ranges: Iterable[QueueRange], bins_max: int) -> list[tuple[QueueRange, ...]]:
    """Distribute ranges over at most `bins_max` bins of similar size; in a bin they are in order."""
    by_size = sorted(ranges, key=lambda one: (-len(one), one))
    count = min(bins_max, len(by_size))
    lightest = [(0, place) for place in range(count)]
    bins: list[list[QueueRange]] = [[] for _ in range(count)]
    for one in by_size:
        size, place = heapq.heappop(lightest)
        bins[place].append(one)
        heapq.heappush(lightest, (size + len(one), place))
    return [tuple(sorted(each)) for each in bins]


def plan(
    start: Mapping[MessageQueue, QueueOffset],
    end: Mapping[MessageQueue, QueueOffset],
    *,
    bins_max: int,
    parts_min: int | None,
) -> list[tuple[QueueRange, ...]]:
    """Return the partitions of a batch: each a tuple of ranges."""
    ranges = ranges_between(start, end)
    if parts_min is not None:
        ranges = split(ranges, parts_min)
    return pack(ranges, max(bins_max, parts_min or 0))


def describe(ranges: Sequence[QueueRange]) -> str:
    """Return a short text for errors."""
    more = f" and {len(ranges) - 3} more" if len(ranges) > 3 else ""
    return ", ".join(map(str, ranges[:3])) + more
