"""Which messages have a key: hash of topic and key to physical offsets, newest first.

Units are chained per hash slot, as in RocketMQ's index files, because that is the cheapest thing to
do per message: no sorting, no rehashing, one read per slot and one per candidate when asked. What
differs is the hash (CRC32C: one C call; Java's costs a microsecond per key here), times in full
milliseconds, and that the slots fit the segment. The hash only finds candidates: whoever asks compares
the key's text in the message itself (broker/store/reading.py), so collisions are never seen.

The newest segment is in memory; full ones go to a `SegmentStore`, of which a few numbers stay in memory.

Segment, big-endian (docs/formats/control.md):
    slots  2^n * uint32  number of the newest unit of the slot, from 1; 0 for none
    links  units * uint32  number of the next older unit of the same slot, 0 for none
    units  units * 20    uint32 hash, int64 physical offset, int64 store time in ms
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from broker.store.errors import NoRoomError
from broker.store.saved import CHUNK_BYTES, ByteSource, KeyIndexRow, SegmentRow
from dledger.state_machine import SnapshotOvertakenError

SEGMENT_UNITS_DEFAULT: Final = 1 << 18

KEY_UNIT: Final = struct.Struct(">Iqq")
"""Hash, physical offset, store time in ms."""

_NUMBER: Final = struct.Struct(">I")
_UNIT_BYTES: Final = KEY_UNIT.size
_NUMBER_BYTES: Final = _NUMBER.size
_CAPACITY_BYTES: Final = 2 * _NUMBER_BYTES + _UNIT_BYTES


def key_hash(topic: str, key: str) -> int:
    """CRC32C of `topic#key`; the fold starts it with the queue's `key_seed`."""
    hashed: int = crc32c(f"{topic}#{key}".encode())
    return hashed


class SegmentStore(Protocol):
    """Where full segments go. It may lose everything at a restart."""

    def write(self, number: int, segment: bytes) -> None:
        """Keep a segment.

        Raises:
            NoRoomError: it is not kept.
        """
        ...

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Give back a part of a kept segment."""
        ...

    def drop(self, number: int) -> None:
        """Forget a segment."""
        ...


class MemorySegmentStore:
    """A `SegmentStore` for tests and for brokers that keep everything in memory."""

    def __init__(self) -> None:
        self._segments: dict[int, bytes] = {}

    def write(self, number: int, segment: bytes) -> None:
        """Keep a segment; see `SegmentStore`."""
        self._segments[number] = segment

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Give back a part; see `SegmentStore`."""
        return self._segments[number][offset : offset + size]

    def drop(self, number: int) -> None:
        """Forget a segment; see `SegmentStore`."""
        del self._segments[number]


class _Sealed(NamedTuple):
    number: int
    begin_ms: int
    end_ms: int
    last_physical_offset: int
    capacity: int


class KeyIndex:
    """The index. `add` is for the fold; everybody else asks.

    Attributes:
        last_store_ms: store time of the newest unit, 0 before the first.
        last_physical_offset: of the newest unit, 0 before the first.
    """

    def __init__(self, store: SegmentStore, segment_units: int = SEGMENT_UNITS_DEFAULT) -> None:
        if segment_units < 1 or segment_units & (segment_units - 1):
            raise ValueError(f"a segment of {segment_units} units: must be a power of two")
        self.last_store_ms = 0
        self.last_physical_offset = 0
        self._store = store
        self._capacity = segment_units
        self._sealed: list[_Sealed] = []
        self._unwritten: dict[int, bytes] = {}
        self._next_number = 0
        self._digest = 0
        self._begin()

    def _begin(self) -> None:
        self._slots = array("I", bytes(array("I").itemsize * self._capacity))
        self._links = array("I")
        self._units = bytearray()
        self._digested_bytes = 0

    @property
    def unwritten_count(self) -> int:
        """Full segments that are still in memory: there was no room for them."""
        return len(self._unwritten)

    def add(self, hashes: list[int], units: list[bytes]) -> None:
        """Add units, packed with `KEY_UNIT`, in the order of the log; store times must not decrease."""
        first, count = 0, len(hashes)
        while first < count:
            end = min(count, first + self._capacity - len(self._links))
            self._add_to_segment(hashes[first:end], units[first:end])
            if len(self._links) == self._capacity:
                self._seal()
            first = end
        if count:
            _, self.last_physical_offset, self.last_store_ms = KEY_UNIT.unpack(units[-1])

    def _add_to_segment(self, hashes: list[int], units: list[bytes]) -> None:
        mask, slots, link = self._capacity - 1, self._slots, self._links.append
        for number, hashed in enumerate(hashes, len(self._links) + 1):
            slot = hashed & mask
            link(slots[slot])
            slots[slot] = number
        self._units += b"".join(units)

    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages stored in begin_ms..end_ms (both included), newest first.

        A few may have another key with the same hash.
        """
        hashed = key_hash(topic, key)
        yield from self._walk_active(hashed, begin_ms, end_ms)
        for sealed in reversed(self._sealed):
            if sealed.begin_ms <= end_ms and sealed.end_ms >= begin_ms:
                yield from self._walk_sealed(sealed, hashed, begin_ms, end_ms)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """The first `max_count` candidates."""
        return list(islice(self.candidates(topic, key, begin_ms, end_ms), max_count))

    def trim(self, first_position: int) -> None:
        """Forget the segments all of whose messages the log no longer holds."""
        while self._sealed and self._sealed[0].last_physical_offset < first_position:
            self._drop(self._sealed.pop(0).number)

    def digest(self) -> int:
        """CRC32C of all units ever added; segments of other sizes give the same."""
        if self._digested_bytes < len(self._units):
            self._digest = crc32c(memoryview(self._units)[self._digested_bytes :], self._digest)
            self._digested_bytes = len(self._units)
        return self._digest

    def row(self) -> KeyIndexRow:
        """The index without its units, as a snapshot keeps it."""
        return KeyIndexRow(
            [
                SegmentRow(s.capacity, s.begin_ms, s.end_ms, s.last_physical_offset)
                for s in self._sealed
            ],
            len(self._links),
            self.digest(),
            self.last_store_ms,
            self.last_physical_offset,
        )

    def saved_units(self) -> Iterator[bytes]:
        """What belongs to `row`, taken at the same moment: segments, then the units of the newest.

        Raises:
            SnapshotOvertakenError: a segment was trimmed since.
        """
        return self._read_units(self._sealed[:], self._units, len(self._units))

    def _read_units(self, sealed: list[_Sealed], units: bytearray, size: int) -> Iterator[bytes]:
        for each in sealed:
            segment_bytes = each.capacity * _CAPACITY_BYTES
            for start in range(0, segment_bytes, CHUNK_BYTES):
                if not self._sealed or self._sealed[0].number > each.number:
                    raise SnapshotOvertakenError(f"segment {each.number} of the key index is gone")
                yield self._read(each.number, start, min(CHUNK_BYTES, segment_bytes - start))
        for start in range(0, size, CHUNK_BYTES):
            yield bytes(units[start : min(start + CHUNK_BYTES, size)])

    def clear(self) -> None:
        """Forget everything."""
        while self._sealed:
            self._drop(self._sealed.pop().number)
        self.last_store_ms = self.last_physical_offset = self._digest = 0
        self._begin()

    def load(self, row: KeyIndexRow, source: ByteSource) -> None:
        """Take in an index from a snapshot; this one is empty.

        Segments stay as large as they were made; only new ones have this index's own size.
        """
        assert not self._sealed, "the index has segments"
        for segment in row.segments:
            self._write(self._next_number, source.read(segment.capacity * _CAPACITY_BYTES))
            self._sealed.append(
                _Sealed(
                    self._next_number,
                    segment.begin_ms,
                    segment.end_ms,
                    segment.last_physical_offset,
                    segment.capacity,
                )
            )
            self._next_number += 1
        self._digest = row.digest
        left = row.active_count
        while left:
            count = min(left, self._capacity - len(self._links))
            data = source.read(count * _UNIT_BYTES)
            hashes = [unit[0] for unit in KEY_UNIT.iter_unpack(data)]
            self._add_to_segment(hashes, [data])
            self._digested_bytes = len(self._units)
            if len(self._links) == self._capacity:
                self._seal()
            left -= count
        self.last_store_ms = row.last_store_ms
        self.last_physical_offset = row.last_physical_offset

    def _walk_active(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        number = self._slots[hashed & (self._capacity - 1)]
        units, links = self._units, self._links
        while number:
            found, physical_offset, store_ms = KEY_UNIT.unpack_from(
                units, (number - 1) * _UNIT_BYTES
            )
            if found == hashed and begin_ms <= store_ms <= end_ms:
                yield physical_offset
            number = links[number - 1]

    def _walk_sealed(
        self, sealed: _Sealed, hashed: int, begin_ms: int, end_ms: int
    ) -> Iterator[int]:
        read, segment = self._read, sealed.number
        slots_bytes = links_bytes = sealed.capacity * _NUMBER_BYTES
        slot = hashed & (sealed.capacity - 1)
        (number,) = _NUMBER.unpack(read(segment, slot * _NUMBER_BYTES, _NUMBER_BYTES))
        while number:
            at = slots_bytes + links_bytes + (number - 1) * _UNIT_BYTES
            found, physical_offset, store_ms = KEY_UNIT.unpack(read(segment, at, _UNIT_BYTES))
            if found == hashed and begin_ms <= store_ms <= end_ms:
                yield physical_offset
            at = slots_bytes + (number - 1) * _NUMBER_BYTES
            (number,) = _NUMBER.unpack(read(segment, at, _NUMBER_BYTES))

    def _seal(self) -> None:
        self.digest()
        data = b"".join((_big_endian(self._slots), _big_endian(self._links), self._units))
        self._write(self._next_number, data)
        _, _, begin_ms = KEY_UNIT.unpack_from(self._units)
        _, last_physical_offset, end_ms = KEY_UNIT.unpack_from(
            self._units, len(self._units) - _UNIT_BYTES
        )
        self._sealed.append(
            _Sealed(self._next_number, begin_ms, end_ms, last_physical_offset, self._capacity)
        )
        self._next_number += 1
        self._begin()

    def _write(self, number: int, segment: bytes) -> None:
        """Hand a segment to the store, behind those that are waiting for room."""
        self._unwritten[number] = segment
        try:
            for waiting in list(self._unwritten):
                self._store.write(waiting, self._unwritten[waiting])
                del self._unwritten[waiting]
        except NoRoomError:
            return

    def _read(self, number: int, offset: int, size: int) -> bytes:
        segment = self._unwritten.get(number)
        if segment is not None:
            return segment[offset : offset + size]
        return self._store.read(number, offset, size)

    def _drop(self, number: int) -> None:
        if self._unwritten.pop(number, None) is None:
            self._store.drop(number)


def _big_endian(numbers: array[int]) -> bytes:
    assert numbers.itemsize == _NUMBER_BYTES, "a C unsigned int has four bytes where this runs"
    if sys.byteorder == "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
