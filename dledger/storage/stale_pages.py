"""Bytes of the log that the system need not keep in memory: those far behind its end (docs/adr/0239).

The system keeps what was written until its memory is full. On most virtual machines memory is backed only when it is
touched, and a fresh page then costs its writer several times the write. So a log that grows fast gives pages back and
gets them again, still backed. What a late reader is about to read stays, as long as it goes on reading. Bytes are given
up once: whoever reads further back reads from the device, and brings back what stays as long as the system likes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dledger.raft.ids import Position
from dledger.storage.api import Disk
from dledger.storage.segment_list import SegmentList

STEP_BYTES: Final = 2 * 1024 * 1024
"""Given up at once, from a multiple of it in a file to another one: a page may be as large (Linux: a folio), and one
that is given up in part stays. A step takes the disk's thread some 0.15 ms."""

KEPT_BYTES_MIN: Final = 1024 * 1024 * 1024
"""As much as a connected follower may lack (`catch_up_bytes_max`)."""

MEMORY_SHARE: Final = 16

READER_BYTES: Final = 256 * 1024 * 1024
"""A reader is one that goes on: it was seen while the log grew by so much, or by twice as much."""

GIVEN_UP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Given up with one batch, which has 4 MiB at most: once a late reader is gone there may be much."""


def usual_kept_bytes(disk: Disk) -> int:
    """Return how much of a log stays in memory unless somebody says otherwise."""
    return max(KEPT_BYTES_MIN, disk.memory_bytes() // MEMORY_SHARE)


_NOBODY: Final = Position(1 << 63)


@dataclass(frozen=True, slots=True)
class StaleRange:
    """Some bytes of a data file, all of them written and synced."""

    path: str
    offset: int
    size_bytes: int

    def give_up(self, disk: Disk) -> None:
        """Tell the system; in any thread, hence with a descriptor of its own."""
        # The segment is forgotten, or descriptors are short: the system gives pages up by itself in its time.
        with suppress(OSError):
            file = disk.open(self.path)
            try:
                file.give_up_pages(self.offset, self.size_bytes)
            finally:
                file.close()


class StalePages:
    """The end of what was given up of a log. Used by the log's owner."""

    def __init__(self, end: Position, kept_bytes: int) -> None:
        """Begin with a log that was opened: of what stands in it nothing is given up.

        Args:
            end: of the log.
            kept_bytes: so many bytes before the log's end stay as they are.
        """
        self._end = end
        self._kept_bytes = kept_bytes
        self._read_since = end  # the log ended there when `_lowest_read` was begun
        self._lowest_read = self._lowest_read_before = _NOBODY

    def begin(self, position: Position) -> None:
        """Begin with another log, which begins there."""
        self._end = self._read_since = position
        self._lowest_read = self._lowest_read_before = _NOBODY

    def note_reader(self, position: Position) -> None:
        """Note that somebody reads on from a position: what follows stays for a while."""
        self._lowest_read = min(self._lowest_read, position)

    def take(self, row: SegmentList, end: Position) -> list[StaleRange]:
        """Return what is to be given up, once, now that the log ends there; mostly nothing."""
        if end - self._read_since >= READER_BYTES:
            self._lowest_read_before, self._lowest_read = self._lowest_read, _NOBODY
            self._read_since = end
        start = max(self._end, row[0].first_position)
        stale_end = min(
            end - self._kept_bytes,
            self._lowest_read,
            self._lowest_read_before,
            start + GIVEN_UP_BYTES_MAX,
        )
        if stale_end - start < STEP_BYTES:
            return []
        segment, _ = row.find(Position(stale_end))
        stale_end = Position(stale_end - (stale_end - segment.first_position) % STEP_BYTES)
        self._end = max(self._end, stale_end)
        return [
            StaleRange(
                segment.paths.data_path(segment.first_position),
                first - segment.first_position,
                size_bytes,
            )
            for first, size_bytes, segment in row.pieces(start, stale_end - start)
        ]
