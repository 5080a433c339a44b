"""JSON bodies: fastjson's forms, routes, registrations, locks, heartbeats; and hostile bytes for each."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.remoting import registration
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.group_bodies import (
    LockRequest,
    decode_consumer_list,
    decode_lock_reply,
    decode_lock_request,
    encode_consumer_list,
    encode_lock_reply,
    encode_lock_request,
)
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
    decode_client_config,
    decode_heartbeat,
    encode_heartbeat,
)
from dledger_mq.remoting.json_body import DEPTH_MAX, read_json, read_object, write_json
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.pop_bodies import batch_broker_name, decode_batch_ack
from dledger_mq.remoting.registration import (
    BrokerIdentity,
    decode_data_version,
    decode_registration,
    encode_compressed_registration,
    encode_registration,
    identity_ext,
    identity_of,
)
from dledger_mq.remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    decode_cluster_info,
    decode_member_group,
    decode_route,
    decode_topic_list,
    encode_cluster_info,
    encode_member_group,
    encode_route,
    encode_topic_list,
    wants_standard_json,
)
from dledger_mq.remoting.topic_config import WireDataVersion, WireTopicConfig

texts = st.text(st.characters(codec="utf-8"), max_size=6)
queues = st.builds(WireQueue, texts, st.integers(-(2**31), 2**31 - 1), texts)
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts, inner, max_size=3)
        | st.dictionaries(numbers, inner, min_size=1, max_size=3)
        | st.dictionaries(queues, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_fastjson_is_read_as_it_was_written(value: object) -> None:
    assert read_json(write_json(value)) == value


@given(st.dictionaries(numbers, texts, max_size=3))
def test_quoted_numbers_are_legal_json(table: dict[int, str]) -> None:
    data = write_json({"t": table}, quote_numbers=True)
    assert json.loads(data) == {"t": {str(key): value for key, value in table.items()}}


def test_the_reset_body_that_go_takes_apart_by_hand() -> None:
    table = {WireQueue("b", 0, "t"): 11110, WireQueue("b", 1, "t"): 0}
    assert write_json({"offsetTable": table}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:11110,'
        b'{"brokerName":"b","queueId":1,"topic":"t"}:0}}'
    )


@pytest.mark.parametrize("pair", ["[]", '{"a":}', "{a:}"])
def test_the_depth_is_bounded_the_same_way_in_both_readers(pair: str) -> None:
    start, end = (pair[:-1], pair[-1]) if pair != "[]" else ("[", "]")
    inner = "{}" if end == "}" else "[]"
    read_json((start * (DEPTH_MAX - 1) + inner + end * (DEPTH_MAX - 1)).encode())
    with pytest.raises(BodyError, match="deeper"):
        read_json((start * DEPTH_MAX + inner + end * DEPTH_MAX).encode())
    with pytest.raises(BodyError):
        read_json(start.encode() * 200_000)


@given(st.binary(max_size=40) | st.text('{}[]:,"0a\\-.e ', max_size=40).map(str.encode))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [
        read_json,
        read_object,
        decode_heartbeat,
        decode_client_config,
        decode_lock_request,
        decode_lock_reply,
        decode_consumer_list,
        decode_route,
        decode_cluster_info,
        decode_topic_list,
        decode_member_group,
        decode_data_version,
        lambda data: decode_registration(data, ext={}, version=409),
        lambda data: decode_registration(data, ext={}, version=30),
        lambda data: decode_registration(data, ext={"compressed": "true"}, version=409),
        lambda data: decode_registration(
            zlib.compress(data), ext={"compressed": "true"}, version=409
        ),
    ]
    for reader in readers:
        refusal: BodyError | None = None
        try:
            reader(body)
        except BodyError as error:  # any other comes out as it is
            refusal = error
        assert refusal is None or str(refusal)


ROUTE = TopicRoute(
    queues=(QueueData("broker-a", 6, 4, 0, 4),),
    brokers=(BrokerData({1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}, "broker-a", "DefaultCluster"),),
)


def test_a_route_as_old_clients_get_it() -> None:
    assert encode_route(ROUTE, quote_numbers=False) == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
        b'"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_a_route_as_new_clients_get_it() -> None:
    data = encode_route(ROUTE, quote_numbers=True)
    assert json.loads(data)["brokerDatas"][0]["brokerAddrs"]["0"] == "10.0.0.1:10911"
    assert b" " not in data
    assert b"orderTopicConf" not in data


@pytest.mark.parametrize("quote", [True, False])
@pytest.mark.parametrize("order", [None, "broker-a:4"])
def test_routes_are_read_in_both_forms(quote: bool, order: str | None) -> None:
    route = TopicRoute(ROUTE.queues, ROUTE.brokers, order)
    assert decode_route(encode_route(route, quote_numbers=quote)) == route


@pytest.mark.parametrize(
    ("version", "ext", "expected"),
    [
        (63, {}, False),
        (400, {}, False),
        (401, {}, True),
        (409, {}, True),
        (121, {"acceptStandardJsonOnly": "true"}, True),
        (121, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_who_gets_quoted_keys(version: int, ext: dict[str, str], expected: bool) -> None:
    assert wants_standard_json(version, ext) is expected


def test_other_tables_of_the_name_server() -> None:
    info = ClusterInfo({"broker-a": ROUTE.brokers[0]}, {"DefaultCluster": ("broker-a",)})
    data = encode_cluster_info(info)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911",1:' in data
    assert decode_cluster_info(data) == info
    assert decode_member_group(encode_member_group(ROUTE.brokers[0])) == ROUTE.brokers[0]
    assert decode_topic_list(encode_topic_list(["a", "b"], "x:1")) == ["a", "b"]
    assert encode_topic_list([]) == b'{"topicList":[]}'


TOPICS = [
    WireTopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3, perm=4),
    WireTopicConfig(topic_name="ü"),
]
VERSION = WireDataVersion(counter=3, timestamp=1_700_000_000_000)


@pytest.mark.parametrize("crc", [True, False])
def test_registrations_in_both_forms(crc: bool) -> None:
    for encode, ext in (
        (encode_registration, {}),
        (encode_compressed_registration, {"compressed": "true"}),
    ):
        body = encode(VERSION, TOPICS)
        checked = {"bodyCrc32": str(zlib.crc32(body) & 0x7FFF_FFFF)} if crc else {}
        found = decode_registration(body, ext={**ext, **checked}, version=409)
        assert found.data_version == VERSION
        assert found.topics == {topic.topic_name: topic for topic in TOPICS}


def test_the_registration_of_a_very_old_broker_is_the_bare_table() -> None:
    body = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"perm":6}}}'
    found = decode_registration(body, ext={}, version=36)
    assert found.topics is not None
    assert found.topics["T"].topic_name == "T"
    assert found.data_version.timestamp == 2


def test_a_registration_of_5x_with_more_members() -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":"3",'
        b'"stateVersion":1,"timestamp":5},"mappingDataVersion":{},"topicConfigTable":{"T":'
        b'{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":8}},"topicQueueMappingInfoMap":{}}}'
    )
    assert decode_registration(body, ext={}, version=479).data_version == WireDataVersion(3, 1, 5)


def test_a_wrong_checksum_is_told_in_javas_words() -> None:
    with pytest.raises(BodyError, match="crc32 not match"):
        decode_registration(b"{}", ext={"bodyCrc32": "1"}, version=409)


def test_a_small_body_does_not_keep_its_reader_busy() -> None:
    """25 KB that name one topic a million times took three seconds."""
    ext = {"compressed": "true"}
    with pytest.raises(BodyError, match="inflated, longer than"):
        decode_registration(zlib.compress(bytes(20 << 20), 9), ext=ext, version=409)
    twice = encode_compressed_registration(VERSION, [TOPICS[0], TOPICS[0]])
    with pytest.raises(BodyError, match="topic 'T' stands twice"):
        decode_registration(twice, ext=ext, version=409)
    many = [WireTopicConfig(topic_name=f"topic-{number:06}") for number in range(20_000)]
    body = encode_compressed_registration(VERSION, many)
    assert len(decode_registration(body, ext=ext, version=409).topics or ()) == len(many)


def test_a_zip_bomb_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 100_000)
    bomb = zlib.compress(bytes(200_000), 9)
    with pytest.raises(BodyError, match="longer than"):
        decode_registration(bomb, ext={"compressed": "true"}, version=409)


def test_identities() -> None:
    identity = BrokerIdentity("c", "b", "1.2.3.4:5", 1, "1.2.3.4:6", term=7, timeout_ms=9)
    assert identity_of(identity_ext(identity)) == identity
    with pytest.raises(FieldError, match="brokerName"):
        identity_of({"clusterName": "c"})


def test_locks_and_lists() -> None:
    request = LockRequest("g", "c", (WireQueue("b", 1, "t"),))
    assert decode_lock_request(encode_lock_request(request)) == request
    assert encode_lock_reply([]) == b'{"lockOKMQSet":[]}'
    assert decode_lock_reply(encode_lock_reply(request.mq_set)) == list(request.mq_set)
    assert encode_consumer_list(["a", "b"]) == b'{"consumerIdList":["a","b"]}'
    assert decode_consumer_list(b'{"consumerIdList":null}') == []


def test_heartbeats_are_read_as_they_were_written() -> None:
    heartbeat = Heartbeat(
        "c@1",
        ("p",),
        (
            ConsumerEntry(
                "g",
                ConsumeType.CONSUME_ACTIVELY,
                MessageModel.BROADCASTING,
                ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
                (Subscription("t", "a || b", tags=("a", "b"), version=5),),
            ),
        ),
    )
    data = encode_heartbeat(heartbeat, [[97, 98]])
    assert decode_heartbeat(data) == heartbeat
    assert json.loads(data)["consumerDataSet"][0]["subscriptionDataSet"][0]["codeSet"] == [97, 98]


def test_a_heartbeat_of_go() -> None:
    """Code sets as texts, versions in nanoseconds, nulls, and ordinals as texts too."""
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_POP",
                "messageModel": "1",
                "consumeFromWhere": None,
                "subscriptionDataSet": [
                    {
                        "topic": "t",
                        "subString": "",
                        "codeSet": ["97"],
                        "tagsSet": None,
                        "subVersion": 10**18,
                    }
                ],
            },
            {"groupName": ""},
        ],
        "producerDataSet": None,
    }
    (consumer,) = decode_heartbeat(json.dumps(body).encode()).consumers
    assert consumer.consume_type is ConsumeType.CONSUME_POP
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.subscriptions == (Subscription("t", version=10**18),)


@pytest.mark.parametrize(
    "body",
    [
        b'{"clientID":""}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"X"}]}',
        b'{"clientID":"c","producerDataSet":[' + b",".join([b'{"groupName":"g"}'] * 5000) + b"]}",
        b'{"clientID":"c","x":' + b"[" * 100_000,
    ],
    ids=range(5),
)
def test_heartbeats_that_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_heartbeat(body)


def test_a_client_configuration() -> None:
    body = b'{"clientId":"c","group":"g","subscriptionData":{"topic":"t","subString":"a=1","expressionType":"SQL92"}}'
    client_id, group, subscription = decode_client_config(body)
    assert (client_id, group, subscription.expression_type) == ("c", "g", "SQL92")


@pytest.mark.parametrize("read", [batch_broker_name, decode_batch_ack])
def test_a_batch_of_acknowledgements_that_is_nested_deeply_is_refused(
    read: Callable[[bytes], object],
) -> None:
    """Also where the nesting is in a member that nobody asks for."""
    with pytest.raises(BodyError):
        read(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_registration_with_numbers_that_no_client_can_read_is_none() -> None:
    """They would stand in the route that clients of all brokers with that topic get."""
    topic = {"topicName": "T", "perm": 10**30, "readQueueNums": 1, "writeQueueNums": 1}
    wrapper = {"dataVersion": {"counter": 1}, "topicConfigTable": {"T": topic}}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    with pytest.raises(BodyError):
        decode_registration(body, ext={}, version=409)


def test_a_route_with_numbers_that_java_has_not_is_none() -> None:
    """Nor can the sum of them be written: it has more digits than Python prints."""
    queues = b'{"brokerName":"b","readQueueNums":' + b"9" * 4300 + b"}"
    with pytest.raises(BodyError):
        decode_route(b'{"queueDatas":[' + b",".join([queues] * 20) + b"]}")
