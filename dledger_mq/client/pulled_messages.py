"""What a pull brought, as messages: the consumer's hot path. Pure.

Most answers hold plain records alone: of the topic and queue that were asked for, with IPv4 hosts, not compressed, not
come back through a retry topic. Those are read in one loop, straight from the bytes to what the application gets, and
what all of them share is made once: by compiled code, and where that declines or was not built, by Python (adr/0294).
Where one record is anything else, or damaged, the whole answer is read again the general way (`decode_records`,
`received`), so there is one definition of what an error is.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.messages import ReceivedMessage, received
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message import compiled
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.hashes import crc32
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.record import MAGIC_V1, TOPIC_BYTES_MAX_V1, decode_records
from dledger_mq.message.sys_flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

_PLACE: Final = struct.Struct(">iiiiiqq")
"""The head of a record (record.py): size, magic, body crc, queue id, flag, queue offset, physical offset."""

_ORIGIN: Final = struct.Struct(">iq8xq8si8xi")
"""The rest with IPv4 hosts: system flag, born timestamp, store timestamp, store host, reconsume times, body length."""

_LENGTH: Final = struct.Struct(">H")
_HEAD_BYTES: Final = _PLACE.size + _ORIGIN.size
_NOT_PLAIN: Final = COMPRESSED | BORN_HOST_V6 | STORE_HOST_V6
_Plain = tuple[QueueOffset, PhysicalOffset, int, int, StoreTimeMs, bytes, int, bytes, str]
"""Queue offset, physical offset, flag, born and store timestamp, store host, reconsume times, body, properties."""


def pulled_messages(
    records: bytes,
    queue: MessageQueue,
    subscription: TopicSubscription,
    *,
    offset: QueueOffset,
    next_offset: QueueOffset,
) -> tuple[ReceivedMessage, ...]:
    """Return the messages of a pull that the subscription wants, from `offset` on.

    Raises:
        ConnectionLostError: the records cannot be read, or their offsets do not rise towards the next one.
    """
    messages = _compiled(records, queue, subscription, offset=offset, next_offset=next_offset)
    if messages is not None:
        return messages
    try:
        messages = _plain(records, queue, subscription, offset=offset, next_offset=next_offset)
    except (struct.error, UnicodeDecodeError):
        messages = None  # cut off, or a property that is not UTF-8
    if messages is not None:
        return messages
    return any_messages(records, queue, subscription, offset=offset, next_offset=next_offset)


def any_messages(
    records: bytes,
    queue: MessageQueue,
    subscription: TopicSubscription,
    *,
    offset: QueueOffset,
    next_offset: QueueOffset,
) -> tuple[ReceivedMessage, ...]:
    """Do what `pulled_messages` does, the general way."""
    try:
        found = decode_records(records)
    except MessageFormatError as error:
        raise ConnectionLostError(f"a pull of {queue} brought damaged records: {error}") from error
    last = -1
    for record in found:
        if not last < record.queue_offset < next_offset:
            raise ConnectionLostError(
                f"a pull of {queue} brought offset {record.queue_offset} after {last}, and says that "
                f"{next_offset} comes next"
            )
        last = record.queue_offset
    return tuple(
        message
        for record in found
        if record.queue_offset >= offset
        if subscription.wants((message := received(record, queue.broker_name)).tags)
    )


@lru_cache(maxsize=1024)  # a consumer has few topics, and many pulls of each
def _topic_piece(topic: str) -> bytes | None:
    """Return a topic as it stands in plain records, with its length; None for one whose records are not plain."""
    name = topic.encode()
    if is_retry_topic(topic) or not 0 < len(name) <= TOPIC_BYTES_MAX_V1:
        return None
    return len(name).to_bytes(1, "big") + name


def _compiled(
    records: bytes,
    queue: MessageQueue,
    subscription: TopicSubscription,
    *,
    offset: QueueOffset,
    next_offset: QueueOffset,
) -> tuple[ReceivedMessage, ...] | None:
    """Do what `_plain` does by compiled code; None where another way is needed."""
    topic = queue.topic
    topic_piece = _topic_piece(topic)
    if topic_piece is None:
        return None
    messages = compiled.received_messages(
        *(records, topic_piece, queue.queue_id, offset, next_offset),
        *(topic, queue, subscription.tags or None, crc32, ReceivedMessage),
    )
    return None if messages is None else tuple(messages)


def _plain_records(
    records: bytes, queue: MessageQueue, *, offset: QueueOffset, next_offset: QueueOffset
) -> list[_Plain] | None:
    """Return the records from `offset` on, checked; None when one is not plain, or something is wrong.

    Raises:
        struct.error, UnicodeDecodeError: something is wrong.
    """
    topic_piece, queue_id = _topic_piece(queue.topic), queue.queue_id
    if topic_piece is None:
        return None
    found: list[_Plain] = []
    last, position, end = -1, 0, len(records)
    while position < end:
        size, magic, crc, of_queue, flag, queue_offset, physical_offset = _PLACE.unpack_from(
            records, position
        )
        sys_flag, born_ms, store_ms, host, times, body_bytes = _ORIGIN.unpack_from(
            records, position + _PLACE.size
        )
        body_at = position + _HEAD_BYTES
        topic_at = body_at + body_bytes
        properties_at = topic_at + len(topic_piece) + _LENGTH.size
        position += size
        if (
            magic != MAGIC_V1
            or sys_flag & _NOT_PLAIN
            or of_queue != queue_id
            or body_bytes < 0
            or position > end
            or not last < queue_offset < next_offset
            or not records.startswith(topic_piece, topic_at)
            or _LENGTH.unpack_from(records, properties_at - 2)[0] != position - properties_at
            or crc32(body := records[body_at:topic_at]) & 0x7FFF_FFFF != crc
        ):
            return None
        last = queue_offset
        if queue_offset >= offset:
            text = records[properties_at:position].decode()
            place = (queue_offset, physical_offset, flag)
            found.append((*place, born_ms, store_ms, host, times, body, text))
    return found


def _plain(
    records: bytes,
    queue: MessageQueue,
    subscription: TopicSubscription,
    *,
    offset: QueueOffset,
    next_offset: QueueOffset,
) -> tuple[ReceivedMessage, ...] | None:
    """Return the messages of plain records; None, or what `_plain_records` raises, where the general way is needed."""
    topic, wanted_tags = queue.topic, subscription.tags
    found = _plain_records(records, queue, offset=offset, next_offset=next_offset)
    if found is None:
        return None
    messages: list[ReceivedMessage] = []
    known_host, id_prefix = b"", ""
    for queue_offset, physical_offset, flag, born_ms, store_ms, host, times, body, text in found:
        pairs: dict[str, str] = {}
        for pair in text.split("\x02"):
            key, _, value = pair.partition("\x01")
            if key and value:
                pairs[key] = value
        tags, keys = pairs.get("TAGS"), pairs.get("KEYS")
        if wanted_tags and tags not in wanted_tags:
            continue
        if host != known_host:
            known_host, id_prefix = host, host.hex().upper()
        message_id = f"{id_prefix}{physical_offset:016X}"
        messages.append(
            ReceivedMessage(
                topic,
                body,
                queue,
                queue_offset,
                physical_offset,
                message_id,
                pairs.get("UNIQ_KEY", message_id),
                tags,
                tuple(keys.split()) if keys else (),
                pairs,
                flag,
                born_ms,
                store_ms,
                times,
            )
        )
    return tuple(messages)
