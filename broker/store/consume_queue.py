"""Consume queues: for every (topic, queue id) the list of its messages, 20 bytes each.

A queue is append-only: unit n describes the message with queue offset n, and the fold refuses a
record whose queue offset is not the queue's max offset, so that the list has no gaps (RocketMQ logs
such a gap and goes on: rule ZZ7). The newest units stay in memory, older ones go out through a
`UnitStore`; how many stay may differ between replicas and shows in no answer and in no digest.

Unit, big-endian, 20 bytes (docs/formats/control.md; RocketMQ store/ConsumeQueue.java CQ_STORE_UNIT_SIZE):
     0  int64  physical offset of the record
     8  int32  size of the whole record in bytes
    12  int64  Java hash of the tag, sign-extended, 0 for none; for delayed messages the due time in ms

Nothing here knows what a message is about: topics are bytes, and the tag hash is a number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple
from weakref import WeakSet

from crc32c import crc32c

from broker.store.emptying import emptied
from broker.store.errors import NoRoomError
from broker.store.key_index import key_seed
from broker.store.not_in_memory import FilesNotLoadedError
from broker.store.queue_search import Search, TrimSearch
from broker.store.saved import CHUNK_BYTES, QueueRow
from broker.store.unit_stores import UNIT, UNIT_BYTES, PartedUnits, QueueKey, UnitStore
from dledger.raft.ids import Position
from dledger.state_machine import (
    KeptPart,
    SealedPart,
    SnapshotOvertakenError,
    SnapshotRefusedError,
)
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs

SEALED_UNITS: Final = 16_384
"""Units that snapshots keep as a part: 320 KiB."""

DIGEST_QUEUES: Final = 8192
"""Queues that are counted in one step of the digest of all: a millisecond or two."""

SORT_QUEUES: Final = 1024
"""Queues that are sorted in one step: a millisecond."""

SWEEP_QUEUES: Final = 256
"""Queues that are searched for forgotten units in one go: some milliseconds where units lie in files."""

LOOKS: Final = 64
"""Queues whose beginnings a thread looks for in one go: some reads each."""

WARMED_UNITS: Final = 3_276
"""Units that are brought into memory at a time for whoever reads on: 64 KiB."""

StoreTime = Callable[[PhysicalOffset, int], StoreTimeMs]
"""Reads the store time of the record at a physical offset, given its size in bytes too."""

_KEY = struct.Struct(">qqI")
_key_of = attrgetter("key")


class ConsumeQueueUnit(NamedTuple):
    """One unit, taken apart. `tag_hash` is the due time (ms) in the queues of the schedule topic."""

    physical_offset: PhysicalOffset
    size_bytes: int
    tag_hash: int


class ConsumeQueue:
    """The units of one queue.

    The fold appends by itself, without a call per message: `tail += UNIT.pack(...)` and
    `max_offset += 1` belong together, and so does `put_bytes`.

    Invariants: held_first <= min_offset <= max_offset; tail_first <= max_offset; the tail has whole units, of
    tail_first..max_offset; units from held_first to tail_first are in the store.

    Attributes:
        min_offset: first queue offset whose record is not forgotten.
        held_first: first queue offset whose unit is still here; units before min_offset are shown to nobody.
        trimmed_to: position before which the records were forgotten when `min_offset` was last found.
        max_offset: queue offset that the next message gets.
        tail: the newest units, in memory; its first has the queue offset `tail_first`.
        put_bytes: size of all records ever put, for statistics.
        key_seed: CRC32C of the topic and `#`, with which hashes of message keys start.
        special: whether the fold has more to do for this queue's records than to append a unit.
        line: what the digest of all queues counts of this one, as it was at `line_offset`.
        line_offset: the max offset for which `line` holds; -1: for none.
        sealed: parts of snapshots, by the queue offset of their first unit; those from before the min offset may stay.
    """

    __slots__ = (
        "_digest",
        "_digested_bytes",
        "_store",
        "_trimming",
        "held_first",
        "key",
        "key_seed",
        "line",
        "line_offset",
        "max_offset",
        "min_offset",
        "put_bytes",
        "sealed",
        "special",
        "tail",
        "tail_first",
        "trimmed_to",
    )

    def __init__(self, key: QueueKey, store: PartedUnits, *, special: bool = False) -> None:
        self.key = key
        self.min_offset = self.held_first = QueueOffset(0)
        self.trimmed_to = Position(0)
        self.max_offset = QueueOffset(0)
        self.tail = bytearray()
        self.tail_first = QueueOffset(0)
        self.put_bytes = 0
        self.key_seed = key_seed(key[0])
        self.special = special
        self.sealed: dict[QueueOffset, SealedPart] | None = None
        self.line = b""
        self.line_offset = -1
        self._store = store
        self._trimming: TrimSearch | None = None
        self._digest = 0
        self._digested_bytes = 0

    def append(self, physical_offset: PhysicalOffset, size_bytes: int, tag_hash: int) -> None:
        """Add one unit; the spelled-out form of what the fold does inline."""
        self.tail += UNIT.pack(physical_offset, size_bytes, tag_hash)
        self.max_offset = QueueOffset(self.max_offset + 1)
        self.put_bytes += size_bytes

    def unit(self, offset: QueueOffset, *, without_waiting: bool = False) -> ConsumeQueueUnit:
        """Return the unit of one queue offset.

        Raises:
            IndexError: the offset is not within min_offset..max_offset.
            FilesNotLoadedError: see `units`.
        """
        if not self.min_offset <= offset < self.max_offset:
            raise IndexError(self._out_of_range(offset))
        place = offset - self.tail_first
        if place >= 0:
            return ConsumeQueueUnit(*UNIT.unpack_from(self.tail, place * UNIT_BYTES))
        unit = self._spilled(offset, 1, without_waiting=without_waiting)
        return ConsumeQueueUnit(*UNIT.unpack(unit))

    def holds(self, offset: QueueOffset, physical_offset: PhysicalOffset) -> bool:
        """Return whether the record at a physical offset has this queue offset here, forgotten or not.

        One of a topic that was deleted since, and made again, has not.
        """
        if not self.held_first <= offset < self.max_offset:
            return False
        found: int = UNIT.unpack(self.units(offset, 1, with_held=True))[0]
        return found == physical_offset

    def units(
        self,
        first: QueueOffset,
        count: int,
        *,
        with_held: bool = False,
        without_waiting: bool = False,
    ) -> memoryview:
        """Return up to `count` units from queue offset `first`, back to back; fewer only at the end.

        The view is of a copy, so it stays as it is while the queue grows.

        Args:
            first: where to begin.
            count: of units, at most.
            with_held: give units before the min offset, too, as long as they are here; for snapshots.
            without_waiting: whether whoever asks goes on with something else rather than wait for the disk.

        Raises:
            IndexError: `first` is not within min_offset..max_offset (max_offset gives no units).
            FilesNotLoadedError: it would have to wait.
        """
        least = self.held_first if with_held else self.min_offset
        if not least <= first <= self.max_offset:
            raise IndexError(self._out_of_range(first))
        end = min(first + count, self.max_offset)
        split = min(max(first, self.tail_first), end)
        spilled = b""
        if first < split:
            spilled = self._spilled(first, split - first, without_waiting=without_waiting)
        base = self.tail_first
        recent = bytes(self.tail[(split - base) * UNIT_BYTES : (end - base) * UNIT_BYTES])
        if not spilled:
            return memoryview(recent)
        assert len(spilled) == (split - first) * UNIT_BYTES, (
            f"{self.key}: {len(spilled)} bytes were kept of units {first}..{split}"
        )
        return memoryview(spilled + recent)

    def _spilled(self, first: QueueOffset, count: int, *, without_waiting: bool) -> bytes:
        """Return units that left memory.

        Raises:
            FilesNotLoadedError: see `units`.
        """
        if not without_waiting:
            return self._store.read(self.key, first, count)
        units = self._store.read_resident(self.key, first, count)
        if units is None:
            around = 0 if count > 1 else WARMED_UNITS // 2  # a search will end near by
            begin = QueueOffset(max(self.held_first, first - around))
            end = min(begin + WARMED_UNITS, self.tail_first)
            raise FilesNotLoadedError(self._store.warming(self.key, begin, end - begin))
        return units

    def offset_by_time(
        self,
        time_ms: int,
        store_time: StoreTime,
        *,
        is_upper: bool = False,
        search: Search | None = None,
    ) -> QueueOffset:
        """Return the queue offset that belongs to a store time (rules K1, K2).

        Lower: the first message stored at `time_ms` or later, max_offset if there is none. Upper: the
        last message stored at `time_ms` or earlier, min_offset if there is none. Store times never
        decrease along a queue, since leaders stamp records in log order.

        Args:
            time_ms: store time.
            store_time: reads that of a record.
            is_upper: whether the upper one is wanted.
            search: what is known of it, if whoever asks may wait for the disk; else it is read here.

        Raises:
            FilesNotLoadedError: units are not in memory, and whoever asks may wait for them.
        """

        def is_before(unit: ConsumeQueueUnit) -> bool:
            stored_ms = store_time(unit.physical_offset, unit.size_bytes)
            return stored_ms < time_ms or (is_upper and stored_ms == time_ms)

        found = self._first_not(is_before, search or Search(), without_waiting=search is not None)
        return QueueOffset(max(found - 1, self.min_offset)) if is_upper else found

    def trim(self, beginning: Position, *, without_waiting: bool = False) -> None:
        """Move min_offset to the first message that stands at the beginning or behind it; `release` drops the rest.

        Raises:
            FilesNotLoadedError: nothing was done, since it would have to wait for the disk; what the error brings to
                be read is the search itself.
        """
        search = self._trimming
        if search is None or search.beginning != beginning:
            search = TrimSearch(beginning)
        try:
            first = self._first_not(
                lambda unit: unit.physical_offset < beginning,
                search,
                without_waiting=without_waiting,
            )
        except FilesNotLoadedError:
            self._trimming = search
            raise FilesNotLoadedError(self._look_beside(search)) from None
        self._trimming = None
        assert self.min_offset <= first <= self.max_offset, (
            f"{self.key}: min offset {self.min_offset} becomes {first}, max offset {self.max_offset}"
        )
        self.trimmed_to = beginning
        self.min_offset = first

    def _look_beside(self, search: TrimSearch) -> Callable[[], None]:
        """Return work for any thread that searches the units which are not in memory."""
        low = max(search.low, self.min_offset)
        high = self.tail_first if search.high is None else min(search.high, self.tail_first)
        key, read, beginning = self.key, self._store.read_beside, search.beginning

        def look(low: QueueOffset = low, high: QueueOffset = high, end: QueueOffset = high) -> None:
            with suppress(OSError):  # whoever reads it then meets the same, and tells
                while low < high:
                    middle = QueueOffset((low + high) // 2)
                    physical_offset, _, _ = UNIT.unpack(read(key, middle, 1))
                    if physical_offset < beginning:
                        low = QueueOffset(middle + 1)
                    else:
                        high = middle
                search.low = low
                if high < end:
                    search.high = high

        return look

    def release(self) -> None:
        """Drop the units before the min offset."""
        first = self.min_offset
        if first == self.held_first:
            return
        had_spilled = self.held_first < self.tail_first
        self.held_first = first
        if self.sealed is not None:
            self.sealed = {at: part for at, part in self.sealed.items() if at >= first} or None
        if first < self.tail_first:
            self._store.trim(self.key, first)
            return
        if had_spilled:
            self._store.drop(self.key)
        self.digest()  # the bytes that leave must have been counted
        leaving = (first - self.tail_first) * UNIT_BYTES
        del self.tail[:leaving]
        self.tail_first = first
        self._digested_bytes -= leaving

    def _first_not(
        self,
        is_before: Callable[[ConsumeQueueUnit], bool],
        known: Search,
        *,
        without_waiting: bool,
    ) -> QueueOffset:
        """Return the offset of the first unit that is not before the place wanted; max_offset if none is.

        Along the queue the answers of `is_before` turn from true to false once.

        Args:
            is_before: says whether a unit is before that place.
            known: what is known of it; grows with each unit.
            without_waiting: see `units`.

        Raises:
            FilesNotLoadedError: see `units`.
        """
        known.go_on_in(self)
        low = max(known.low, self.min_offset)
        high = self.max_offset if known.high is None else min(known.high, self.max_offset)
        while low < high:
            middle = QueueOffset((low + high) // 2)
            if is_before(self.unit(middle, without_waiting=without_waiting)):
                low = known.low = QueueOffset(middle + 1)
            else:
                high = known.high = middle
        return low

    def spill(self, keep: int) -> int:
        """Hand all but the newest `keep` units to the store; return how many went: none without room."""
        assert len(self.tail) == (self.max_offset - self.tail_first) * UNIT_BYTES, (
            f"{self.key}: {len(self.tail)} bytes of units of {self.tail_first}..{self.max_offset}"
        )
        surplus = self.max_offset - self.tail_first - keep
        if surplus <= 0:
            return 0
        self.digest()  # the bytes that leave must have been counted
        leaving = surplus * UNIT_BYTES
        try:
            self._store.append(self.key, self.tail_first, bytes(self.tail[:leaving]))
        except NoRoomError:
            return 0
        del self.tail[:leaving]
        self.tail_first = QueueOffset(self.tail_first + surplus)
        self._digested_bytes -= leaving
        return surplus

    def digest(self) -> int:
        """Return the CRC32C of all units ever appended; each is counted once, when asked or spilled."""
        if self._digested_bytes < len(self.tail):
            self._digest = crc32c(memoryview(self.tail)[self._digested_bytes :], self._digest)
            self._digested_bytes = len(self.tail)
        return self._digest

    def draw_line(self) -> bytes:
        """Bring `line` up to date, and return it."""
        topic, queue_id = self.key
        self.line = topic + _KEY.pack(queue_id, self.max_offset, self.digest())
        self.line_offset = self.max_offset
        return self.line

    def row(self) -> QueueRow:
        """Return the queue without its units, as a snapshot keeps it."""
        topic, queue_id = self.key
        digest = self.digest()
        return QueueRow(topic, queue_id, self.min_offset, self.max_offset, self.put_bytes, digest)

    def load_steps(
        self, row: QueueRow, units: Iterable[bytes | KeptPart], keep: int
    ) -> Iterator[None]:
        """Take in a queue from a snapshot, part by part; it is empty now. All but `keep` units may leave memory.

        Units that are kept as a part stay where they are, and are not read.

        Raises:
            SnapshotRefusedError: all units were read, and are not those that the row's digest counts.
        """
        assert not self.max_offset, f"{self.key} has {self.max_offset} units"
        assert row.min_offset <= row.max_offset, f"{self.key}: {row.min_offset}..{row.max_offset}"
        self.min_offset = self.max_offset = self.tail_first = self.held_first = row.min_offset
        self.put_bytes = row.put_bytes
        is_counted = not row.min_offset
        for part in units:
            if not isinstance(part, bytes):
                is_counted = False
                yield from self._attach(part)
                continue
            self.tail += part
            if len(self.tail) > 2 * keep * UNIT_BYTES:
                self._note_loaded()
                self.spill(keep)
            yield
        self.max_offset = row.max_offset
        if is_counted and self.digest() != row.digest:
            raise SnapshotRefusedError(
                f"{self.key}: digest {self.digest():#010x}, the snapshot says {row.digest:#010x}"
            )
        # Units before the min offset are gone, and counted all the same; so are those in parts.
        self._digest, self._digested_bytes = row.digest, len(self.tail)
        self.draw_line()

    def _note_loaded(self) -> None:
        self.max_offset = QueueOffset(self.tail_first + len(self.tail) // UNIT_BYTES)

    def _attach(self, part: KeptPart) -> Iterator[None]:
        """Have the next units read from a part; without room for those before it, it is read into memory."""
        self._note_loaded()
        self.spill(0)
        if self.tail:
            for chunk in part.chunks():
                self.tail += chunk
                yield
            return
        self._store.attach(self.key, self.tail_first, part)
        self.max_offset = QueueOffset(self.tail_first + self._store.part_units)
        self.tail_first = self.max_offset
        yield

    def crc_of_part(self, first: QueueOffset) -> int:
        """Return the CRC32C of a full part's units as they were in memory, if none of them was read from a part."""
        end = first + self._store.part_units
        crc = self._store.appended_crc(self.key, first)
        at = self.tail_first
        if at < end:
            left = memoryview(self.tail)[max(0, first - at) * UNIT_BYTES : (end - at) * UNIT_BYTES]
            crc = crc32c(left, crc)
        return crc

    def _out_of_range(self, offset: QueueOffset) -> str:
        return (
            f"{self.key}: queue offset {offset} is not within {self.min_offset}..{self.max_offset}"
        )


def units_to_keep(queue_count: int, resident_max: int, keep_max: int) -> int:
    """Return how many units each queue may keep in memory, of which it holds twice as many at most."""
    return min(keep_max, resident_max // (2 * max(1, queue_count)))


class UnitReading:
    """A snapshot whose units are still being read; as long as this lives, no unit is released."""


class ConsumeQueues:
    """All queues by topic and id.

    What is forgotten is one position for all of them. Each queue's min offset follows from it, and is found when
    somebody asks for the queue or `sweep` comes by: a group may have more queues than could be searched at once.

    Attributes:
        by_key: for the fold and for staging, which look queues up once per message; their min offsets may be old.
        beginning: messages that stand before it are forgotten.
        hidden: topics of which less is shown, and where that begins; others have no entry here.
        sealed_units: units of one queue that are a part of snapshots.
    """

    def __init__(
        self,
        store: UnitStore,
        is_special: Callable[[bytes], bool],
        *,
        sealed_units: int = SEALED_UNITS,
    ) -> None:
        self.sealed_units = sealed_units
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        self.beginning = Position(0)
        self.hidden: dict[bytes, Position] = {}
        self._unswept: list[ConsumeQueue] = []
        self._cold: list[tuple[ConsumeQueue, Callable[[], None]]] = []
        self._unlooked: list[ConsumeQueue] = []
        self._unreleased: list[ConsumeQueue] = []
        self._readings: WeakSet[UnitReading] = WeakSet()
        self._sorted: list[ConsumeQueue] = []
        self._change_count = self._sorted_at = 0
        self._by_topic: dict[bytes, list[ConsumeQueue]] = {}
        self._store = PartedUnits(store, sealed_units)
        self._is_special = is_special

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Go through them in the order of their first message, the same on every replica."""
        return map(self._trimmed, self.by_key.values())

    def get(
        self, topic: str, queue_id: QueueId, *, without_waiting: bool = False
    ) -> ConsumeQueue | None:
        """Return the queue, or None before its first message.

        Raises:
            FilesNotLoadedError: where it begins now has to be looked for on the disk, and whoever asks can wait.
        """
        queue = self.by_key.get((topic.encode(), queue_id))
        if queue is not None and (queue.trimmed_to < self.beginning or self.hidden):
            self._trimmed(queue, without_waiting=without_waiting)
        return queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic that have seen a message, in the order of their first one."""
        return list(map(self._trimmed, self._by_topic.get(topic.encode(), ())))

    def end(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """Return the max offset; 0 before the first message. Unlike `min_max` it never reads anything."""
        queue = self.by_key.get((topic.encode(), queue_id))
        return QueueOffset(0) if queue is None else queue.max_offset

    def put_totals(self, topic: str) -> tuple[int, int]:
        """Return how many records were ever put in a topic, and their size in bytes; nothing is read for it."""
        queues = self._by_topic.get(topic.encode(), ())
        return sum(each.max_offset for each in queues), sum(each.put_bytes for each in queues)

    def topics(self) -> list[str]:
        """Return the topics that have a queue, in the order of their first message."""
        return [topic.decode() for topic in self._by_topic]

    def min_max(
        self, topic: str, queue_id: QueueId, *, without_waiting: bool = False
    ) -> tuple[QueueOffset, QueueOffset]:
        """Return min and max offset; (0, 0) before the first message (rule D13).

        Raises:
            FilesNotLoadedError: see `get`.
        """
        queue = self.get(topic, queue_id, without_waiting=without_waiting)
        return (queue.min_offset, queue.max_offset) if queue else (QueueOffset(0), QueueOffset(0))

    def create(self, key: QueueKey) -> ConsumeQueue:
        """Begin a queue at offset 0."""
        assert key not in self.by_key, f"{key} exists"
        queue = ConsumeQueue(key, self._store, special=self._is_special(key[0]))
        self.by_key[key] = queue
        self._sorted.append(queue)
        self._change_count += 1
        self._by_topic.setdefault(key[0], []).append(queue)
        return queue

    def giving_up(self) -> Iterator[None]:
        """Forget all queues, in short steps; the units of the store are not looked at."""
        for held in (self._unswept, self._cold, self._unlooked, self._unreleased, self._sorted):
            held.clear()
            yield
        yield from emptied(self._by_topic)
        yield from emptied(self.by_key)
        yield from self._store.giving_up()

    def seal(self, queue: ConsumeQueue, first: QueueOffset, kept: KeptPart | None) -> SealedPart:
        """Return the part with the `sealed_units` units from an offset on, which are there; the same one each time."""
        if queue.sealed is None:
            queue.sealed = {}
        part = queue.sealed.get(first)
        if part is None and kept is not None:
            part = queue.sealed[first] = SealedPart(
                partial(self._read_kept, queue, kept), kept.stored
            )
        elif part is None:
            part = queue.sealed[first] = SealedPart(partial(self._read_part, queue, first))
        return part

    def _read_part(self, queue: ConsumeQueue, first: QueueOffset) -> Iterator[bytes]:
        """Yield the units that become a part.

        Raises:
            SnapshotOvertakenError: the queue was dropped; or the files have given other units than they got.
        """
        found = 0
        for chunk in self.read_units(queue, first, QueueOffset(first + self.sealed_units)):
            found = crc32c(chunk, found)
            yield chunk
        if found != queue.crc_of_part(first):
            raise SnapshotOvertakenError(
                f"{queue.key}: the files of units from {first} on are not what was written; a start makes them anew"
            )

    def _read_kept(self, queue: ConsumeQueue, kept: KeptPart) -> Iterator[bytes]:
        """Yield the units of a part with which this state began.

        Raises:
            SnapshotOvertakenError: the queue was dropped.
        """
        for chunk in kept.chunks():
            if self.by_key.get(queue.key) is not queue:
                raise SnapshotOvertakenError(f"{queue.key} is gone")
            yield chunk

    def read_units(
        self, queue: ConsumeQueue, begin: QueueOffset, end: QueueOffset
    ) -> Iterator[bytes]:
        """Yield units for a snapshot, in bounded parts, also those before the min offset.

        Raises:
            SnapshotOvertakenError: the queue was dropped.
        """
        step = CHUNK_BYTES // UNIT_BYTES
        for first in range(begin, end, step):
            if self.by_key.get(queue.key) is not queue:
                raise SnapshotOvertakenError(f"{queue.key} lost units from {first} on")
            count = min(step, end - first)
            yield bytes(queue.units(QueueOffset(first), count, with_held=True))

    def begin_reading(self) -> UnitReading:
        """Keep all units that are here now, until what is returned is given up."""
        reading = UnitReading()
        self._readings.add(reading)
        return reading

    def drop_topic(self, topic: str) -> None:
        """Forget all queues of a topic (rule B13)."""
        self.hidden.pop(topic.encode(), None)
        for queue in self._by_topic.pop(topic.encode(), ()):
            del self.by_key[queue.key]
            queue.sealed = None  # whoever still has the queue need not keep its parts
            self._store.drop(queue.key)
            self._change_count += 1

    def spill_some(self, resident_max: int, keep_max: int, *, records: int, interval: int) -> None:
        """Bring the number of units in memory back under `resident_max`, evenly, newest units first.

        A queue is left alone until it holds twice what it may keep, so that writes are not tiny. And only a share is
        done at a time: many queues may come to hold too much at once, each a file to be written.

        Args:
            resident_max: units of all queues in memory.
            keep_max: units of one queue that stay.
            records: that came since the last call.
            interval: records in which each queue is looked at once.
        """
        keep = units_to_keep(len(self.by_key), resident_max, keep_max)
        if not self._unlooked:
            self._unlooked = list(self.by_key.values())
        # A queue that spills gives up more than `keep` units: twice as many leave memory as came, if need be.
        spills_left = 1 + 2 * records // max(1, keep)
        look_count = -(-len(self.by_key) * records // interval)
        for _ in range(min(look_count, len(self._unlooked))):
            queue = self._unlooked.pop()
            is_full = queue.max_offset - queue.tail_first > 2 * keep
            if is_full and self.by_key.get(queue.key) is queue:
                queue.spill(keep)
                spills_left -= 1
                if not spills_left:
                    return

    def forget(self, beginning: Position) -> None:
        """Forget the messages that stand before a position; `sweep` brings back the room that their units take."""
        assert beginning >= self.beginning, (
            f"{beginning} is to begin what begins at {self.beginning}"
        )
        self.beginning = beginning
        self.hidden = {topic: at for topic, at in self.hidden.items() if at > beginning}
        self._unswept = list(self.by_key.values())

    def hide(self, topic: str, beginning: Position) -> None:
        """Forget the messages of one topic that stand before a position, which lies behind `beginning`."""
        self.hidden[topic.encode()] = beginning
        self._unswept += self._by_topic.get(topic.encode(), ())

    def sweep(self, count: int = SWEEP_QUEUES) -> None:
        """Drop the forgotten units of the next `count` queues; none are dropped while a snapshot is read.

        Those whose beginning has to be looked for on the disk are left to `looks`.
        """
        for _ in range(min(count, len(self._unswept))):
            queue = self._unswept.pop()
            if self.by_key.get(queue.key) is not queue:
                continue
            try:
                self._unreleased.append(self._trimmed(queue, without_waiting=True))
            except FilesNotLoadedError as error:
                self._cold.append((queue, error.warm))
        if self._readings:
            return
        for _ in range(min(count, len(self._unreleased))):
            queue = self._unreleased.pop()
            if self.by_key.get(queue.key) is queue:
                queue.release()

    def looks(self, count: int = LOOKS) -> tuple[Callable[[], None], Callable[[], None]] | None:
        """Return work for any thread, and what is to be called after it; None if there is none.

        It looks for the beginnings of some queues that `sweep` has left; after that `sweep` finds them.
        """
        if not self._cold:
            return None
        cold, self._cold = self._cold[:count], self._cold[count:]

        def look() -> None:
            for _, warm in cold:
                warm()

        def looked() -> None:
            self._unswept += [queue for queue, _ in cold]

        return look, looked

    def _trimmed(self, queue: ConsumeQueue, *, without_waiting: bool = False) -> ConsumeQueue:
        beginning = self.beginning
        if self.hidden:
            beginning = self.hidden.get(queue.key[0], beginning)
        if queue.trimmed_to < beginning:
            queue.trim(beginning, without_waiting=without_waiting)
        return queue

    def sort(self) -> None:
        """Sort the queues by key, for `digest`, if some are new or gone."""
        if self._sorted_at == self._change_count:
            return
        # What was dropped is no longer there, and what is new stands behind the rest, which is sorted.
        self._sorted = [each for each in self._sorted if self.by_key.get(each.key) is each]
        self._sorted.sort(key=_key_of)
        self._sorted_at = self._change_count

    def sort_steps(self) -> Iterator[None]:
        """Do the same in short steps; what comes or goes between them the next `sort` has little to do with."""
        began, count = self._sorted, self._change_count
        if self._sorted_at == count:
            return
        end = len(began)
        runs: list[list[ConsumeQueue]] = []
        for first in range(0, end, SORT_QUEUES):
            those = began[first : first + SORT_QUEUES]
            run = [each for each in those if self.by_key.get(each.key) is each]  # others are gone
            run.sort(key=_key_of)
            runs.append(run)
            yield
        merged: list[ConsumeQueue] = []
        queues = merge(*runs, key=_key_of)
        while step := list(islice(queues, SORT_QUEUES)):
            merged += step
            yield
        if self._sorted is began:  # else somebody has sorted them meanwhile
            self._sorted = merged + began[end:]
            self._sorted_at = count

    def digest(self) -> int:
        """Return the CRC32C over all queues, sorted by key. Only those that grew since the last one cost a call."""
        return [0, *self.running_digest()][-1]

    def running_digest(self) -> Iterator[int]:
        """Yield the CRC32C over more and more queues, in short steps; the last is `digest`. No queue may change."""
        self.sort()
        total = 0
        for first in range(0, len(self._sorted), DIGEST_QUEUES):
            total = crc32c(
                b"".join(
                    [
                        each.line if each.line_offset == each.max_offset else each.draw_line()
                        for each in self._sorted[first : first + DIGEST_QUEUES]
                    ]
                ),
                total,
            )
            yield total
