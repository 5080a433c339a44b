"""The broker's derived state: a fold over the committed log, the same on every replica.

`apply` takes committed entries in order. A normal entry's body is records; each goes to the consume
queue that it names and into the key index, and a record on a control topic is then carried out. Nothing
here reads a clock, a setting or a file; time is the store time that the leader wrote. Where units and
segments go that leave memory is injected, and changes no answer.

Bytes that are no records raise, and the node stops: they cannot come from a leader of ours. A record
that is whole but cannot be carried out folds into a `Refusal`, on every replica alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from broker.store import saved
from broker.store.commands import carry_out
from broker.store.consume_queue import (
    UNIT,
    UNIT_BYTES,
    ConsumeQueue,
    ConsumeQueues,
    MemoryUnitStore,
    UnitStore,
)
from broker.store.control import MalformedControlError, MarkDigests, decode_control
from broker.store.digest_marks import DigestMarks
from broker.store.errors import OutOfOrderError
from broker.store.groups import Groups
from broker.store.key_index import (
    KEY_UNIT,
    SEGMENT_UNITS_DEFAULT,
    KeyIndex,
    MemorySegmentStore,
    SegmentStore,
)
from broker.store.locks import QueueLocks
from broker.store.offsets import ConsumerOffsets
from broker.store.parse import ParsedRecord, parse_records
from broker.store.recent_sends import RecentSends
from broker.store.refusals import Refusal, RefusalKind, Refusals
from broker.store.saved import ByteSource, SavedTable, StateHead
from broker.store.schedule import SCHEDULE_KEY, Schedule, level_of
from broker.store.sinks import Sinks
from broker.store.timers import NEAR_MAX, TIMER_KEY, FarTimers, Timers, timer_of
from broker.store.topics import CONTROL_TOPICS, Topics
from broker.store.transactions import HALF_KEY, TRANSACTION_KEYS, Transactions
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import NO_INDEX, EntryId, Index
from dledger.state_machine import SnapshotOvertakenError, SnapshotRefusedError
from dledger_mq.message.properties import split_keys
from dledger_mq.message.record import StoredMessage, decode_record

_CONTROL_KEYS: Final = frozenset(topic.encode() for topic in CONTROL_TOPICS)
_SPECIAL_KEYS: Final = _CONTROL_KEYS | TRANSACTION_KEYS | {SCHEDULE_KEY, TIMER_KEY}


@dataclass(frozen=True, slots=True)
class StateLimits:
    """What may stay in memory. Replicas may differ: no answer and no digest depends on it.

    Attributes:
        resident_units_max: consume queue units in memory, of all queues together; 20 bytes each.
        keep_units_max: units of one queue that stay when others must go.
        spill_interval: records between two looks at how much is in memory.
        index_segment_units: keys per segment of the key index, a power of two.
        near_timers_max: pending timers in memory; about 100 bytes each.
    """

    resident_units_max: int = 4_000_000
    keep_units_max: int = 65_536
    spill_interval: int = 65_536
    index_segment_units: int = SEGMENT_UNITS_DEFAULT
    near_timers_max: int = NEAR_MAX


class _Keys(NamedTuple):
    """Units for the key index and unique keys to remember, as they gather while an entry is folded."""

    hashes: list[int]
    units: list[bytes]
    uniq_keys: list[bytes]
    uniq_offsets: list[int]

    def add(
        self, texts: list[bytes], queue: ConsumeQueue, physical_offset: int, store_ms: int
    ) -> None:
        for text in texts:
            hashed = crc32c(text, queue.key_seed)
            self.hashes.append(hashed)
            self.units.append(KEY_UNIT.pack(hashed, physical_offset, store_ms))


class BrokerState:
    """Everything that follows from the committed entries; implements `dledger.StateMachine`.

    Attributes:
        queues, key_index, topics, groups, offsets, locks, schedule, recent_sends, transactions,
            timers, sinks, refusals: the components.
        last_store_ms: the latest store time of any record; leaders stamp no earlier one.
        put_count, put_bytes: of all records folded.
    """

    def __init__(
        self,
        unit_store: UnitStore | None = None,
        segment_store: SegmentStore | None = None,
        limits: StateLimits = StateLimits(),
        far_timers: FarTimers | None = None,
    ) -> None:
        self._applied_index = NO_INDEX
        self._limits = limits
        self._records_until_spill = limits.spill_interval
        self._known: dict[EntryId, list[ParsedRecord]] = {}
        self.queues = ConsumeQueues(unit_store or MemoryUnitStore(), _SPECIAL_KEYS.__contains__)
        self.key_index = KeyIndex(segment_store or MemorySegmentStore(), limits.index_segment_units)
        self.topics = Topics()
        self.groups = Groups()
        self.offsets = ConsumerOffsets(
            lambda topic, queue_id: self.queues.min_max(topic, queue_id)[1]
        )
        self.locks = QueueLocks()
        self.schedule = Schedule(self.queues)
        self.recent_sends = RecentSends()
        self.transactions = Transactions()
        self.timers = Timers(far_timers, limits.near_timers_max)
        self.sinks = Sinks()
        self.refusals = Refusals()
        self.marks = DigestMarks()
        self._is_marked = False
        self.last_store_ms = 0
        self.put_count = 0
        self.put_bytes = 0

    @property
    def applied_index(self) -> Index:
        """The last entry that the state contains."""
        return self._applied_index

    def apply(self, entries: Sequence[Entry]) -> None:
        """Fold committed entries, in order, without gaps.

        Raises:
            OutOfOrderError: an entry is not the next one. Nothing of it was folded.
            RecordError, MisplacedRecordError: a body is not records. Nothing of it was folded.
            NewerVersionError: a control record that only newer versions know.
        """
        for entry in entries:
            if entry.index != self._applied_index + 1:
                raise OutOfOrderError(
                    f"entry {entry.index} was given after entry {self._applied_index} was applied"
                )
            if entry.term != self.recent_sends.term:
                self.recent_sends.begin_term(entry.term, entry.position)
                self.locks.begin_term()
            if entry.kind is EntryKind.NORMAL:
                records = self._known.pop(entry.id, None) if self._known else None
                if records is None:
                    records = parse_records(entry.body, entry.position + ENTRY_HEADER_BYTES)
                self._fold(entry, records)
            self._applied_index = entry.index
            if self._is_marked:
                self._is_marked = False
                self.marks.mark(entry.index, self.digests())

    def expect(self, entry_id: EntryId, records: list[ParsedRecord]) -> None:
        """Spare the fold the parsing of an entry that this node staged itself.

        No two entries share term and index, so what was staged under an id is what is committed under
        it, if anything is. Tests verify that it equals the parse.
        """
        self._known[entry_id] = records

    def forget_expected(self) -> None:
        """Forget what was staged and not applied: leadership was lost."""
        self._known.clear()

    def digests(self) -> dict[str, int]:
        """A CRC32C per component; equal on all replicas at the same applied index."""
        return {
            "queues": self.queues.digest(),
            "key_index": self.key_index.digest(),
            "topics": self.topics.digest,
            "groups": self.groups.digest,
            "offsets": self.offsets.digest,
            "locks": self.locks.digest,
            "schedule": self.schedule.digest,
            "recent_sends": self.recent_sends.digest,
            "transactions": self.transactions.digest,
            "timers": self.timers.digest,
            "sinks": self.sinks.digest,
            "refusals": self.refusals.digest,
        }

    def digest(self) -> int:
        """One CRC32C over all components and the applied index."""
        total: int = crc32c(repr((self._applied_index, self.digests())).encode())
        return total

    def snapshot(self) -> Iterator[bytes]:
        """The state as it is now, in bounded chunks; see `dledger.SnapshotMachine`.

        A replica whose digests differ from the leader's writes no snapshot, so that its next start
        folds the log anew.

        Raises:
            SnapshotOvertakenError: this replica's state is not to be trusted.
        """
        if self.marks.divergences:
            raise SnapshotOvertakenError(f"the digests differ: {self.marks.divergences[0]}")
        head = StateHead(
            saved.VERSION,
            self._applied_index,
            self.last_store_ms,
            self.put_count,
            self.put_bytes,
            [queue.row() for queue in self.queues],
            self.key_index.row(),
            {name: msgspec.Raw(table.dump()) for name, table in self.tables().items()},
        )
        return saved.in_chunks(
            chain(
                saved.pieces(saved.encode_head(head)),
                self.queues.saved_units(head.queues),
                self.key_index.saved_units(),
                self.timers.saved_units(),
            )
        )

    def restore(self, chunks: Iterator[bytes]) -> None:
        """Replace the state by that of a snapshot; see `dledger.SnapshotMachine`.

        Raises:
            SnapshotRefusedError: the bytes are no state of this version; this one is empty now.
            Exception: what `chunks` raised; this state is empty now.
        """
        empty = BrokerState()
        self._clear(empty)
        is_whole = False
        try:
            self._load(ByteSource(chunks))
            is_whole = True
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SnapshotRefusedError(f"a table of the state: {error}") from error
        finally:
            if not is_whole:
                self._clear(empty)

    def _clear(self, empty: BrokerState) -> None:
        self.queues.clear()
        self.key_index.clear()
        self._known.clear()
        self._applied_index = NO_INDEX
        self.last_store_ms = self.put_count = self.put_bytes = 0
        for name, table in self.tables().items():
            table.load(empty.tables()[name].dump())

    def _load(self, source: ByteSource) -> None:
        (head_bytes,) = saved.LENGTH.unpack(source.read(saved.LENGTH.size))
        if head_bytes > saved.HEAD_BYTES_MAX:
            raise SnapshotRefusedError(f"the state's head has {head_bytes} bytes")
        head = saved.decode_head(source.read(head_bytes))
        tables = self.tables()
        if tables.keys() != head.tables.keys():
            raise SnapshotRefusedError(f"the state has the tables {', '.join(sorted(head.tables))}")
        for name, table in tables.items():
            table.load(bytes(head.tables[name]))
        for row in head.queues:
            if (row.topic, row.queue_id) in self.queues.by_key or row.min_offset > row.max_offset:
                raise SnapshotRefusedError(f"queue {row.topic!r}, {row.queue_id} cannot be")
            queue = self.queues.create((row.topic, row.queue_id))
            units = source.stream((row.max_offset - row.min_offset) * UNIT_BYTES)
            queue.load(row, units, self._limits.keep_units_max)
        self.key_index.load(head.key_index, source)
        self.timers.load_units(source)
        source.check_end()
        self.last_store_ms = head.last_store_ms
        self.put_count, self.put_bytes = head.put_count, head.put_bytes
        self._applied_index = Index(head.applied_index)
        self.queues.spill(self._limits.resident_units_max, self._limits.keep_units_max)

    def tables(self) -> dict[str, SavedTable]:
        """The components that a snapshot keeps whole, by the names of its format."""
        return {
            "topics": self.topics,
            "groups": self.groups,
            "offsets": self.offsets,
            "locks": self.locks,
            "schedule": self.schedule,
            "recent_sends": self.recent_sends,
            "transactions": self.transactions,
            "timers": self.timers,
            "sinks": self.sinks,
            "refusals": self.refusals,
            "marks": self.marks,
        }

    def topic_put_totals(self, topic: str) -> tuple[int, int]:
        """Records ever put in a topic, and their size in bytes."""
        queues = self.queues.of_topic(topic)
        return sum(q.max_offset for q in queues), sum(q.put_bytes for q in queues)

    def trim(self, first_position: int) -> None:
        """Forget what lies before the log's first position; each replica in its own time."""
        self.queues.trim(first_position)
        self.key_index.trim(first_position)

    def _fold(self, entry: Entry, records: list[ParsedRecord]) -> None:
        """Fold the records of one entry. Runs per message on every replica: no calls but C ones."""
        by_key, pack_unit = self.queues.by_key, UNIT.pack
        keys = _Keys([], [], [], [])
        add_hash, add_key, pack_key = keys.hashes.append, keys.units.append, KEY_UNIT.pack
        add_uniq, add_offset = keys.uniq_keys.append, keys.uniq_offsets.append
        latest_ms = self.last_store_ms
        if self.locks.awaits_time and records:
            self.locks.resume(records[0][5], latest_ms)
        for record in records:
            (
                key,
                queue_offset,
                physical_offset,
                size,
                tag_hash,
                store_ms,
                is_hidden,
                uniq_key,
                more,
            ) = record
            queue = by_key.get(key)
            if queue is None:
                queue = self.queues.create(key)
            if store_ms > latest_ms:
                latest_ms = store_ms
            if queue_offset != queue.max_offset or queue.special or is_hidden:
                self.last_store_ms = latest_ms
                self._fold_unusual(entry, record, queue, keys)
                continue
            queue.tail += pack_unit(physical_offset, size, tag_hash)
            queue.max_offset = queue_offset + 1
            queue.put_bytes += size
            if uniq_key is not None:
                hashed = crc32c(uniq_key, queue.key_seed)
                add_hash(hashed)
                add_key(pack_key(hashed, physical_offset, latest_ms))
                add_uniq(uniq_key)
                add_offset(physical_offset)
            if more is not None:
                keys.add(split_keys(more), queue, physical_offset, latest_ms)
        self.key_index.add(keys.hashes, keys.units)
        self.recent_sends.add(keys.uniq_keys, keys.uniq_offsets, latest_ms)
        self.last_store_ms = latest_ms
        self._count(records)

    def _count(self, records: list[ParsedRecord]) -> None:
        self.put_count += len(records)
        self.put_bytes += records[-1][2] + records[-1][3] - records[0][2] if records else 0
        self._records_until_spill -= len(records)
        if self._records_until_spill <= 0:
            self._records_until_spill = self._limits.spill_interval
            self.queues.spill(self._limits.resident_units_max, self._limits.keep_units_max)

    def _fold_unusual(
        self, entry: Entry, record: ParsedRecord, queue: ConsumeQueue, keys: _Keys
    ) -> None:
        """Fold a record of a special topic, one that no queue shows, or one with a wrong queue offset."""
        key, queue_offset, physical_offset, size, tag_hash, store_ms, is_hidden, uniq_key, more = (
            record
        )
        if is_hidden:  # half messages of old brokers: kept in the log only (O2)
            return
        if queue_offset != queue.max_offset:
            detail = f"{key}: queue offset {queue_offset}, the next is {queue.max_offset}"
            self._refuse(entry, physical_offset, RefusalKind.WRONG_QUEUE_OFFSET, detail)
            return
        start = physical_offset - entry.position - ENTRY_HEADER_BYTES
        message = decode_record(entry.body, start, check_crc=False)
        if key[0] == SCHEDULE_KEY and (level := level_of(message.properties)):
            tag_hash = store_ms + self.schedule.delay_ms(level)
        queue.append(physical_offset, size, tag_hash)
        texts = []
        if uniq_key is not None:
            texts.append(uniq_key)
            keys.uniq_keys.append(uniq_key)
            keys.uniq_offsets.append(physical_offset)
        keys.add(
            texts + split_keys(more or b""),
            queue,
            physical_offset,
            max(store_ms, self.last_store_ms),
        )
        if key[0] in _CONTROL_KEYS:
            self._obey(entry, message)
        elif key[0] in TRANSACTION_KEYS and key[1] == 0:
            self._follow_transaction(entry, message)
        elif key[0] == TIMER_KEY:
            timer = timer_of(message)
            if timer is not None:
                self.timers.add(timer)
            else:
                detail = "a record on the timer topic without a due time"
                self._refuse(entry, physical_offset, RefusalKind.MALFORMED, detail)

    def _obey(self, entry: Entry, message: StoredMessage) -> None:
        try:
            command = decode_control(message.topic, message.body)
        except MalformedControlError as error:
            self._refuse(entry, message.physical_offset, RefusalKind.MALFORMED, str(error))
            return
        self._is_marked = self._is_marked or isinstance(command, MarkDigests)
        kind = carry_out(self, command, message.store_timestamp_ms, message.physical_offset)
        if kind is not None:
            self._refuse(entry, message.physical_offset, kind, repr(command))

    def _follow_transaction(self, entry: Entry, message: StoredMessage) -> None:
        if message.topic.encode() == HALF_KEY:
            self.transactions.begin(message)
        elif (kind := self.transactions.end(message)) is not None:
            detail = f"op record {message.body[:100]!r}"
            self._refuse(entry, message.physical_offset, kind, detail)

    def _refuse(self, entry: Entry, physical_offset: int, kind: RefusalKind, detail: str) -> None:
        self.refusals.add(Refusal(entry.index, physical_offset, kind, detail))
