"""The finished parts of a log: runs of entries whose places are looked up instead of kept in memory.

The core and the store remember where entries stand (`log_layout`). What they keep of a finished part is who to ask; the
part itself, and what it reads, is the store's. A part never changes: it joins the row, and leaves it at either end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from dledger.raft.ids import Index, Position


class FinishedEntries(Protocol):
    """A finished run of entries. What is looked up may have to be read, and can be lost: then the node must stop.

    Lookups raise DiskFailedError when nothing can tell any more where the entries stand, and OSError when nothing can
    tell it now.
    """

    @property
    def first_index(self) -> Index:
        """The first of the entries."""
        ...

    @property
    def end_index(self) -> Index:
        """One after the last of the entries."""
        ...

    @property
    def first_position(self) -> Position:
        """The place of the first entry."""
        ...

    @property
    def end_position(self) -> Position:
        """The place where the last entry ends."""
        ...

    def index_at(self, position: Position) -> Index:
        """Return the entry whose header or body covers this byte, which is one of the part's."""
        ...

    def positions(self, first: Index, end: Index) -> array[int]:
        """Return the places of the entries first..end-1, which are the part's."""
        ...


PartT = TypeVar("PartT", bound=FinishedEntries)


class FinishedRow(Generic[PartT]):
    """Finished parts in order, without gaps."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[PartT] = []

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def last(self) -> PartT | None:
        """The last part; None of an empty row."""
        return self._parts[-1] if self._parts else None

    def add(self, part: PartT) -> None:
        """Put a part after the last one."""
        if self._parts:
            last = self._parts[-1]
            assert (part.first_index, part.first_position) == (last.end_index, last.end_position), (
                f"a part from entry {part.first_index} after one up to {last.end_index - 1}"
            )
        assert part.first_index < part.end_index, f"no entries from {part.first_index} on"
        self._parts.append(part)

    def find(self, index: Index) -> PartT:
        """Return the part that has an entry."""
        place = bisect_right(self._parts, index, key=_first_index) - 1
        assert place >= 0, f"entry {index} stands before the finished ones"
        part = self._parts[place]
        assert index < part.end_index, f"entry {index} is not finished"
        return part

    def pieces(self, first: Index, end: Index) -> Iterator[tuple[PartT, Index, Index]]:
        """Yield each part that has some of the finished entries first..end-1, with the first of these and their end."""
        while first < end:
            part = self.find(first)
            stop = min(end, part.end_index)
            yield part, first, stop
            first = stop

    def find_at(self, position: Position) -> PartT:
        """Return the part that covers a byte of the log."""
        place = bisect_right(self._parts, position, key=_first_position) - 1
        assert place >= 0, f"byte {position} stands before the finished entries"
        part = self._parts[place]
        assert position < part.end_position, f"byte {position} is not in a finished part"
        return part

    def between(self, start: Position, end: Position) -> list[PartT]:
        """Return the parts that have some of the bytes start..end-1 of the log."""
        low = bisect_right(self._parts, start, key=_end_position)
        high = bisect_left(self._parts, end, key=_first_position)
        return self._parts[low:high]

    def cut(self, first: Index) -> None:
        """Remove the part that has the entry `first`, and those after it."""
        while self._parts and self._parts[-1].end_index > first:
            self._parts.pop()

    def forget_before(self, first: Index) -> None:
        """Remove the parts that lie wholly before an entry."""
        count = bisect_right(self._parts, first, key=_end_index)
        del self._parts[:count]

    def clear(self) -> None:
        """Remove all parts."""
        self._parts.clear()

    def parts(self) -> list[PartT]:
        """Return the parts in order."""
        return self._parts[:]

    def copy(self) -> FinishedRow[PartT]:
        """Return a row of its own with the same parts."""
        twin: FinishedRow[PartT] = FinishedRow()
        twin._parts = self._parts[:]
        return twin


def _first_index(part: FinishedEntries) -> Index:
    return part.first_index


def _end_index(part: FinishedEntries) -> Index:
    return part.end_index


def _first_position(part: FinishedEntries) -> Position:
    return part.first_position


def _end_position(part: FinishedEntries) -> Position:
    return part.end_position
