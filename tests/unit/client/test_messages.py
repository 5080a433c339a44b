from __future__ import annotations

import re
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client import messages as module
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.messages import Message, message_properties, pack_body, received, unpack_body
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_frames import SendTemplates, decode_answer
from dledger_mq.client.subscriptions import subscribe
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.record import StoredMessage, decode_record, encode_record
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import SendRequest, decode_request

HOST = pack_host("10.1.2.3", 4567)


def record(
    topic: str = "T", properties: bytes = b"", body: bytes = b"x", sys_flag: int = 0
) -> StoredMessage:
    return decode_record(
        encode_record(
            topic=topic.encode(),
            queue_id=1,
            queue_offset=2,
            physical_offset=3,
            sys_flag=sys_flag,
            born_timestamp_ms=4,
            born_host=HOST,
            store_timestamp_ms=5,
            store_host=HOST,
            body=body,
            properties=properties,
            reconsume_times=6,
        )
    )


def test_what_a_consumer_sees_of_a_record() -> None:
    got = received(
        record(properties=b"UNIQ_KEY\x01U\x02KEYS\x01a b\x02TAGS\x01t\x02p\x01v\x02"), "b"
    )
    assert (got.topic, got.body, got.tags, got.keys) == ("T", b"x", "t", ("a", "b"))
    assert got.queue == MessageQueue("T", "b", 1)
    assert (got.queue_offset, got.physical_offset, got.reconsume_times) == (2, 3, 6)
    assert (got.unique_key, got.message_id) == ("U", "0A010203000011D70000000000000003")
    assert got.properties["p"] == "v"


def test_a_consumer_sees_the_message_group() -> None:
    assert received(record(properties=b"__SHARDINGKEY\x01g7\x02"), "b").message_group == "g7"
    assert received(record(), "b").message_group is None


def test_a_message_without_properties_is_known_by_its_message_id() -> None:
    got = received(record(), "b")
    assert (got.unique_key, got.tags, got.keys) == (got.message_id, None, ())


def test_a_message_from_the_retry_topic_shows_its_own_topic() -> None:
    got = received(record("%RETRY%g", b"RETRY_TOPIC\x01T\x02"), "b")
    assert (got.topic, got.queue.topic) == ("T", "%RETRY%g")


@given(st.binary(max_size=20_000))
def test_bodies_survive_packing(body: bytes) -> None:
    packed, sys_flag = pack_body(body)
    assert unpack_body(packed, sys_flag) == body
    assert len(packed) <= len(body)


@pytest.mark.parametrize("sys_flag", [0x001, 0x301])
def test_both_marks_of_zlib_are_inflated(sys_flag: int) -> None:
    assert unpack_body(zlib.compress(b"text"), sys_flag) == b"text"


@pytest.mark.parametrize("sys_flag", [0x101, 0x201, 0x300, 0])
def test_what_is_not_zlib_stays_as_it_is(sys_flag: int) -> None:
    assert unpack_body(zlib.compress(b"text"), sys_flag) == zlib.compress(b"text")


def test_damaged_and_exploding_bodies_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INFLATED_BYTES_MAX", 1000)
    bomb = zlib.compress(b"x" * 1001)
    assert unpack_body(b"no zlib", 1) == b"no zlib"
    assert unpack_body(zlib.compress(b"text")[:-1], 1) == zlib.compress(b"text")[:-1]
    assert unpack_body(bomb, 1) == bomb


TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20)


NAME = TEXT.filter(lambda name: name not in module._RESERVED)


@given(st.dictionaries(NAME, TEXT, max_size=4), TEXT, st.integers(0, 18))
def test_a_frame_reads_back_as_the_send_that_it_is(
    properties: dict[str, str], tags: str, delay_level: int
) -> None:
    message = Message("T", b"body", tags=tags, properties=properties, delay_level=delay_level)
    data = SendTemplates('gr"oup').frame(
        MessageQueue("T", "b", 3),
        message.body,
        message_properties(message, "K"),
        opaque=77,
        born_timestamp_ms=1_700_000_000_000,
        sys_flag=1,
        flag=-5,
    )
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    request = decode_request(frame)
    assert isinstance(request, SendRequest)
    fields = request.fields
    assert (request.opaque, request.is_oneway, frame.body) == (77, False, b"body")
    assert (fields.producer_group, fields.topic, fields.queue_id) == ('gr"oup', "T", 3)
    assert (fields.sys_flag, fields.flag, fields.is_batch) == (1, -5, False)
    assert fields.born_timestamp_ms == 1_700_000_000_000
    delay = {"DELAY": str(delay_level)} if delay_level else {}
    wanted = {"UNIQ_KEY": "K", "TAGS": tags, **delay, **properties}
    assert decode_properties((fields.properties or "").encode()) == wanted


def test_the_answer_of_a_broker_is_read() -> None:
    decoder = FrameDecoder()
    decoder.feed(SendReplies().encode(9, msg_id=b"AB", queue_id=3, queue_offset=2**40))
    answer = decode_answer(decoder.frames()[0])
    assert answer.fields is not None
    assert (answer.code, answer.opaque, answer.flag) == (0, 9, 1)
    assert (answer.fields.msg_id, answer.fields.queue_id) == ("AB", 3)
    assert answer.fields.queue_offset == 2**40


def test_subscriptions() -> None:
    tags = subscribe("T", " a || b||", 1)
    assert (tags.tags, tags.wants("a"), tags.wants("c"), tags.wants(None)) == (
        *(frozenset("ab"), True, False, False),
    )
    for everything in (
        subscribe("T", "*", 1),
        subscribe("T", "", 1),
        subscribe("%RETRY%g", "a", 1),
    ):
        assert everything.wants(None)
        assert everything.expression == "*"
    for topic, expression in (("T", "||"), ("a b", "*")):
        with pytest.raises(ClientUsageError):
            subscribe(topic, expression, 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Message("T", "text"), "body is str 'text', not bytes"),
        (lambda: Message(7, b"x"), "topic is int 7, not text"),
        (lambda: Message("T", None), "body is NoneType None, not bytes"),
        (lambda: Message("T", b"x", properties={"n": 1}), "property 'n' is int 1, not text"),
        (lambda: Message("T", b"x", properties={1: "n"}), "the name of a property is int 1"),
        (lambda: Message("T", b"x", properties=["n"]), "properties is list"),
        (lambda: Message("T", b"x", tags=["a"]), "tags is list"),
        (lambda: Message("T", b"x", keys=(1,)), "one of keys is int 1"),
        (lambda: subscribe("T", None, 1), "None"),
    ],
)
def test_a_wrong_type_is_told_where_it_is_given(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ClientUsageError, match=re.escape(said)):
        make()


def test_a_body_may_be_any_kind_of_bytes() -> None:
    assert Message("T", bytearray(b"x")).body == Message("T", memoryview(b"x")).body == b"x"


def test_how_far_ahead_a_due_time_may_lie_is_for_brokers_to_say() -> None:
    week_ms = 7 * 86_400_000
    for far in (Message("T", b"x", delay_ms=week_ms), Message("T", b"x", deliver_at_ms=4 * 10**12)):
        module.check_message(far)
    with pytest.raises(ClientUsageError, match="delay_ms 100000000000000000 is not in 0"):
        module.check_message(Message("T", b"x", delay_ms=10**17))
