"""Reading messages by queue offset (rules D): how much one read gives, and where the next one begins.

Pure decisions over the derived state; the log's bytes come through `EntrySource`. Nothing here waits:
long polling, permissions and subscriptions are the service's. An entry that the disk does not give now
(`EntryDamagedError`) is never taken for one that is gone: whoever reads must ask again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from broker.store.consume_queue import ConsumeQueue
from broker.store.judging import Judged, judge
from broker.store.not_in_memory import NotLoadedError
from broker.store.record_reader import MessageGoneError, PulledLog, RecordReader
from broker.store.state import BrokerState
from broker.store.unit_stores import UNIT, UNIT_BYTES
from dledger.errors import EntryDamagedError
from dledger.raft.ids import Position
from dledger_mq.filters import PropertyFilter
from dledger_mq.message import compiled
from dledger_mq.message.compiled import ChosenRuns
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.record import record_properties


class GetStatus(Enum):
    """The ends of a read by queue offset (A2); names are the remarks of pull responses (E10).

    Attributes:
        remark: the name as it stands in answers.
    """

    # Each stands for itself; that of Enum is a call into Python for each pull.
    __hash__ = object.__hash__

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"

    def __init__(self, name: str) -> None:
        self.remark = name.encode()


@dataclass(frozen=True, slots=True)
class GetLimits:
    """Bounds of what one read examines and returns (D14, D16, D17).

    Attributes:
        memory_span_bytes: records at most this far behind the log's end count as in memory; RocketMQ
            takes 40 % of the machine's memory.
        judged_bytes_max: of the records that a property filter looks at, one in any case; see also `_Bounds`.
    """

    examined_units_max: int = 800
    judged_bytes_max: int = 2 << 20
    count_max_in_memory: int = 32
    bytes_max_in_memory: int = 262_144
    count_max_on_disk: int = 8
    bytes_max_on_disk: int = 65_536
    memory_span_bytes: int = 8 << 30


class GetResult(msgspec.Struct, frozen=True):
    """The outcome of a read by queue offset.

    Attributes:
        next_offset: where to read next.
        records: stored records back to back, in queue order, in pieces; views of what is in memory.
        count: of the records.
        bytes_behind: from the last examined record to the log's end (D21, Z3); 0 if none was examined.
        not_loaded: places and sizes of further records that would have been given, had they been in memory.
    """

    status: GetStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    records: Sequence[memoryview] = ()
    count: int = 0
    bytes_behind: int = 0
    not_loaded: Sequence[tuple[PhysicalOffset, int]] = ()


def get_messages(
    state: BrokerState,
    log: PulledLog,
    topic: str,
    queue_id: QueueId,
    *,
    offset: QueueOffset,
    count_max: int,
    log_end: Position,
    bytes_max: int = 2**31 - 1,
    tag_hashes: AbstractSet[int] | None = None,
    property_filter: PropertyFilter | None = None,
    limits: GetLimits = GetLimits(),
    may_wait: bool = False,
    may_wait_for_units: bool = False,
) -> GetResult:
    """Read from a queue offset on (section D).

    Args:
        state: the derived state.
        log: where records are.
        topic: of the queue.
        queue_id: of the queue.
        offset: where to begin.
        count_max: how many messages at most.
        log_end: end of the committed log, from which "in memory" is judged (D17).
        bytes_max: how many bytes at most, but one message is always given (D18).
        tag_hashes: Java hashes of the wanted tags; None for all.
        property_filter: judges messages by their properties; then tags do not count.
        limits: of one read.
        may_wait: whether whoever asks can wait until the first record was read from the disk. If not, it is read
            now; further ones are given in any case only if they are in memory.
        may_wait_for_units: whether it can wait until the queue's units were read from the disk.

    Raises:
        FilesNotLoadedError: it may wait for the units, or for where the queue begins, and they are not in memory.
        NotLoadedError: it may wait, and the first wanted message is not in memory.
        EntryDamagedError: the first wanted message, or the first that a property filter has to judge, cannot be read
            now; one further on ends the batch.
    """
    queue = state.queues.get(topic, queue_id, without_waiting=may_wait_for_units)
    if queue is None or queue.max_offset == 0:  # D3, D13
        nothing = QueueOffset(0)
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, nothing, nothing, nothing)
    least, most = queue.min_offset, queue.max_offset
    if offset < least:  # D4
        return GetResult(GetStatus.OFFSET_TOO_SMALL, least, least, most)
    if offset == most:  # D5
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, least, most)
    if offset > most:  # D6
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, most, least, most)
    return _get_within(
        queue,
        log,
        offset,
        _Bounds(
            count_max, bytes_max, log_end, limits, property_filter.looks if property_filter else 0
        ),
        tag_hashes=tag_hashes,
        property_filter=property_filter,
        may_wait=may_wait,
        without_waiting=may_wait_for_units,
    )


def get_at_once(
    state: BrokerState,
    log: PulledLog,
    topic: str,
    queue_id: QueueId,
    *,
    offset: QueueOffset,
    count_max: int,
    log_end: Position,
    bytes_max: int,
    tag_hashes: AbstractSet[int] | None,
    limits: GetLimits,
) -> GetResult | None:
    """Return what `get_messages` returns, if that is messages and all of them are in memory; None: ask that.

    Raises:
        FilesNotLoadedError: the units are not in memory, nor perhaps where the queue begins.
    """
    queue = state.queues.get(topic, queue_id, without_waiting=True)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    bounds = _Bounds(count_max, bytes_max, log_end, limits, 0)
    result = _get_quickly(queue, log, offset, bounds, tag_hashes=tag_hashes, without_waiting=True)
    return result if result is not None and result.count else None


_LOOKS_AT_EACH: Final = 64
_LOOKS_AT_ALL_BYTES: Final = 16
"""A property filter with more looks is tried on so many fewer messages, or bytes of them, in one read: a verdict with
five hundred takes 0.2 ms for short values, and for a text of 32 KiB that is searched two hundred times 16 ms."""


class _Bounds(NamedTuple):
    """The bounds of one read; `get_messages` describes them.

    Attributes:
        looks: of the property filter; 0 without one.
    """

    count_max: int
    bytes_max: int
    log_end: Position
    limits: GetLimits
    looks: int

    @property
    def examined_max(self) -> int:
        """Units that one read examines at most (D14)."""
        most = max(self.limits.examined_units_max, self.count_max)
        return most if self.looks <= _LOOKS_AT_EACH else max(1, most * _LOOKS_AT_EACH // self.looks)

    @property
    def judged_bytes_max(self) -> int:
        """Bytes of the records that a property filter looks at."""
        most = self.limits.judged_bytes_max
        if self.looks <= _LOOKS_AT_ALL_BYTES:
            return most
        return max(1, most * _LOOKS_AT_ALL_BYTES // self.looks)

    @property
    def memory_start(self) -> int:
        """The place from which on records count as in memory (D17)."""
        return self.log_end - self.limits.memory_span_bytes


def _get_within(
    queue: ConsumeQueue,
    log: PulledLog,
    offset: QueueOffset,
    bounds: _Bounds,
    *,
    tag_hashes: AbstractSet[int] | None,
    property_filter: PropertyFilter | None,
    may_wait: bool,
    without_waiting: bool,
) -> GetResult:
    """Read from an offset that the queue has, as `get_messages` describes it: quickly if that can be."""
    if property_filter is None:
        quick = _get_quickly(
            queue, log, offset, bounds, tag_hashes=tag_hashes, without_waiting=without_waiting
        )
    else:
        quick = _get_judged_quickly(
            queue,
            log,
            offset,
            bounds,
            property_filter=property_filter,
            without_waiting=without_waiting,
        )
    if quick is not None:
        return quick
    least, most = queue.min_offset, queue.max_offset
    batch = _Batch(RecordReader(log), bounds)
    units = queue.units(offset, bounds.examined_max, without_waiting=without_waiting)
    if property_filter is None:
        examined = batch.collect(units, tag_hashes, may_wait=may_wait)
    else:
        examined = batch.collect_judged(units, property_filter, may_wait=may_wait)
    next_offset = QueueOffset(offset + examined)
    assert offset <= next_offset <= most, (
        f"{queue.key}: {examined} units from {offset} on, of a queue that ends at {most}"
    )
    behind = max(0, bounds.log_end - batch.last_physical_offset) if examined else 0
    count = len(batch.records)
    return GetResult(
        batch.status, next_offset, least, most, batch.records, count, behind, batch.not_loaded
    )


def _get_quickly(
    queue: ConsumeQueue,
    log: PulledLog,
    offset: QueueOffset,
    bounds: _Bounds,
    *,
    tag_hashes: AbstractSet[int] | None,
    without_waiting: bool,
) -> GetResult | None:
    """Read what is in memory; None: it is to be read record by record (`_Batch`), with the same result.

    Records that stand back to back in the log are one piece of the result. All of them have to count as in memory, or
    none of them, and neither the one with which there would be too much.
    """
    count_max, bytes_max, log_end, limits, _ = bounds
    memory_start = log_end - limits.memory_span_bytes
    count_limit, bytes_limit = limits.count_max_in_memory, limits.bytes_max_in_memory
    if tag_hashes is None:
        # With the one that is too much, where that matters.
        units_max = max(1, min(count_max, max(count_limit, limits.count_max_on_disk)))
    else:
        units_max = max(limits.examined_units_max, count_max)
    units = queue.units(offset, units_max, without_waiting=without_waiting)
    if UNIT.unpack_from(units)[0] < memory_start:  # what follows stands further on in the log
        if UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0] >= memory_start:
            return None
        count_limit, bytes_limit = limits.count_max_on_disk, limits.bytes_max_on_disk
    count_max = max(1, min(count_max, count_limit))
    bytes_max = min(bytes_max, bytes_limit)
    runs, count, examined, _, last = _choose(units, tag_hashes, count_max, bytes_max)
    records = log.views(runs, log_end) if count else ()
    if records is None:
        return None
    status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
    next_offset = QueueOffset(offset + examined)
    least, most, behind = queue.min_offset, queue.max_offset, max(0, log_end - last)
    return GetResult(status, next_offset, least, most, records, count, behind)


def _choose(
    units: memoryview, tag_hashes: AbstractSet[int] | None, count_max: int, bytes_max: int
) -> ChosenRuns:
    """Choose the wanted records: one at least, and no more than these bounds allow (D16, D18)."""
    chosen = compiled.chosen_runs(units, tag_hashes, count_max, bytes_max)
    if chosen is not None:
        return chosen
    runs: list[tuple[int, int]] = []
    total = count = examined = 0
    start = end = first = position = -1
    for found_at, size_bytes, tag_hash in UNIT.iter_unpack(units):
        if tag_hashes is None or tag_hash in tag_hashes:
            total += size_bytes
            if count and (count >= count_max or total > bytes_max):
                break
            count += 1
            if found_at == end:
                end += size_bytes
            else:
                if start >= 0:
                    runs.append((start, end))
                start, end = found_at, found_at + size_bytes
        position = found_at
        if not examined:
            first = found_at
        examined += 1
    if count:
        runs.append((start, end))
    return runs, count, examined, first, position


_JUDGED_AT_FIRST: Final = 32
_JUDGED_AT_ONCE_MAX: Final = 256
"""Records that a property filter is given at a time: twice as many each time, as few are needed where most match."""

_LOADED_AT_ONCE: Final = 64
"""Records of which it is said that they are not in memory: each may stand in another part of the log (64 KiB)."""


def _get_judged_quickly(
    queue: ConsumeQueue,
    log: PulledLog,
    offset: QueueOffset,
    bounds: _Bounds,
    *,
    property_filter: PropertyFilter,
    without_waiting: bool,
) -> GetResult | None:
    """Do what `_get_quickly` does, by a property filter; it ends where records are not in memory."""
    log_end, given = bounds.log_end, _Given(bounds)
    units = queue.units(offset, bounds.examined_max, without_waiting=without_waiting)
    first: int = UNIT.unpack_from(units)[0]
    if first < bounds.memory_start:  # what follows stands further on in the log
        return None
    unit_count, at_once = len(units) // UNIT_BYTES, _JUDGED_AT_FIRST
    examined, judged_bytes, judged_bytes_max = 0, 0, bounds.judged_bytes_max
    while examined < unit_count and judged_bytes < judged_bytes_max and not given.is_full:
        some = judge(
            log,
            units[examined * UNIT_BYTES : (examined + at_once) * UNIT_BYTES],
            property_filter,
            bytes_max=judged_bytes_max - judged_bytes,
            log_end=log_end,
        )
        if not some.sizes:  # the next one is not in memory
            break
        examined += given.take(some)
        judged_bytes += sum(some.sizes)
        at_once = min(2 * at_once, _JUDGED_AT_ONCE_MAX)
    if not examined:
        return None
    status, records = given.status, given.records
    next_offset = QueueOffset(offset + examined)
    last: int = UNIT.unpack_from(units, (examined - 1) * UNIT_BYTES)[0]
    least, most, behind = queue.min_offset, queue.max_offset, max(0, log_end - last)
    return GetResult(status, next_offset, least, most, records, len(records), behind)


class _Given:
    """The records that a quick read by a property filter gives, as they are found: one at least (D16, D18)."""

    def __init__(self, bounds: _Bounds) -> None:
        self.records: list[memoryview] = []
        self.is_full = False
        self._count_max = max(1, min(bounds.count_max, bounds.limits.count_max_in_memory))
        self._bytes_left = min(bounds.bytes_max, bounds.limits.bytes_max_in_memory)

    @property
    def status(self) -> GetStatus:
        """The end of the read."""
        return GetStatus.FOUND if self.records else GetStatus.NO_MATCHED_MESSAGE

    def take(self, some: Judged) -> int:
        """Take the wanted ones of some records until it is full; return how many of all of them are done with."""
        for number, record in some.records:
            self._bytes_left -= len(record)
            if self.records and self._bytes_left < 0:
                self.is_full = True
                return number
            self.records.append(record)
            if len(self.records) >= self._count_max or self._bytes_left <= 0:
                self.is_full = True
                return number + 1
        return len(some.sizes)


class _Batch:
    """The messages of one read, as they are collected."""

    def __init__(self, reader: RecordReader, bounds: _Bounds) -> None:
        self.records: list[memoryview] = []
        self.not_loaded: list[tuple[PhysicalOffset, int]] = []
        self.was_gone = False
        self.last_physical_offset = PhysicalOffset(0)
        self._reader = reader
        self._limits = bounds.limits
        self._judged_bytes_max = bounds.judged_bytes_max
        self._count_max = bounds.count_max
        self._bytes_max = bounds.bytes_max
        self._memory_start = bounds.memory_start
        self._bytes = 0

    def collect(
        self, units: memoryview, tag_hashes: AbstractSet[int] | None, *, may_wait: bool
    ) -> int:
        """Examine units until the batch is full; return how many were examined.

        From the first record on that is not in memory, records are noted and not taken.

        Raises:
            NotLoadedError, EntryDamagedError: nothing was taken, since the first is not in memory, or damaged.
        """
        physical_offset: PhysicalOffset
        examined = 0
        for physical_offset, size_bytes, tag_hash in UNIT.iter_unpack(units):
            if tag_hashes is None or tag_hash in tag_hashes:
                is_first = not (self.records or self.not_loaded)
                if not is_first and self._is_full(physical_offset, size_bytes):
                    break
                try:
                    self._take(physical_offset, size_bytes, must=is_first and not may_wait)
                except EntryDamagedError:
                    if is_first:
                        raise
                    break
            if not self.not_loaded:
                self.last_physical_offset = physical_offset
                examined += 1
        if self.not_loaded and not self.records:
            raise NotLoadedError(self.not_loaded)
        return examined

    def collect_judged(
        self, units: memoryview, property_filter: PropertyFilter, *, may_wait: bool
    ) -> int:
        """Do what `collect` does, by a property filter; it ends at the first record that is not in memory, or damaged.

        Raises:
            NotLoadedError, EntryDamagedError: that is the first one that is to be judged.
        """
        physical_offset: PhysicalOffset
        places = [(at, size_bytes) for at, size_bytes, _ in UNIT.iter_unpack(units)]
        judged_bytes = 0
        for examined, (physical_offset, size_bytes) in enumerate(places):
            if judged_bytes >= self._judged_bytes_max:
                return examined
            must = not (examined or may_wait)
            try:
                record = self._reader.read(physical_offset, size_bytes, only_memory=not must)
            except MessageGoneError:
                self.was_gone = True
            except NotLoadedError:
                missing = places[examined : examined + _LOADED_AT_ONCE]
                if not examined:
                    raise NotLoadedError(missing) from None
                self.not_loaded = missing
                return examined
            except EntryDamagedError:
                if not examined:
                    raise
                return examined
            else:
                judged_bytes += size_bytes
                if property_filter.matches(record_properties(record)):
                    if self.records and self._is_full(physical_offset, size_bytes):
                        return examined
                    self.records.append(record)
                    self._bytes += size_bytes
            self.last_physical_offset = physical_offset
            if self.records and self._is_full(physical_offset, 0):
                return examined + 1
        return len(places)

    @property
    def status(self) -> GetStatus:
        """The end of the read: records, none because the log no longer has them, or none that is wanted."""
        if self.records:
            return GetStatus.FOUND  # D10
        return (
            GetStatus.MESSAGE_WAS_REMOVING if self.was_gone else GetStatus.NO_MATCHED_MESSAGE
        )  # D9, D8

    def _is_full(self, physical_offset: PhysicalOffset, size_bytes: int) -> bool:
        """Return whether one more message would be too much; never asked for the first (D16, D18)."""
        count = len(self.records) + len(self.not_loaded)
        total = self._bytes + size_bytes
        if count + 1 > self._count_max or total > self._bytes_max:
            return True
        limits = self._limits
        if physical_offset >= self._memory_start:
            return total > limits.bytes_max_in_memory or count >= limits.count_max_in_memory
        return total > limits.bytes_max_on_disk or count >= limits.count_max_on_disk

    def _take(self, physical_offset: PhysicalOffset, size_bytes: int, *, must: bool) -> None:
        """Add a record, unless the log no longer holds it; note it if it, or one before it, is not in memory.

        Args:
            physical_offset: where it begins.
            size_bytes: of the record.
            must: read it from the disk if need be.
        """
        if not self.not_loaded:
            try:
                record = self._reader.read(physical_offset, size_bytes, only_memory=not must)
            except MessageGoneError:
                self.was_gone = True
                return
            except NotLoadedError:
                pass
            else:
                self.records.append(record)
                self._bytes += size_bytes
                return
        self.not_loaded.append((physical_offset, size_bytes))
        self._bytes += size_bytes
