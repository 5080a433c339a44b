"""Places for the units of consume queues that no longer stay in memory; and those that a start finds in place.

Nothing here knows what a unit says of its message (broker/store/consume_queue.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

from crc32c import crc32c

from broker.store.emptying import emptied
from broker.store.places import MemoryPlace, PartPlace
from dledger.state_machine import KeptPart
from dledger_mq.message.numbers import QueueId, QueueOffset

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size

QueueKey = tuple[bytes, QueueId]
"""Topic as it stands in the records, and queue id."""


class UnitStore(PartPlace, Protocol):
    """The place for units that no longer stay in memory. It may lose everything at a restart."""

    def append(self, key: QueueKey, first: QueueOffset, units: bytes) -> None:
        """Keep whole units; `first` is the queue offset of the first, behind the last kept one.

        Those between, if there are any, are nowhere here, and nobody asks for them.

        Raises:
            NoRoomError: none of them is kept.
        """
        ...

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return `count` kept units from queue offset `first`.

        Raises:
            EntryDamagedError: they cannot be read now.
        """
        ...

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        """Return what `read` does, if that need not wait for the disk; None if it would, or nobody can tell."""
        ...

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        """Return work for any thread that brings these units into the system's memory. It never fails."""
        ...

    def read_beside(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return what `read` does, in any thread.

        Raises:
            OSError: they cannot be read; they may have been forgotten.
        """
        ...

    def trim(self, key: QueueKey, first: QueueOffset) -> None:
        """Forget the units before `first`, which is kept; those that share a file with it may stay."""
        ...

    def drop(self, key: QueueKey) -> None:
        """Forget all units of the queue; it may begin again at any offset."""
        ...


class MemoryUnitStore(MemoryPlace):
    """A `UnitStore` for tests and for brokers that keep everything in memory."""

    def __init__(self) -> None:
        self._kept: dict[QueueKey, bytearray] = {}
        self._firsts: dict[QueueKey, QueueOffset] = {}

    def append(self, key: QueueKey, first: QueueOffset, units: bytes) -> None:
        """Keep units; see `UnitStore`."""
        kept = self._kept.setdefault(key, bytearray())
        begin = self._firsts.setdefault(key, first)
        between = (first - begin) * UNIT_BYTES - len(kept)
        assert between >= 0, f"{key}: units must be spilled in order"
        kept += bytes(between) + units

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units; see `UnitStore`."""
        begin = self._firsts[key]
        assert begin <= first, f"{key}: unit {first} is forgotten, those from {begin} on are kept"
        return bytes(
            self._kept[key][(first - begin) * UNIT_BYTES : (first - begin + count) * UNIT_BYTES]
        )

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        """Return units; see `UnitStore`."""
        return self.read(key, first, count)

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        """Return nothing to do; see `UnitStore`."""
        return lambda: None

    def read_beside(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units; see `UnitStore`."""
        return self.read(key, first, count)

    def trim(self, key: QueueKey, first: QueueOffset) -> None:
        """Forget units; see `UnitStore`."""
        begin = self._firsts[key]
        assert begin <= first, (
            f"{key}: units before {begin} are forgotten, now those before {first}"
        )
        del self._kept[key][: (first - begin) * UNIT_BYTES]
        self._firsts[key] = first

    def drop(self, key: QueueKey) -> None:
        """Forget a queue; see `UnitStore`."""
        self._kept.pop(key, None)
        self._firsts.pop(key, None)


class PartedUnits:
    """A `UnitStore` some of whose units stand in parts of a snapshot, with which the state began (docs/adr/0253).

    The others are in the store, whose bytes nobody verifies; so what left memory is counted, range by range, before it
    becomes a part itself.

    Attributes:
        part_units: units of each part, which begins at a multiple of that.
    """

    def __init__(self, store: UnitStore, part_units: int) -> None:
        """Use a store for what does not stand in parts.

        Args:
            store: empty.
            part_units: units of each part.
        """
        self.part_units = part_units
        self._store = store
        self._parts: dict[QueueKey, dict[int, KeptPart]] = {}
        self._crcs: dict[QueueKey, dict[int, int]] = {}

    def attach(self, key: QueueKey, first: QueueOffset, part: KeptPart) -> None:
        """Have units read from a part; `first` is the queue offset of its first, behind all that are there."""
        assert first % self.part_units == 0, f"{key}: no part begins at {first}"
        assert part.stored.state_bytes == self.part_units * UNIT_BYTES, f"{key}: {part.stored}"
        self._parts.setdefault(key, {})[first] = part

    def append(self, key: QueueKey, first: QueueOffset, units: bytes) -> None:
        """Keep units; see `UnitStore`."""
        self._store.append(key, first, units)
        crcs, view = self._crcs.setdefault(key, {}), memoryview(units)
        start: int = first
        while view:
            begin = start - start % self.part_units
            piece = view[: (begin + self.part_units - start) * UNIT_BYTES]
            crcs[begin] = crc32c(piece, crcs.get(begin, 0))
            start, view = start + len(piece) // UNIT_BYTES, view[len(piece) :]

    def appended_crc(self, key: QueueKey, first: QueueOffset) -> int:
        """Return the CRC32C of the units that were appended of the part that begins at `first`; 0 if none were."""
        return self._crcs.get(key, {}).get(first, 0)

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units; see `UnitStore`."""
        parts = self._parts.get(key)
        if parts is None:
            return self._store.read(key, first, count)
        pieces = []
        for part, start, size in self._stretches(parts, first, count):
            if part is None:
                pieces.append(self._store.read(key, QueueOffset(start), size))
            else:
                pieces.append(part.read(*self._place(start, size)))
        return b"".join(pieces)

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        """Return units; see `UnitStore`."""
        parts = self._parts.get(key)
        if parts is None:
            return self._store.read_resident(key, first, count)
        pieces = []
        for part, start, size in self._stretches(parts, first, count):
            if part is None:
                piece = self._store.read_resident(key, QueueOffset(start), size)
            else:
                piece = part.read_resident(*self._place(start, size))
            if piece is None:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        """Return work for any thread, which verifies parts that nobody has used yet, too; see `UnitStore`."""
        parts = self._parts.get(key)
        if parts is None:
            return self._store.warming(key, first, count)
        stretches = list(self._stretches(parts, first, count))
        works = [
            self._store.warming(key, QueueOffset(start), size)
            for part, start, size in stretches
            if part is None
        ]
        in_parts = [
            (part, *self._place(start, size)) for part, start, size in stretches if part is not None
        ]

        def warm() -> None:
            for work in works:
                work()
            with suppress(OSError):  # whoever reads it then meets the same, and tells
                for part, offset, size in in_parts:
                    part.read_beside(offset, size)

        return warm

    def read_beside(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units; see `UnitStore`."""
        parts = self._parts.get(key)
        if parts is None:
            return self._store.read_beside(key, first, count)
        pieces = []
        for part, start, size in self._stretches(parts, first, count):
            if part is None:
                pieces.append(self._store.read_beside(key, QueueOffset(start), size))
            else:
                pieces.append(part.read_beside(*self._place(start, size)))
        return b"".join(pieces)

    def trim(self, key: QueueKey, first: QueueOffset) -> None:
        """Forget the parts that hold nothing but units before `first`, and what the store forgets."""
        parts = self._parts.get(key)
        if parts is not None:
            # A thread may be looking for a beginning among the old ones: they are replaced, not changed.
            left = {at: part for at, part in parts.items() if at + self.part_units > first}
            if left:
                self._parts[key] = left
            else:
                del self._parts[key]
        crcs = self._crcs.get(key)
        if crcs is not None:
            self._crcs[key] = {at: c for at, c in crcs.items() if at + self.part_units > first}
            self._store.trim(key, first)

    def drop(self, key: QueueKey) -> None:
        """Forget a queue; see `UnitStore`."""
        self._parts.pop(key, None)
        self._crcs.pop(key, None)
        self._store.drop(key)

    def giving_up(self) -> Iterator[None]:
        """Forget all parts, in short steps; the store is not looked at."""
        yield from emptied(self._parts)
        yield from emptied(self._crcs)

    def _stretches(
        self, parts: dict[int, KeptPart], first: QueueOffset, count: int
    ) -> Iterator[tuple[KeptPart | None, int, int]]:
        """Yield where units stand, in order: the part, or None for the store, the first unit, and how many."""
        step, end = self.part_units, first + count
        start: int = first
        while start < end:
            part = parts.get(start - start % step)
            stop = min(start - start % step + step, end)
            while part is None and stop < end and stop not in parts:
                stop = min(stop + step, end)
            yield part, start, stop - start
            start = stop

    def _place(self, start: int, count: int) -> tuple[int, int]:
        """Return where units stand in their part: first byte, and how many."""
        return start % self.part_units * UNIT_BYTES, count * UNIT_BYTES
