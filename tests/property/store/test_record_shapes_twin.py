"""Reading an entry by the shapes of its records, against the codec, which reads each record by itself.

Shapes come again, with other keys, and are misleading or broken just where a shape might be trusted too far.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import parse
from broker.store.errors import MisplacedRecordError
from broker.store.parse import ParsedRecord, parse_records, parsed
from broker.store.record_shapes import SHAPES_MAX
from dledger_mq.message import compiled
from dledger_mq.message.errors import RecordError
from dledger_mq.message.record import decode_record, encode_record
from tests.stages import examples, stage
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = pytest.mark.slow

FIRST = 5048
V6 = bytes(16) + (10911).to_bytes(4, "big")
keys = st.sampled_from([b"k1", b"k2", b"k3", b"", b"k", b"a\x01b", b"UNIQ_KEY\x01", b"TAGS\x01x"])
pieces = st.sampled_from(
    [
        b"",
        b"UNIQ_KEY",
        b"\x02UNIQ_KEY\x01k1\x02",
        b"MY_UNIQ_KEY\x01k1\x02",
        b"UNIQ_KEY\x01\x02",
        b"TAGS\x01a\x02",
        b"\x02TAGS\x01b",
        b"KEYS\x01x y\x02",
        b"\x02",
        b"\x01",
        b"a\x01b\x02",
    ]
)
texts = st.lists(pieces, max_size=3).map(b"".join)
topics = st.sampled_from(
    [b"T", b"U", "中文".encode(), b"UNIQ_KEY\x01k1\x02", b"t" * 127, b"t" * 200]
)
shapes = st.tuples(topics, texts, texts)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Records of a few shapes, with different keys, in one body."""
    few = draw(st.lists(shapes, min_size=1, max_size=3))
    body = b""
    for topic, before, rest in draw(st.lists(st.sampled_from(few), max_size=8)):
        key = draw(keys)
        body += encode_record(
            topic=topic,
            queue_id=draw(st.integers(0, 2)),
            queue_offset=draw(st.integers(0, 9)),
            physical_offset=FIRST + len(body) + draw(st.sampled_from([0] * 30 + [1])),
            sys_flag=draw(st.sampled_from([0] * 9 + [1, 4, 8, 12])),
            born_timestamp_ms=1,
            born_host=draw(st.sampled_from([BORN] * 9 + [V6])),
            store_timestamp_ms=draw(st.integers(0, 3)),
            store_host=HOST,
            body=draw(st.sampled_from([b"", b"x", b"body\x02UNIQ_KEY\x01k1\x02"])),
            properties=before + b"UNIQ_KEY\x01" + key + draw(ends) + rest,
        )
    return body


ends = st.sampled_from([b"\x02"] * 9 + [b""])

damage = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([1, 2, 4, 0x7F, 0x80, 0xFF])), max_size=2
)


def by_the_codec(body: bytes) -> list[ParsedRecord]:
    records, place = [], 0
    while place < len(body):
        record = parsed(decode_record(body, place, check_crc=False))
        if record[parse.PHYSICAL_OFFSET] != FIRST + place:
            raise MisplacedRecordError
        records.append(record)
        place += record[parse.SIZE_BYTES]
    return records


def agree(body: bytes) -> None:
    """Demand the same records, or the same refusal, by compiled code as well if there is some."""
    for is_compiled in (False, True) if compiled.is_built else (False,):
        with stage(is_compiled=is_compiled):
            try:
                expected = by_the_codec(body)
            except (RecordError, MisplacedRecordError) as error:
                with pytest.raises(type(error)):
                    parse_records(body, FIRST)
            else:
                assert parse_records(body, FIRST) == expected


@examples(300)
@given(st.lists(bodies(), max_size=3))
def test_known_shapes_are_read_as_the_codec_reads_them(some: list[bytes]) -> None:
    for body in some:
        agree(body)
        agree(body)


@examples(300)
@given(bodies(), damage, st.integers(0, 3), st.binary(max_size=95))
def test_broken_bytes_of_known_shapes_are_refused_as_the_codec_refuses_them(
    body: bytes, flips: list[tuple[float, int]], cut: int, more: bytes
) -> None:
    agree(body)
    broken = bytearray(body[: len(body) - cut] + more)
    for where, bits in flips:
        if broken:
            broken[int(where * (len(broken) - 1))] ^= bits
    agree(bytes(broken))


KEYS_FIRST = b"KEYS\x01one\x02UNIQ_KEY\x01k1\x02a\x01b\x02"
KEYS_LATER = b"UNIQ_KEY\x01k1\x02KEYS\x01one\x02a\x01b\x02"
PLAIN = b"UNIQ_KEY\x01k1\x02a\x01b\x02"


@pytest.mark.parametrize("properties", [PLAIN, KEYS_FIRST, KEYS_LATER])
def test_any_flipped_bit_is_seen_as_the_codec_sees_it(properties: bytes) -> None:
    first = record_of(properties)
    body = first + record_of(properties, len(first))
    agree(body)
    for bit in range(8 * len(first), 8 * len(body)):
        broken = bytearray(body)
        broken[bit // 8] ^= 1 << bit % 8
        agree(bytes(broken))


TWINS = [
    (PLAIN, PLAIN.replace(b"k1", b"k2")),
    (KEYS_FIRST, KEYS_FIRST.replace(b"k1", b"k2").replace(b"one", b"two")),
    (KEYS_LATER, KEYS_LATER.replace(b"k1", b"k2").replace(b"one", b"two")),
    (KEYS_FIRST, KEYS_FIRST.replace(b"k1", b"k").replace(b"one", b"four")),
    (KEYS_FIRST, KEYS_FIRST.replace(b"k1", b"k1one").replace(b"one\x02", b"\x02")),
    (KEYS_LATER, KEYS_LATER.replace(b"k1", b"k1one").replace(b"\x01one\x02", b"\x01\x02")),
    (KEYS_LATER, KEYS_LATER.replace(b"k1\x02", b"\x02").replace(b"one", b"onek1")),
    (KEYS_LATER, KEYS_LATER.replace(b"one", b"a b")),
    (b"UNIQ_KEY\x01k1\x02UNIQ_KEY\x01k1\x02a", b"UNIQ_KEY\x01k2\x02UNIQ_KEY\x01k1\x02a"),
    (b"MYUNIQ_KEY\x01k1\x02UNIQ_KEY\x01k1\x02a", b"MYUNIQ_KEY\x01k2\x02UNIQ_KEY\x01k1\x02a"),
    (b"M\x01UNIQ_KEY\x01k1\x02a", b"M\x01UNIQ_KEY\x01k2\x02a"),
    (b"KEYS\x01a\x02KEYS\x01a\x02" + PLAIN, b"KEYS\x01b\x02KEYS\x01a\x02" + PLAIN),
    (b"KEYS\x01a\x02" + PLAIN + b"KEYS\x01a\x02b", b"KEYS\x01b\x02" + PLAIN + b"KEYS\x01a\x02b"),
    (PLAIN + b"KEYS\x01a\x02KEYS\x01a\x02b", PLAIN + b"KEYS\x01b\x02KEYS\x01a\x02b"),
    (b"MYKEYS\x01a\x02KEYS\x01a\x02" + PLAIN, b"MYKEYS\x01b\x02KEYS\x01a\x02" + PLAIN),
    (PLAIN + b"MYKEYS\x01a\x02KEYS\x01a\x02c", PLAIN + b"MYKEYS\x01b\x02KEYS\x01a\x02c"),
    (PLAIN + b"MYKEYS\x01a\x02c", PLAIN + b"MYKEYS\x01b\x02c"),
    (PLAIN + b"KEYS\x01a", PLAIN + b"KEYS\x01b"),
    (PLAIN + b"KEYS\x01a\x02", PLAIN + b"KEYS\x01b\x02"),
    (b"TAGS\x01a\x02" + PLAIN, b"TAGS\x01a\x02" + PLAIN.replace(b"k1", b"k2")),
    (b"TAGS\x01a\x02" + KEYS_LATER, b"TAGS\x01a\x02" + KEYS_LATER.replace(b"one", b"two")),
    (KEYS_LATER + b"TAGS\x01a\x02", KEYS_LATER.replace(b"k1", b"k2") + b"TAGS\x01a\x02"),
]


@pytest.mark.parametrize(("known", "twin"), TWINS)
def test_what_looks_like_a_known_shape_is_read_as_the_codec_reads_it(
    known: bytes, twin: bytes
) -> None:
    for properties in (known, twin, known):
        agree(record_of(properties))
    for properties in (known, twin):  # one byte is missing that the length of the properties counts
        sound = record_of(properties)
        for at in range(len(sound) - len(properties), len(sound)):
            broken = sound[:at] + sound[at + 1 :]
            agree(len(broken).to_bytes(4, "big") + broken[4:])


@pytest.mark.parametrize("topic", [b"UNIQ_KEY\x01k1\x02", b"KEYS\x01a\x02", b"a\x02KEYS\x01a"])
@pytest.mark.parametrize("properties", [PLAIN, KEYS_FIRST, KEYS_LATER])
def test_a_topic_that_looks_like_properties_is_none(topic: bytes, properties: bytes) -> None:
    for key in (b"k1", b"k2"):
        agree(record_of(properties.replace(b"k1", key), topic=topic))
        agree(record_of(properties.replace(b"one", b"two"), topic=topic))


@pytest.mark.parametrize("key", [b"k", b"k12", b"k1\x01", b"", b"UNIQ_KEY\x01k1"])
def test_a_key_of_another_length_than_the_properties_say_is_refused(key: bytes) -> None:
    sound = _record(b"k1")
    agree(sound)
    broken = sound.replace(b"k1", key)
    agree(len(broken).to_bytes(4, "big") + broken[4:])


def test_a_key_without_its_end_is_refused_where_the_end_is_counted() -> None:
    sound = _record(b"k1", rest=b"\x02")
    agree(sound)
    agree((len(sound) - 1).to_bytes(4, "big") + sound[4:-1])


def test_a_negative_body_length_is_refused_though_the_topic_would_fit() -> None:
    wide, topic = _record(b"k1", topic=b"t" * 127), b"t" * 255
    sound = wide[4:92] + b"\xff" + topic + wide[93 + 127 :]
    sound = (4 + len(sound)).to_bytes(4, "big") + sound
    agree(sound)
    agree(sound)
    broken = sound[4:84] + b"\xff" * 4 + sound[93:]  # the topic's length is the last byte of -1
    agree((4 + len(broken)).to_bytes(4, "big") + broken)


def test_a_negative_size_is_refused_though_a_known_shape_stands_before_where_it_ends() -> None:
    sound = _record(b"k1")
    agree(sound)
    last = record_of(b"", len(sound))
    agree((-len(last)).to_bytes(4, "big", signed=True) + sound[4:] + last)


def test_shapes_are_forgotten_when_there_are_too_many() -> None:
    for number in range(SHAPES_MAX + 1):
        agree(_record(b"k1", rest=b"\x02a\x01%d\x02" % number))
        agree(record_of(KEYS_FIRST + b"a\x01%d\x02" % number))
    shapes = parse._SHAPES
    assert len(shapes.known) + len(shapes._with_keys) <= SHAPES_MAX
    agree(_record(b"k2"))


def test_records_of_which_no_two_are_alike_are_read_without_looking() -> None:
    body = b""
    for number in range(3 * parse.MISSES_MAX):
        body += _record(b"k1", len(body), rest=b"\x02unique\x01%d\x02" % number)
    agree(body)


def _record(
    key: bytes, place: int = 0, *, rest: bytes = b"\x02a\x01b\x02", topic: bytes = b"T"
) -> bytes:
    return record_of(b"UNIQ_KEY\x01" + key + rest, place, topic=topic)


def record_of(properties: bytes, place: int = 0, *, topic: bytes = b"T") -> bytes:
    return encode_record(
        topic=topic,
        queue_id=1,
        queue_offset=0,
        physical_offset=FIRST + place,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=BORN,
        store_timestamp_ms=2,
        store_host=HOST,
        body=b"body",
        properties=properties,
    )
