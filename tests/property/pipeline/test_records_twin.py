"""The vectorised reading of records against the plain decoder: same records, same refusals."""

from __future__ import annotations

import zlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import numpy as np
import pyarrow as pa

from broker.store.parse import folded_properties
from dledger_mq.client.messages import pack_body, unpack_body
from dledger_mq.message.errors import RecordError
from dledger_mq.message.hosts import unpack_host
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.properties import decode_properties, encode_properties, find_property
from dledger_mq.message.record import StoredMessage, decode_records, encode_record
from dledger_mq.message.sys_flags import COMPRESSED
from pipeline.scan.columns import (
    LABEL_COLUMNS,
    LOG_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
    RECORD_COLUMNS,
    UnknownColumnError,
    record_batches,
)
from pipeline.scan.properties import property_json
from pipeline.scan.records import BATCH_BYTES_MAX, RecordTable, read_records

EVERY = pa.unify_schemas(
    [MESSAGE_COLUMNS, LABEL_COLUMNS, METADATA_COLUMNS, LOG_COLUMNS, RECORD_COLUMNS]
)
MAPPED = pa.schema([("properties", pa.map_(pa.string(), pa.string()))])

texts = st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=6
) | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", 'a"b\\c', "é", "\x03"])
well_formed = st.dictionaries(texts, texts, max_size=4).map(encode_properties)
# Bytes that are no list of pairs: names twice, empty values, no end mark, no UTF-8.
odd = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"a", b"\xff", b"\xc3", b"\xa9", b"\n", b"v\x02"]),
    max_size=12,
).map(b"".join)
names_twice = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"axc", b"ayc", b"TAGS"]), st.sampled_from([b"1", b"2"])
    ),
    max_size=5,
).map(lambda pairs: b"".join(b"%b\x01%b\x02" % pair for pair in pairs))
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
bodies = st.binary(max_size=40).map(lambda body: (body, 0)) | st.binary(max_size=9).map(
    lambda body: pack_body(body * 60, 100)
)
topics = st.sampled_from(["A", "Topic", "%RETRY%g", "x" * 127, "y" * 128, "é" * 100])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body, packed = draw(bodies)
    return encode_record(
        topic=draw(topics).encode(),
        queue_id=draw(int32s),
        queue_offset=draw(int64s),
        physical_offset=draw(st.integers(0, 2**62)),
        sys_flag=packed
        | draw(st.sampled_from([0, 4, 8, 12]))
        | draw(st.sampled_from([0, COMPRESSED])),
        born_timestamp_ms=draw(st.integers(0, 2**42)),
        born_host=draw(hosts),
        store_timestamp_ms=draw(st.integers(0, 2**42)),
        store_host=draw(hosts),
        body=body,
        properties=draw(well_formed | names_twice | odd),
        flag=draw(int32s),
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
    )


def rows_of(table: RecordTable, schema: pa.Schema) -> list[dict[str, object]]:
    return [row for batch in record_batches(table, schema) for row in batch.to_pylist()]


def host_text(host: bytes) -> str:
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def text_of(properties: bytes, name: bytes) -> str | None:
    found = find_property(properties, name)
    return None if found is None else found.decode(errors="replace")


def expected(record: StoredMessage) -> dict[str, object]:
    return {
        "topic": record.topic,
        "flag": record.flag,
        "body": unpack_body(record.body, record.sys_flag),
        "properties": property_json(decode_properties(record.properties)),
        "brokerName": None,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "bornTimestamp": record.born_timestamp_ms,
        "storeTimestamp": record.store_timestamp_ms,
        "msgId": offset_msg_id(record.store_host, record.physical_offset),
        "keys": text_of(record.properties, b"KEYS"),
        "tags": text_of(record.properties, b"TAGS"),
        "commitLogOffset": record.physical_offset,
        "term": None,
        "reconsumeTimes": record.reconsume_times,
        "physicalOffset": record.physical_offset,
        "size": record.size_bytes,
        "index": None,
        "crcOk": True,
        "segment": None,
        "sysFlag": record.sys_flag,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bornHost": host_text(record.born_host),
        "storeHost": host_text(record.store_host),
        "uniqKey": text_of(record.properties, b"UNIQ_KEY"),
        "tagHash": folded_properties(record.properties)[0],
    }


@given(st.lists(records(), max_size=24), st.booleans())
def test_every_column_says_what_the_plain_decoder_says(
    parts: list[bytes], is_one_span_each: bool
) -> None:
    data = b"".join(parts)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = [(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    table = read_records(data, spans if is_one_span_each else None)
    found = rows_of(table, EVERY)
    for row in found:
        for name in ("bornTimestamp", "storeTimestamp"):
            row[name] = round(row[name].timestamp() * 1000)  # type: ignore[attr-defined] # a datetime
    plain = decode_records(data)
    crcs = [{"recordCrc": crc32c(part)} for part in parts]
    assert found == [expected(record) | crc for record, crc in zip(plain, crcs, strict=True)]
    maps = [row["properties"] for row in rows_of(table, MAPPED)]
    assert maps == [list(decode_properties(record.properties).items()) for record in plain]


@given(st.lists(records(), min_size=1, max_size=20), st.data())
def test_what_the_plain_decoder_refuses_is_refused_at_the_same_place(
    parts: list[bytes], choices: st.DataObject
) -> None:
    data = bytearray(b"".join(parts))
    for _ in range(choices.draw(st.integers(1, 3))):
        data[choices.draw(st.integers(0, len(data) - 1))] ^= 1 << choices.draw(st.integers(0, 7))
    cut = bytes(data[: choices.draw(st.integers(0, len(data)))])
    refusal = refusal_of(cut)
    if refusal is None:
        plain = decode_records(cut, check_crc=False)
        table = read_records(cut)
        assert table.physical_offset.tolist() == [each.physical_offset for each in plain]
        return
    with pytest.raises(RecordError) as caught:
        read_records(cut)
    assert (caught.value.reason, caught.value.byte_offset) == refusal


def refusal_of(data: bytes) -> tuple[str, int] | None:
    """What the plain decoder has against the records."""
    try:
        decode_records(data, check_crc=False)
    except RecordError as error:
        return error.reason, error.byte_offset
    return None


def record_with(body: bytes, sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=b"T", queue_id=0, queue_offset=0, physical_offset=0, sys_flag=sys_flag,
        born_timestamp_ms=2**62, born_host=bytes(8), store_timestamp_ms=1, store_host=bytes(8),
        body=body, properties=b"",
    )  # fmt: skip


def test_a_changed_body_is_flagged_and_not_refused() -> None:
    data = bytearray(record_with(b"body") * 2)
    data[88] ^= 1
    table = read_records(bytes(data))
    assert table.body_crc_ok().tolist() == [False, True]
    assert [row["crcOk"] for row in rows_of(table, LOG_COLUMNS)] == [False, True]


def test_bodies_that_grow_are_cut_into_more_batches() -> None:
    packed = zlib.compress(bytes(BATCH_BYTES_MAX // 2 + 1))
    table = read_records(record_with(packed, COMPRESSED) * 5)
    batches = list(record_batches(table, MESSAGE_COLUMNS, {"brokerName": "b"}))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert {row["brokerName"] for batch in batches for row in batch.to_pylist()} == {"b"}
    assert all(batch.schema.equals(MESSAGE_COLUMNS) for batch in batches)


def test_what_the_caller_knows_goes_along_with_selections() -> None:
    table = read_records(record_with(b"a") + record_with(b"b") + record_with(b"c"))
    mask = np.array([True, False, True])
    given_terms = np.array([5, 7])
    schema = pa.schema([("body", pa.binary()), ("term", pa.int64())])
    batches = record_batches(table.select(mask), schema, {"term": given_terms})
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"body": b"a", "term": 5},
        {"body": b"c", "term": 7},
    ]


def test_a_clock_beyond_all_years_is_clipped() -> None:
    (row,) = rows_of(
        read_records(record_with(b"a")), pa.schema([MESSAGE_COLUMNS.field("bornTimestamp")])
    )
    assert row["bornTimestamp"].year == 9999  # type: ignore[attr-defined] # a datetime


@pytest.mark.parametrize(
    "field", [("nonsense", pa.int32()), ("topic", pa.large_string()), ("queueOffset", pa.int32())]
)
def test_unknown_columns_and_types_are_named(field: tuple[str, pa.DataType]) -> None:
    with pytest.raises(UnknownColumnError, match=field[0]):
        rows_of(read_records(b""), pa.schema([field]))
