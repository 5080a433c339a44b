"""CommitLog records, many at once: bytes in, Arrow batches out.

The bytes are records back to back, as they stand in the body of an entry and in the answer to a pull
(docs/formats/message.md). `read_records` finds and checks them; the `RecordTable` that it returns has
their numbers as numpy arrays, and makes record batches of the columns that are asked for, and of no
others. Nothing is done message by message except what cannot be done otherwise: the walk along the
lengths, checksums, and bodies that were compressed.

What is refused is what `dledger_mq.message.record.decode_record` refuses; a property test holds the two
together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from dledger_mq.client.messages import unpack_body
from dledger_mq.message import compiled
from dledger_mq.message.compiled import Bytes
from dledger_mq.message.errors import RecordError
from dledger_mq.message.hashes import crc32
from dledger_mq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES
from dledger_mq.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, decode_record
from dledger_mq.message.sys_flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from pipeline.scan.arrays import numbers

Int64s: TypeAlias = NDArray[np.int64]
BATCH_ROWS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""The size at which batches are cut; one larger message is a batch of its own."""

DATA_BYTES_MAX: Final = 2**31 - 1
"""Arrow's offsets are 32 bits wide."""

_SIZE: Final = struct.Struct(">i")
_SPANS_TOGETHER_MIN: Final = 16
"""With fewer entries left to walk than this, a plain loop is faster than steps over all of them."""

_FRONT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
    ]
)
"""The fields before the born host; the other fields' places depend on the hosts' sizes."""
_BACK: Final = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_length", ">i4")]
)


@dataclass(frozen=True, eq=False)
class RecordTable:
    """Records and where they stand; all arrays have one element per record.

    Attributes:
        data: the bytes.
        start, body_start, topic_at, topic_start, topic_end, end: places in `data`: the record, its body,
            its topic's length, its topic, after the topic, after the properties.
        store_host_at: place of the store host.
        front, back: the fixed fields, big-endian.
        store_ms: store time, ms.
    """

    data: Bytes
    start: Int64s
    body_start: Int64s
    topic_at: Int64s
    topic_start: Int64s
    topic_end: Int64s
    end: Int64s
    store_host_at: Int64s
    front: NDArray[np.void]
    back: NDArray[np.void]
    store_ms: Int64s

    def __len__(self) -> int:
        return len(self.start)

    def number(self, name: str) -> Int64s:
        """Return a fixed field, by its name in `_FRONT` or `_BACK`, as native numbers."""
        part = self.front if name in (_FRONT.names or ()) else self.back
        return part[name].astype(np.int64)

    @property
    def queue_id(self) -> Int64s:
        """Queue ids."""
        return self.number("queue_id")

    @property
    def queue_offset(self) -> Int64s:
        """Queue offsets."""
        return self.number("queue_offset")

    @property
    def physical_offset(self) -> Int64s:
        """Byte places in the log, as the records say."""
        return self.number("physical_offset")

    @cached_property
    def topics(self) -> pa.StringArray:
        """Return the topics."""
        return self._cut(self.topic_start, self.topic_end).cast(pa.string())

    @cached_property
    def properties(self) -> pa.BinaryArray:
        """Return the encoded properties."""
        return self._cut(self.topic_end + 2, self.end)

    def select(self, which: NDArray[np.bool_] | Int64s | slice) -> RecordTable:
        """Select some of the records: by a mask, places in ascending order, or a slice."""
        return replace(
            self,
            **{
                name: getattr(self, name)[which]
                for name in self.__dataclass_fields__
                if name != "data"
            },
        )

    def body_crc_ok(self) -> NDArray[np.bool_]:
        """Return whether each body has the CRC-32 that its record says."""
        view = memoryview(self.data)
        pairs = zip(self.body_start.tolist(), self.topic_at.tolist(), strict=True)
        found = np.fromiter((crc32(view[a:b]) for a, b in pairs), np.uint32, len(self))
        stored: NDArray[np.uint32] = self.front["body_crc"]
        return (found & 0x7FFF_FFFF) == stored

    def record_crcs(self) -> Int64s:
        """Return the CRC32C of each record's bytes."""
        view = memoryview(self.data)
        pairs = zip(self.start.tolist(), self.end.tolist(), strict=True)
        return np.fromiter((crc32c(view[a:b]) for a, b in pairs), np.int64, len(self))

    def bodies(self) -> tuple[pa.BinaryArray, int]:
        """Return bodies of the first records, inflated as consumers get them, and of how many.

        As many as fit a batch: a small body may become a large one, so this ends early when bodies
        that were compressed have grown beyond it.
        """
        packed = np.flatnonzero(self.front["sys_flag"] & COMPRESSED)
        stored = self._cut(self.body_start, self.topic_at)
        if not len(packed):
            return stored, len(self)
        mask: NDArray[np.bool_] = np.zeros(len(self), bool)
        unpacked: list[bytes] = []
        size = 0
        for place in packed.tolist():
            body = bytes(self.data[self.body_start[place] : self.topic_at[place]])
            unpacked.append(unpack_body(body, int(self.front["sys_flag"][place])))
            mask[place] = True
            size += len(unpacked[-1])
            if size > BATCH_BYTES_MAX:
                count = place + 1
                break
        else:
            count = len(self)
        column = pc.replace_with_mask(
            stored.slice(0, count), pa.array(mask[:count]), pa.array(unpacked, pa.binary())
        )
        return column, count

    def batch_ends(self) -> Iterator[tuple[int, int]]:
        """Yield where batches begin and end, by rows and by stored bytes."""
        first, count = 0, len(self)
        while first < count:
            room = int(self.start[first]) + BATCH_BYTES_MAX
            by_size = int(np.searchsorted(self.end, room, side="right"))
            end = max(first + 1, min(first + BATCH_ROWS_MAX, by_size, count))
            yield first, end
            first = end

    def _cut(self, begin: Int64s, end: Int64s) -> pa.BinaryArray:
        """Return one piece of each record, copied together by Arrow."""
        count = len(self)
        bounds: NDArray[np.int32] = np.empty((count, 2), np.int32)
        bounds[:, 0] = begin
        bounds[:, 1] = end
        pieces = pa.Array.from_buffers(
            pa.binary(),
            max(2 * count - 1, 0),
            [None, pa.py_buffer(bounds), pa.py_buffer(self.data)],
        )
        return pieces.take(numbers(np.arange(0, 2 * count, 2)))


def read_records(
    data: Bytes, spans: Sequence[tuple[int, int]] | Int64s | None = None
) -> RecordTable:
    """Find and check records back to back.

    Args:
        data: the bytes; at most `DATA_BYTES_MAX`. They may be used again once batches were made, which are copies.
        spans: the parts of `data` that records fill, ascending; None: all of it.

    Raises:
        RecordError: names the place in `data` and what is wrong, as `decode_record` does; the records'
            own body CRCs are not looked at (`RecordTable.body_crc_ok`).
    """
    if len(data) > DATA_BYTES_MAX:
        raise RecordError(f"{len(data)} bytes at once, at most {DATA_BYTES_MAX}")
    bounds = np.asarray(spans if spans is not None else [(0, len(data))], np.int64).reshape(-1, 2)
    table = _compiled(data, bounds)
    if table is None:
        table = _take_apart(data, _walk(data, bounds), bounds)
    try:
        _ = table.topics
    except pa.ArrowInvalid:
        _refuse(data, bounds)
    return table


def _compiled(data: Bytes, bounds: Int64s) -> RecordTable | None:
    """Return the records as compiled code finds them; None: it declines, and the rest of this module does it."""
    found = compiled.record_columns(data, np.ascontiguousarray(bounds).data)
    if found is None:
        return None
    places, front, back = found
    start, body_start, topic_at, topic_start, topic_end, end, store_host_at, store_ms = (
        np.frombuffer(places, np.int64).reshape(8, -1)
    )
    return RecordTable(
        data,
        start,
        body_start,
        topic_at,
        topic_start,
        topic_end,
        end,
        store_host_at,
        np.frombuffer(front, _FRONT),
        np.frombuffer(back, _BACK),
        store_ms,
    )


def _walk(data: Bytes, bounds: Int64s) -> Int64s:
    """Return the starts of all records, ascending.

    All spans are walked side by side: step k looks at the k-th record of each.
    """
    at, end = bounds[:, 0], bounds[:, 1]
    filled = at < end
    at, end = at[filled], end[filled]
    starts: list[Int64s] = []
    sizes = _field(data, ">i4", len(data) - 4)
    while len(at) >= _SPANS_TOGETHER_MIN:
        if np.any(end - at < RECORD_BYTES_MIN):
            _refuse(data, bounds)
        size = sizes[at].astype(np.int64)
        if np.any(size < RECORD_BYTES_MIN) or np.any(size > end - at):
            _refuse(data, bounds)
        starts.append(at)
        at = at + size
        going = at < end
        at, end = at[going], end[going]
    for first, stop in zip(at.tolist(), end.tolist(), strict=True):
        found = _walk_one(data, first, stop)
        if found is None:
            _refuse(data, bounds)
        starts.append(np.array(found, np.int64))
    return np.sort(np.concatenate(starts)) if starts else np.empty(0, np.int64)


def _walk_one(data: Bytes, at: int, end: int) -> list[int] | None:
    """Return the starts of the records of one span; None when they do not fill it."""
    starts: list[int] = []
    add, unpack = starts.append, _SIZE.unpack_from
    last = end - RECORD_BYTES_MIN
    while at <= last:
        add(at)
        (size,) = unpack(data, at)
        if size < RECORD_BYTES_MIN:
            return None
        at += size
    return starts if at == end else None


def _field(data: Bytes, kind: str | np.dtype[np.generic], last: int) -> NDArray[np.generic]:
    """Return a view of `data` that has the field at every byte as an element, so that taking needs no loop."""
    return np.ndarray((max(last + 1, 0),), np.dtype(kind), data, strides=(1,))


def _gather(data: Bytes, kind: np.dtype[np.generic], at: Int64s) -> NDArray[np.void]:
    return _field(data, kind, len(data) - kind.itemsize)[at]


def _take_apart(data: Bytes, start: Int64s, bounds: Int64s) -> RecordTable:
    """Find every field of all records at once: a field's place follows from the lengths before it, column by column."""
    if not len(start):
        none: Int64s = np.empty(0, np.int64)
        empty = (none,) * 7
        return RecordTable(data, *empty, np.empty(0, _FRONT), np.empty(0, _BACK), none)
    front = _gather(data, _FRONT, start)
    end = start + front["size"]
    sys_flag = front["sys_flag"]
    wider = HOST_V6_BYTES - HOST_V4_BYTES
    born_host = np.where(sys_flag & BORN_HOST_V6, HOST_V4_BYTES + wider, HOST_V4_BYTES)
    store_host = np.where(sys_flag & STORE_HOST_V6, HOST_V4_BYTES + wider, HOST_V4_BYTES)
    store_host_at = start + (_FRONT.itemsize + 8) + born_host
    back_at = store_host_at + store_host
    body_start = back_at + _BACK.itemsize
    magic = front["magic"]
    # V1 with IPv4 hosts is at least 91 bytes long; with wider hosts the head may run over the end.
    if np.any((magic != MAGIC_V1) & (magic != MAGIC_V2)) or np.any(body_start + 3 > end):
        _refuse(data, bounds)
    back = _gather(data, _BACK, back_at)
    topic_at = body_start + back["body_length"]
    width = np.where(magic == MAGIC_V1, 1, 2)
    topic_start = topic_at + width
    if np.any(back["body_length"] < 0) or np.any(topic_start + 2 > end):
        _refuse(data, bounds)
    octets = np.frombuffer(data, np.uint8)
    topic_length = octets[topic_at].astype(np.int64)
    is_wide = width == 2
    if is_wide.any():
        topic_length[is_wide] = topic_length[is_wide] << 8 | octets[topic_at[is_wide] + 1]
    topic_end = topic_start + topic_length
    if np.any(topic_length == 0) or np.any(topic_end + 2 > end):
        _refuse(data, bounds)
    properties_length = octets[topic_end].astype(np.int64) << 8 | octets[topic_end + 1]
    if np.any(topic_end + 2 + properties_length != end):
        _refuse(data, bounds)
    store_ms = _gather(data, np.dtype(">i8"), store_host_at - 8).astype(np.int64)
    return RecordTable(
        data,
        start,
        body_start,
        topic_at,
        topic_start,
        topic_end,
        end,
        store_host_at,
        front,
        back,
        store_ms,
    )


def _refuse(data: Bytes, bounds: Int64s) -> NoReturn:
    """Raise for the first record that is not whole, in the words of `decode_record`."""
    for begin, end in bounds.tolist():
        span, at = bytes(data[begin:end]), 0
        while at < len(span):
            try:
                at += decode_record(span, at, check_crc=False).size_bytes
            except RecordError as error:
                raise RecordError(error.reason, begin + max(error.byte_offset, 0)) from None
    raise AssertionError("records were refused that decode_record accepts")
