"""Parts of the log in memory, shared by all who read: at most so many bytes, those that were used last.

A part is PART_BYTES of the log, from a multiple of that on, with the headers of the entries in it. At the ends of the
log, and where only some of its entries were read, it is a stretch of that. Beside the parts stand bodies of single
entries, which were read for themselves. Only what was verified comes in, and what is committed never changes, so
nothing here is ever out of date.

The checksum of each whole part is kept longer than the part itself: whoever needs it again reads the part alone,
compares, and verifies none of its entries a second time (docs/adr/0192).

Nothing here knows files, or which entries there are.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, NamedTuple

from dledger.raft.entry import BodySpan
from dledger.raft.ids import Index, Position

PART_BITS: Final = 16
PART_BYTES: Final = 1 << PART_BITS
"""A part that is read for one message costs some 8 us, of which half would be spent on 16 KiB, too."""

GROUP_BITS: Final = 8
"""Checksums are kept and forgotten in groups: of 256 parts, 16 MiB of the log."""

GROUPS_MAX: Final = 2048
"""Groups of checksums that are remembered, for 32 GiB of the log: 2 KiB each, 4 MiB in all."""

_KNOWN: Final = 1 << 32
_GROUP: Final = (1 << GROUP_BITS) - 1
_NOTHING: Final = array("Q", bytes(8 << GROUP_BITS))


class LogPart(NamedTuple):
    """Verified bytes of one part.

    Attributes:
        position: of the first of them in the log.
        view: the bytes.
        checksum: the CRC32C of them; None if they are not the whole part.
    """

    position: Position
    view: memoryview
    checksum: int | None


class PartCache:
    """The parts and bodies, the one used last at the end.

    Invariants: `_bytes` is the size of all that is kept, and at most `bytes_max` unless that is one piece; at most
    GROUPS_MAX groups of checksums.
    """

    __slots__ = ("_bytes", "_groups", "_kept", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        # Parts by their number, and bodies by the complement of their entry's index.
        self._kept: OrderedDict[int, tuple[Position, memoryview]] = OrderedDict()
        self._bytes = 0
        self._groups: OrderedDict[int, array[int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is kept."""
        return self._bytes

    def get(self, number: int) -> tuple[Position, memoryview] | None:
        """Return what is kept of a part, and the position of its first byte; None: nothing."""
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
        return kept

    def body(self, index: Index) -> tuple[Position, memoryview] | None:
        """Return the body of an entry, and its position; None: it is not kept for itself."""
        return self.get(~index)

    def has(self, number: int, start: int, end: int) -> bool:
        """Return whether these bytes, which stand in one part, are kept with it."""
        kept = self._kept.get(number)
        return kept is not None and kept[0] <= start and end <= kept[0] + len(kept[1])

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def put(self, part: LogPart) -> None:
        """Take in a part, unless more of it is kept, and its checksum."""
        number = part.position >> PART_BITS
        kept = self._kept.get(number)
        if kept is None or len(kept[1]) < len(part.view):
            self._keep(number, part.position, part.view)
        if part.checksum is not None:
            self._remember(number, part.checksum)

    def put_body(self, index: Index, body: BodySpan) -> None:
        """Take in the body of a verified entry."""
        self._keep(~index, body.position, memoryview(body.data))

    def checksum(self, number: int) -> int | None:
        """Return the CRC32C of a whole part; None: it is not known."""
        group = self._groups.get(number >> GROUP_BITS)
        value = group[number & _GROUP] if group is not None else 0
        return value ^ _KNOWN if value else None

    def clear(self) -> None:
        """Forget everything, checksums, too: the log begins anew."""
        self._kept.clear()
        self._groups.clear()
        self._bytes = 0

    def _keep(self, key: int, position: Position, view: memoryview) -> None:
        """Keep a piece; those that were not used for longest make room."""
        kept = self._kept
        before = kept.pop(key, None)
        kept[key] = (position, view)
        self._bytes += len(view) - (len(before[1]) if before is not None else 0)
        while self._bytes > self.bytes_max and len(kept) > 1:
            _, (_, dropped) = kept.popitem(last=False)
            self._bytes -= len(dropped)

    def _remember(self, number: int, checksum: int) -> None:
        groups, at = self._groups, number >> GROUP_BITS
        group = groups.get(at)
        if group is None:
            group = groups[at] = _NOTHING[:]
            if len(groups) > GROUPS_MAX:
                groups.popitem(last=False)
        group[number & _GROUP] = checksum | _KNOWN
