"""The broker's derived state: a fold over the committed log, the same on every replica.

`apply` takes committed entries in order. A normal entry's body is records; each goes to the consume
queue that it names and into the key index, and a record on a control topic is then carried out. Nothing
here reads a clock, a setting or a file; time is the store time that the leader wrote. Where units and
segments go that leave memory is injected, and changes no answer.

Bytes that are no records raise, and the node stops: they cannot come from a leader of ours. A record
that is whole but cannot be carried out folds into a `FoldRefusal`, on every replica alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Self

import msgspec
from crc32c import crc32c

from broker.store import saved, state_snapshot
from broker.store.chained_sends import HashedKeys
from broker.store.commands import carry_out
from broker.store.consume_queue import SEALED_UNITS, ConsumeQueue, ConsumeQueues
from broker.store.control import MalformedControlError, MarkDigests, decode_control
from broker.store.digest_marks import DigestMarks
from broker.store.entry_keys import EntryKeys
from broker.store.errors import OutOfOrderError
from broker.store.far_timers import FarTimers, MemoryFarTimers
from broker.store.group_settings import GroupSettings
from broker.store.groups import Groups
from broker.store.key_index import (
    SEGMENT_UNITS_DEFAULT,
    KeyIndex,
    MemorySegmentStore,
    SegmentStore,
)
from broker.store.locks import QueueLockTable
from broker.store.offsets import ConsumerOffsets
from broker.store.parse import (
    PHYSICAL_OFFSET,
    SIZE_BYTES,
    STORE_MS,
    ParsedRecord,
    find_shape,
    learn_first,
    parse_records,
)
from broker.store.pops import Pops
from broker.store.recent_sends import RecentSends, SendColumns
from broker.store.refusals import FoldRefusal, RefusalKind, Refusals
from broker.store.retention import JUMP_MS, Retention
from broker.store.saved import ByteSource, SavedTable
from broker.store.schedule import SCHEDULE_KEY, Schedule, level_of
from broker.store.sinks import Sinks
from broker.store.timers import NEAR_MAX, TIMER_KEY, Timers, timer_of
from broker.store.topics import CONTROL_TOPICS, Topics
from broker.store.transactions import HALF_KEY, TRANSACTION_KEYS, Transactions
from broker.store.unit_stores import UNIT, MemoryUnitStore, QueueKey, UnitStore
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import NO_INDEX, EntryId, Index
from dledger.state_machine import (
    KeptPart,
    SealedPart,
    SnapshotOvertakenError,
    SnapshotRefusedError,
)
from dledger_mq.message import compiled
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs
from dledger_mq.message.record import StoredMessage, decode_record

SPILL_SHARES: Final = 64
"""Looks are spread so: 1024 records, then 80 queues of 80 000 at most that have much write a file each, 2 to 5 ms."""

_CONTROL_KEYS: Final = frozenset(topic.encode() for topic in CONTROL_TOPICS)
_SPECIAL_KEYS: Final = _CONTROL_KEYS | TRANSACTION_KEYS | {SCHEDULE_KEY, TIMER_KEY}


class PreparedState(NamedTuple):
    """The state after one entry, ready to be written down.

    Attributes:
        applied_index: that entry.
        parts: the bytes; see `saved.in_chunks`.
    """

    applied_index: Index
    parts: Iterator[bytes | SealedPart]


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Bounds of what stays in memory. Replicas may differ: no answer and no digest depends on it.

    Attributes:
        resident_units_max: consume queue units in memory, of all queues together; 20 bytes each.
        keep_units_max: units of one queue that stay when others must go.
        spill_interval: records between two looks at how much a queue has in memory; the looks are spread over them.
        index_segment_units: keys per segment of the key index, a power of two.
        sealed_units: consume queue units of one queue that snapshots keep as a part.
        near_timers_max: pending timers in memory; about 100 bytes each.
    """

    resident_units_max: int = 4_000_000
    keep_units_max: int = 16_384
    spill_interval: int = 65_536
    index_segment_units: int = SEGMENT_UNITS_DEFAULT
    sealed_units: int = SEALED_UNITS
    near_timers_max: int = NEAR_MAX


class BrokerState:
    """Everything that follows from the committed entries; a `dledger.ForgettingMachine` and a `PreparingMachine`.

    Attributes:
        applied_index: the last entry that the state contains.
        restored_index: the last entry that it took over with a snapshot; what came after it was folded here.
        queues, key_index, topics, groups, offsets, pops, locks, schedule, recent_sends, transactions,
            timers, sinks, retention, settings, refusals: the components.
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
        self.applied_index = self.restored_index = NO_INDEX
        self._limits = limits
        self._unlooked_records = 0
        self._known: dict[EntryId, list[ParsedRecord]] = {}
        self._units = unit_store or MemoryUnitStore()
        self._segments = segment_store or MemorySegmentStore()
        self._far_timers = far_timers or MemoryFarTimers()
        self.queues = ConsumeQueues(
            self._units, _SPECIAL_KEYS.__contains__, sealed_units=limits.sealed_units
        )
        self.key_index = KeyIndex(self._segments, limits.index_segment_units)
        self.topics = Topics()
        self.groups = Groups()
        self.offsets = ConsumerOffsets(self.queues.end)
        self.pops = Pops()
        self.locks = QueueLockTable()
        self.schedule = Schedule(self.queues)
        self.recent_sends = RecentSends()
        self.transactions = Transactions()
        self.timers = Timers(self._far_timers, limits.near_timers_max)
        self.sinks = Sinks()
        self.retention = Retention()
        self.settings = GroupSettings()
        self.refusals = Refusals()
        self.marks = DigestMarks()
        self._is_marked = False
        self._prepared: PreparedState | None = None
        self._drawn: tuple[Index, int] | None = None
        self.last_store_ms = StoreTimeMs(0)
        self.put_count = 0
        self.put_bytes = 0

    @property
    def keep_from(self) -> Index:
        """The first entry that is not forgotten; see `dledger.ForgettingMachine`."""
        return self.retention.index

    def apply(self, entries: Sequence[Entry]) -> None:
        """Fold committed entries, in order, without gaps.

        Raises:
            OutOfOrderError: an entry is not the next one. Nothing of it was folded.
            RecordError, MisplacedRecordError: a body is not records. Nothing of it was folded.
            NewerVersionError: a control record that only newer versions know.
        """
        for entry in entries:
            if entry.index != self.applied_index + 1:
                raise OutOfOrderError(
                    f"entry {entry.index} was given after entry {self.applied_index} was applied"
                )
            assert entry.term >= self.recent_sends.term, (
                f"entry {entry.index} has term {entry.term} after one of {self.recent_sends.term}"
            )
            if entry.term != self.recent_sends.term:
                self.recent_sends.begin_term(entry.term, entry.position)
                self.locks.begin_term()
            if entry.kind is EntryKind.NORMAL:
                records = self._known.pop(entry.id, None) if self._known else None
                if not self._fold_whole(entry):
                    if records is None:
                        first_offset = PhysicalOffset(entry.position + ENTRY_HEADER_BYTES)
                        records = parse_records(entry.body, first_offset)
                    elif records and compiled.is_used:
                        learn_first(entry.body, records)
                    self._fold(entry, records)
            if self.pops.discarded:
                self.pops.let_go()
            self.applied_index = entry.index
            if self._is_marked:
                self._is_marked = False
                self.marks.mark(entry.index, self.digests())

    def expect(self, entry_id: EntryId, records: list[ParsedRecord]) -> None:
        """Spare the fold the parsing of an entry that this node staged itself.

        No two entries share term and index, so what was staged under an id is what is committed under
        it, if anything is. Tests verify that it equals the parse.
        """
        assert entry_id.index > self.applied_index, (
            f"entry {entry_id} is expected after {self.applied_index} was applied"
        )
        self._known[entry_id] = records

    def forget_expected(self) -> None:
        """Forget what was staged and not applied: leadership was lost."""
        self._known.clear()

    def digests(self) -> dict[str, int]:
        """Return a CRC32C per component; equal on all replicas at the same applied index.

        Pins and pops came later: they have none as long as there never was one, so that the state has the digest with
        which older versions wrote it down.
        """
        return self._digests_with(self.queues.digest())

    def _digests_with(self, queues: int) -> dict[str, int]:
        """Return the digests of all components, given that of the queues, which takes long to draw."""
        pins, pops = self.retention.pins.digest, self.pops.digest
        return {
            "queues": queues,
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
            "retention": self.retention.digest,
            **({"pins": pins} if pins else {}),
            **({"pops": pops} if pops else {}),
            "settings": self.settings.digest,
            "refusals": self.refusals.digest,
        }

    def digest(self) -> int:
        """Return one CRC32C over all components and the applied index."""
        if self._drawn is not None and self._drawn[0] == self.applied_index:
            return self._drawn[1]
        return self._digest_with(self.queues.digest())

    def _digest_with(self, queues: int, *, version: int = saved.VERSION) -> int:
        """Return the digest, given that of the queues, as a version of the state counts it."""
        digests = self._digests_with(queues)
        if version == saved.VERSION_BEFORE:
            del digests["settings"]
        total: int = crc32c(repr((self.applied_index, digests)).encode())
        return total

    def _draw_digest(self, *, version: int = saved.VERSION) -> Iterator[None]:
        """Draw the digest in short steps, so that the next `digest` costs nothing, unless something is folded."""
        index, queues = self.applied_index, 0
        for counted in self.queues.running_digest():
            queues = counted
            yield
            if self.applied_index != index:
                return
        self._drawn = (index, self._digest_with(queues, version=version))

    def prepare_snapshot(self) -> Iterator[bool]:
        """Gather what the next `snapshot` and `digest` give; see `dledger.PreparingMachine`."""
        self._prepared = self._drawn = None
        if self.marks.divergences:
            return  # `snapshot` says so
        gathering, queues = state_snapshot.Gathering(self), self.queues
        for _ in gathering.beforehand():
            yield False
            if self.queues is not queues:
                raise SnapshotOvertakenError("the state of another member has come")
        index = self.applied_index
        yield True
        for _ in chain(gathering.at_the_moment(), self._draw_digest()):
            yield True
            if self.queues is not queues:
                raise SnapshotOvertakenError("the state of another member has come")
        parts = gathering.parts()
        yield True
        if self.applied_index == index:
            self._prepared = PreparedState(index, parts)

    def snapshot(self) -> Iterator[bytes]:
        """Return the state as it is now, in bounded chunks; see `dledger.SnapshotMachine`.

        Raises:
            SnapshotOvertakenError: this replica's state is not to be trusted.
        """
        return saved.unsealed(self.sealed_snapshot())

    def sealed_snapshot(self) -> Iterator[bytes | SealedPart]:
        """Return the same, with what never changes as parts; see `dledger.SealingMachine`.

        A replica whose digests differ from the leader's writes no snapshot, so that its next start
        folds the log anew.

        Raises:
            SnapshotOvertakenError: this replica's state is not to be trusted.
        """
        if self.marks.divergences:
            raise SnapshotOvertakenError(f"the digests differ: {self.marks.divergences[0]}")
        if self._prepared is None or self._prepared.applied_index != self.applied_index:
            for _ in self.prepare_snapshot():
                pass
        prepared, self._prepared = self._prepared, None
        assert prepared is not None, f"no state of entry {self.applied_index} was gathered"
        return saved.in_chunks(prepared.parts)

    def restore(self, chunks: Iterator[bytes]) -> None:
        """Replace the state by that of a snapshot; see `dledger.SnapshotMachine`.

        Raises:
            SnapshotRefusedError: the bytes are no state of this version; this one is empty now.
            Exception: what `chunks` raised; this state is empty now.
        """
        self.restore_sealed(chunks)

    def restore_sealed(self, chunks: Iterator[bytes | KeptPart]) -> None:
        """Replace the state by that of a snapshot with parts; see `dledger.SealingMachine`.

        Raises:
            SnapshotRefusedError: the bytes are no state of this version; this one is empty now.
            Exception: what `chunks` raised; this state is empty now.
        """
        taken_in = self.beside()
        try:
            for _ in taken_in.load_steps(chunks):
                pass
        except BaseException:  # whatever it was, what is taken in by halves is shown to nobody
            self.swap(self.beside())
            raise
        self.swap(taken_in)
        for _ in taken_in.giving_up():
            pass

    def beside(self) -> Self:
        """Return an empty state; see `dledger.SwappingMachine`."""
        places = (self._units.beside(), self._segments.beside())
        made = type(self)(*places, limits=self._limits, far_timers=self._far_timers.beside())
        made.recent_sends = self.recent_sends.beside()
        return made

    def load_steps(self, chunks: Iterator[bytes | KeptPart]) -> Iterator[None]:
        """Take in a snapshot, step by step; see `dledger.SwappingMachine`.

        Raises:
            SnapshotRefusedError: the bytes are no state of this version; a part of them may be there.
        """
        limits, source = self._limits, ByteSource(chunks)
        try:
            version = yield from state_snapshot.load_steps(
                self,
                source,
                resident_units_max=limits.resident_units_max,
                keep_units_max=limits.keep_units_max,
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SnapshotRefusedError(f"a table of the state: {error}") from error
        self.restored_index = self.applied_index
        # With it the state was written down, which is compared next.
        yield from self._draw_digest(version=version)

    def swap(self, other: Self) -> None:
        """Be what the other one is, and the other way round; see `dledger.SwappingMachine`.

        Raises:
            OSError: the files of one could not be named as those of the other; nothing has changed.
        """
        other._units.take_place_of(self._units)  # it is one of these
        other._segments.take_place_of(self._segments)
        other._far_timers.take_place_of(self._far_timers)
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    def giving_up(self) -> Iterator[None]:
        """Forget everything, step by step; see `dledger.SwappingMachine`."""
        self.close()
        self.key_index.give_up()
        for component in (self.queues, self.recent_sends, self.offsets, self.pops):
            yield from component.giving_up()
        for place in (self._units, self._segments, self._far_timers):
            yield from place.removing()

    def close(self) -> None:
        """Close the files, when nothing is folded or asked any more."""
        for place in (self._units, self._segments, self._far_timers):
            place.close()

    def tables(self) -> dict[str, SavedTable]:
        """Return the components that a snapshot keeps whole, by the names of its format.

        Pops came later: as long as nobody ever popped, the state is written as older versions do, and read by them.
        """
        return {
            **({"pops": self.pops} if self.pops.digest else {}),
            "topics": self.topics,
            "groups": self.groups,
            "offsets": self.offsets,
            "locks": self.locks,
            "schedule": self.schedule,
            "recent_sends": self.recent_sends,
            "transactions": self.transactions,
            "timers": self.timers,
            "sinks": self.sinks,
            "retention": self.retention,
            "settings": self.settings,
            "refusals": self.refusals,
            "marks": self.marks,
        }

    def topic_put_totals(self, topic: str) -> tuple[int, int]:
        """Return how many records were ever put in a topic, and their size in bytes."""
        return self.queues.put_totals(topic)

    def _fold_whole(self, entry: Entry) -> bool:
        """Fold an entry by compiled code, if all of its records are usual; return False if nothing was done."""
        first, before_ms = PhysicalOffset(entry.position + ENTRY_HEADER_BYTES), self.last_store_ms
        by_key = self.queues.by_key
        found = compiled.fold_entry(entry.body, first, find_shape, by_key, before_ms)
        if found is None:
            return False
        count, _, _, units, hashes, texts, *halves, row = found
        store_ms, last = StoreTimeMs(found[1]), PhysicalOffset(found[2])
        if self.locks.awaits_time:
            self.locks.resume(store_ms, before_ms)
        self.key_index.add_units(memoryview(hashes).cast("I"), units, last, store_ms)
        cells, tags, lows = (memoryview(half).cast("I") for half in halves)
        hashed = HashedKeys(cells, tags, lows, first)
        self.recent_sends.add_columns(SendColumns(texts, row, hashed, count, last), store_ms)
        self._stored_at(entry, before_ms, store_ms)
        self._count(count, len(entry.body))
        return True

    def _stored_at(self, entry: Entry, before_ms: StoreTimeMs, latest_ms: StoreTimeMs) -> None:
        """Note that the latest record was stored at a time, in an entry before which it was another."""
        self.last_store_ms = latest_ms
        if latest_ms - before_ms > JUMP_MS and before_ms:
            self.retention.note_jump(before_ms, latest_ms, entry.position)

    def _fold(self, entry: Entry, records: list[ParsedRecord]) -> None:
        """Fold the records of one entry."""
        if not records:
            return
        keys, before_ms = EntryKeys([], [], [], [], []), self.last_store_ms
        if self.locks.awaits_time:
            self.locks.resume(records[0][STORE_MS], before_ms)
        latest_ms = max(before_ms, records[0][STORE_MS])
        folded = compiled.fold_usual(
            records,
            self.queues.by_key,
            latest_ms,
            keys.texts,
            keys.seeds,
            keys.offsets,
            keys.add_others,
        )
        if folded != len(records):
            latest_ms = self._fold_in_python(entry, records[folded or 0 :], keys, latest_ms)
        keys.fill_times(latest_ms)
        self.key_index.add(keys.texts, keys.seeds, keys.offsets, keys.times)
        self.recent_sends.add(*keys.unique(), latest_ms)
        self._stored_at(entry, before_ms, latest_ms)
        self._check_places(entry, records)
        self._count(len(records), len(entry.body))

    def _fold_in_python(
        self,
        entry: Entry,
        records: list[ParsedRecord],
        keys: EntryKeys,
        latest_ms: StoreTimeMs,
    ) -> StoreTimeMs:
        """Fold records of any kind; return the latest store time. Runs per message: no calls but C ones."""
        by_key, pack_unit = self.queues.by_key, UNIT.pack
        add_text, add_seed, add_offset = (
            keys.texts.append,
            keys.seeds.append,
            keys.offsets.append,
        )
        for record in records:
            key, queue_offset, physical_offset, size, store_ms, is_hidden, properties = record
            tag_hash, uniq_key, more = properties
            queue = by_key.get(key)
            if queue is None:
                queue = self.queues.create(key)
            if store_ms > latest_ms:
                keys.fill_times(latest_ms)
                latest_ms = store_ms
            if queue_offset != queue.max_offset or queue.special or is_hidden:
                self.last_store_ms = latest_ms
                self._fold_unusual(entry, record, queue, keys)
                continue
            queue.tail += pack_unit(physical_offset, size, tag_hash)
            # An offset moved on is an offset, but to say so would cost a call per message.
            queue.max_offset = queue_offset + 1  # type: ignore[assignment]
            queue.put_bytes += size
            if uniq_key is not None:
                add_text(uniq_key)
                add_seed(queue.key_seed)
                add_offset(physical_offset)
            if more is not None:
                keys.add_others(more, queue.key_seed, physical_offset)
        return latest_ms

    def _check_places(self, entry: Entry, records: list[ParsedRecord]) -> None:
        """See that the records are those of the whole entry."""
        start, last = records[0][PHYSICAL_OFFSET], records[-1]
        end = last[PHYSICAL_OFFSET] + last[SIZE_BYTES]
        body_start = entry.position + ENTRY_HEADER_BYTES
        assert start == body_start, f"entry {entry.index}: records from {start}, not {body_start}"
        assert end == start + len(entry.body), (
            f"entry {entry.index}: records to {end}, a body of {len(entry.body)} bytes from {start}"
        )

    def _count(self, count: int, size_bytes: int) -> None:
        """Count records that were folded, and let units leave memory now and then."""
        self.put_count += count
        self.put_bytes += size_bytes
        self._unlooked_records += count
        if self._unlooked_records >= self._limits.spill_interval // SPILL_SHARES:
            limits, came = self._limits, self._unlooked_records
            self._unlooked_records = 0
            self.queues.spill_some(
                limits.resident_units_max,
                limits.keep_units_max,
                records=came,
                interval=limits.spill_interval,
            )

    def _fold_unusual(
        self, entry: Entry, record: ParsedRecord, queue: ConsumeQueue, keys: EntryKeys
    ) -> None:
        """Fold a record of a special topic, one that no queue shows, or one with a wrong queue offset."""
        key, queue_offset, physical_offset, size, store_ms, is_hidden, properties = record
        tag_hash, uniq_key, more = properties
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
        if uniq_key is not None:
            keys.texts.append(uniq_key)
            keys.seeds.append(queue.key_seed)
            keys.offsets.append(physical_offset)
        if more is not None:
            keys.add_others(more, queue.key_seed, physical_offset)
        self._follow(entry, key, message)

    def _follow(self, entry: Entry, key: QueueKey, message: StoredMessage) -> None:
        """Carry out what a record on a special topic means beyond being stored."""
        topic, queue_id = key
        if topic in _CONTROL_KEYS:
            self._carry_out_control(entry, message)
        elif topic in TRANSACTION_KEYS and queue_id == 0:
            self._follow_transaction(entry, message)
        elif topic == TIMER_KEY:
            timer = timer_of(message)
            if timer is not None:
                self.timers.add(timer)
            else:
                detail = "a record on the timer topic without a due time"
                self._refuse(
                    entry, PhysicalOffset(message.physical_offset), RefusalKind.MALFORMED, detail
                )

    def _carry_out_control(self, entry: Entry, message: StoredMessage) -> None:
        """Carry out a control record."""
        physical_offset = PhysicalOffset(message.physical_offset)
        try:
            command = decode_control(message.topic, message.body)
        except MalformedControlError as error:
            self._refuse(entry, physical_offset, RefusalKind.MALFORMED, str(error))
            return
        self._is_marked = self._is_marked or isinstance(command, MarkDigests)
        kind = carry_out(self, command, StoreTimeMs(message.store_timestamp_ms), physical_offset)
        if kind is not None:
            self._refuse(entry, physical_offset, kind, repr(command))

    def _follow_transaction(self, entry: Entry, message: StoredMessage) -> None:
        """Begin the transaction of a half message, or end those that an op record names."""
        if message.topic.encode() == HALF_KEY:
            self.transactions.begin(message)
        elif (kind := self.transactions.end(message)) is not None:
            detail = f"op record {message.body[:100]!r}"
            self._refuse(entry, PhysicalOffset(message.physical_offset), kind, detail)

    def _refuse(
        self, entry: Entry, physical_offset: PhysicalOffset, kind: RefusalKind, detail: str
    ) -> None:
        self.refusals.add(FoldRefusal(entry.index, physical_offset, kind, detail))
