"""Finding messages by time and by key. Pure decisions over the derived state; the log comes through `EntrySource`.

Whoever can wait for the disk is told what is not in memory (`NotInMemoryError`), and looks again once that was read.
Nothing here knows requests, or waits.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Final

from broker.store.consume_queue import ConsumeQueue
from broker.store.kept_log import KeptLog
from broker.store.key_index import Walks
from broker.store.not_in_memory import NotLoadedError
from broker.store.queue_search import Search
from broker.store.record_reader import EntrySource, MessageGoneError, RecordReader
from broker.store.state import BrokerState
from dledger.errors import DLedgerError
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import KEYS, UNIQ_KEY, find_property, split_keys
from dledger_mq.message.record import decode_record

QUERY_COUNT_MAX: Final = 64
"""Results of a query by key (T3)."""

QUERY_BYTES_MAX: Final = 8 << 20
"""Of them all, unless one alone has more: a frame has at most 16 MiB."""


class KeyKind(Enum):
    """The keys of a message among which one is looked for; the values are RocketMQ's, from 5.4 on."""

    ANY = ""
    UNIQUE = "U"
    KEYS = "K"


_EMPTY_MAX: Final = 64
"""Entries without records that are passed over in search of the oldest one."""


def offset_by_time(
    state: BrokerState,
    log: EntrySource,
    topic: str,
    queue_id: QueueId,
    *,
    time_ms: int,
    is_upper: bool = False,
    search: Search | None = None,
) -> QueueOffset:
    """Return the queue offset that belongs to a store time (K1, K2); 0 in a queue without messages.

    Raises:
        NotInMemoryError: there is a search, which goes on once that was read.
    """
    queue = state.queues.get(topic, queue_id, without_waiting=search is not None)
    if queue is None:
        return QueueOffset(0)
    reader = RecordReader(log, only_memory=search is not None)
    offset = queue.offset_by_time(time_ms, reader.store_time, is_upper=is_upper, search=search)
    assert queue.min_offset <= offset <= queue.max_offset, (
        f"{queue.key}: offset {offset} by time, of {queue.min_offset}..{queue.max_offset}"
    )
    return offset


def earliest_store_time(
    state: BrokerState,
    log: EntrySource,
    topic: str,
    queue_id: QueueId,
    *,
    may_wait: bool = False,
) -> StoreTimeMs | None:
    """Return the store time of the message at the min offset, None if there is none (K4).

    Raises:
        NotInMemoryError: whoever asks may wait until that was read.
    """
    queue = state.queues.get(topic, queue_id, without_waiting=may_wait)
    if queue is None or queue.min_offset == queue.max_offset:
        return None
    return _store_time_at(queue, log, queue.min_offset, may_wait=may_wait)


def store_time_at(
    state: BrokerState,
    log: EntrySource,
    topic: str,
    queue_id: QueueId,
    *,
    offset: QueueOffset,
    may_wait: bool = False,
) -> StoreTimeMs | None:
    """Return the store time of the message at a queue offset, None if there is none.

    Raises:
        NotInMemoryError: whoever asks may wait until that was read.
    """
    queue = state.queues.get(topic, queue_id, without_waiting=may_wait)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    return _store_time_at(queue, log, offset, may_wait=may_wait)


def _store_time_at(
    queue: ConsumeQueue, log: EntrySource, offset: QueueOffset, *, may_wait: bool
) -> StoreTimeMs | None:
    """Return the store time of a unit's record, None if the log no longer holds it."""
    unit = queue.unit(offset, without_waiting=may_wait)
    reader = RecordReader(log, only_memory=may_wait)
    try:
        return reader.store_time(unit.physical_offset, unit.size_bytes)
    except MessageGoneError:
        return None


def check_loaded(log: EntrySource, position: Position) -> None:
    """Check that an entry can be read without waiting for the disk.

    Raises:
        NotLoadedError: it is not in memory; the system has it once that was read.
    """
    if log.span_at(position, 1, only_memory=True) is None:
        raise NotLoadedError([(PhysicalOffset(position), 1)])


def earliest_store_ms(
    log: EntrySource, position: Position, *, end: Position, may_wait: bool = False
) -> StoreTimeMs | None:
    """Return the store time of the first record at or after a position, None if it is not found nearby or not readable.

    Args:
        log: read entry by entry; those without records are passed over, _EMPTY_MAX of them at most.
        position: the first one that the log holds.
        end: the position after the last committed entry.
        may_wait: whether whoever asks can wait for the disk.

    Raises:
        NotLoadedError: an entry is not in memory, and whoever asks may wait.
    """
    reader = RecordReader(log)
    try:
        for _ in range(_EMPTY_MAX):
            if position >= end:
                return None
            if may_wait:
                check_loaded(log, position)
            entry = log.entry_at(position)
            place = PhysicalOffset(entry.position + ENTRY_HEADER_BYTES)
            with suppress(MessageGoneError):
                return reader.store_time(place, len(reader.read_at(place)))
            position = entry.end_position
    except DLedgerError:
        return None
    return None


def position_by_time(
    log: EntrySource, beginning: Position, *, end: Position, time_ms: int, within_bytes: int
) -> Position:
    """Return a position before which all records were stored before a time, the last such one to some bytes.

    Args:
        log: read in a few places.
        beginning: the first position that is looked at.
        end: the position after the last committed entry.
        time_ms: store time.
        within_bytes: distance that does not matter.
    """
    assert within_bytes > 0, f"a search to {within_bytes} bytes"
    low, high = beginning, end
    while high - low > within_bytes:
        middle = Position((low + high) // 2)
        stored_ms = earliest_store_ms(log, middle, end=end)
        if stored_ms is not None and stored_ms < time_ms:
            low = middle
        else:
            high = middle
    return low


def query_by_key(
    state: BrokerState,
    log: EntrySource,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int,
    end_ms: int,
    kind: KeyKind = KeyKind.ANY,
    before: PhysicalOffset | None = None,
    walks: Walks | None = None,
) -> list[memoryview]:
    """Return the newest messages that have a key, in log order (request 12; T2, T3).

    The first of them stands where a further query goes on (`before`): so nothing is given twice or left out, whatever
    is stored meanwhile. Unlike RocketMQ's index this compares the key's text, so there are no others among them.

    Raises:
        EntryDamagedError: one of them cannot be read now, so that nobody knows whether it has the key.
        NotInMemoryError: there are walks, which go on once that was read.
    """
    reader = RecordReader(KeptLog(log, state.retention), only_memory=walks is not None)
    count_max = min(count_max, QUERY_COUNT_MAX)
    wanted = key.encode()
    found: list[memoryview] = []
    size_bytes = 0
    last: PhysicalOffset | None = None
    not_loaded: list[tuple[PhysicalOffset, int]] = []
    beginning = state.retention.beginning_of(topic)
    for physical_offset in state.key_index.candidates(
        topic, key, begin_ms, end_ms, before=before, walks=walks
    ):
        if len(found) + len(not_loaded) >= count_max or physical_offset < beginning:
            break  # older ones stand before it, too
        if physical_offset == last:
            continue  # it has the key twice
        last = physical_offset
        record = _read_or_note(reader, physical_offset, not_loaded)
        if record is not None and _has_key(record, topic, wanted, kind):
            size_bytes += len(record)
            if found and size_bytes > QUERY_BYTES_MAX:
                break
            found.append(record)
    if not_loaded:
        raise NotLoadedError(sorted(not_loaded))
    assert len(found) <= QUERY_COUNT_MAX, f"{len(found)} messages were found"
    found.reverse()
    return found


def _read_or_note(
    reader: RecordReader, place: PhysicalOffset, not_loaded: list[tuple[PhysicalOffset, int]]
) -> memoryview | None:
    """Return a record; None if it is gone, or not in memory: then what is to be read is added to `not_loaded`."""
    try:
        return reader.read_at(place)
    except MessageGoneError:
        return None
    except NotLoadedError as error:
        not_loaded += error.places
        return None


def _has_key(record: memoryview, topic: str, key: bytes, kind: KeyKind) -> bool:
    """Return whether a record is of the topic and has the key."""
    message = decode_record(bytes(record), check_crc=False)
    if message.topic != topic:
        return False
    if kind is not KeyKind.KEYS and find_property(message.properties, UNIQ_KEY) == key:
        return True
    return kind is not KeyKind.UNIQUE and key in split_keys(message.find(KEYS) or b"")
