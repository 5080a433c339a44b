"""The leader's view ahead of the fold: builds entries of records that are not applied yet.

Messages are staged as they come in and become one entry when the log can take it: `build_entry`
assigns queue offsets (those of the fold, plus all that was staged since) and physical offsets, and
stamps one store time, never earlier than any before it, so that store times never decrease along the
log. The rhythm, without a pause in between, is

    place = staging.stage(...)          as often as there are messages
    staged = staging.build_entry(position=server.end_position, now_ms=..., count=...)
    entry_id = server.propose(staged.body, done)
    staging.proposed(staged, entry_id)      or staging.withdraw(staged), if propose refused

and `discard` when leadership is lost. What the fold needs of the records is known here already, and
`proposed` gives it to the fold, which then does not parse the entry again.

Nothing here knows connections, or decides when an entry is proposed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import pack, unpack
from typing import Final, cast

from broker.store.control import Command, DeleteTopic, encode_control
from broker.store.entry_bodies import (
    EncodedRun,
    QueueEnd,
    Staged,
    StagedMessage,
    bytes_max,
    encode_messages,
    encode_unusual,
    one_by_one,
    place_runs,
)
from broker.store.parse import (
    IS_HIDDEN,
    KEY,
    PHYSICAL_OFFSET,
    QUEUE_OFFSET,
    SIZE_BYTES,
    ParsedRecord,
    is_text,
    parse_records,
)
from broker.store.record_shapes import FoldedProperties
from broker.store.state import BrokerState
from broker.store.topics import is_deletable
from broker.store.unit_stores import QueueKey
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import EntryId, Position
from dledger_mq.message.errors import RecordError
from dledger_mq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX
from dledger_mq.message.record import BODY_BYTES_MAX, QUEUE_OFFSET_AT, TOPIC_BYTES_MAX

_OFFSET: Final = struct.Struct(">q")
_HOST_LENGTHS: Final = (HOST_V4_BYTES, HOST_V6_BYTES)
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """An entry that was built and not yet proposed.

    Attributes:
        body: for `propose`.
        known: one per staged message, by place; the fold's view. None where it has to read the body.
        places: the physical offsets of all records, eight bytes each, big-endian; empty where the fold's view is known.
        store_ms: the store time of all records.
        offsets_before: the next offsets of all queues, where topics are deleted on the way; else None.
    """

    body: bytes
    known: list[ParsedRecord] | None
    places: bytes
    store_ms: StoreTimeMs
    offsets_before: dict[QueueKey, QueueOffset] | None

    @property
    def records(self) -> list[ParsedRecord]:
        """The fold's view of the records, read from the body if it is not known."""
        if self.known is not None:
            return self.known
        return parse_records(self.body, self.physical_offset(0))

    def queue_offset(self, place: int) -> QueueOffset:
        """Return the queue offset of the message that was staged at a place."""
        if self.known is not None:
            return self.known[place][QUEUE_OFFSET]
        at = self.physical_offset(place) - self.physical_offset(0)
        found: QueueOffset
        (found,) = _OFFSET.unpack_from(self.body, at + QUEUE_OFFSET_AT)
        return found

    def physical_offset(self, place: int) -> PhysicalOffset:
        """Return the physical offset of the message that was staged at a place."""
        if self.known is not None:
            return self.known[place][PHYSICAL_OFFSET]
        found: PhysicalOffset
        (found,) = _OFFSET.unpack_from(self.places, place * _OFFSET.size)
        return found

    def physical_offsets(self, place: int, count: int) -> list[PhysicalOffset]:
        """Return the physical offsets of so many messages from a place on."""
        return list(unpack(f">{count}q", self.packed_offsets(place, count)))

    def packed_offsets(self, place: int, count: int) -> bytes:
        """Return the same, eight bytes each, big-endian."""
        if self.known is not None:
            offsets = (record[PHYSICAL_OFFSET] for record in self.known[place : place + count])
            return pack(f">{count}q", *offsets)
        return self.places[place * _OFFSET.size : (place + count) * _OFFSET.size]


class Staging:
    """Collects messages and builds entries while this node leads.

    Attributes:
        staged_count: messages waiting for the next entry.
        staged_bytes: what they will take in its body, at most.
    """

    def __init__(self, state: BrokerState, store_host: bytes) -> None:
        assert len(store_host) in _HOST_LENGTHS, f"a host field of {len(store_host)} bytes"
        self.staged_count = 0
        self.staged_bytes = 0
        self._state = state
        self._store_host = store_host
        self._messages: list[Staged] = []
        self._run_count = 0
        """Runs among these."""
        self._queue_ends: dict[QueueKey, QueueEnd] = {}
        # The topics that control records delete, by place.
        self._deletes: dict[int, str] = {}
        self._last_store_ms = StoreTimeMs(0)

    @property
    def store_host(self) -> bytes:
        """The host field that the records get."""
        return self._store_host

    def stage(
        self,
        topic: bytes,
        queue_id: QueueId,
        body: bytes,
        properties: bytes,
        *,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        folded: FoldedProperties | None = None,
    ) -> int:
        """Take one message into the next entry; return its place there.

        `folded` is what the fold needs of the properties, where that is known already.

        Raises:
            RecordError: a field does not fit the record; nothing was staged.
        """
        return self.stage_checked(
            [
                (
                    self.queue_end((topic, queue_id)),
                    body,
                    properties,
                    sys_flag,
                    born_timestamp_ms,
                    born_host,
                    flag,
                    reconsume_times,
                    prepared_transaction_offset,
                    folded,
                )
            ]
        )

    def stage_checked(self, messages: list[StagedMessage]) -> int:
        """Take several messages into the next entry; return the place of the first, the others follow it.

        Raises:
            RecordError: a field of one does not fit its record; nothing was staged.
        """
        size_bytes = 0
        for (
            queue_end,
            body,
            properties,
            sys_flag,
            born_ms,
            host,
            flag,
            times,
            prepared,
            _,
        ) in messages:
            if (
                (sys_flag | times) >> 31
                or (born_ms | prepared) >> 63
                or not -_INT32_MAX - 1 <= flag <= _INT32_MAX
                or len(properties) > PROPERTIES_BYTES_MAX
                or len(body) > BODY_BYTES_MAX
                or len(host) not in _HOST_LENGTHS
            ):
                raise RecordError(
                    f"a message of {len(body)} bytes, properties of {len(properties)}, a born host of "
                    f"{len(host)}, system flag {sys_flag}, flag {flag}, born {born_ms}, "
                    f"reconsumed {times} times, prepared at {prepared}: a field is out of its range"
                )
            size_bytes += queue_end.bytes_max + len(body) + len(properties)
        return self.stage_all(messages, size_bytes)

    def queue_end(self, key: QueueKey) -> QueueEnd:
        """Return the end of a queue, for messages to be staged.

        Raises:
            RecordError: the topic or the queue id cannot stand in a record.
        """
        return self._queue_ends.get(key) or self._find_end(key)

    def stage_all(self, messages: list[StagedMessage], size_bytes: int) -> int:
        """Take several messages into the next entry; return the place of the first, the others follow it.

        Args:
            messages: one or more, whose fields fit their records as `stage` demands it.
            size_bytes: the sum of their `bytes_max`.
        """
        assert messages, "nothing is to be staged"
        place = self.staged_count
        self._messages += messages
        self.staged_count = place + len(messages)
        self.staged_bytes += size_bytes
        return place

    def stage_run(self, run: EncodedRun) -> int:
        """Take records that are encoded already into the next entry; return the place of the first.

        They stay together: what is staged is never divided within a run.
        """
        place = self.staged_count
        self._messages.append(run)
        self._run_count += 1
        self.staged_count = place + run.record_count
        self.staged_bytes += bytes_max(run)
        return place

    def stage_control(self, command: Command, now_ms: int) -> int:
        """Take a control record into the next entry; return its place there.

        Raises:
            RecordError: the command is larger than a record may be.
        """
        topic, body = encode_control(command)
        place = self.stage(
            topic, QueueId(0), body, b"", born_timestamp_ms=now_ms, born_host=self._store_host
        )
        if isinstance(command, DeleteTopic) and is_deletable(command.name):
            self._deletes[place] = command.name
        return place

    def build_entry(self, position: Position, now_ms: int, count: int | None = None) -> StagedEntry:
        """Make one entry's body of what is staged.

        Args:
            position: where its header will stand.
            now_ms: the wall clock.
            count: how many messages it takes, the first ones; None: all. The places of those that stay
                become smaller by as much.
        """
        has_runs = self._run_count > 0
        staged, deletes = self._take_staged(self.staged_count if count is None else count)
        before = self._next_offsets() if deletes else None
        store_ms = StoreTimeMs(max(now_ms, self._last_store_ms, self._state.last_store_ms))
        self._last_store_ms = store_ms
        first_offset = PhysicalOffset(position + ENTRY_HEADER_BYTES)
        if has_runs and not deletes:
            placed = place_runs(staged, first_offset, store_ms)
            if placed is not None:
                return StagedEntry(placed[0], None, placed[1], store_ms, None)
        messages = one_by_one(staged) if has_runs else cast("list[StagedMessage]", staged)
        if deletes or len(self._store_host) != HOST_V4_BYTES:
            body, records = self._encode_one_by_one(messages, deletes, first_offset, store_ms)
        else:
            body, records = encode_messages(
                messages, first_offset, store_ms=store_ms, store_host=self._store_host
            )
        if records:
            end = records[-1][PHYSICAL_OFFSET] + records[-1][SIZE_BYTES]
            assert end == first_offset + len(body), (
                f"the last record ends at {end}, the body at {first_offset + len(body)}"
            )
        return StagedEntry(body, records, b"", store_ms, before)

    def proposed(self, staged: StagedEntry, entry_id: EntryId) -> None:
        """Give the fold what it needs of an entry that the log took under an id."""
        if staged.known is not None:
            self._state.expect(entry_id, staged.known)

    def withdraw(self, staged: StagedEntry) -> None:
        """Free the offsets of the entry that was built last: the log did not take it."""
        if staged.offsets_before is not None:
            for key, queue_end in self._queue_ends.items():
                before = staged.offsets_before.get(key)
                queue_end.next_offset = self._max_offset(key) if before is None else before
            return
        for record in reversed(staged.records):
            if not record[IS_HIDDEN]:
                queue_end = self._queue_ends[record[KEY]]
                queue_end.next_offset = QueueOffset(queue_end.next_offset - 1)
                assert queue_end.next_offset == record[QUEUE_OFFSET], (
                    f"{record[KEY]}: offset {queue_end.next_offset} becomes free, "
                    f"the record withdrawn has {record[QUEUE_OFFSET]}"
                )

    def drop(self) -> None:
        """Forget what is staged; no offset was assigned to it."""
        self._messages = []
        self._deletes = {}
        self.staged_count = self.staged_bytes = self._run_count = 0

    def cut(self, count: int) -> None:
        """Forget what is staged beyond the first `count` messages; no offset was assigned to it."""
        assert 0 <= count <= self.staged_count, f"{count} of {self.staged_count} messages are kept"
        self._messages, messages = self._divided(count)
        self.staged_count = count
        self.staged_bytes -= sum(map(bytes_max, messages))
        self._run_count = sum(isinstance(each, EncodedRun) for each in self._messages)
        self._deletes = {place: name for place, name in self._deletes.items() if place < count}

    def discard(self) -> None:
        """Forget what is staged and every offset that was assigned ahead: leadership is lost."""
        self.drop()
        self._queue_ends = {}
        self._state.forget_expected()

    def _find_end(self, key: QueueKey) -> QueueEnd:
        """Look at a queue for the first time.

        Raises:
            RecordError: the topic or the queue id cannot stand in a record.
        """
        topic, queue_id = key
        if not 0 < len(topic) <= TOPIC_BYTES_MAX or not is_text(topic):
            raise RecordError(f"topic {topic[:300]!r} is empty, too long, or no UTF-8")
        if not 0 <= queue_id <= _INT32_MAX:
            raise RecordError(f"queue id {queue_id} is not in 0..{_INT32_MAX}")
        queue_end = self._queue_ends[key] = QueueEnd(key, self._max_offset(key))
        return queue_end

    def _max_offset(self, key: QueueKey) -> QueueOffset:
        """Return the queue offset that follows what is applied."""
        queue = self._state.queues.by_key.get(key)
        return queue.max_offset if queue is not None else QueueOffset(0)

    def _divided(self, count: int) -> tuple[list[Staged], list[Staged]]:
        """Return what the first `count` messages are, and the rest."""
        at, messages = count, self._messages
        if self._run_count:
            at, left = 0, count
            while left:
                message = messages[at]
                left -= message.record_count if isinstance(message, EncodedRun) else 1
                at += 1
            assert not left, f"a run is divided: {-left} of its records are not taken"
        return messages[:at], messages[at:]

    def _take_staged(self, count: int) -> tuple[list[Staged], dict[int, str]]:
        """Take the first messages out, with the topics that they delete, by place."""
        assert 0 <= count <= self.staged_count, f"{count} of {self.staged_count} messages"
        messages, deletes = self._messages, self._deletes
        if count == self.staged_count:
            self._messages, self._deletes = [], {}
            self.staged_count = self.staged_bytes = self._run_count = 0
            return messages, deletes
        messages, self._messages = self._divided(count)
        self.staged_count -= count
        self.staged_bytes -= sum(map(bytes_max, messages))
        self._run_count = sum(isinstance(each, EncodedRun) for each in self._messages)
        self._deletes = {place - count: name for place, name in deletes.items() if place >= count}
        return messages, {place: name for place, name in deletes.items() if place < count}

    def _encode_one_by_one(
        self,
        messages: list[StagedMessage],
        deletes: dict[int, str],
        physical_offset: PhysicalOffset,
        store_ms: StoreTimeMs,
    ) -> tuple[bytes, list[ParsedRecord]]:
        """Encode messages when hosts are IPv6 or a topic is deleted on the way."""
        pieces: list[bytes] = []
        records: list[ParsedRecord] = []
        for place, message in enumerate(messages):
            piece, record = encode_unusual(
                message, physical_offset, store_ms=store_ms, store_host=self._store_host
            )
            pieces.append(piece)
            records.append(record)
            physical_offset = PhysicalOffset(physical_offset + len(piece))
            if place in deletes:
                self._restart_topic(deletes[place])
        return b"".join(pieces), records

    def _restart_topic(self, topic: str) -> None:
        """Begin a topic's queues again at offset 0: the record just built deletes it."""
        for queue in self._state.queues.of_topic(topic):
            self._queue_ends.setdefault(queue.key, QueueEnd(queue.key, QueueOffset(0)))
        for key, queue_end in self._queue_ends.items():
            if key[0] == topic.encode():
                queue_end.next_offset = QueueOffset(0)

    def _next_offsets(self) -> dict[QueueKey, QueueOffset]:
        return {key: queue_end.next_offset for key, queue_end in self._queue_ends.items()}
