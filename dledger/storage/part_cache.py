"""Parts of old entries in memory, shared by all who read: at most so many bytes, those that were used last.

An entry's body is cut into parts of PART_BYTES, the last one is shorter; a part is known by the position at which it
stands in the log. Only what was verified comes in, and what is committed never changes, so nothing here is ever out of
date. Of entries with several parts the checksum of each part is kept longer than the part itself: whoever needs it
again reads the part alone, and not the whole entry, whose own checksum covers everything.

Nothing here knows files, or which entries there are.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry
from dledger.raft.ids import Index, Position

PART_BYTES: Final = 64 * 1024
"""A part that holds one wanted message costs some 10 us, of which half would be spent on 4 KiB, too."""

CHECKSUMS_MAX: Final = 256 * 1024
"""Checksums of parts that are remembered, for 16 GiB of large entries: about 3 MB."""


@dataclass(frozen=True, slots=True)
class CutEntry:
    """A verified entry in parts, made in any thread.

    Attributes:
        checksums: of the parts; None if it has one part only, which the entry's own checksum covers.
    """

    index: Index
    parts: list[BodySpan]
    checksums: array[int] | None


def cut_entry(entry: Entry) -> CutEntry:
    """Cut a verified entry into parts."""
    body, start = entry.body, entry.position + ENTRY_HEADER_BYTES
    if len(body) <= PART_BYTES:
        return CutEntry(entry.index, [BodySpan(Position(start), body)] if body else [], None)
    parts = [
        BodySpan(Position(start + at), body[at : at + PART_BYTES])
        for at in range(0, len(body), PART_BYTES)
    ]
    return CutEntry(entry.index, parts, array("I", [crc32c(part.data) for part in parts]))


class PartCache:
    """The parts, the one used last at the end.

    Invariants: `_bytes` is the size of all parts, and at most `bytes_max` unless there is one part only.
    """

    __slots__ = ("_bytes", "_checksum_count", "_checksums", "_parts", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._parts: OrderedDict[Position, bytes] = OrderedDict()
        self._bytes = 0
        self._checksums: OrderedDict[Index, array[int]] = OrderedDict()
        self._checksum_count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts held."""
        return self._bytes

    def __contains__(self, position: Position) -> bool:
        return position in self._parts

    def get(self, position: Position) -> bytes | None:
        """Return the part that stands at a position; None when it is not held."""
        part = self._parts.get(position)
        if part is not None:
            self._parts.move_to_end(position)
        return part

    def put(self, part: BodySpan) -> None:
        """Take in a verified part; those that were not used for longest make room."""
        parts = self._parts
        before = parts.pop(part.position, b"")
        parts[part.position] = part.data
        self._bytes += len(part.data) - len(before)
        while self._bytes > self.bytes_max and len(parts) > 1:
            _, dropped = parts.popitem(last=False)
            self._bytes -= len(dropped)

    def checksums(self, index: Index) -> array[int] | None:
        """Return the checksums of an entry's parts; None when they are not known."""
        return self._checksums.get(index)

    def put_entry(self, entry: CutEntry) -> None:
        """Take in all parts of an entry, with their checksums."""
        for part in entry.parts:
            self.put(part)
        if entry.checksums is None:
            return
        self._checksum_count += len(entry.checksums) - len(self._checksums.pop(entry.index, ()))
        self._checksums[entry.index] = entry.checksums
        while self._checksum_count > CHECKSUMS_MAX and len(self._checksums) > 1:
            _, dropped = self._checksums.popitem(last=False)
            self._checksum_count -= len(dropped)
