"""The index of messages by key: hash of topic and key to physical offsets, newest first.

Units are chained per hash slot, as in RocketMQ's index files, because that is the cheapest thing to
do per message: no sorting, no rehashing, one read per slot and one per candidate when asked. What
differs is the hash (CRC32C: one C call; Java's costs a microsecond per key here), times in full
milliseconds, and that the slots fit the segment. The hash only finds candidates: whoever asks compares
the key's text in the message itself (broker/store/lookups.py), so collisions are never seen.

The newest segment is in memory; full ones go to a `SegmentStore`, or stand in parts of the snapshot with which the
state began. Of these a few numbers stay in memory.

Segment, big-endian (docs/formats/control.md):
    slots  2^n * uint32  number of the newest unit of the slot, from 1; 0 for none
    links  units * uint32  number of the next older unit of the same slot, 0 for none
    units  units * 20    uint32 hash, int64 physical offset, int64 store time in ms

Nothing here knows what a message is, or reads one.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from crc32c import crc32c

from broker.store.errors import NoRoomError
from broker.store.not_in_memory import FilesNotLoadedError
from broker.store.places import MemoryPlace, PartPlace
from broker.store.saved import CHUNK_BYTES, ByteSource, KeyIndexRow, KeySegmentRow, unsealed
from dledger.raft.ids import Position
from dledger.state_machine import (
    KeptPart,
    SealedPart,
    SnapshotOvertakenError,
    SnapshotRefusedError,
    StoredPart,
)
from dledger_mq.message import compiled
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

SEGMENT_UNITS_DEFAULT: Final = 1 << 18

STEP_UNITS: Final = 8192
"""Units that are taken in from a snapshot in one step: a millisecond."""

_UNIT: Final = struct.Struct(">Iqq")

_NUMBER: Final = struct.Struct(">I")
_UNIT_BYTES: Final = _UNIT.size
_NUMBER_BYTES: Final = _NUMBER.size
_CAPACITY_BYTES: Final = 2 * _NUMBER_BYTES + _UNIT_BYTES


def key_seed(topic: bytes) -> int:
    """Return the CRC32C of a topic and `#`, with which the hashes of its messages' keys begin."""
    seed: int = crc32c(topic + b"#")
    return seed


def key_hash(topic: str, key: str) -> int:
    """Return the CRC32C of `topic#key`, under which the index finds a key."""
    hashed: int = crc32c(key.encode(), key_seed(topic.encode()))
    return hashed


ReadPart = Callable[[int, int], bytes]
"""Reads a part of a segment: from an offset on, so many bytes."""

SEGMENTS_WALKED: Final = 64
"""Segments through which a query goes beside the loop in one turn: each is a few small reads."""

STEPS_WALKED: Final = 1024
"""Units of each that it looks at then."""


class SegmentStore(PartPlace, Protocol):
    """The place for full segments. It may lose everything at a restart."""

    def write(self, number: int, segment: bytes) -> None:
        """Keep a segment under its number.

        Raises:
            NoRoomError: it is not kept.
        """
        ...

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return a part of a kept segment.

        Raises:
            EntryDamagedError: it cannot be read now.
        """
        ...

    def read_resident(self, number: int, offset: int, size: int) -> bytes | None:
        """Return what `read` does, if that need not wait for the disk; None if it would, or nobody can tell."""
        ...

    def read_beside(self, number: int, work: Callable[[ReadPart], None]) -> None:
        """Run work that reads parts of a segment, in any thread.

        Raises:
            OSError: they cannot be read; the segment may have been forgotten.
        """
        ...

    def drop(self, number: int) -> None:
        """Forget a segment."""
        ...


class MemorySegmentStore(MemoryPlace):
    """A `SegmentStore` for tests and for brokers that keep everything in memory."""

    def __init__(self) -> None:
        self._segments: dict[int, bytes] = {}

    def write(self, number: int, segment: bytes) -> None:
        """Keep a segment; see `SegmentStore`."""
        self._segments[number] = segment

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return a part; see `SegmentStore`."""
        return self._segments[number][offset : offset + size]

    def read_resident(self, number: int, offset: int, size: int) -> bytes | None:
        """Return a part; see `SegmentStore`."""
        return self.read(number, offset, size)

    def read_beside(self, number: int, work: Callable[[ReadPart], None]) -> None:
        """Run work; see `SegmentStore`."""
        work(partial(self.read, number))

    def drop(self, number: int) -> None:
        """Forget a segment; see `SegmentStore`."""
        del self._segments[number]


class _Sealed(NamedTuple):
    """A full segment, as far as it stays in memory. Invariant: begin_ms <= end_ms.

    Attributes:
        begin_ms: store time of its first unit.
        end_ms: store time of its last unit.
        capacity: units that it holds, a power of two.
        part: its bytes, as snapshots keep them.
    """

    number: int
    begin_ms: StoreTimeMs
    end_ms: StoreTimeMs
    last_physical_offset: PhysicalOffset
    capacity: int
    part: SealedPart

    def has_from(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether it may have messages stored within a time, both ends included."""
        return self.begin_ms <= end_ms and self.end_ms >= begin_ms


class _Walk:
    """The way of one query through a full segment, as far as it has come; the segment never changes.

    Attributes:
        number: of the segment.
        found: places and store times of the messages under the hash, newest first.
    """

    __slots__ = ("_before", "_capacity", "_hashed", "_next", "found", "number")

    def __init__(self, sealed: _Sealed, hashed: int, before: PhysicalOffset | None) -> None:
        self.number = sealed.number
        self._before = before
        self.found: list[tuple[PhysicalOffset, StoreTimeMs]] = []
        self._capacity = sealed.capacity
        self._hashed = hashed
        self._next: int | None = None

    @property
    def has_ended(self) -> bool:
        """True once it has found all."""
        return self._next == 0

    def go_on(self, read: ReadPart, *, steps: int) -> None:
        """Look at so many more units, or at all that are left; what `read` raises leaves it as it is."""
        slots_bytes = links_bytes = self._capacity * _NUMBER_BYTES
        if self._next is None:
            self._next = self._begin(read)
        while self._next and steps:
            place = self._next - 1
            at = slots_bytes + links_bytes + place * _UNIT_BYTES
            found, physical_offset, store_ms = _UNIT.unpack(read(at, _UNIT_BYTES))
            (older,) = _NUMBER.unpack(read(slots_bytes + place * _NUMBER_BYTES, _NUMBER_BYTES))
            if found == self._hashed and (self._before is None or physical_offset < self._before):
                self.found.append((physical_offset, store_ms))
            self._next, steps = older, steps - 1

    def _begin(self, read: ReadPart) -> int:
        """Return the number of the unit from which the way goes on to older ones; 0: there is none."""
        units_at = 2 * self._capacity * _NUMBER_BYTES

        def unit(place: int) -> tuple[int, PhysicalOffset]:
            at = units_at + place * _UNIT_BYTES
            found, physical_offset, _ = _UNIT.unpack(read(at, _UNIT_BYTES))
            return found, physical_offset

        number = _number_at(unit, self._capacity, self._hashed, self._before)
        if number is None:
            slot = self._hashed & (self._capacity - 1)
            (number,) = _NUMBER.unpack(read(slot * _NUMBER_BYTES, _NUMBER_BYTES))
        return number


class Walks:
    """The ways of one query through the full segments of an index."""

    __slots__ = ("_index", "_ways")

    def __init__(self) -> None:
        self._index: object = None
        self._ways: dict[int, _Walk] = {}

    def through(self, index: KeyIndex) -> dict[int, _Walk]:
        """Return those through an index, by the numbers of segments, which none of its segments gets again.

        They begin anew if it is another one: the state was taken in from another member.
        """
        if self._index is not index:
            self._index, self._ways = index, {}
        return self._ways


class _NotResidentError(Exception):
    """Raised where a part of a segment is not in memory."""


class _Reading:
    """A snapshot whose segments are still being read; it lives as long as its reader."""


class KeyIndex:
    """The index. `add` is for the fold; everybody else asks.

    Invariants: the newest segment has fewer units than its capacity, and as many links as units; the
    sealed ones have rising numbers and times that do not overlap but at their ends.

    Attributes:
        last_store_ms: store time of the newest unit, 0 before the first.
        last_physical_offset: of the newest unit, 0 before the first.
    """

    def __init__(self, store: SegmentStore, segment_units: int = SEGMENT_UNITS_DEFAULT) -> None:
        if segment_units < 1 or segment_units & (segment_units - 1):
            raise ValueError(f"a segment of {segment_units} units: must be a power of two")
        self.last_store_ms = StoreTimeMs(0)
        self.last_physical_offset = PhysicalOffset(0)
        self._store = store
        self._capacity = segment_units
        self._sealed: list[_Sealed] = []
        self._trimmed: list[int] = []
        self._readings: WeakSet[_Reading] = WeakSet()
        self._is_given_up = False
        self._unwritten: dict[int, bytes] = {}
        self._kept: dict[int, KeptPart] = {}
        self._next_number = 0
        self._digest = 0
        self._begin()

    def _begin(self) -> None:
        """Begin a segment."""
        self._slots = array("I", bytes(array("I").itemsize * self._capacity))
        self._links = array("I")
        self._units = bytearray()
        self._digested_bytes = 0

    @property
    def unwritten_count(self) -> int:
        """Full segments that are still in memory: there was no room for them."""
        return len(self._unwritten)

    def add(
        self,
        texts: Sequence[bytes],
        seeds: Sequence[int],
        offsets: Sequence[PhysicalOffset],
        times: Sequence[StoreTimeMs],
    ) -> None:
        """Add the keys of one entry, in the order of the log. Nothing runs per key here but in C.

        Args:
            texts: the keys.
            seeds: the `key_seed` of the topic of each.
            offsets: where the message of each stands.
            times: when that was stored.
        """
        if not texts:
            return
        assert times[0] >= self.last_store_ms, (
            f"a key stored at {times[0]} comes after one stored at {self.last_store_ms}"
        )
        assert offsets[0] >= self.last_physical_offset, (
            f"a key at {offsets[0]} comes after one at {self.last_physical_offset}"
        )
        assert len(texts) == len(seeds) == len(offsets) == len(times), (
            f"{len(texts)} keys, {len(seeds)} seeds, {len(offsets)} offsets, {len(times)} times"
        )
        hashes = array("I", map(crc32c, texts, seeds))
        units = b"".join(map(_UNIT.pack, hashes, offsets, times))
        self.add_units(memoryview(hashes), units, offsets[-1], times[-1])

    def add_units(
        self,
        hashes: memoryview,
        units: bytes,
        last_physical_offset: PhysicalOffset,
        last_store_ms: StoreTimeMs,
    ) -> None:
        """Add units that were made already, of keys that come next in the order of the log.

        Args:
            hashes: those in the units, four bytes each.
            units: as segments have them.
            last_physical_offset: of the last unit.
            last_store_ms: of the last unit.
        """
        while len(hashes) >= (room := self._capacity - len(self._links)):
            self._add_to_segment(hashes[:room], units[: room * _UNIT_BYTES])
            hashes, units = hashes[room:], units[room * _UNIT_BYTES :]
        self._add_to_segment(hashes, units)
        self.last_physical_offset, self.last_store_ms = last_physical_offset, last_store_ms

    def _add_to_segment(self, hashes: memoryview, units: bytes) -> None:
        """Add units, for which the newest segment has room, and seal it when it is full."""
        mask, slots, links = self._capacity - 1, self._slots, self._links
        linked = compiled.chain(slots, len(links) + 1, hashes)
        if linked is not None:
            links.frombytes(linked)
        else:
            link = links.append
            for number, hashed in enumerate(hashes, len(links) + 1):
                slot = hashed & mask
                link(slots[slot])
                slots[slot] = number
        self._units += units
        if len(self._links) == self._capacity:
            self._seal()

    def candidates(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        *,
        before: PhysicalOffset | None = None,
        walks: Walks | None = None,
    ) -> Iterator[PhysicalOffset]:
        """Yield where messages stand that were stored in begin_ms..end_ms (both included), newest first.

        A few may have another key with the same hash.

        Args:
            topic: of the messages.
            key: one of theirs.
            begin_ms: store time.
            end_ms: store time.
            before: only messages before this place, from which the search goes on without looking at what stands
                behind it, if a message with the key stands there; None: all.
            walks: what this very query has found, if whoever asks may wait for the disk; else it is read here.

        Raises:
            FilesNotLoadedError: there are walks, and a segment is neither among them nor in memory.
        """
        hashed = key_hash(topic, key)
        yield from self._walk_active(hashed, begin_ms, end_ms, before)
        wanted = [each for each in self._sealed_before(before) if each.has_from(begin_ms, end_ms)]
        ways = {} if walks is None else walks.through(self)
        for place, sealed in enumerate(wanted):
            walk = ways.setdefault(sealed.number, _Walk(sealed, hashed, before))
            read = self._read if walks is None else self._resident
            given = 0
            while given < len(walk.found) or not walk.has_ended:
                for physical_offset, store_ms in walk.found[given:]:
                    if begin_ms <= store_ms <= end_ms:
                        yield physical_offset
                given = len(walk.found)
                try:
                    walk.go_on(partial(read, sealed.number), steps=1)
                except _NotResidentError:
                    assert walks is not None, "what may be waited for is read"
                    work = self._walking(
                        [
                            ways.setdefault(each.number, _Walk(each, hashed, before))
                            for each in wanted[place : place + SEGMENTS_WALKED]
                        ]
                    )
                    raise FilesNotLoadedError(work) from None

    def _sealed_before(self, before: PhysicalOffset | None) -> list[_Sealed]:
        """Return the full segments that may have messages before a place, newest first."""
        sealed = self._sealed
        if before is not None:
            ends = [each.last_physical_offset for each in sealed]
            sealed = sealed[: bisect_left(ends, before) + 1]
        return sealed[::-1]

    def _walking(self, going: list[_Walk]) -> Callable[[], None]:
        """Return work for any thread that goes on with the walks through some segments."""
        store, kept = self._store, self._kept

        def walk_all() -> None:
            for walk in going:
                work = partial(walk.go_on, steps=STEPS_WALKED)
                with suppress(OSError):  # whoever reads it then meets the same, and tells
                    part = kept.get(walk.number)
                    if part is not None:
                        work(part.read_beside)
                    else:
                        store.read_beside(walk.number, work)

        return walk_all

    def _resident(self, number: int, offset: int, size: int) -> bytes:
        """Return a part of a full segment that is in memory.

        Raises:
            _NotResidentError: it is not.
        """
        if number in self._unwritten:
            return self._read(number, offset, size)
        kept = self._kept.get(number)
        read = (
            kept.read_resident if kept is not None else partial(self._store.read_resident, number)
        )
        part = read(offset, size)
        if part is None:
            raise _NotResidentError
        return part

    def trim(self, beginning: Position) -> None:
        """Forget the segments all of whose messages stand before a position.

        Others may still name such messages: whoever asks must not show them.
        """
        while self._sealed and self._sealed[0].last_physical_offset < beginning:
            self._trimmed.append(self._sealed.pop(0).number)
        self.sweep()
        if not self._sealed and self._units and self.last_physical_offset < beginning:
            self.digest()  # the bytes that leave must have been counted
            self._begin()

    def sweep(self) -> None:
        """Drop the forgotten segments, unless a snapshot that is being written still needs them."""
        while self._trimmed and not self._readings:
            self._drop(self._trimmed.pop())

    def digest(self) -> int:
        """Return the CRC32C of all units ever added; segments of other sizes give the same."""
        if self._digested_bytes < len(self._units):
            self._digest = crc32c(memoryview(self._units)[self._digested_bytes :], self._digest)
            self._digested_bytes = len(self._units)
        return self._digest

    def row(self) -> KeyIndexRow:
        """Return the index without its units, as a snapshot keeps it."""
        return KeyIndexRow(
            [
                KeySegmentRow(s.capacity, s.begin_ms, s.end_ms, s.last_physical_offset)
                for s in self._sealed
            ],
            len(self._links),
            self.digest(),
            self.last_store_ms,
            self.last_physical_offset,
        )

    def saved_units(self) -> Iterator[bytes]:
        """Return what belongs to `row`, taken at the same moment: segments, then the newest one's units.

        Raises:
            SnapshotOvertakenError: the index was given up since.
        """
        return unsealed(self.sealed_units())

    def sealed_units(self) -> Iterator[bytes | SealedPart]:
        """Return the same, each segment as a part.

        Raises:
            SnapshotOvertakenError: the index was given up since.
        """
        reading = _Reading()
        self._readings.add(reading)
        return self._read_units(self._sealed[:], self._units, len(self._units), reading)

    def _read_units(
        self, sealed: list[_Sealed], units: bytearray, size: int, _reading: _Reading
    ) -> Iterator[bytes | SealedPart]:
        """Yield segments and units; as long as this is there, so is the reading, and nothing is dropped."""
        for each in sealed:
            yield each.part
        for start in range(0, size, CHUNK_BYTES):
            yield bytes(units[start : min(start + CHUNK_BYTES, size)])

    def _segment_chunks(self, number: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of a full segment."""
        for start in range(0, size, CHUNK_BYTES):
            if self._is_given_up:
                raise SnapshotOvertakenError(f"segment {number} of the key index is gone")
            yield self._read(number, start, min(CHUNK_BYTES, size - start))

    def _part(self, capacity: int, stored: StoredPart | None = None) -> SealedPart:
        """Return the part of the segment that gets the next number."""
        size = capacity * _CAPACITY_BYTES
        return SealedPart(partial(self._segment_chunks, self._next_number, size), stored)

    def give_up(self) -> None:
        """Have whoever still reads segments for a snapshot told that they are gone."""
        self._is_given_up = True

    def load_steps(self, row: KeyIndexRow, source: ByteSource) -> Iterator[None]:
        """Take in an index from a snapshot, in short steps; this one is empty.

        Segments that are kept as parts stay in them, and all stay as large as they were made; only new ones have this
        index's own size.

        Raises:
            SnapshotRefusedError: the bytes end too early, or the row speaks of another newest unit.
        """
        assert not self._sealed, f"the index has {len(self._sealed)} segments"
        assert not self._units, f"the index has {len(self._units)} bytes of units"
        for segment in row.segments:
            yield
            size = segment.capacity * _CAPACITY_BYTES
            kept = source.kept_part(size)
            part = self._part(segment.capacity, kept.stored if kept is not None else None)
            if kept is not None:
                self._kept[self._next_number] = kept
            else:
                self._write(self._next_number, source.read(size))
            self._sealed.append(
                _Sealed(
                    self._next_number,
                    segment.begin_ms,
                    segment.end_ms,
                    segment.last_physical_offset,
                    segment.capacity,
                    part,
                )
            )
            self._next_number += 1
        self._digest = row.digest
        left, last_unit = row.active_count, b""
        while left:
            yield
            count = min(left, self._capacity - len(self._links), STEP_UNITS)
            data = source.read(count * _UNIT_BYTES)
            self._digested_bytes += len(data)  # the row's digest counts it
            hashes = array("I", [hashed for hashed, _, _ in _UNIT.iter_unpack(data)])
            self._add_to_segment(memoryview(hashes), data)
            left, last_unit = left - count, data[-_UNIT_BYTES:]
        self.last_store_ms = row.last_store_ms
        self.last_physical_offset = row.last_physical_offset
        newest = (self.last_physical_offset, self.last_store_ms)
        if last_unit and _UNIT.unpack(last_unit)[1:] != newest:
            raise SnapshotRefusedError(f"the key index's newest unit is another one than {newest}")

    def _walk_active(
        self, hashed: int, begin_ms: int, end_ms: int, before: PhysicalOffset | None
    ) -> Iterator[PhysicalOffset]:
        """Yield where the newest segment's messages under a hash stand."""
        physical_offset: PhysicalOffset
        units, links = self._units, self._links

        def unit(place: int) -> tuple[int, PhysicalOffset]:
            found, physical_offset, _ = _UNIT.unpack_from(units, place * _UNIT_BYTES)
            return found, physical_offset

        number = _number_at(unit, len(links), hashed, before)
        if number is None:
            number = self._slots[hashed & (self._capacity - 1)]
        while number:
            found, physical_offset, store_ms = _UNIT.unpack_from(units, (number - 1) * _UNIT_BYTES)
            if (
                found == hashed
                and begin_ms <= store_ms <= end_ms
                and (before is None or physical_offset < before)
            ):
                yield physical_offset
            older = links[number - 1]
            assert older < number, f"unit {number} of the newest segment goes on to {older}"
            number = older

    def _seal(self) -> None:
        """Hand the newest segment, which is full, to the store, and begin another."""
        begin_ms: StoreTimeMs
        last_physical_offset: PhysicalOffset
        end_ms: StoreTimeMs
        self.digest()  # the bytes that leave must have been counted
        data = b"".join((_big_endian(self._slots), _big_endian(self._links), self._units))
        assert len(data) == self._capacity * _CAPACITY_BYTES, (
            f"a segment of {len(data)} bytes, {self._capacity} units have "
            f"{self._capacity * _CAPACITY_BYTES}"
        )
        _, _, begin_ms = _UNIT.unpack_from(self._units)
        last_at = len(self._units) - _UNIT_BYTES
        _, last_physical_offset, end_ms = _UNIT.unpack_from(self._units, last_at)
        self._write(self._next_number, data)
        self._sealed.append(
            _Sealed(
                self._next_number,
                begin_ms,
                end_ms,
                last_physical_offset,
                self._capacity,
                self._part(self._capacity),
            )
        )
        self._next_number += 1
        self._begin()

    def _write(self, number: int, segment: bytes) -> None:
        """Hand a segment to the store, after those that are waiting for room."""
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
        kept = self._kept.get(number)
        if kept is not None:
            return kept.read(offset, size)
        return self._store.read(number, offset, size)

    def _drop(self, number: int) -> None:
        if self._kept.pop(number, None) is None and self._unwritten.pop(number, None) is None:
            self._store.drop(number)


def _number_at(
    unit: Callable[[int], tuple[int, PhysicalOffset]],
    count: int,
    hashed: int,
    before: PhysicalOffset | None,
) -> int | None:
    """Return the number of the oldest unit of a hash at exactly the place `before`, from 1.

    Units stand in the order of their places, so it takes few looks. From there the links go on to what is older.

    Args:
        unit: returns the hash and the place of a unit, by its place among `count`, from 0.
        count: of the units.
        hashed: of the key.
        before: where a message with the key stands; None: nowhere.

    Returns:
        0 if all units stand at that place or behind it; None if the way has to begin at the newest unit.
    """
    if before is None:
        return None
    first = bisect_left(range(count), before, key=lambda place: unit(place)[1])
    if first == 0 and (not count or unit(0)[1] > before):
        return 0
    for place in range(first, count):
        found, physical_offset = unit(place)
        if physical_offset != before:
            break
        if found == hashed:
            return place + 1
    return None


def _big_endian(numbers: array[int]) -> bytes:
    """Return the bytes of C unsigned ints, which have four bytes where this runs."""
    assert numbers.itemsize == _NUMBER_BYTES, f"a C unsigned int has {numbers.itemsize} bytes"
    if sys.byteorder == "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
