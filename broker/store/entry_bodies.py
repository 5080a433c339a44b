"""Bodies of entries: the staged messages encoded as records, with queue and physical offsets assigned.

Here the leader spends much of its time per message. So records of which all are common (V1, IPv4 hosts) are written by
compiled code, where there is any, and else each common one is packed with one struct, without a call but C ones; tests
hold one against the other, and that against `encode_record`, which writes every other shape.
What the fold needs of each record is known here already and comes along, so that the fold does not parse
the entry again. Nothing here knows what is staged, proposed or withdrawn (broker/store/staging.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.store.parse import ParsedRecord, folded_properties
from broker.store.record_shapes import FoldedProperties
from broker.store.unit_stores import QueueKey
from dledger_mq.message import compiled
from dledger_mq.message.hashes import crc32
from dledger_mq.message.hosts import HOST_V4_BYTES
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.record import MAGIC_V1, TOPIC_BYTES_MAX_V1, encode_record
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED

RECORD_OVERHEAD_MAX: Final = 91 + 24 + 1
"""Bytes of a record besides body, topic and properties: IPv6 hosts, V2."""

_HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_SHORT: Final = struct.Struct(">H")
_UNUSUAL_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_PREPARED

StagedMessage = tuple[
    "QueueEnd", bytes, bytes, int, int, bytes, int, int, int, "FoldedProperties | None"
]
"""End of the queue, body, properties, system flag, born time (ms), born host, flag, reconsume times, prepared
transaction offset, what the fold needs of the properties where that is known already. A plain tuple, as it is made per
message; it is always unpacked."""


class QueueEnd:
    """The end of one queue as the leader sees it, ahead of the fold.

    Attributes:
        key: the queue.
        next_offset: queue offset that the next message gets.
        topic_field: the topic as it stands in a V1 record, with its length; empty for longer topics.
        size: bytes of a V1 record besides body and properties.
        bytes_max: bytes of a record besides body and properties, of any shape.
    """

    __slots__ = ("bytes_max", "key", "next_offset", "size", "topic_field")

    def __init__(self, key: QueueKey, next_offset: QueueOffset) -> None:
        self.key = key
        self.next_offset = next_offset
        topic, _ = key
        self.topic_field = b""
        if len(topic) <= TOPIC_BYTES_MAX_V1:
            self.topic_field = bytes((len(topic),)) + topic
        self.size = _HEAD.size + len(self.topic_field) + _SHORT.size
        self.bytes_max = RECORD_OVERHEAD_MAX + len(topic)


class EncodedRun(NamedTuple):
    """Records of one queue that were encoded when they were staged, but for their places and their store time.

    Attributes:
        queue_end: the end of their queue.
        records: back to back, one at least.
        record_count: how many.
        messages: returns what would be staged for them otherwise.
    """

    queue_end: QueueEnd
    records: bytes
    record_count: int
    messages: Callable[[], list[StagedMessage]]


Staged = StagedMessage | EncodedRun


def one_by_one(staged: list[Staged]) -> list[StagedMessage]:
    """Return the messages of what is staged, those of runs in their places."""
    messages: list[StagedMessage] = []
    for each in staged:
        if isinstance(each, EncodedRun):
            messages += each.messages()
        else:
            messages.append(each)
    return messages


def bytes_max(message: Staged) -> int:
    """Return what a message, or a run of records, takes in an entry's body, at most."""
    if isinstance(message, EncodedRun):
        end = message.queue_end
        return len(message.records) + (end.bytes_max - end.size) * message.record_count
    queue_end, body, properties, *_ = message
    return queue_end.bytes_max + len(body) + len(properties)


def place_runs(
    staged: list[Staged], physical_offset: PhysicalOffset, store_ms: StoreTimeMs
) -> tuple[bytes, bytes] | None:
    """Put runs back to back from a physical offset on, if all is runs; each record takes its queue's next offset.

    Returns:
        The body, and where its records stand, eight bytes each, big-endian; None: nothing was done, and all has to be
        encoded message by message.
    """
    runs = [each for each in staged if isinstance(each, EncodedRun)]
    if len(runs) < len(staged):
        return None
    starts: list[int] = []
    for run in runs:
        queue_end = run.queue_end
        starts.append(queue_end.next_offset)
        queue_end.next_offset = QueueOffset(queue_end.next_offset + run.record_count)
    records = [run.records for run in runs]
    placed = compiled.place_records(records, starts, physical_offset, store_ms)
    if placed is None:
        for run in runs:
            run.queue_end.next_offset = QueueOffset(run.queue_end.next_offset - run.record_count)
    return placed


def encode_messages(
    messages: list[StagedMessage],
    physical_offset: PhysicalOffset,
    *,
    store_ms: StoreTimeMs,
    store_host: bytes,
) -> tuple[bytes, list[ParsedRecord]]:
    """Encode messages back to back from a physical offset on; each takes its queue's next offset.

    The store host is an IPv4 one: for others, `encode_unusual` encodes each.

    Returns:
        The body, and what the fold needs of each record.
    """
    encoded = compiled.encode_records(
        messages, physical_offset, store_ms, store_host, crc32, folded_properties
    )
    if encoded is None:
        encoded = _encode_mixed(messages, physical_offset, store_ms=store_ms, store_host=store_host)
    return encoded


def _encode_mixed(
    messages: list[StagedMessage],
    physical_offset: PhysicalOffset,
    *,
    store_ms: StoreTimeMs,
    store_host: bytes,
) -> tuple[bytes, list[ParsedRecord]]:
    """Encode messages of which some may be of an unusual shape."""
    pieces: list[bytes] = []
    records: list[ParsedRecord] = []
    pack, pack_short = _HEAD.pack, _SHORT.pack
    for message in messages:
        queue_end, body, properties, sys_flag, born_ms, host, flag, times, prepared, folded = (
            message
        )
        topic_field, queue_offset = queue_end.topic_field, queue_end.next_offset
        if not topic_field or len(host) != HOST_V4_BYTES or sys_flag & _UNUSUAL_BITS:
            piece, record = encode_unusual(
                message, physical_offset, store_ms=store_ms, store_host=store_host
            )
            pieces.append(piece)
            records.append(record)
            physical_offset += len(piece)  # type: ignore[assignment]  # see below
            continue
        body_length, properties_length = len(body), len(properties)
        size = queue_end.size + body_length + properties_length
        pieces += (
            pack(
                size,
                MAGIC_V1,
                crc32(body) & 0x7FFF_FFFF,
                queue_end.key[1],
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_ms,
                host,
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
        records.append(
            (
                queue_end.key,
                queue_offset,
                physical_offset,
                size,
                store_ms,
                False,
                folded_properties(properties) if folded is None else folded,
            )
        )
        # An offset moved on is an offset, but to say so would cost a call per message.
        queue_end.next_offset = queue_offset + 1  # type: ignore[assignment]
        physical_offset += size  # type: ignore[assignment]
    return b"".join(pieces), records


def encode_unusual(
    message: StagedMessage,
    physical_offset: PhysicalOffset,
    *,
    store_ms: StoreTimeMs,
    store_host: bytes,
) -> tuple[bytes, ParsedRecord]:
    """Encode one message of any shape; a prepared one takes no queue offset."""
    (queue_end, body, properties, sys_flag, born_ms, born_host, flag, times, prepared, folded) = (
        message
    )
    is_hidden = sys_flag & TRANSACTION_PREPARED != 0
    queue_offset = QueueOffset(0) if is_hidden else queue_end.next_offset
    queue_end.next_offset = QueueOffset(queue_end.next_offset + (not is_hidden))
    topic, queue_id = queue_end.key
    piece = encode_record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_ms,
        born_host=born_host,
        store_timestamp_ms=store_ms,
        store_host=store_host,
        body=body,
        properties=properties,
        flag=flag,
        reconsume_times=times,
        prepared_transaction_offset=prepared,
    )
    return piece, (
        queue_end.key,
        queue_offset,
        physical_offset,
        len(piece),
        store_ms,
        is_hidden,
        folded_properties(properties) if folded is None else folded,
    )
