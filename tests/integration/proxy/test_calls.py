"""Calls of gRPC clients, by hand: what is answered, and what stands afterwards."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

from broker.proxy.protocol.numbers import Code, MessageType
from dledger_mq import Message, SendRefusedError
from dledger_mq.blocking import Producer
from jepsen.processes import poll
from tests.integration.proxy.conftest import Caller, RunningProxy, until
from tests.interop.conftest import WAIT_S, kill_and_restart, messages_in, request, stored

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_route_leads_through_the_proxy_and_says_what_a_topic_takes(proxied: RunningProxy) -> None:
    caller, topic, ordered = proxied.caller(), proxied.topic(), proxied.topic("FIFO")
    endpoints = {"scheme": 3, "addresses": [{"host": "proxy.example", "port": 443}]}
    found = caller.call("QueryRoute", topic={"name": topic}, endpoints=endpoints)
    assert found.status.code == Code.OK
    assert [queue.id for queue in found.message_queues] == [0, 1, 2, 3]
    assert {queue.broker.endpoints.addresses[0].host for queue in found.message_queues} == {
        "proxy.example"
    }
    assert list(found.message_queues[0].accept_message_types) == [1, 2, 3, 4]
    found = caller.call("QueryRoute", topic={"name": ordered}, endpoints=endpoints)
    assert list(found.message_queues[0].accept_message_types) == [MessageType.FIFO]
    refused = caller.send(ordered, b"in no order").status.code
    assert refused == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    fifo = {"message_type": MessageType.FIFO, "message_group": "g"}
    assert caller.send(ordered, b"in order", **fifo).status.code == Code.OK
    missing = caller.call("QueryRoute", topic={"name": "Missing"}, endpoints=endpoints)
    assert missing.status.code == Code.TOPIC_NOT_FOUND
    illegal = caller.call("QueryRoute", topic={"name": "rmq_sys_x"}, endpoints=endpoints)
    assert illegal.status.code == Code.ILLEGAL_TOPIC


def test_what_is_sent_stands_where_the_answer_says(proxied: RunningProxy) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    sent = caller.send(topic, b"one", message_id="0A1B", tag="paid", keys=["k1"])
    assert (sent.status.code, sent.message_id) == (Code.OK, "0A1B")
    there = stored(proxied.namesrv, topic)
    assert [offset for _, offset in there] == [sent.offset]
    again = caller.send(topic, b"one", message_id="0A1B", tag="paid", keys=["k1"])
    assert again.status.code == Code.OK


def test_a_message_group_has_one_queue_through_the_proxy_and_past_it(
    proxied: RunningProxy,
) -> None:
    caller, topic = proxied.caller(), proxied.topic("FIFO")
    groups = [f"account-{number}" for number in range(8)]
    for group in groups:
        fifo = {"message_type": MessageType.FIFO, "message_group": group}
        assert caller.send(topic, group.encode(), **fifo).status.code == Code.OK
    with Producer(proxied.namesrv, "p", timeout_s=WAIT_S) as producer:
        chosen = {
            group: producer.send(Message(topic, b"mine", message_group=group)).queue_id
            for group in groups
        }
    theirs = {
        message.message_group: message.queue.queue_id
        for message in messages_in(proxied.namesrv, topic)
        if message.body != b"mine"
    }
    assert theirs == chosen
    assert len(set(chosen.values())) > 1


def test_a_message_is_received_once_acknowledged_and_no_more(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    assert caller.subscribe(name, topic).settings.backoff_policy.max_attempts == 17
    caller.send(topic, b"one")
    (message,) = until(caller, name, topic, 1)
    assert message.body == b"one"
    assert caller.receive(name, topic, long_polling_timeout={"seconds": 0}) == []
    assert caller.ack(name, topic, message) == [Code.OK]
    assert caller.ack(name, topic, message) == [Code.INVALID_RECEIPT_HANDLE], "it was used"


def test_a_message_comes_again_when_its_time_is_over_or_was_made_short(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    caller.subscribe(name, topic)
    caller.send(topic, b"one")
    (message,) = until(caller, name, topic, 1)
    changed = caller.call(
        "ChangeInvisibleDuration",
        group={"name": name},
        topic={"name": topic},
        receipt_handle=message.system_properties.receipt_handle,
        invisible_duration={"seconds": 1},
    )
    assert changed.status.code == Code.OK, changed
    (again,) = until(caller, name, topic, 1)
    assert again.system_properties.delivery_attempt == 2
    assert again.topic.name == topic, "the topic it was sent to, not that of retries"
    assert caller.ack(name, topic, message) == [Code.INVALID_RECEIPT_HANDLE]
    assert caller.ack(name, topic, again) == [Code.OK]


def test_a_dead_letter_does_not_come_again_and_is_consumed_from_its_topic(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    caller.subscribe(name, topic)
    caller.send(topic, b"poison")
    (message,) = until(caller, name, topic, 1)
    given = {
        "group": {"name": name},
        "topic": {"name": topic},
        "receipt_handle": message.system_properties.receipt_handle,
        "message_id": message.system_properties.message_id,
    }
    answer = caller.call("ForwardMessageToDeadLetterQueue", **given)
    assert answer.status.code == Code.OK, answer
    again = caller.call("ForwardMessageToDeadLetterQueue", **given)
    assert again.status.code == Code.INVALID_RECEIPT_HANDLE
    assert caller.ack(name, topic, message) == [Code.INVALID_RECEIPT_HANDLE]
    reader, letters = f"{name}-reader", f"%DLQ%{name}"
    assert poll(lambda: len(stored(proxied.namesrv, letters)) == 1, WAIT_S)
    undertaker = proxied.caller()
    undertaker.subscribe(reader, letters)
    (dead,) = until(undertaker, reader, letters, 1)
    assert (dead.body, dead.topic.name) == (b"poison", letters)
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, bool(origin.message_id)) == (topic, True)
    assert undertaker.ack(reader, letters, dead) == [Code.OK]


def test_a_push_consumer_keeps_a_message_for_as_long_as_it_is_there(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    caller.subscribe(name, topic, kind=2)
    caller.send(topic, b"one")
    (message,) = until(caller, name, topic, 1, auto_renew=True)
    assert message.system_properties.invisible_duration.seconds == 60
    assert caller.ack(name, topic, message) == [Code.OK]


def test_half_messages_end_as_their_producer_says_and_the_open_one_is_asked_about(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic("TRANSACTION")
    stream = caller.telemetry(client_type=1, publishing={"topics": [{"name": topic}]})
    assert next(stream).settings.publishing.max_body_size == 4 * 1024 * 1024
    half = {"message_type": MessageType.TRANSACTION}
    ends = {}
    for body, resolution in ((b"yes", 1), (b"no", 2), (b"open", 0)):
        sent = caller.send(topic, body, **half)
        assert sent.status.code == Code.OK
        ends[body] = sent.transaction_id
        if resolution:
            answer = caller.call(
                "EndTransaction",
                topic={"name": topic},
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                resolution=resolution,
                source=1,
            )
            assert answer.status.code == Code.OK
    asked = next(stream).recover_orphaned_transaction_command
    assert (asked.message.body, asked.transaction_id) == (b"open", ends[b"open"])
    answer = caller.call(
        "EndTransaction",
        topic={"name": topic},
        transaction_id=asked.transaction_id,
        resolution=1,
        source=2,
    )
    assert answer.status.code == Code.OK
    consumer = proxied.caller()
    consumer.subscribe(name, topic)
    found = until(consumer, name, topic, 2)
    assert sorted(one.body for one in found) == [b"open", b"yes"]


def test_a_delayed_message_is_recalled(proxied: RunningProxy, name: str) -> None:
    caller, topic = proxied.caller(), proxied.topic("DELAY")
    due = {"delivery_timestamp": {"seconds": int(time.time()) + 3600}, "message_type": 3}
    sent = caller.send(topic, b"later", **due)
    assert sent.recall_handle
    fields = {"topic": {"name": topic}, "recall_handle": sent.recall_handle}
    answer = caller.call("RecallMessage", **fields)
    assert (answer.status.code, answer.message_id) == (Code.OK, sent.message_id)
    fields["topic"] = {"name": proxied.topic()}
    assert caller.call("RecallMessage", **fields).status.code == Code.INVALID_RECEIPT_HANDLE


def test_how_far_ahead_a_message_may_be_due_is_the_brokers_to_say(proxied: RunningProxy) -> None:
    caller, topic, week_s = proxied.caller(), proxied.topic(), 7 * 86_400
    due = {"delivery_timestamp": {"seconds": int(time.time()) + week_s}, "message_type": 3}
    own = Message(topic, b"later", delay_ms=week_s * 1000)
    with Producer(namesrv=proxied.namesrv, group="P") as producer:
        assert caller.send(topic, b"later", **due).status.code == Code.ILLEGAL_DELIVERY_TIME
        with pytest.raises(SendRefusedError, match="timerMaxDelaySec"):
            producer.send(own)
        proxied.ask(25, {}, b"timerMaxDelaySec=%d" % week_s)
        assert caller.send(topic, b"later", **due).status.code == Code.OK
        handle = producer.send(own).recall_handle
        assert handle is not None
        assert producer.recall(handle)


def test_nothing_acknowledged_is_lost_or_doubled_when_the_leader_dies(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    caller.subscribe(name, topic)
    bodies = [b"%d" % number for number in range(60)]
    acknowledged = []
    for number, body in enumerate(bodies):
        if number == 20:
            kill_and_restart(proxied, topic)
        if caller.send(topic, body).status.code == Code.OK:
            acknowledged.append(body)
    assert len(acknowledged) == len(bodies), "the proxy follows the leader"
    got: list[bytes] = []
    while len(got) < len(bodies):
        found = until(caller, name, topic, 1)
        assert caller.ack(name, topic, *found) == [Code.OK] * len(found)
        got += [one.body for one in found]
    assert sorted(got) == sorted(bodies)


def test_calls_that_cannot_be_are_refused_by_their_true_cause(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic()
    stranger = {"group": {"name": name}, "message_queue": {"topic": {"name": topic}}}
    assert caller.call("Heartbeat").status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    caller.subscribe(name, topic)
    (answer,) = caller.call("ReceiveMessage", **stranger)
    assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME
    other = {**stranger, "group": {"name": "other"}, "invisible_duration": {"seconds": 9}}
    (answer,) = caller.call("ReceiveMessage", **other)
    assert answer.status.code == Code.FORBIDDEN, "it has said that it is of another group"
    sql = {"type": 2, "expression": "a >"}
    given = {**stranger, "invisible_duration": {"seconds": 9}, "filter_expression": sql}
    (answer,) = caller.call("ReceiveMessage", **given)
    assert answer.status.code == Code.ILLEGAL_FILTER_EXPRESSION
    bad = {"group": {"name": name}, "topic": {"name": topic}, "receipt_handle": "x"}
    answer = caller.call("ChangeInvisibleDuration", invisible_duration={"seconds": 1}, **bad)
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert caller.call("SendMessage").status.code == Code.MESSAGE_CORRUPTED
    answer = caller.call("EndTransaction", topic={"name": topic}, transaction_id="x")
    assert answer.status.code == Code.INVALID_TRANSACTION_ID
    assert caller.call("GetOffset").status.code == Code.NOT_IMPLEMENTED
    assert [one.status.code for one in caller.call("PullMessage")] == [Code.NOT_IMPLEMENTED]
    assert (
        Caller(proxied.proxy.address, "").call("Heartbeat").status.code == Code.CLIENT_ID_REQUIRED
    )


def test_what_stands_in_the_retry_topic_is_received_too(proxied: RunningProxy, name: str) -> None:
    """A pull that was given back stands there, and what nobody has received for a minute (tests/unit/server)."""
    caller, topic = proxied.caller(), proxied.topic()
    caller.subscribe(name, topic)
    caller.send(topic, b"one")
    (message,) = until(caller, name, topic, 1)
    position = message.system_properties.receipt_handle.split(" ")[-2]
    ext = {
        "group": name, "offset": position, "delayLevel": "1", "originMsgId": "", "originTopic": topic,
        "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    assert request(proxied.wait_leader().address, 36, ext)[0]["code"] == 0
    (again,) = until(caller, name, topic, 1)
    assert (again.body, again.topic.name) == (b"one", topic)
    assert again.system_properties.receipt_handle.endswith(f" %RETRY%{name}")
    assert caller.ack(name, topic, message, again) == [Code.OK, Code.OK]
