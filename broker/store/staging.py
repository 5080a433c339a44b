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

Runs per message on the leader, so the common record (V1, IPv4 hosts) is packed here with one struct;
tests hold it against `encode_record`, which writes every other shape.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from broker.store.consume_queue import QueueKey
from broker.store.control import Command, DeleteTopic, encode_control
from broker.store.parse import ParsedRecord, folded_properties, is_text
from broker.store.state import BrokerState
from broker.store.topics import is_deletable
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import EntryId
from dledger_mq.message.errors import RecordError
from dledger_mq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX
from dledger_mq.message.record import (
    BODY_BYTES_MAX,
    MAGIC_V1,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    encode_record,
)
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED

RECORD_OVERHEAD_MAX: Final = 91 + 24 + 1
"""Bytes of a record besides body, topic and properties: IPv6 hosts, V2."""

_HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_SHORT: Final = struct.Struct(">H")
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_HOST_LENGTHS: Final = (HOST_V4_BYTES, HOST_V6_BYTES)
_INT32_MAX: Final = 2**31 - 1

_Message = tuple["_Route", bytes, bytes, int, int, bytes, int, int, int]
"""Route, body, properties, system flag, born time, born host, flag, reconsume times, prepared
transaction offset."""


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """An entry that was built and not yet proposed.

    Attributes:
        body: for `propose`.
        records: one per staged message, by place; the fold's view, with queue offset ([1]) and physical
            offset ([2]), which the answers to the producers carry.
        store_ms: the store time of all records.
    """

    body: bytes
    records: list[ParsedRecord]
    store_ms: int
    offsets_before: dict[QueueKey, int] | None

    def queue_offset(self, place: int) -> int:
        """The queue offset of the message that was staged at a place."""
        return self.records[place][1]

    def physical_offset(self, place: int) -> int:
        """The physical offset of the message that was staged at a place."""
        return self.records[place][2]


class _Route:
    """One queue as the leader sees it ahead of the fold; `topic_field` is empty for long topics."""

    __slots__ = ("bytes_max", "key", "next_offset", "size", "topic_field")

    def __init__(self, key: QueueKey, next_offset: int) -> None:
        self.key = key
        self.next_offset = next_offset
        topic = key[0]
        self.topic_field = b""
        if len(topic) <= TOPIC_BYTES_MAX_V1:
            self.topic_field = bytes((len(topic),)) + topic
        self.size = _HEAD.size + len(self.topic_field) + _SHORT.size
        self.bytes_max = RECORD_OVERHEAD_MAX + len(topic)


class Staging:
    """Collects messages and builds entries while this node leads.

    Attributes:
        staged_count: messages waiting for the next entry.
        staged_bytes: what they will take in its body, at most.
    """

    def __init__(self, state: BrokerState, store_host: bytes) -> None:
        assert len(store_host) in _HOST_LENGTHS, "see dledger_mq/message/hosts.py"
        self.staged_count = 0
        self.staged_bytes = 0
        self._state = state
        self._store_host = store_host
        self._messages: list[_Message] = []
        self._routes: dict[QueueKey, _Route] = {}
        self._deletes: dict[int, str] = {}
        self._last_store_ms = 0

    @property
    def store_host(self) -> bytes:
        """The host field that the records get."""
        return self._store_host

    def stage(
        self,
        topic: bytes,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> int:
        """Take one message into the next entry; return its place there.

        Raises:
            RecordError: a field does not fit the record; nothing was staged.
        """
        route = self._routes.get((topic, queue_id)) or self._open_route((topic, queue_id))
        if (
            (sys_flag | reconsume_times) >> 31
            or (born_timestamp_ms | prepared_transaction_offset) >> 63
            or not -_INT32_MAX - 1 <= flag <= _INT32_MAX
            or len(properties) > PROPERTIES_BYTES_MAX
            or len(body) > BODY_BYTES_MAX
            or len(born_host) not in _HOST_LENGTHS
        ):
            raise RecordError(
                f"a message of {len(body)} bytes, properties of {len(properties)}, a born host of "
                f"{len(born_host)}, system flag {sys_flag}, flag {flag}, born {born_timestamp_ms}, "
                f"reconsumed {reconsume_times} times, prepared at {prepared_transaction_offset}: "
                "a field is out of its range"
            )
        self._messages.append(
            (
                route,
                body,
                properties,
                sys_flag,
                born_timestamp_ms,
                born_host,
                flag,
                reconsume_times,
                prepared_transaction_offset,
            )
        )
        self.staged_bytes += route.bytes_max + len(body) + len(properties)
        place = self.staged_count
        self.staged_count = place + 1
        return place

    def stage_control(self, command: Command, now_ms: int) -> int:
        """Take a control record into the next entry; return its place there.

        Raises:
            RecordError: the command is larger than a record may be.
        """
        topic, body = encode_control(command)
        place = self.stage(
            topic, 0, body, b"", born_timestamp_ms=now_ms, born_host=self._store_host
        )
        if isinstance(command, DeleteTopic) and is_deletable(command.name):
            self._deletes[place] = command.name
        return place

    def build_entry(self, position: int, now_ms: int, count: int | None = None) -> StagedEntry:
        """Make one entry's body of what is staged.

        Args:
            position: where its header will stand.
            now_ms: the wall clock.
            count: how many messages it takes, the first ones; None: all. The places of those that stay
                become smaller by as much.
        """
        messages, self._messages = self._messages, []
        left_deletes: dict[int, str] = {}
        if count is None or count == len(messages):
            self.staged_count = self.staged_bytes = 0
        else:
            messages, self._messages = messages[:count], messages[count:]
            self.staged_count = len(self._messages)
            self.staged_bytes = sum(map(_bytes_max, self._messages))
            left_deletes = {
                place - count: name for place, name in self._deletes.items() if place >= count
            }
            self._deletes = {place: name for place, name in self._deletes.items() if place < count}
        before = self._offsets() if self._deletes else None
        store_ms = max(now_ms, self._last_store_ms, self._state.last_store_ms)
        self._last_store_ms = store_ms
        if self._deletes or len(self._store_host) != HOST_V4_BYTES:
            pieces, records = self._build_piecemeal(messages, position, store_ms)
        else:
            pieces, records = self._build(messages, position + ENTRY_HEADER_BYTES, store_ms)
        self._deletes = left_deletes
        return StagedEntry(b"".join(pieces), records, store_ms, before)

    def proposed(self, staged: StagedEntry, entry_id: EntryId) -> None:
        """The log took the entry under that id."""
        self._state.expect(entry_id, staged.records)

    def withdraw(self, staged: StagedEntry) -> None:
        """The log did not take the entry that was built last: its offsets are free again."""
        if staged.offsets_before is not None:
            for key, route in self._routes.items():
                before = staged.offsets_before.get(key)
                route.next_offset = self._max_offset(key) if before is None else before
            return
        for record in staged.records:
            if not record[6]:
                self._routes[record[0]].next_offset -= 1

    def discard(self) -> None:
        """Leadership is lost: forget what is staged and every offset that was assigned ahead."""
        self._messages = []
        self._deletes = {}
        self._routes = {}
        self.staged_count = self.staged_bytes = 0
        self._state.forget_expected()

    def _open_route(self, key: QueueKey) -> _Route:
        """Look at a queue for the first time.

        Raises:
            RecordError: the topic or the queue id cannot stand in a record.
        """
        topic, queue_id = key
        if not 0 < len(topic) <= TOPIC_BYTES_MAX or not is_text(topic):
            raise RecordError(f"topic {topic[:300]!r} is empty, too long, or no UTF-8")
        if not 0 <= queue_id <= _INT32_MAX:
            raise RecordError(f"queue id {queue_id} is not in 0..{_INT32_MAX}")
        route = self._routes[key] = _Route(key, self._max_offset(key))
        return route

    def _max_offset(self, key: QueueKey) -> int:
        queue = self._state.queues.by_key.get(key)
        return queue.max_offset if queue is not None else 0

    def _build(
        self, messages: list[_Message], physical_offset: int, store_ms: int
    ) -> tuple[list[bytes], list[ParsedRecord]]:
        """Encode the messages. No calls but C ones, except for rare shapes."""
        pieces: list[bytes] = []
        records: list[ParsedRecord] = []
        store_host = self._store_host
        pack, pack_short, crc32 = _HEAD.pack, _SHORT.pack, zlib.crc32
        for message in messages:
            route, body, properties, sys_flag, born_ms, born_host, flag, times, prepared = message
            topic_field, queue_offset = route.topic_field, route.next_offset
            if (
                not topic_field
                or len(born_host) != HOST_V4_BYTES
                or sys_flag & (_HOST_BITS | TRANSACTION_PREPARED)
            ):
                record = self._encode_unusual(message, physical_offset, store_ms)
                pieces.append(record[0])
                records.append(record[1])
                physical_offset += len(record[0])
                continue
            body_length, properties_length = len(body), len(properties)
            size = route.size + body_length + properties_length
            pieces += (
                pack(
                    size,
                    MAGIC_V1,
                    crc32(body) & 0x7FFF_FFFF,
                    route.key[1],
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    times,
                    prepared,
                    body_length,
                ),
                body,
                topic_field,
                pack_short(properties_length),
                properties,
            )
            tag_hash, uniq_key, keys = folded_properties(properties)
            records.append(
                (
                    route.key,
                    queue_offset,
                    physical_offset,
                    size,
                    tag_hash,
                    store_ms,
                    False,
                    uniq_key,
                    keys,
                )
            )
            route.next_offset = queue_offset + 1
            physical_offset += size
        return pieces, records

    def _build_piecemeal(
        self, messages: list[_Message], position: int, store_ms: int
    ) -> tuple[list[bytes], list[ParsedRecord]]:
        """Encode messages one by one, when hosts are IPv6 or a topic is deleted on the way."""
        deletes, self._deletes = self._deletes, {}
        pieces: list[bytes] = []
        records: list[ParsedRecord] = []
        physical_offset = position + ENTRY_HEADER_BYTES
        for place, message in enumerate(messages):
            piece, record = self._encode_unusual(message, physical_offset, store_ms)
            pieces.append(piece)
            records.append(record)
            physical_offset += len(piece)
            if place in deletes:
                self._restart_topic(deletes[place])
        return pieces, records

    def _encode_unusual(
        self, message: _Message, physical_offset: int, store_ms: int
    ) -> tuple[bytes, ParsedRecord]:
        """Encode one message of any shape."""
        route, body, properties, sys_flag, born_ms, born_host, flag, times, prepared = message
        is_hidden = sys_flag & TRANSACTION_PREPARED != 0
        queue_offset = 0 if is_hidden else route.next_offset
        route.next_offset += not is_hidden
        piece = encode_record(
            topic=route.key[0],
            queue_id=route.key[1],
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            store_timestamp_ms=store_ms,
            store_host=self._store_host,
            body=body,
            properties=properties,
            flag=flag,
            reconsume_times=times,
            prepared_transaction_offset=prepared,
        )
        tag_hash, uniq_key, keys = folded_properties(properties)
        return piece, (
            route.key,
            queue_offset,
            physical_offset,
            len(piece),
            tag_hash,
            store_ms,
            is_hidden,
            uniq_key,
            keys,
        )

    def _restart_topic(self, topic: str) -> None:
        """A topic is deleted by the record just built: its queues begin again at offset 0."""
        for queue in self._state.queues.of_topic(topic):
            self._routes.setdefault(queue.key, _Route(queue.key, 0))
        for key, route in self._routes.items():
            if key[0] == topic.encode():
                route.next_offset = 0

    def _offsets(self) -> dict[QueueKey, int]:
        return {key: route.next_offset for key, route in self._routes.items()}


def _bytes_max(message: _Message) -> int:
    """What a message takes in an entry's body, at most."""
    return message[0].bytes_max + len(message[1]) + len(message[2])
