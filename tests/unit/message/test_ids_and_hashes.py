"""Ids and hashes as Java computes them; the numbers are those of docs/formats/message.md."""

from __future__ import annotations

import datetime
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.message.errors import MessageFormatError, MessageIdError
from dledger_mq.message.hashes import (
    body_crc,
    crc32,
    index_hash,
    java_hash,
    tags_code,
    tags_code_of_bytes,
)
from dledger_mq.message.hosts import pack_host, unpack_host
from dledger_mq.message.ids import (
    OffsetIdMaker,
    UniqKeyMaker,
    month_start_ms,
    offset_msg_id,
    parse_offset_msg_id,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("hello", 907_060_870),
        ("Hello RocketMQ", 1_774_740_973),
        ("12345678901234567890", 274_930_162),
        ("message body 0", 513_996_070),
    ],
)
def test_published_checksums(text: str, expected: int) -> None:
    assert body_crc(text.encode()) == expected


@given(st.binary(max_size=300), st.integers(1, 40))
def test_bodies_are_summed_up_as_zlib_does(data: bytes, times: int) -> None:
    assert crc32(data * times) == zlib.crc32(data * times)
    assert crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("TagC", 2_598_921),
        ("tag2", 3_552_216),
        ("*", 42),
        ("Aa", 2112),
        ("BB", 2112),
        ("中文", 646_394),
        ("😀", 1_772_899),
        ("polygenelubricants", -(2**31)),
        ("TopicTest#key1", -1_655_984_460),
    ],
)
def test_published_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == tags_code(text) == tags_code_of_bytes(text.encode()) == expected


def test_hashes_of_long_tags_are_not_remembered() -> None:
    for length, is_kept in ((128, True), (129, False)):
        text = "x" * length
        assert tags_code(text) == tags_code_of_bytes(text.encode()) == java_hash(text)
        assert (tags_code(text) is tags_code(text)) is is_kept
        assert (tags_code_of_bytes(text.encode()) is tags_code_of_bytes(text.encode())) is is_kept


def test_published_index_hashes() -> None:
    assert index_hash("TopicTest", "key1") == 1_655_984_460
    key_hash = index_hash("TopicTest", "AC1100010A0B18B4AAC2000000000000")
    assert (key_hash, key_hash % 5_000_000) == (305_832_624, 832_624)


@given(st.text(max_size=400))
def test_the_hash_is_the_definition(text: str) -> None:
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFF_FFFF
    assert java_hash(text) == (value ^ 0x8000_0000) - 0x8000_0000


def test_published_offset_id() -> None:
    host = pack_host("127.0.0.1", 10_911)
    assert offset_msg_id(host, 1000) == "7F00000100002A9F00000000000003E8"
    assert parse_offset_msg_id("7F00000100002A9F00000000000003E8") == ("127.0.0.1", 10_911, 1000)


@given(
    st.ip_addresses(),
    st.integers(0, 65_535),
    st.integers(0, 2**63 - 1),
)
def test_offset_ids_are_read_as_they_were_made(address: object, port: int, offset: int) -> None:
    host = pack_host(str(address), port)
    text = OffsetIdMaker(host)(offset)
    assert parse_offset_msg_id(text) == (*unpack_host(host), offset)
    assert parse_offset_msg_id(text.lower()) == (*unpack_host(host), offset)


@given(st.ip_addresses(), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_ids_made_together_are_those_made_one_by_one(address: object, offsets: list[int]) -> None:
    ids = OffsetIdMaker(pack_host(str(address), 10_911))
    packed = struct.pack(f">{len(offsets)}q", *offsets)
    assert ids.join(packed) == ",".join(map(ids, offsets))


@pytest.mark.parametrize(
    "text",
    ["", "0", "g" * 32, "7F" * 15 + " 1", "7F" * 8 + "F" * 16, chr(0xFF17) * 32, "0x" + "1" * 30],
)
def test_what_is_no_offset_id(text: str) -> None:
    with pytest.raises(MessageIdError):
        parse_offset_msg_id(text)


@pytest.mark.parametrize(
    ("address", "port"), [("localhost", 1), ("1.2.3.4", 65_536), ("", 1), ("1.2.3.4", -1)]
)
def test_what_is_no_host(address: str, port: int) -> None:
    with pytest.raises(MessageFormatError):
        pack_host(address, port)


def test_a_mapped_address_is_written_as_ipv4() -> None:
    assert pack_host("::ffff:10.0.0.1", 5) == pack_host("10.0.0.1", 5)
    with pytest.raises(MessageFormatError):
        unpack_host(b"123")


@given(st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2400, 1, 1)))  # noqa: DTZ001  UTC is set below
def test_the_month_starts_where_the_calendar_says(moment: datetime.datetime) -> None:
    moment = moment.replace(tzinfo=datetime.UTC, microsecond=0)
    start = moment.replace(day=1, hour=0, minute=0, second=0)
    assert month_start_ms(int(moment.timestamp()) * 1000) == int(start.timestamp()) * 1000


def test_unique_keys_hold_what_they_should_and_differ() -> None:
    now_ms = 1_700_000_000_000
    maker = UniqKeyMaker(bytes([10, 0, 0, 1]), 0x1_2345, 0xCAFE_BABE)
    keys = [maker.next_key(now_ms) for _ in range(1000)]
    assert len(set(keys)) == 1000
    assert keys[0][:20] == "0A0000012345CAFEBABE"
    assert len(keys[0]) == 32
    assert int(keys[0][20:28], 16) == now_ms - month_start_ms(now_ms)


def test_a_clock_that_steps_back_over_the_month_counts_as_its_start() -> None:
    start = month_start_ms(1_700_000_000_000)
    maker = UniqKeyMaker(bytes(4), 1, 1)
    maker.next_key(start + 5)
    assert maker.next_key(start - 1000)[20:28] == "00000000"
    assert maker.next_key(start - 2_000_000)[20:28] != "00000000"
