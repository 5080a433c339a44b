"""Messages from a producer to a broker, and from a broker to a consumer."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from broker.proxy import checks
from broker.proxy.incoming import incoming
from broker.proxy.outgoing import MessageToSend, outgoing
from broker.proxy.protocol import Message
from broker.proxy.protocol.numbers import Code, Encoding, MessageType
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.messages import BODY_BYTES_MAX, ReceivedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message import sys_flags
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import decode_properties

NOW_MS = 1_750_000_000_000


def message(body: bytes = b"order 1", **system: Any) -> Any:
    found = Message(body=body)
    found.topic.name = "Orders"
    found.system_properties.message_id = "01A2"
    found.system_properties.message_type = MessageType.NORMAL
    for name, value in system.items():
        setattr(found.system_properties, name, value)
    return found


def sent(given: Any) -> MessageToSend:
    return outgoing(given, client_host="10.0.0.7:4711", now_ms=NOW_MS)


def refusal(given: Any) -> tuple[Code, str]:
    with pytest.raises(CallRefusedError) as refused:
        sent(given)
    return refused.value.code, str(refused.value)


def received(found: MessageToSend, properties: dict[str, str] | None = None) -> ReceivedMessage:
    pairs = decode_properties(found.properties) if properties is None else properties
    return ReceivedMessage(
        topic=found.topic,
        body=b"order 1",
        queue=MessageQueue(found.topic, "broker-a", 3),
        queue_offset=QueueOffset(12),
        physical_offset=PhysicalOffset(4096),
        message_id=offset_msg_id(pack_host("10.0.0.1", 10911), PhysicalOffset(4096)),
        unique_key=pairs.get("UNIQ_KEY", ""),
        tags=pairs.get("TAGS"),
        keys=tuple(pairs.get("KEYS", "").split()),
        properties=pairs,
        flag=0,
        born_timestamp_ms=NOW_MS,
        store_timestamp_ms=StoreTimeMs(NOW_MS + 1),
        reconsume_times=2,
    )


def test_what_is_sent_comes_back_as_it_was() -> None:
    given = message(tag="paid", trace_context="00-1")
    given.system_properties.keys.extend(["k1", "k2"])
    given.user_properties["region"] = "EU"
    found = sent(given)
    pairs = decode_properties(found.properties)
    assert pairs["__BORNHOST"] == "10.0.0.7:4711"
    back = incoming(received(found), handle="r", invisible_ms=1500)
    assert back.body == given.body
    assert back.topic.name == "Orders"
    assert dict(back.user_properties) == {"region": "EU"}
    system = back.system_properties
    assert (system.tag, list(system.keys), system.message_id) == ("paid", ["k1", "k2"], "01A2")
    assert (system.message_type, system.body_encoding) == (MessageType.NORMAL, Encoding.IDENTITY)
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 12, 3)
    assert (system.store_host, system.trace_context) == ("10.0.0.1:10911", "00-1")
    assert (system.invisible_duration.seconds, system.invisible_duration.nanos) == (1, 500_000_000)
    assert system.body_digest.checksum == hashlib.md5(given.body).hexdigest().upper()


def test_kinds_are_kept_by_their_properties() -> None:
    ordered = message(message_group="g7", message_type=MessageType.FIFO)
    assert incoming(received(sent(ordered))).system_properties.message_group == "g7"
    assert incoming(received(sent(ordered))).system_properties.message_type == MessageType.FIFO
    half = message(message_type=MessageType.TRANSACTION)
    half.system_properties.orphaned_transaction_recovery_duration.seconds = 9
    found = sent(half)
    pairs = decode_properties(found.properties)
    assert (pairs["TRAN_MSG"], pairs["PGROUP"]) == ("true", "Orders")
    assert pairs["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "9"
    assert found.sys_flag == sys_flags.TRANSACTION_PREPARED
    later = message(message_type=MessageType.DELAY)
    later.system_properties.delivery_timestamp.seconds = NOW_MS // 1000 + 60
    pairs = decode_properties(sent(later).properties)
    assert pairs["TIMER_DELIVER_MS"] == str(NOW_MS + 60_000)
    back = incoming(received(sent(later))).system_properties
    assert (back.message_type, back.delivery_timestamp.seconds) == (
        MessageType.DELAY,
        NOW_MS // 1000 + 60,
    )


def test_topics_are_named_to_each_client_as_it_names_them() -> None:
    given = message()
    given.topic.resource_namespace = "shop"
    found = sent(given)
    assert found.topic == "shop%Orders"
    back = incoming(received(found), namespace="shop").topic
    assert (back.resource_namespace, back.name) == ("shop", "Orders")
    back = incoming(received(found), namespace="other").topic
    assert (back.resource_namespace, back.name) == ("", "shop%Orders")
    assert incoming(received(found)).topic.name == "shop%Orders"


@pytest.mark.parametrize("seconds", [-1, 0, 2**62, 253_402_300_800])
def test_a_birth_that_is_no_time_is_now(seconds: int) -> None:
    given = message()
    given.system_properties.born_timestamp.seconds = seconds
    assert sent(given).born_ms == NOW_MS


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_packed_body_is_unpacked(pack: Any) -> None:
    body = bytes(range(256)) * 8
    assert sent(message(pack(body), body_encoding=Encoding.GZIP)).body == body


def test_a_body_that_is_packed_wrongly_or_grows_too_large_is_refused() -> None:
    packed = gzip.compress(b"a" * 1000)
    for damaged in (packed[:-9], b"\0" * 40, packed[:3]):
        code, text = refusal(message(damaged, body_encoding=Encoding.GZIP))
        assert code is Code.MESSAGE_CORRUPTED, text
    bomb = gzip.compress(b"\0" * (BODY_BYTES_MAX + 1))
    assert refusal(message(bomb, body_encoding=Encoding.GZIP))[0] is Code.MESSAGE_BODY_TOO_LARGE
    assert refusal(message(b""))[0] is Code.MESSAGE_BODY_EMPTY
    assert refusal(message(b"a" * (BODY_BYTES_MAX + 1)))[0] is Code.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("system", "code"),
    [
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a" * 256}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a b"}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a\x01b"}, Code.ILLEGAL_MESSAGE_ID),
        ({"tag": "a||b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "  "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x02b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"message_group": "g" * 65}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"trace_context": "a\x02b"}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (
            {"message_type": MessageType.TRANSACTION, "message_group": "g"},
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
    ],
)
def test_labels_that_cannot_be_are_refused(system: dict[str, Any], code: Code) -> None:
    assert refusal(message(**system))[0] is code


def test_properties_of_the_systems_and_too_many_are_refused() -> None:
    for name in ("UNIQ_KEY", "TIMER_DELIVER_MS", "SINK_ROW", "a\x01b", " "):
        given = message()
        given.user_properties[name] = "x"
        assert refusal(given)[0] is Code.ILLEGAL_MESSAGE_PROPERTY_KEY, name
    given = message()
    for number in range(129):
        given.user_properties[f"p{number}"] = "x"
    assert refusal(given)[0] is Code.MESSAGE_PROPERTIES_TOO_LARGE
    given = message()
    given.user_properties["large"] = "x" * 16_384
    assert refusal(given)[0] is Code.MESSAGE_PROPERTIES_TOO_LARGE
    given = message()
    given.system_properties.keys.append("two keys")
    assert refusal(given)[0] is Code.ILLEGAL_MESSAGE_KEY


def test_what_is_no_time_is_refused_and_how_far_ahead_one_may_lie_is_for_brokers_to_say() -> None:
    later = message()
    for seconds in (NOW_MS, -1, 0):
        later.system_properties.delivery_timestamp.seconds = seconds
        assert refusal(later)[0] is Code.ILLEGAL_DELIVERY_TIME
    later.system_properties.delivery_timestamp.seconds = NOW_MS // 1000 + 7 * 86_400
    due = decode_properties(sent(later).properties)["TIMER_DELIVER_MS"]
    assert due == str(NOW_MS + 7 * 86_400_000)


@pytest.mark.parametrize(
    "name", ["", "a b", "%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "t" * 128]
)
def test_topics_of_the_system_and_no_names_are_refused(name: str) -> None:
    given = message()
    given.topic.name = name
    assert refusal(given)[0] is Code.ILLEGAL_TOPIC


def test_a_dead_letter_says_where_it_comes_from() -> None:
    origin = {"DLQ_ORIGIN_TOPIC": "Orders", "DLQ_ORIGIN_MESSAGE_ID": "ID"}
    pairs = {"UNIQ_KEY": "01A2", **origin}
    found = incoming(received(sent(message()), pairs)).system_properties.dead_letter_queue
    assert (found.topic, found.message_id) == ("Orders", "ID")
    found = incoming(received(sent(message())))
    assert not found.system_properties.HasField("dead_letter_queue")


def test_dead_letters_are_a_topic_like_others() -> None:
    given = message()
    given.topic.name = "%DLQ%g"
    assert checks.topic_of(given.topic) == "%DLQ%g"
