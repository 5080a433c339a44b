"""Entries that compiled code encodes, against Python's: the same bytes, records and ends of queues, or nothing."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.entry_bodies import QueueEnd, StagedMessage, encode_messages
from broker.store.parse import folded_properties, parse_records
from dledger_mq.message import compiled
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX
from dledger_mq.message.record import decode_records
from tests.stages import examples, needs_compiled, stage
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = needs_compiled

V6 = bytes(range(20))
INT32 = st.sampled_from([0, 1, 7, 2**31 - 1])
INT64 = st.sampled_from([0, 1, 1_700_000_000_000, 2**63 - 1])
TOPICS = [b"T", b"TopicTest", "中文".encode(), b"t" * 127]
LONG = b"t" * 128
QUEUE_COUNT = 130
"""More than the compiled code knows at a time."""

Ends = dict[tuple[bytes, int], QueueEnd]

properties = st.sampled_from(
    [b"", b"UNIQ_KEY\x01k\x02", b"TAGS\x01red\x02UNIQ_KEY\x01k2\x02KEYS\x01a b\x02", b"\x80\xff"]
) | st.just(b"p\x01" + b"v" * (PROPERTIES_BYTES_MAX - 3) + b"\x02")
folded = st.sampled_from([None, (5, b"key", None), (-(2**31), b"k", b"a b")])
bodies = st.binary(max_size=40) | st.sampled_from([b"x" * 255, b"x" * 70_000])
usual = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS),
        "queue_id": st.integers(0, 3) | st.sampled_from([QUEUE_COUNT - 1, 2**31 - 1]),
        "body": bodies,
        "properties": properties,
        "sys_flag": st.sampled_from([0, 1, 2, 3, 8, 9, 0x40, 2**31 - 1 - 0x34]),
        "born_ms": INT64,
        "host": st.just(BORN),
        "flag": INT32 | st.sampled_from([-1, -(2**31)]),
        "times": INT32,
        "prepared": INT64,
        "folded": folded,
    }
)
unusual = st.sampled_from(
    [
        {"topic": LONG},
        {"host": V6},
        {"sys_flag": 4},
        {"sys_flag": 12},
        {"sys_flag": 0x10},
        {"sys_flag": 0x20},
        {"sys_flag": 0x10, "host": V6},
    ]
)
odd = st.builds(lambda one, other: {**one, **other}, usual, unusual)
plain_lists = st.lists(usual, max_size=6)
mixed_lists = st.lists(usual | odd, max_size=4)
offsets = st.sampled_from([0, 5048, 2**32 + 1, 2**62])
START = 2**33


def staged(fields: dict[str, Any], ends: Ends) -> StagedMessage:
    key = fields["topic"], fields["queue_id"]
    end = ends.setdefault(key, QueueEnd(key, START))
    names = ("body", "properties", "sys_flag", "born_ms", "host", "flag", "times", "prepared")
    return (end, *(fields[name] for name in names), fields["folded"])  # type: ignore[return-value]


def encoded(
    some: list[dict[str, Any]], *, is_compiled: bool, first: int = 5048, host: bytes = HOST
) -> tuple[Any, dict[tuple[bytes, int], int]]:
    """What comes of messages in one of the ways, and where their queues end then."""
    ends: Ends = {}
    messages = [staged(fields, ends) for fields in some]
    with stage(is_compiled=is_compiled):
        found = encode_messages(messages, first, store_ms=7, store_host=host)
    return found, {key: end.next_offset for key, end in ends.items()}


def by_compiled_code(
    messages: list[Any], first: int = 5048, *, store_ms: int = 7, host: bytes = HOST
) -> Any:
    with stage(is_compiled=True):
        return compiled.encode_records(
            messages, first, store_ms, host, zlib.crc32, folded_properties
        )


@examples(300)
@given(plain_lists, offsets)
@example([], 0)
def test_usual_messages_become_the_same_entry(some: list[dict[str, Any]], first: int) -> None:
    found, ends = encoded(some, is_compiled=True, first=first)
    assert (found, ends) == encoded(some, is_compiled=False, first=first)
    assert by_compiled_code([staged(fields, {}) for fields in some], first) is not None
    assert all(type(one) is tuple for one in found[1])


@examples(200)
@given(mixed_lists)
def test_an_entry_with_an_unusual_message_is_declined_as_a_whole(
    some: list[dict[str, Any]],
) -> None:
    assert encoded(some, is_compiled=True) == encoded(some, is_compiled=False)
    ends: Ends = {}
    messages = [staged(fields, ends) for fields in some]
    is_usual = all(
        fields["topic"] != LONG and fields["host"] == BORN and not fields["sys_flag"] & 0x34
        for fields in some
    )
    assert (by_compiled_code(messages) is not None) == is_usual
    if not is_usual:
        assert {end.next_offset for end in ends.values()} == {START}


def test_a_record_that_compiled_code_wrote_is_read_by_the_codec_and_the_fold() -> None:
    fields: dict[str, Any] = {
        "topic": b"TopicTest",
        "queue_id": 3,
        "body": b"hello",
        "properties": b"TAGS\x01TagA\x02UNIQ_KEY\x01k\x02",
        "sys_flag": 1,
        "born_ms": 5,
        "host": BORN,
        "flag": -7,
        "times": 2,
        "prepared": 9,
        "folded": None,
    }
    (body, records), _ = encoded([fields, fields], is_compiled=True)
    assert parse_records(body, 5048) == records
    first, second = decode_records(body)
    assert (first.body, first.flag, first.reconsume_times) == (b"hello", -7, 2)
    assert (first.queue_offset, second.queue_offset) == (START, START + 1)


def test_more_queues_than_it_knows_at_a_time_keep_their_ends() -> None:
    one = {"topic": b"T", "body": b"x", "properties": b"", "sys_flag": 0, "born_ms": 1}
    one |= {"host": BORN, "flag": 0, "times": 0, "prepared": 0, "folded": None}
    order = [*range(QUEUE_COUNT), *range(0, QUEUE_COUNT, 3), *range(QUEUE_COUNT - 1, -1, -2)]
    some = [{**one, "queue_id": queue_id} for queue_id in order]
    found, ends = encoded(some, is_compiled=True)
    assert (found, ends) == encoded(some, is_compiled=False)
    assert ends[b"T", 0] == START + 2


USUAL: dict[str, Any] = {
    "topic": b"T",
    "queue_id": 1,
    "body": b"x",
    "properties": b"UNIQ_KEY\x01k\x02",
    "sys_flag": 0,
    "born_ms": 1,
    "host": BORN,
    "flag": 0,
    "times": 0,
    "prepared": 0,
    "folded": None,
}
BEYOND: list[dict[str, Any]] = [
    {"flag": 2**31},
    {"flag": -(2**31) - 1},
    {"flag": 2**70},
    {"times": 2**31},
    {"born_ms": 2**63},
    {"prepared": -(2**63) - 1},
    {"sys_flag": -1},
    {"sys_flag": 2**31},
    {"queue_id": 2**31},
    {"properties": b"p" * 32_768},
    {"host": b""},
    {"host": b"1234567"},
    {"topic": b"t" * 256},
    {"body": bytearray(b"x")},
    {"properties": memoryview(b"x")},
    {"flag": "1"},
    {"times": 1.0},
]


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("place", [0, 1])
def test_what_does_not_fit_a_usual_record_is_left_to_python(
    beyond: dict[str, Any], place: int
) -> None:
    ends: Ends = {}
    some = [USUAL, USUAL]
    some[place] = {**USUAL, **beyond}
    messages = [staged(fields, ends) for fields in some]
    assert by_compiled_code(messages) is None
    assert {end.next_offset for end in ends.values()} == {START}


@pytest.mark.parametrize(
    "other", [(), (1, 2), "text", None, [], tuple(range(10)), (None,) * 10, (None,) * 11]
)
def test_what_is_no_staged_message_is_left_to_python(other: Any) -> None:
    assert by_compiled_code([staged(USUAL, {}), other]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("next_offset", -1),
        ("next_offset", 2**63 - 1),
        ("next_offset", 2**64),
        ("key", b"T"),
        ("key", (b"T",)),
        ("key", (b"T", "1")),
        ("topic_field", "T"),
        ("topic_field", b""),
        ("topic_field", b"t" * 129),
    ],
)
def test_a_queue_end_that_is_none_is_left_to_python(name: str, value: Any) -> None:
    message = staged(USUAL, {})
    setattr(message[0], name, value)
    assert by_compiled_code([message]) is None


def test_places_that_do_not_fit_are_left_to_python() -> None:
    message = staged(USUAL, {})
    assert by_compiled_code([message], -1) is None
    assert by_compiled_code([message], 2**63 - 1) is None
    assert by_compiled_code([message], store_ms=2**63) is None
    assert by_compiled_code([message], host=V6) is None
    assert message[0].next_offset == START


def test_what_a_callback_raises_comes_through_and_nothing_has_moved() -> None:
    def fail(_body: bytes) -> int:
        raise ZeroDivisionError

    message = staged(USUAL, {})
    with stage(is_compiled=True):
        for crc32, fold in ((fail, folded_properties), (zlib.crc32, fail)):
            with pytest.raises(ZeroDivisionError):
                compiled.encode_records([message, message], 0, 7, HOST, crc32, fold)
        with pytest.raises(TypeError):
            compiled.encode_records([message], 0, 7, HOST, lambda _body: "1", fail)  # type: ignore[arg-type, return-value]
    assert message[0].next_offset == START


def test_a_queue_that_changes_meanwhile_overruns_nothing() -> None:
    """Nobody does that; the room is watched all the same."""
    ends: Ends = {}
    messages = [staged({**USUAL, "queue_id": queue_id}, ends) for queue_id in range(QUEUE_COUNT)]

    def grow(body: bytes) -> int:
        for end in ends.values():
            end.topic_field = b"t" * 128
        return zlib.crc32(body)

    def shrink(body: bytes) -> int:
        for end in ends.values():
            end.topic_field = b"t"
        return zlib.crc32(body)

    def spoil(body: bytes) -> int:
        for end in ends.values():
            end.topic_field = None  # type: ignore[assignment]
        messages.clear()
        return zlib.crc32(body)

    with stage(is_compiled=True):
        for meddle in (grow, shrink, spoil):
            with pytest.raises(RuntimeError, match="changed while it was encoded"):
                compiled.encode_records(list(messages), 0, 7, HOST, meddle, folded_properties)


@pytest.mark.parametrize(
    "arguments", [(), (1,), ([],), ((), 0, 0, HOST, zlib.crc32, len), ([], 0, 0, "", len, len)]
)
def test_wrong_arguments_are_an_error_and_no_crash(arguments: tuple[Any, ...]) -> None:
    with stage(is_compiled=True), pytest.raises(TypeError):
        compiled.encode_records(*arguments)
