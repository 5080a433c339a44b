"""Reading messages back: by queue offset (rules D), by place, by key, by time.

Pure decisions over the derived state; the log's bytes come through `LogReader`. Nothing here waits:
long polling, permissions and subscriptions are the service's. An entry that the disk does not give now
(`EntryDamagedError`) is never taken for one that is gone: whoever reads must ask again later.
"""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from broker.store.consume_queue import UNIT, ConsumeQueue
from broker.store.state import BrokerState
from dledger.errors import CompactedError, EntryDamagedError, OutOfRangeError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import Position
from dledger_mq.message.errors import RecordError
from dledger_mq.message.properties import KEYS, UNIQ_KEY, find_property, split_keys
from dledger_mq.message.record import (
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    StoredMessage,
    decode_record,
)
from dledger_mq.message.sys_flags import BORN_HOST_V6

QUERY_COUNT_MAX: Final = 64
"""Results of a query by key (T3)."""

_SIZE: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_BORN_HOST_AT: Final = 48


class LogReader(Protocol):
    """The log, as far as readers need it."""

    def entry_at(self, position: Position) -> Entry:
        """The committed entry that covers a byte of the log.

        Raises:
            CompactedError: the log no longer holds it.
            OutOfRangeError: the log ends before it.
            EntryDamagedError: it has yet to come back from another node.
        """
        ...


class MessageGoneError(LookupError):
    """No record starts at that physical offset, or the log no longer holds it."""


class GetStatus(Enum):
    """How a read by queue offset ended (A2); names are the remarks of pull responses (E10)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetLimits:
    """How much one read examines and returns (D14, D16, D17).

    Attributes:
        memory_span_bytes: records at most this far behind the log's end count as in memory; RocketMQ
            takes 40 % of the machine's memory.
    """

    examined_units_max: int = 800
    count_max_in_memory: int = 32
    bytes_max_in_memory: int = 262_144
    count_max_on_disk: int = 8
    bytes_max_on_disk: int = 65_536
    memory_span_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class GetResult:
    """What a read by queue offset found.

    Attributes:
        next_offset: where to read next.
        records: stored records, in queue order; views of the log's entries.
        bytes_behind: from the last examined record to the log's end (D21, Z3); 0 if none was examined.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: tuple[memoryview, ...] = ()
    bytes_behind: int = 0


class RecordReader:
    """Cuts records out of entries, and keeps the last entry because neighbours usually share it."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._entry: Entry | None = None

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """The record's bytes, without copying them.

        Raises:
            MessageGoneError: the log no longer holds them.
        """
        entry = self._entry
        if entry is None or not entry.position <= physical_offset < entry.end_position:
            entry = self._entry = self._fetch(physical_offset)
        start = physical_offset - entry.position - ENTRY_HEADER_BYTES
        if start < 0 or start + size_bytes > len(entry.body):
            raise MessageGoneError(
                f"no record of {size_bytes} bytes at physical offset {physical_offset}"
            )
        return memoryview(entry.body)[start : start + size_bytes]

    def read_at(self, physical_offset: int) -> memoryview:
        """The record that starts at a physical offset which somebody claims (T1, but checked).

        Raises:
            MessageGoneError: no record starts there.
        """
        size_bytes: int = _SIZE.unpack(self.read(physical_offset, _SIZE.size))[0]
        if size_bytes < RECORD_BYTES_MIN:
            raise MessageGoneError(f"no record starts at physical offset {physical_offset}")
        record = self.read(physical_offset, size_bytes)
        if _LONG.unpack_from(record, PHYSICAL_OFFSET_AT)[0] != physical_offset:
            raise MessageGoneError(f"no record starts at physical offset {physical_offset}")
        return record

    def message_at(self, physical_offset: int) -> StoredMessage:
        """The message that starts at a physical offset.

        Raises:
            MessageGoneError: no record starts there.
        """
        record = self.read_at(physical_offset)
        try:
            return decode_record(bytes(record))
        except RecordError as error:
            raise MessageGoneError(
                f"no record at physical offset {physical_offset}: {error}"
            ) from error

    def store_time(self, physical_offset: int, size_bytes: int) -> int:
        """Store time (ms) of a record, from its bytes (docs/formats/message.md)."""
        record = self.read(physical_offset, size_bytes)
        is_v6 = record[SYS_FLAG_AT + 3] & BORN_HOST_V6
        store_ms: int = _LONG.unpack_from(record, _BORN_HOST_AT + (20 if is_v6 else 8))[0]
        return store_ms

    def _fetch(self, physical_offset: int) -> Entry:
        if physical_offset < 0:
            raise MessageGoneError(f"physical offset {physical_offset} is negative")
        try:
            return self._log.entry_at(Position(physical_offset))
        except (CompactedError, OutOfRangeError) as error:
            raise MessageGoneError(
                f"the log does not hold physical offset {physical_offset}: {error}"
            ) from error


def read_message(log: LogReader, physical_offset: int) -> StoredMessage:
    """The message that starts at a physical offset (request 33, send-back, delivery of delayed ones).

    Raises:
        MessageGoneError: no record starts there.
    """
    return RecordReader(log).message_at(physical_offset)


def get_messages(
    state: BrokerState,
    log: LogReader,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    count_max: int,
    log_end: int,
    bytes_max: int = 2**31 - 1,
    tag_hashes: AbstractSet[int] | None = None,
    limits: GetLimits = GetLimits(),
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
        limits: of one read.

    Raises:
        EntryDamagedError: the first wanted message cannot be read now; one further behind ends the batch.
    """
    queue = state.queues.get(topic, queue_id)
    if queue is None or queue.max_offset == 0:  # D3, D13
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    least, most = queue.min_offset, queue.max_offset
    if offset < least:  # D4
        return GetResult(GetStatus.OFFSET_TOO_SMALL, least, least, most)
    if offset == most:  # D5
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, least, most)
    if offset > most:  # D6
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, most, least, most)
    batch = _Batch(RecordReader(log), limits, count_max, bytes_max, log_end)
    examined_max = max(limits.examined_units_max, count_max)
    examined = batch.collect(queue.units(offset, examined_max), tag_hashes)
    if batch.records:
        status = GetStatus.FOUND  # D10
    elif batch.was_gone:
        status = GetStatus.MESSAGE_WAS_REMOVING  # D9
    else:
        status = GetStatus.NO_MATCHED_MESSAGE  # D8
    behind = log_end - batch.last_physical_offset if examined else 0
    return GetResult(status, offset + examined, least, most, tuple(batch.records), max(0, behind))


class _Batch:
    """The messages of one read, as they are collected."""

    def __init__(
        self,
        reader: RecordReader,
        limits: GetLimits,
        count_max: int,
        bytes_max: int,
        log_end: int,
    ) -> None:
        self.records: list[memoryview] = []
        self.was_gone = False
        self.last_physical_offset = 0
        self._reader = reader
        self._limits = limits
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._memory_start = log_end - limits.memory_span_bytes
        self._bytes = 0

    def collect(self, units: memoryview, tag_hashes: AbstractSet[int] | None) -> int:
        """Examine units until the batch is full; return how many were examined."""
        examined = 0
        for physical_offset, size_bytes, tag_hash in UNIT.iter_unpack(units):
            if tag_hashes is None or tag_hash in tag_hashes:
                if self.records and self._is_full(physical_offset, size_bytes):
                    break
                try:
                    self._take(physical_offset, size_bytes)
                except EntryDamagedError:
                    if not self.records:
                        raise
                    break
            self.last_physical_offset = physical_offset
            examined += 1
        return examined

    def _is_full(self, physical_offset: int, size_bytes: int) -> bool:
        """Whether one more message would be too much; never asked for the first (D16, D18)."""
        count, total = len(self.records), self._bytes + size_bytes
        if count + 1 > self._count_max or total > self._bytes_max:
            return True
        limits = self._limits
        if physical_offset >= self._memory_start:
            return total > limits.bytes_max_in_memory or count >= limits.count_max_in_memory
        return total > limits.bytes_max_on_disk or count >= limits.count_max_on_disk

    def _take(self, physical_offset: int, size_bytes: int) -> None:
        try:
            record = self._reader.read(physical_offset, size_bytes)
        except MessageGoneError:
            self.was_gone = True
            return
        self.records.append(record)
        self._bytes += size_bytes


def offset_by_time(
    state: BrokerState,
    log: LogReader,
    topic: str,
    queue_id: int,
    time_ms: int,
    *,
    is_upper: bool = False,
) -> int:
    """The queue offset that belongs to a store time (K1, K2); 0 in a queue without messages."""
    queue = state.queues.get(topic, queue_id)
    if queue is None:
        return 0
    return queue.offset_by_time(time_ms, RecordReader(log).store_time, is_upper=is_upper)


def earliest_store_time(state: BrokerState, log: LogReader, topic: str, queue_id: int) -> int:
    """Store time (ms) of the message at the min offset, -1 if there is none (K4)."""
    queue = state.queues.get(topic, queue_id)
    if queue is None or queue.min_offset == queue.max_offset:
        return -1
    return _store_time_at(queue, RecordReader(log), queue.min_offset)


def store_time_at(
    state: BrokerState, log: LogReader, topic: str, queue_id: int, offset: int
) -> int:
    """Store time (ms) of the message at a queue offset, -1 if there is none."""
    queue = state.queues.get(topic, queue_id)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return -1
    return _store_time_at(queue, RecordReader(log), offset)


def _store_time_at(queue: ConsumeQueue, reader: RecordReader, offset: int) -> int:
    unit = queue.unit(offset)
    try:
        return reader.store_time(unit.physical_offset, unit.size_bytes)
    except MessageGoneError:
        return -1


def query_by_key(
    state: BrokerState,
    log: LogReader,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int,
    end_ms: int,
    is_unique_key: bool = False,
) -> list[memoryview]:
    """The newest messages that have a key, in log order (request 12; T2, T3).

    Unlike RocketMQ's index this compares the key's text, so there are no others among them.

    Raises:
        EntryDamagedError: whether one of them has it cannot be told now.
    """
    reader = RecordReader(log)
    count_max = min(count_max, QUERY_COUNT_MAX)
    wanted = key.encode()
    found: list[memoryview] = []
    for physical_offset in state.key_index.candidates(topic, key, begin_ms, end_ms):
        if len(found) >= count_max:
            break
        try:
            record = reader.read_at(physical_offset)
        except MessageGoneError:
            continue
        if _has_key(record, topic, wanted, is_unique_key=is_unique_key):
            found.append(record)
    found.reverse()
    return found


def _has_key(record: memoryview, topic: str, key: bytes, *, is_unique_key: bool) -> bool:
    message = decode_record(bytes(record), check_crc=False)
    if message.topic != topic:
        return False
    if find_property(message.properties, UNIQ_KEY) == key:
        return True
    return not is_unique_key and key in split_keys(message.find(KEYS) or b"")
