"""Parsing for the fold: where the records of an entry belong, without building messages.

`decode_record` (dledger_mq/message/record.py) takes a record apart completely; the fold runs once per
message on every replica and needs eight numbers and three properties, so the common shape (V1, IPv4
hosts) is read here with one unpack, or by compiled code. Everything else, and everything that looks wrong, goes through
`decode_record`, which knows every shape and names every fault. The body's own CRC-32 is not computed:
the entry's CRC32C covered it when the log accepted the entry.

Nothing here knows the state, so a record is read alike wherever it is folded.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.store.errors import MisplacedRecordError
from broker.store.record_shapes import KEY_END, KEY_MARK, FoldedProperties, RecordShapes
from broker.store.unit_stores import QueueKey
from dledger_mq.message import compiled
from dledger_mq.message.hashes import tags_code_of_bytes
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import KEYS, TAGS, UNIQ_KEY, find_property
from dledger_mq.message.record import MAGIC_V1, RECORD_BYTES_MIN, StoredMessage, decode_record
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED

ParsedRecord = tuple[
    QueueKey, QueueOffset, PhysicalOffset, int, StoreTimeMs, bool, FoldedProperties
]
"""Queue key; queue offset; physical offset; size in bytes; store time; whether it is a prepared or
rolled-back message, which no queue shows; what the fold needs of the properties. A plain tuple: building
a class costs more than reading the record. It is unpacked, or read by the names of its places below."""

KEY: Final = 0
QUEUE_OFFSET: Final = 1
PHYSICAL_OFFSET: Final = 2
SIZE_BYTES: Final = 3
STORE_MS: Final = 4
IS_HIDDEN: Final = 5
PROPERTIES: Final = 6

# size, magic, queue id, queue offset, physical offset, system flag, store time, body length
_HEAD: Final = struct.Struct(">ii4xi4xqqi16xq20xi")
_HEAD_BYTES: Final = _HEAD.size
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_UNUSUAL_BITS: Final = _HOST_BITS | TRANSACTION_PREPARED

MISSES_MAX: Final = 32
"""Shapes of an entry may be unknown, that many and half of its records; then the rest is read without looking for them:
somebody's records have no two alike."""
_SHAPES: Final = RecordShapes()
find_shape: Final = _SHAPES.find
"""The shape of a record, by what stands before and behind its key; None: none was read the ordinary way lately."""

_TAGS: Final = TAGS + b"\x01"
_UNIQ_KEY: Final = UNIQ_KEY + b"\x01"
_KEYS: Final = KEYS + b"\x01"
_TAGS_BYTES: Final = len(_TAGS)
_UNIQ_KEY_BYTES: Final = len(_UNIQ_KEY)
_PAIR_END: Final = 2

assert _HEAD_BYTES + 3 == RECORD_BYTES_MIN, f"{_HEAD_BYTES} bytes before the lengths of the texts"


def parse_records(body: bytes, first_offset: PhysicalOffset) -> list[ParsedRecord]:
    """Read the records of an entry's body, whose first byte has the physical offset `first_offset`.

    Raises:
        RecordError: the bytes are not records from the first to the last.
        MisplacedRecordError: a record claims another physical offset than the one it stands at.
    """
    found = compiled.parse_records(body, first_offset, find_shape)
    if found is not None:
        return found
    records: list[ParsedRecord] = []
    add, unpack = records.append, _HEAD.unpack_from
    known, find_with_keys = _SHAPES.known, _SHAPES.find_with_keys
    place, end = 0, len(body)
    last = end - RECORD_BYTES_MIN
    before = key = behind = b""
    misses, is_tried = 0, True
    while place <= last:  # per message on every follower, so no calls but C ones for a known shape
        (size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_ms, body_length) = (
            unpack(body, place)
        )
        stop = place + size
        is_plain = (
            is_tried
            and magic == MAGIC_V1
            and not sys_flag & _UNUSUAL_BITS
            and body_length >= 0
            and place < stop <= end
        )
        if is_plain:
            before, _, text = body[place + _HEAD_BYTES + body_length : stop].partition(KEY_MARK)
            key, _, behind = text.partition(KEY_END)
            shape = known.get((before, behind)) or find_with_keys(before, behind)
            if shape is not None:
                topic, key_bytes, tag_hash, keys = shape
                if len(key) == key_bytes and physical_offset == first_offset + place:
                    properties = tag_hash, key, keys
                    add(
                        (
                            (topic, queue_id),
                            queue_offset,
                            physical_offset,
                            size,
                            store_ms,
                            False,
                            properties,
                        )
                    )
                    place = stop
                    continue
        record = _parse_record(body, place, first_offset)
        if is_plain:
            misses += 1
            is_tried = 2 * misses <= len(records) + MISSES_MAX
            _SHAPES.learn((before, key, behind), record[KEY][0], record[PROPERTIES])
        add(record)
        place += record[SIZE_BYTES]
    if place < end:
        decode_record(body, place)  # raises: torn
    assert place == end, f"the last record ends at byte {place} of a body of {end} bytes"
    return records


def learn_first(body: bytes, records: list[ParsedRecord]) -> None:
    """Have the shape of an entry's first record remembered, of which it is known already what the fold needs."""
    size, magic, *_, sys_flag, _, body_length = _HEAD.unpack_from(body)
    if magic == MAGIC_V1 and not sys_flag & _UNUSUAL_BITS:
        before, _, text = body[_HEAD_BYTES + body_length : size].partition(KEY_MARK)
        key, _, behind = text.partition(KEY_END)
        record = records[0]
        _SHAPES.learn((before, key, behind), record[KEY][0], record[PROPERTIES])


def _parse_record(body: bytes, place: int, first_offset: PhysicalOffset) -> ParsedRecord:
    """Read one record, of any shape.

    Raises:
        RecordError, MisplacedRecordError: as `parse_records`.
    """
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    store_ms: StoreTimeMs
    (size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_ms, body_length) = (
        _HEAD.unpack_from(body, place)
    )
    stop = place + size
    topic_at = place + _HEAD_BYTES + body_length
    if (
        magic != MAGIC_V1
        or sys_flag & _HOST_BITS
        or body_length < 0
        or topic_at + 4 > stop
        or stop > len(body)
    ):
        record = parsed(decode_record(body, place, check_crc=False))
        physical_offset = record[PHYSICAL_OFFSET]
    else:
        topic_end = topic_at + 1 + body[topic_at]
        properties = body[topic_end + 2 : stop]
        topic = body[topic_at + 1 : topic_end]
        if (
            topic_end + 2 > stop
            or not topic
            or (body[topic_end] << 8 | body[topic_end + 1]) != len(properties)
            or not (topic.isascii() or is_text(topic))
        ):
            decode_record(body, place)  # raises: lengths disagree, or the topic is no text
        record = (
            (topic, queue_id),
            queue_offset,
            physical_offset,
            size,
            store_ms,
            sys_flag & TRANSACTION_PREPARED != 0,
            folded_properties(properties),
        )
    if physical_offset != first_offset + place:
        raise MisplacedRecordError(
            f"the record at physical offset {first_offset + place} says {physical_offset}"
        )
    return record


def folded_properties(properties: bytes) -> FoldedProperties:
    """Read the properties that the fold looks at."""
    tag_hash, uniq_key, keys = 0, None, None
    if (found := properties.rfind(_TAGS)) >= 0:
        start = found + _TAGS_BYTES
        stop = properties.find(_PAIR_END, start)
        if stop > start and (not found or properties[found - 1] == _PAIR_END):
            tag_hash = tags_code_of_bytes(properties[start:stop])
        elif tags := find_property(properties, TAGS):
            tag_hash = tags_code_of_bytes(tags)
    if (found := properties.rfind(_UNIQ_KEY)) >= 0:
        start = found + _UNIQ_KEY_BYTES
        stop = properties.find(_PAIR_END, start)
        if stop > start and (not found or properties[found - 1] == _PAIR_END):
            uniq_key = properties[start:stop]
        else:
            uniq_key = find_property(properties, UNIQ_KEY)
    if properties.rfind(_KEYS) >= 0:
        keys = find_property(properties, KEYS)
    return tag_hash, uniq_key, keys


def is_text(topic: bytes) -> bool:
    """Return whether a topic is UTF-8: one that is not would stop every replica, so it is never staged."""
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True


def parsed(message: StoredMessage) -> ParsedRecord:
    """Return what the fold needs of a decoded record, of any shape."""
    tags = message.find(TAGS)
    return (
        (message.topic.encode(), QueueId(message.queue_id)),
        QueueOffset(message.queue_offset),
        PhysicalOffset(message.physical_offset),
        message.size_bytes,
        StoreTimeMs(message.store_timestamp_ms),
        message.sys_flag & TRANSACTION_PREPARED != 0,
        (tags_code_of_bytes(tags) if tags else 0, message.find(UNIQ_KEY), message.find(KEYS)),
    )
