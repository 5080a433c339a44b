"""The body of a batch send: items back to back, without a header of their own.

Layout of one item, big-endian (docs/formats/message.md):
     0  int32  item size, this field included
     4  int32  magic, writers put 0, readers ignore it
     8  int32  body crc, writers put 0, readers ignore it
    12  int32  flag, the application's
    16  int32  body length, then the body
     .  int16  properties length, then the properties
Topic, queue, system flag and born data come from the send header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dledger_mq.message.errors import BatchError
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX

_HEAD: Final = struct.Struct(">i8xii")
_LENGTH: Final = struct.Struct(">h")
ITEM_BYTES_MIN: Final = _HEAD.size + _LENGTH.size

BATCH_ITEMS_MAX: Final = 32_768
"""No client comes near; it bounds the work that one request can ask for."""


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def split_batch(data: bytes, items_max: int = BATCH_ITEMS_MAX) -> list[BatchItem]:
    """Take a batch body apart.

    Raises:
        BatchError: an item is cut off, its lengths disagree, the batch is empty, or there are more than
            `items_max` items. Nothing of such a batch may be stored.
    """
    items: list[BatchItem] = []
    position, end = 0, len(data)
    while position < end:
        if len(items) == items_max:
            raise BatchError(f"more than {items_max} items", position)
        if end - position < ITEM_BYTES_MIN:
            raise BatchError(f"{end - position} bytes are less than an item", position)
        size, flag, body_length = _HEAD.unpack_from(data, position)
        if size < ITEM_BYTES_MIN or size > end - position:
            raise BatchError(f"item size {size}, {end - position} bytes are left", position)
        if body_length < 0 or body_length > size - ITEM_BYTES_MIN:
            raise BatchError(f"body length {body_length} in an item of {size} bytes", position)
        body_start = position + _HEAD.size
        body_end = body_start + body_length
        (properties_length,) = _LENGTH.unpack_from(data, body_end)
        if properties_length != size - ITEM_BYTES_MIN - body_length:
            raise BatchError(
                f"properties length {properties_length}, body length {body_length} "
                f"and item size {size} disagree",
                position,
            )
        position += size
        items.append(
            BatchItem(flag, data[body_start:body_end], data[body_end + _LENGTH.size : position])
        )
    if not items:
        raise BatchError("a batch without items", 0)
    return items


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Join items to a batch body.

    Raises:
        BatchError: the properties of an item are longer than their length field can say.
    """
    pieces: list[bytes] = []
    for item in items:
        if len(item.properties) > PROPERTIES_BYTES_MAX:
            raise BatchError(f"properties of {len(item.properties)} bytes in an item")
        size = ITEM_BYTES_MIN + len(item.body) + len(item.properties)
        pieces += (
            _HEAD.pack(size, item.flag, len(item.body)),
            item.body,
            _LENGTH.pack(len(item.properties)),
            item.properties,
        )
    return b"".join(pieces)


def encode_labelled_batch(
    bodies: Sequence[bytes], unique_keys: Sequence[str], labels: Sequence[bytes]
) -> bytes:
    """Join columns to a batch body: of items without a flag, whose properties are a UNIQ_KEY and then the labels.

    It is what `encode_batch` makes of such items, without making them.

    Raises:
        BatchError: the properties of an item are longer than their length field can say.
    """
    pieces: list[bytes] = []
    head, length = _HEAD.pack, _LENGTH.pack
    for body, unique_key, label in zip(bodies, unique_keys, labels, strict=True):
        properties = b"UNIQ_KEY\x01%b\x02%b" % (unique_key.encode(), label)
        size = len(properties)
        if size > PROPERTIES_BYTES_MAX:
            raise BatchError(f"properties of {size} bytes in an item")
        body_size = len(body)
        pieces += (
            head(ITEM_BYTES_MIN + body_size + size, 0, body_size),
            body,
            length(size),
            properties,
        )
    return b"".join(pieces)
