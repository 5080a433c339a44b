"""CommitLog records: published bytes, round trips, and every way of being damaged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.message.errors import RecordError
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.record import (
    RECORD_BYTES_MIN,
    decode_record,
    decode_records,
    encode_record,
    record_size,
)

# docs/formats/message.md, "Values to check against".
PUBLISHED = bytes.fromhex(
    "00000073DAA320A73610A6860000000300000000000000000000000700000000"
    "000003E8000000000000018BCFE568007F0000010000C3500000018BCFE56801"
    "7F00000100002A9F0000000000000000000000000000000568656C6C6F09546F"
    "70696354657374000A54414753015461674102"
)
FIELDS = {
    "topic": b"TopicTest",
    "queue_id": 3,
    "queue_offset": 7,
    "physical_offset": 1000,
    "sys_flag": 0,
    "born_timestamp_ms": 1_700_000_000_000,
    "born_host": pack_host("127.0.0.1", 50_000),
    "store_timestamp_ms": 1_700_000_000_001,
    "store_host": pack_host("127.0.0.1", 10_911),
    "body": b"hello",
    "properties": b"TAGS\x01TagA\x02",
}

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
topics = st.text(min_size=1, max_size=300).filter(lambda text: len(text.encode()) <= 600)
records = st.fixed_dictionaries(
    {
        "topic": topics.map(str.encode),
        "queue_id": int32,
        "queue_offset": int64,
        "physical_offset": int64,
        "sys_flag": int32,
        "born_timestamp_ms": int64,
        "born_host": hosts,
        "store_timestamp_ms": int64,
        "store_host": hosts,
        "body": st.binary(max_size=200),
        "properties": st.binary(max_size=200),
        "flag": int32,
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
    }
)


def test_the_published_bytes() -> None:
    assert encode_record(**FIELDS) == PUBLISHED
    assert record_size(5, 9, 10) == len(PUBLISHED) == 115


def test_the_published_bytes_are_read() -> None:
    message = decode_record(PUBLISHED)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 3, 7)
    assert (message.physical_offset, message.size_bytes, message.body) == (1000, 115, b"hello")
    assert message.body_crc == 907_060_870
    assert message.find(b"TAGS") == b"TagA"


@given(records)
def test_a_record_is_read_as_it_was_written(fields: dict[str, Any]) -> None:
    data = encode_record(**fields)
    message = decode_record(b"xx" + data + b"yy", 2)
    assert message.size_bytes == len(data)
    assert message.topic.encode() == fields["topic"]
    for name in fields.keys() - {"topic", "sys_flag"}:
        assert getattr(message, name) == fields[name], name
    # All bits but those of the hosts are the caller's.
    assert message.sys_flag & ~0x30 == fields["sys_flag"] & ~0x30


@given(st.lists(records, max_size=3))
def test_records_back_to_back(many: list[dict[str, Any]]) -> None:
    data = b"".join(encode_record(**fields) for fields in many)
    assert [message.body for message in decode_records(data)] == [item["body"] for item in many]


def test_every_truncation_is_refused() -> None:
    for size in range(len(PUBLISHED)):
        with pytest.raises(RecordError):
            decode_record(PUBLISHED[:size])


def test_a_flipped_bit_is_refused_or_changes_a_plain_field_only() -> None:
    """Sizes, magic, body and checksum are covered; numbers of the head have no checksum of their own."""
    accepted = set()
    for bit in range(len(PUBLISHED) * 8):
        damaged = bytearray(PUBLISHED)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            message = decode_record(bytes(damaged))
        except RecordError:
            pass
        else:
            assert message.size_bytes == len(PUBLISHED)
            accepted.add(bit // 8)
    body_and_sizes = {*range(12), *range(84, 94), 103, 104}
    assert not accepted & body_and_sizes


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        message = decode_record(data)
    except RecordError:
        return
    assert message.size_bytes <= len(data)


@given(st.binary(min_size=1, max_size=RECORD_BYTES_MIN))
def test_trailing_bytes_are_refused_where_records_must_fill(extra: bytes) -> None:
    with pytest.raises(RecordError, match="byte 115"):
        decode_records(PUBLISHED + extra)


def test_a_wrong_body_is_told_with_both_checksums() -> None:
    damaged = PUBLISHED.replace(b"hello", b"hellO")
    with pytest.raises(RecordError, match="the record says 0x3610A686"):
        decode_record(damaged)
    assert decode_record(damaged, check_crc=False).body == b"hellO"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", b""),
        ("topic", b"t" * 32_768),
        ("properties", b"p" * 32_768),
        ("born_host", b"1234"),
        ("queue_id", 2**31),
        ("physical_offset", 2**63),
    ],
)
def test_what_does_not_fit_is_not_written(field: str, value: object) -> None:
    with pytest.raises(RecordError):
        encode_record(**{**FIELDS, field: value})


def test_topics_over_127_bytes_take_the_second_version() -> None:
    assert encode_record(**{**FIELDS, "topic": b"t" * 127})[4:8].hex() == "daa320a7"
    data = encode_record(**{**FIELDS, "topic": b"t" * 128})
    assert data[4:8].hex() == "daa320ab"
    assert decode_record(data).topic == "t" * 128
    assert len(data) == record_size(5, 128, 10)


def test_ipv6_hosts_set_their_bits() -> None:
    host = pack_host("2001:db8::1", 1)
    assert decode_record(encode_record(**{**FIELDS, "born_host": host})).sys_flag == 0x10
    both = encode_record(**{**FIELDS, "born_host": host, "store_host": host})
    assert decode_record(both).sys_flag == 0x30
    assert len(both) == 115 + 24
