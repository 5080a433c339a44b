"""The segments of a log in order, and which of their files are open.

It knows positions and no entries; what stands in a segment is the index's and the reader's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from dledger.raft.ids import Index, Position
from dledger.storage.api import Disk, File
from dledger.storage.read_errors import is_shortage
from dledger.storage.segment import Segment

OPEN_SEGMENTS_MAX = 64
"""Finished segments whose data file is kept open for reading."""


class SegmentList:
    """Used by the log's owner only; the writer gets single segments.

    Invariants: first positions ascend without gaps; only the last segment is written to.
    """

    __slots__ = ("_disk", "_firsts", "_readers", "_segments")

    def __init__(self, disk: Disk, segments: list[Segment]) -> None:
        self._disk = disk
        self._segments = segments
        self._firsts = [segment.first_position for segment in segments]
        self._readers: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def last(self) -> Segment | None:
        """The segment that is written to; None in a log that never had an entry."""
        return self._segments[-1] if self._segments else None

    def find(self, position: Position) -> tuple[Segment, Index | None]:
        """Return the segment that holds a position, and the next one's first index: there its entries end."""
        place = bisect_right(self._firsts, position) - 1
        assert place >= 0, f"position {position} lies before the first segment"
        following = place + 1
        is_last = following == len(self._segments)
        return self._segments[place], None if is_last else self._segments[following].first_index

    def pieces(self, position: Position, size_bytes: int) -> list[tuple[Position, int, Segment]]:
        """Return where some bytes of the log begin in each segment that has some, how many these are, and it."""
        found: list[tuple[Position, int, Segment]] = []
        place = bisect_right(self._firsts, position) - 1
        assert place >= 0, f"position {position} lies before the first segment"
        start, end = position, position + size_bytes
        while start < end:
            following = place + 1
            stop = min(end, self._firsts[following]) if following < len(self._firsts) else end
            found.append((start, stop - start, self._segments[place]))
            start, place = Position(stop), following
        return found

    def add(self, segment: Segment) -> None:
        """Put a segment after the last one."""
        if self._segments:
            last = self._segments[-1]
            assert segment.first_position > last.first_position, (
                f"a segment at {segment.first_position} after one at {last.first_position}"
            )
            assert segment.first_index > last.first_index, (
                f"a segment from entry {segment.first_index} after one from {last.first_index}"
            )
        self._segments.append(segment)
        self._firsts.append(segment.first_position)

    def cut(self, position: Position) -> tuple[Segment, tuple[Segment, ...]]:
        """Take out the segments after a position.

        Returns:
            The segment that holds the position, now the last, and those taken out, from the end.
        """
        place = bisect_right(self._firsts, position) - 1
        assert place >= 0, f"position {position} lies before the first segment"
        removed = tuple(reversed(self._segments[place + 1 :]))
        del self._segments[place + 1 :]
        del self._firsts[place + 1 :]
        kept = {id(segment) for segment in self._segments[:-1]}
        self._readers = deque(each for each in self._readers if id(each) in kept)
        return self._segments[place], removed

    def count_before(self, index: Index) -> int:
        """Return how many segments lie wholly before an entry. The last two stay: a batch may be at work on them."""
        return max(
            0,
            min(bisect_right(self._segments, index, key=_first_index) - 1, len(self._segments) - 2),
        )

    def __getitem__(self, place: int) -> Segment:
        return self._segments[place]

    def take_front(self, count: int) -> None:
        """Take out so many segments at the front, and close their files."""
        assert 0 <= count < len(self._segments), f"{count} of {len(self._segments)} segments"
        removed = {id(segment) for segment in self._segments[:count]}
        self._readers = deque(each for each in self._readers if id(each) not in removed)
        for segment in self._segments[:count]:
            segment.close()
        del self._segments[:count]
        del self._firsts[:count]

    def take_all(self) -> None:
        """Take out all segments, and close their files."""
        self.close()
        self._segments.clear()
        self._firsts.clear()

    def open_data(self, segment: Segment, *, to_write: bool = False) -> File:
        """Return the data file of a segment, opened when needed; the one opened first is closed for it.

        Where the system gives no more descriptors, all others that are only read are. If it is `to_write`, it then
        gets one that the disk keeps for that.

        Raises:
            OSError: it cannot be opened.
        """
        is_to_read = segment.data is None and segment is not self._segments[-1]
        while segment.data is None:
            try:
                segment.open_data(self._disk)
            except OSError as error:
                if not is_shortage(error):
                    raise
                if self._readers:
                    self._readers.popleft().close_data()
                elif not (to_write and self._open_as_new(segment)):
                    raise
        if is_to_read:
            self.note_finished(segment)
        return segment.data

    def _open_as_new(self, segment: Segment) -> bool:
        """Open a data file that is there as if it were to be made, for which the disk keeps descriptors."""
        path = segment.paths.data_path(segment.first_position)
        if self._disk.exists(path):
            segment.data = self._disk.open(path, create=True)
        return segment.data is not None

    def note_finished(self, segment: Segment) -> None:
        """Note that the segment's data file is open and is only read from now on."""
        assert segment is not self._segments[-1], f"{segment.first_position} is written to"
        if len(self._readers) >= OPEN_SEGMENTS_MAX:
            self._readers.popleft().close_data()
        self._readers.append(segment)

    def close(self) -> None:
        """Close all files."""
        self._readers.clear()
        for segment in self._segments:
            segment.close()


def _first_index(segment: Segment) -> Index:
    return segment.first_index
