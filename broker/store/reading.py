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

from broker.store.consume_queue import UNIT
from broker.store.record_reader import (
    EntrySource,
    MessageGoneError,
    NotLoadedError,
    RecordReader,
)
from broker.store.state import BrokerState
from dledger.errors import EntryDamagedError
from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset


class GetStatus(Enum):
    """The ends of a read by queue offset (A2); names are the remarks of pull responses (E10)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetLimits:
    """Bounds of what one read examines and returns (D14, D16, D17).

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
    """The outcome of a read by queue offset.

    Attributes:
        next_offset: where to read next.
        records: stored records, in queue order; views of the log's entries.
        bytes_behind: from the last examined record to the log's end (D21, Z3); 0 if none was examined.
        not_loaded: places and sizes of further records that would have been given, had they been in memory.
    """

    status: GetStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    records: tuple[memoryview, ...] = ()
    bytes_behind: int = 0
    not_loaded: Sequence[tuple[PhysicalOffset, int]] = ()


def get_messages(
    state: BrokerState,
    log: EntrySource,
    topic: str,
    queue_id: QueueId,
    *,
    offset: QueueOffset,
    count_max: int,
    log_end: Position,
    bytes_max: int = 2**31 - 1,
    tag_hashes: AbstractSet[int] | None = None,
    limits: GetLimits = GetLimits(),
    may_wait: bool = False,
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
        may_wait: whether whoever asks can wait until the first record was read from the disk. If not, it is read
            now; further ones are given in any case only if they are in memory.

    Raises:
        NotLoadedError: it may wait, and the first wanted message is not in memory.
        EntryDamagedError: the first wanted message cannot be read now; one further on ends the batch.
    """
    queue = state.queues.get(topic, queue_id)
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
    batch = _Batch(
        RecordReader(log), limits, count_max=count_max, bytes_max=bytes_max, log_end=log_end
    )
    examined_max = max(limits.examined_units_max, count_max)
    examined = batch.collect(queue.units(offset, examined_max), tag_hashes, may_wait=may_wait)
    next_offset = QueueOffset(offset + examined)
    assert offset <= next_offset <= most, (
        f"{queue.key}: {examined} units from {offset} on, of a queue that ends at {most}"
    )
    behind = log_end - batch.last_physical_offset if examined else 0
    return GetResult(
        batch.status,
        next_offset,
        least,
        most,
        tuple(batch.records),
        max(0, behind),
        batch.not_loaded,
    )


class _Batch:
    """The messages of one read, as they are collected."""

    def __init__(
        self,
        reader: RecordReader,
        limits: GetLimits,
        *,
        count_max: int,
        bytes_max: int,
        log_end: Position,
    ) -> None:
        self.records: list[memoryview] = []
        self.not_loaded: list[tuple[PhysicalOffset, int]] = []
        self.was_gone = False
        self.last_physical_offset = PhysicalOffset(0)
        self._reader = reader
        self._limits = limits
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._memory_start = log_end - limits.memory_span_bytes
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
