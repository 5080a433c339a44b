"""The columns that records can be seen as, by name; batches of those that are wanted.

The first nine are RocketMQ's Spark connector's, same names, types and order, so that users' code carries
over. A column is made only when it is asked for: bodies that nobody wants are never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger_mq.message.hashes import tags_code
from dledger_mq.message.hosts import HOST_V4_BYTES, unpack_host
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.properties import KEYS, TAGS, UNIQ_KEY
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6
from pipeline.errors import PipelineUsageError
from pipeline.scan.arrays import flags, numbers, numpy_of, repeated, texts
from pipeline.scan.properties import PropertyColumn
from pipeline.scan.records import Int64s, RecordTable

TIME_TYPE: Final = pa.timestamp("us", tz="UTC")

MESSAGE_COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("flag", pa.int32()),
        ("body", pa.binary()),
        ("properties", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("bornTimestamp", TIME_TYPE),
        ("storeTimestamp", TIME_TYPE),
    ]
)
"""Of every source. `body` is inflated as a consumer gets it; `properties` is JSON, or a map of texts when
the wanted schema says so."""

LABEL_COLUMNS: Final = pa.schema([("keys", pa.string()), ("tags", pa.string())])
"""Of every source, too, behind the nine."""

METADATA_COLUMNS: Final = pa.schema(
    [
        ("msgId", pa.string()),
        ("commitLogOffset", pa.int64()),
        ("term", pa.int64()),
        ("reconsumeTimes", pa.int32()),
    ]
)

LOG_COLUMNS: Final = pa.schema(
    [
        ("physicalOffset", pa.int64()),
        ("size", pa.int32()),
        ("term", pa.int64()),
        ("index", pa.int64()),
        ("crcOk", pa.bool_()),
        ("segment", pa.string()),
    ]
)
"""The columns that only the log knows: `index` and `term` of the entry, `segment` its file's name."""

RECORD_COLUMNS: Final = pa.schema(
    [
        ("sysFlag", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("uniqKey", pa.string()),
        ("tagHash", pa.int64()),
        ("recordCrc", pa.int64()),
    ]
)
"""The rest of a record, for those who ask by name."""

CONTROL_COLUMNS: Final = pa.schema(
    [("op", pa.string()), ("command", pa.string()), ("problem", pa.string())]
)
"""The content of a control record (pipeline.scan.control); `problem` also what is wrong with a damaged place."""

_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999
"""Years 1 to 9999: what a timestamp column can show. A client's clock may say anything; it is clipped."""

_HEX: Final = np.array([f"{octet:02X}".encode() for octet in range(256)], "S2")


class UnknownColumnError(PipelineUsageError):
    """A column was asked for that records do not have, or under another type."""


class _Rows:
    """The records of one batch, and what several columns share."""

    def __init__(self, table: RecordTable) -> None:
        self.table = table

    @cached_property
    def properties(self) -> PropertyColumn:
        return PropertyColumn(self.table)

    def numbers(self, name: str) -> pa.Array:
        """Return a fixed field in the type of its bytes."""
        part = self.table.front if name in (self.table.front.dtype.names or ()) else self.table.back
        return numbers(part[name].astype(part[name].dtype.newbyteorder("=")))

    def times(self, ms: Int64s) -> pa.Array:
        """Return milliseconds as a timestamp."""
        return numbers(np.clip(ms, _EARLIEST_MS, _LATEST_MS) * 1000).view(TIME_TYPE)

    def ids(self) -> pa.StringArray:
        """Return offset message ids: store host and physical offset in hex."""
        table = self.table
        if np.any(table.front["sys_flag"] & STORE_HOST_V6):
            offsets = table.physical_offset.tolist()
            pairs = zip(self._host_bytes(table.store_host_at, STORE_HOST_V6), offsets, strict=True)
            return pa.array([offset_msg_id(host, offset) for host, offset in pairs], pa.string())
        octets: NDArray[np.uint8] = np.empty((len(table), 16), np.uint8)
        data = np.frombuffer(table.data, np.uint8)
        octets[:, :8] = data[table.store_host_at[:, None] + np.arange(8)]
        octets[:, 8:] = (
            np.ascontiguousarray(table.front["physical_offset"]).view(np.uint8).reshape(-1, 8)
        )
        offsets = np.arange(0, 32 * len(table) + 1, 32, dtype=np.int32)
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(_HEX[octets])]
        return pa.Array.from_buffers(pa.string(), len(table), parts)

    def _host_bytes(self, at: Int64s, wide_bit: int) -> list[bytes]:
        table = self.table
        size = np.where(table.front["sys_flag"] & wide_bit, 20, HOST_V4_BYTES)
        pairs = zip(at.tolist(), (at + size).tolist(), strict=True)
        return [bytes(table.data[begin:end]) for begin, end in pairs]

    def hosts(self, at: Int64s, wide_bit: int) -> pa.StringArray:
        """Return host fields as `address:port`."""
        table = self.table
        if np.any(table.front["sys_flag"] & wide_bit):
            found = pa.array(self._host_bytes(at, wide_bit), pa.binary()).dictionary_encode()
            known = found.dictionary.to_pylist()
        else:
            octets = np.frombuffer(table.data, np.uint8)[at[:, None] + np.arange(HOST_V4_BYTES)]
            found = numbers(octets.view(np.uint64)[:, 0]).dictionary_encode()
            known = [host.tobytes() for host in numpy_of(found.dictionary)]
        shown = []
        for host in known:
            address, port = unpack_host(host)
            shown.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
        return texts(shown).take(found.indices)

    def tag_hashes(self) -> pa.Array:
        """Return the Java hash of the tag, 0 for none: what stands in a consume queue."""
        found = self.properties.value(TAGS).dictionary_encode()
        hashes = pa.array([tags_code(tag) for tag in found.dictionary.to_pylist()], pa.int64())
        return hashes.take(found.indices).fill_null(0)


def _property_column(rows: _Rows, kind: pa.DataType) -> pa.Array:
    return rows.properties.map() if pa.types.is_map(kind) else rows.properties.json()


_BUILDERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "topic": lambda rows: rows.table.topics,
    "flag": lambda rows: rows.numbers("flag"),
    "queueId": lambda rows: rows.numbers("queue_id"),
    "queueOffset": lambda rows: rows.numbers("queue_offset"),
    "bornTimestamp": lambda rows: rows.times(rows.table.number("born_ms")),
    "storeTimestamp": lambda rows: rows.times(rows.table.store_ms),
    "msgId": lambda rows: rows.ids(),
    "keys": lambda rows: rows.properties.value(KEYS),
    "tags": lambda rows: rows.properties.value(TAGS),
    "uniqKey": lambda rows: rows.properties.value(UNIQ_KEY),
    "tagHash": lambda rows: rows.tag_hashes(),
    "commitLogOffset": lambda rows: rows.numbers("physical_offset"),
    "physicalOffset": lambda rows: rows.numbers("physical_offset"),
    "size": lambda rows: rows.numbers("size"),
    "reconsumeTimes": lambda rows: rows.numbers("reconsume_times"),
    "sysFlag": lambda rows: rows.numbers("sys_flag"),
    "preparedTransactionOffset": lambda rows: rows.numbers("prepared_offset"),
    "bornHost": lambda rows: rows.hosts(rows.table.start + 48, BORN_HOST_V6),
    "storeHost": lambda rows: rows.hosts(rows.table.store_host_at, STORE_HOST_V6),
    "recordCrc": lambda rows: numbers(rows.table.record_crcs()),
    "crcOk": lambda rows: flags(rows.table.body_crc_ok()),
}
GivenColumn: TypeAlias = str | NDArray[np.generic] | pa.Array | None
"""A column that is not in the records: one value for all, or an array with an element for each."""

_MAP_OF_TEXTS: Final = pa.map_(pa.string(), pa.string())


def record_batches(
    table: RecordTable, schema: pa.Schema, given: Mapping[str, GivenColumn] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of exactly that schema, in order.

    Batches have at most `BATCH_ROWS_MAX` rows and about `BATCH_BYTES_MAX` bytes, unless one message is
    larger. The batch's schema is `schema` itself, as Spark demands.

    Args:
        table: what `read_records` returned, or a selection of it.
        schema: the wanted columns, with the types of the schemas above (`properties` may be a map).
        given: columns that are not in the records, by name: one value for all (`brokerName`), or a
            numpy or Arrow array with one element per record (`term`). They go before what the records
            say. A known column that neither has is null.

    Raises:
        UnknownColumnError: names the column.
    """
    known = given or {}
    check_columns(schema, known)
    for first, end in table.batch_ends():
        while first < end:
            part = table.select(slice(first, end))
            bodies: pa.Array | None = None
            if "body" in schema.names and "body" not in known:
                bodies, count = part.bodies()
                part = part if count == len(part) else part.select(slice(0, count))
            rows = _Rows(part)
            here = slice(first, first + len(part))
            columns = [
                _column(field, rows, bodies=bodies, given=known, here=here) for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            first += len(part)


def _column(
    field: pa.Field,
    rows: _Rows,
    *,
    bodies: pa.Array | None,
    given: Mapping[str, GivenColumn],
    here: slice,
) -> pa.Array:
    """Build one column: given by the caller, else computed, else null, as this scan cannot know it."""
    name = field.name
    if name in given:
        return _given(given[name], field.type, here)
    if name == "body":
        return bodies
    if name == "properties":
        return _property_column(rows, field.type)
    if name in _BUILDERS:
        return _BUILDERS[name](rows)
    return pa.nulls(len(rows.table), field.type)


def _given(value: GivenColumn, kind: pa.DataType, here: slice) -> pa.Array:
    if isinstance(value, np.ndarray):
        part = value[here]
        found = flags(part) if part.dtype == np.bool_ else numbers(part)
        return found if found.type == kind else found.cast(kind)
    if isinstance(value, pa.Array):
        return value[here].cast(kind)
    count = here.stop - here.start
    return pa.nulls(count, kind) if value is None else repeated(value, count)


def _types() -> dict[str, pa.DataType]:
    every = (
        *(MESSAGE_COLUMNS, LABEL_COLUMNS, METADATA_COLUMNS),
        *(LOG_COLUMNS, RECORD_COLUMNS, CONTROL_COLUMNS),
    )
    return {field.name: field.type for schema in every for field in schema}


_TYPES: Final = _types()


def check_columns(schema: pa.Schema, given: Mapping[str, GivenColumn]) -> None:
    """Refuse columns that can not be made; see `record_batches`.

    Raises:
        UnknownColumnError: names the column.
    """
    for field in schema:
        kind = _TYPES.get(field.name)
        if kind is None and field.name not in given:
            raise UnknownColumnError(
                f"there is no column {field.name}; there are: {', '.join(_TYPES)}"
            )
        is_map = field.name == "properties" and field.type == _MAP_OF_TEXTS
        if kind is not None and field.type != kind and not is_map:
            raise UnknownColumnError(f"column {field.name} is {kind}, not {field.type}")
