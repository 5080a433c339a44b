"""The CommitLog record: a message as it is stored, and as it is given to consumers.

Layout, big-endian, B and S = 8 bytes for IPv4 or 20 for IPv6 (docs/formats/message.md, "Record"):
     0       int32  total size, this field included
     4       int32  magic: V1, or V2 with a two-byte topic length
     8       int32  body crc: CRC-32 with the sign bit cleared
    12       int32  queue id
    16       int32  flag, the application's
    20       int64  queue offset
    28       int64  physical offset of this record
    36       int32  system flag (sys_flags.py); bits 4 and 5 choose B and S
    40       int64  born timestamp, ms, the client's clock
    48       B      born host: address, port as int32
    48+B     int64  store timestamp, ms
    56+B     S      store host
    56+B+S   int32  reconsume times
    60+B+S   int64  prepared transaction offset
    68+B+S   int32  body length, then the body
     .       uint8 (V1) or int16 (V2)  topic length, then the topic in UTF-8
     .       int16  properties length, then the properties

V2 is written only for topics that V1's length byte, signed in Java, cannot hold: above 127 bytes.
Source: RocketMQ common/message/MessageDecoder.java; bytes in docs/formats/message.md, "Values to check against".
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import msgspec

from dledger_mq.message.errors import RecordError
from dledger_mq.message.hashes import body_crc
from dledger_mq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX, find_property
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6

MAGIC_V1: Final = -626_843_481
MAGIC_V2: Final = -626_843_477

RECORD_BYTES_MIN: Final = 91
"""V1 with IPv4 hosts and nothing in it: 91 + body + topic + properties is the size of a record."""

TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 32_767
BODY_BYTES_MAX: Final = 2**31 - 1 - 2**17

QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36


def _head(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")


_HEADS: Final = {
    (born, store): _head(born, store)
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
}
_HEAD_V4: Final = _HEADS[HOST_V4_BYTES, HOST_V4_BYTES]
_HEAD_BY_FLAG: Final = {
    (BORN_HOST_V6 if born == HOST_V6_BYTES else 0)
    | (STORE_HOST_V6 if store == HOST_V6_BYTES else 0): head
    for (born, store), head in _HEADS.items()
}
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_SHORT: Final = struct.Struct(">H")
_PREFIX: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_MAGIC_V1_END: Final = MAGIC_V1 & 0xFF


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """One record, taken apart. Hosts are host fields as in `hosts.py`; properties stay bytes.

    Attributes:
        size_bytes: of the whole record.
        body_crc: as written in the record.
    """

    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size_bytes: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: StoreTimeMs
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes
    properties: bytes

    def find(self, name: bytes) -> bytes | None:
        """Return the value of one property."""
        return find_property(self.properties, name)


def record_properties(record: bytes | memoryview) -> bytes:
    """Return the properties of a record that is whole, as they stand there; nothing else of it is looked at."""
    head_bytes = _HEAD_BY_FLAG[record[SYS_FLAG_AT + 3] & _HOST_BITS].size
    topic_at: int = head_bytes + _INT.unpack_from(record, head_bytes - _INT.size)[0]
    if record[7] == _MAGIC_V1_END:
        return bytes(record[topic_at + 1 + record[topic_at] + _SHORT.size :])
    return bytes(record[topic_at + _SHORT.unpack_from(record, topic_at)[0] + 2 * _SHORT.size :])


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    body: bytes,
    properties: bytes,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Write one record.

    The host bits of `sys_flag` are set from the lengths of the hosts; its other bits stay as given.

    Raises:
        RecordError: topic or properties are too long, the topic is empty, a host has a wrong length,
            or a number does not fit its field.
    """
    properties_length, body_length = len(properties), len(body)
    head = _HEADS.get((len(born_host), len(store_host)))
    if head is None:
        raise RecordError(
            f"born host of {len(born_host)}, store host of {len(store_host)} bytes: they have 8 or 20"
        )
    magic, topic_piece = _topic_piece(topic)
    if properties_length > PROPERTIES_BYTES_MAX or body_length > BODY_BYTES_MAX:
        raise RecordError(
            f"properties of {properties_length} bytes and a body of {body_length} bytes: "
            f"at most {PROPERTIES_BYTES_MAX} and {BODY_BYTES_MAX}"
        )
    if head is not _HEAD_V4 or sys_flag & _HOST_BITS:
        sys_flag = (
            (sys_flag & ~_HOST_BITS)
            | (BORN_HOST_V6 if len(born_host) == HOST_V6_BYTES else 0)
            | (STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else 0)
        )
    size = head.size + body_length + len(topic_piece) + 2 + properties_length
    try:
        packed = head.pack(
            size,
            magic,
            body_crc(body),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp_ms,
            born_host,
            store_timestamp_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
    except struct.error as error:
        raise RecordError(f"a number does not fit its field: {error}") from error
    return b"".join((packed, body, topic_piece, _SHORT.pack(properties_length), properties))


@lru_cache(maxsize=4096)
def _topic_piece(topic: bytes) -> tuple[int, bytes]:
    """Return the magic, and the topic after its length. Cached: few topics, many messages.

    Raises:
        RecordError: the topic is empty or too long.
    """
    length = len(topic)
    if not 0 < length <= TOPIC_BYTES_MAX:
        raise RecordError(f"a topic of {length} bytes: it has 1 to {TOPIC_BYTES_MAX}")
    if length <= TOPIC_BYTES_MAX_V1:
        return MAGIC_V1, length.to_bytes(1, "big") + topic
    return MAGIC_V2, _SHORT.pack(length) + topic


def record_size(body_length: int, topic_length: int, properties_length: int) -> int:
    """Return the size in bytes of a record with IPv4 hosts."""
    wide = topic_length > TOPIC_BYTES_MAX_V1
    return RECORD_BYTES_MIN + wide + body_length + topic_length + properties_length


def decode_record(data: bytes, position: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """Read the record that starts at `position`; `size_bytes` further is where the next may start.

    Raises:
        RecordError: torn (fewer bytes than it says), an unknown magic, lengths that disagree with the
            total size, a topic that is empty or not UTF-8, or a wrong body crc.
    """
    size, magic = _start(data, position)
    head = _HEAD_BY_FLAG[data[position + SYS_FLAG_AT + 3] & _HOST_BITS]
    end = position + size
    body_start = position + head.size
    if body_start > end:
        raise RecordError(f"record size {size} is less than its head", position)
    (
        _,
        _,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body_length,
    ) = head.unpack_from(data, position)
    topic_width = 1 if magic == MAGIC_V1 else 2
    topic_at = body_start + body_length
    if body_length < 0 or topic_at + topic_width + 2 > end:
        raise RecordError(f"body length {body_length} in a record of {size} bytes", position)
    topic_start = topic_at + topic_width
    properties_at = topic_start + int.from_bytes(data[topic_at:topic_start], "big")
    if properties_at + 2 > end:
        raise RecordError(f"the topic runs over the end of a record of {size} bytes", position)
    properties = data[properties_at + 2 : end]
    if len(properties) != int.from_bytes(data[properties_at : properties_at + 2], "big"):
        raise RecordError(f"lengths inside do not add up to the record size {size}", position)
    body = data[body_start:topic_at]
    if check_crc and body_crc(body) != crc:
        raise RecordError(
            f"body crc is 0x{body_crc(body):08X}, the record says 0x{crc:08X}",
            position,
        )
    return StoredMessage(
        _topic_text(data[topic_start:properties_at], position),
        queue_id,
        queue_offset,
        physical_offset,
        size,
        flag,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        crc,
        body,
        properties,
    )


def _start(data: bytes, position: int) -> tuple[int, int]:
    """Return size and magic of a record, checked against what is left."""
    left = len(data) - position
    if left < RECORD_BYTES_MIN:
        raise RecordError(f"{left} bytes are less than a record", position)
    size, magic = _PREFIX.unpack_from(data, position)
    if size > left or size < RECORD_BYTES_MIN:
        raise RecordError(f"record size {size}, {left} bytes are left", position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"magic 0x{magic & 0xFFFF_FFFF:08X} is not that of a message", position)
    return size, magic


def _topic_text(topic: bytes, position: int) -> str:
    if not topic:
        raise RecordError("the topic is empty", position)
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise RecordError("the topic is not UTF-8", position) from error


def decode_records(data: bytes, *, check_crc: bool = True) -> list[StoredMessage]:
    """Read records that fill `data` exactly, back to back.

    Raises:
        RecordError: as `decode_record`; also when anything but a whole record follows the last one.
    """
    records: list[StoredMessage] = []
    position, end = 0, len(data)
    while position < end:
        record = decode_record(data, position, check_crc=check_crc)
        records.append(record)
        position += record.size_bytes
    return records
