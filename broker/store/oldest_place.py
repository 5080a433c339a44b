"""The oldest of many places in the log that come and go in any order, roughly: to a bucket of 64 KiB.

Counts per bucket instead of a sorted copy of all places, since a million timers may be pending. Equal on every replica
that has taken in the same places, whatever it dropped before.
"""

from __future__ import annotations

from typing import Final

from dledger_mq.message.numbers import PhysicalOffset

BUCKET_BITS: Final = 16


class OldestPlace:
    """Counts places by bucket. Invariant: every count is at least 1."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, physical_offset: PhysicalOffset) -> None:
        """Take in a place."""
        bucket = physical_offset >> BUCKET_BITS
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def remove(self, physical_offset: PhysicalOffset) -> None:
        """Drop a place that was taken in."""
        bucket = physical_offset >> BUCKET_BITS
        left = self._counts[bucket] - 1
        if left:
            self._counts[bucket] = left
        else:
            del self._counts[bucket]

    def clear(self) -> None:
        """Drop all places."""
        self._counts.clear()

    def first(self) -> PhysicalOffset | None:
        """Return where the bucket of the oldest place begins; None when there is no place."""
        oldest = min(self._counts, default=None)
        return None if oldest is None else PhysicalOffset(oldest << BUCKET_BITS)
