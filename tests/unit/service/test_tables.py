"""Bodies for tools, as fastjson would write them (docs/formats/remoting.md)."""

from __future__ import annotations

import json

import pytest

from broker.service import tables
from broker.service.clients import ConsumerClient, ProducerClient
from broker.service.connections import consumer_connections, producer_connections
from broker.store.groups import SubscriptionGroupConfig
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.heartbeat import Subscription
from dledger_mq.remoting.json_body import read_object


@pytest.fixture
def state() -> BrokerState:
    made = BrokerState()
    made.topics.put(TopicConfig("T", 2, 2), 5)
    made.groups.put(SubscriptionGroupConfig("g", retry_times_max=3), 5)
    made.queues.create((b"T", 1)).append(0, 100, 0)
    made.offsets.commit("g", "T", 1, 1)
    return made


def popped(state: BrokerState) -> None:
    """Let the group have the first message of queue 1 in flight."""
    key = ("g", "T", QueueId(1))
    state.pops.hand_out(key, [QueueOffset(0)], [], now_ms=5, skipped_ms=0, invisible_ms=60_000)


def test_21_topics(state: BrokerState) -> None:
    body = json.loads(tables.all_topics(state.topics))
    assert body["dataVersion"]["counter"] == 1
    assert body["topicConfigTable"]["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }


def test_201_and_200_groups(state: BrokerState) -> None:
    written = json.loads(tables.all_groups(state.groups))["subscriptionGroupTable"]["g"]
    assert (written["groupName"], written["retryMaxTimes"], written["retryQueueNums"]) == (
        "g",
        3,
        1,
    )
    assert tables.read_group(json.dumps(written).encode()) == state.groups.get("g")


def test_200_defaults_for_what_is_not_said() -> None:
    assert tables.read_group(b'{"groupName":"x"}') == SubscriptionGroupConfig("x")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"groupName":5}', b"\xff"])
def test_200_no_group(body: bytes) -> None:
    with pytest.raises(BodyError):
        tables.read_group(body)


def test_43_offsets_have_bare_numbers_as_keys(state: BrokerState) -> None:
    assert b'"offsetTable":{"T@g":{1:1}}' in tables.all_offsets(state.offsets, state.pops)
    assert b'"inFlightTable":{}' in tables.all_offsets(state.offsets, state.pops)
    popped(state)
    assert b'"inFlightTable":{"T@g":{1:1}}' in tables.all_offsets(state.offsets, state.pops)


def test_45_delay_offsets() -> None:
    assert tables.delay_offsets({7: 2, 1: 5}) == b'{"offsetTable":{1:5,7:2}}'


def test_202_topic_stats(state: BrokerState) -> None:
    topic = state.topics.get("T")
    assert topic is not None
    table = read_object(tables.topic_stats(topic, "broker-a", state.queues, {1: StoreTimeMs(9)}))[
        "offsetTable"
    ]
    assert isinstance(table, dict)
    assert list(table.values()) == [
        {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
        {"lastUpdateTimestamp": 9, "maxOffset": 1, "minOffset": 0},
    ]


def place(end: int, consumed: int, given: int) -> dict[str, int]:
    offsets = {"brokerOffset": end, "consumerOffset": consumed, "pullOffset": given}
    return {**offsets, "lastTimestamp": 0}


def test_208_consume_stats(state: BrokerState) -> None:
    topic = state.topics.get("T")
    assert topic is not None
    popped(state)
    found = tables.consume_table(
        [topic],
        group="g",
        broker_name="broker-a",
        queues=state.queues,
        offsets=state.offsets,
        given=lambda _group, _topic: {QueueId(1): QueueOffset(0)},
        pops=state.pops,
    )
    assert [progress.lag for progress in found.values()] == [0, 0]
    body = read_object(tables.consume_stats(found, per_second=2.5))
    assert body["consumeTps"] == 2.5
    table = body["offsetTable"]
    assert isinstance(table, dict)
    assert list(table.values()) == [
        {**place(0, 0, 0), "isCommitted": False},
        {**place(1, 1, 2), "isCommitted": True},
    ]


@pytest.mark.parametrize(("given", "shown"), [({}, 0), ({1: 1}, 1), ({1: 7}, 1), ({0: 7}, 0)])
def test_208_what_members_hold_is_no_more_than_there_is(
    state: BrokerState, given: dict[int, int], shown: int
) -> None:
    topic = state.topics.get("T")
    assert topic is not None
    found = tables.consume_table(
        [topic],
        group="new",
        broker_name="broker-a",
        queues=state.queues,
        offsets=state.offsets,
        pops=state.pops,
        given=lambda group, name: (
            {QueueId(queue): QueueOffset(place) for queue, place in given.items()}
            if (group, name) == ("new", "T")
            else {}
        ),
    )
    assert [row.pull_offset - row.consumer_offset for row in found.values()] == [0, shown]


def test_300_groups_of_a_topic() -> None:
    assert tables.group_list(["b", "a", "b"]) == b'{"groupList":["a","b"]}'


def test_203_and_204_connections() -> None:
    client = ConsumerClient(
        "g", "c", "CPP", 63, "1.2.3.4:5", subscriptions=(Subscription("T", "Aa", tags=("Aa",)),)
    )
    body = json.loads(consumer_connections({"c": client}))
    assert body["connectionSet"] == [
        {"clientAddr": "1.2.3.4:5", "clientId": "c", "language": "CPP", "version": 63}
    ]
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["subscriptionTable"]["T"]["codeSet"] == [2112]
    producers = json.loads(producer_connections([ProducerClient("p", "c", "GO", 317, "a:1")]))
    assert [c["clientId"] for c in producers["connectionSet"]] == ["c"]
