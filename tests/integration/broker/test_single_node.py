"""One broker, driven over a socket: what real clients sent, and every request that it answers."""

from __future__ import annotations

import json
import logging

import pytest
import trio

from broker.server.config import Limits
from broker.server.handlers import runtime_info
from broker.server.handlers.send_bursts import SendLane
from broker.server.handlers.sends import Sends
from broker.server.watches.digest_watch import DigestWatch
from broker.server.watches.rates import RateWindows
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.group_bodies import decode_consumer_list, decode_lock_reply
from dledger_mq.remoting.header import encode_binary_command, make_request
from tests.integration.broker.conftest import (
    ANSWER_S,
    DELAYS_MS,
    ClusterMaker,
    Wire,
    recorded,
    send_ext,
)
from tests.integration.broker.test_three_nodes import until_notified

pytestmark = pytest.mark.usefixtures("each_stage", "patient")

SENDS = [
    "cpp-send-message",
    "cpp-send-message-oneway",
    "cpp-send-message-compressed",
    "cpp-send-batch",
    "node-send-message-v2",
    "node-send-message-v2-no-tag",
    "node-send-message-v2-compressed",
    "node-send-message-v2-sharding",
]


@pytest.mark.parametrize("name", SENDS)
async def test_what_clients_sent_is_stored(one: Wire, name: str) -> None:
    answer = await one.replay(name)
    assert answer.code == 0, answer.remark
    assert set(answer.ext) >= {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    stored = await one.messages("TopicA", int(answer.ext["queueId"]))
    assert len(stored) == (3 if "batch" in name else 1)
    properties = decode_properties(stored[0].properties)
    assert properties["CLUSTER"] == "DefaultCluster"
    assert properties["UNIQ_KEY"]
    if "batch" not in name:
        assert stored[0].body == recorded(name)[-len(stored[0].body) :]


async def test_a_consumers_first_minute(one: Wire) -> None:
    """The requests of a starting C++ consumer, in its order."""
    await one.replay("cpp-send-message")
    assert (await one.replay("cpp-heartbeat-consumer")).code == 0
    listed = await one.replay("cpp-get-consumer-list")
    assert decode_consumer_list(listed.body) == ["17081-127.0.0.1@DEFAULT"]
    offset = await one.replay("cpp-query-consumer-offset")
    assert (offset.code, offset.ext["offset"]) == (0, "0")
    pulled = await one.replay("cpp-pull-message")
    assert pulled.code == 0
    assert set(pulled.ext) == {"nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"}
    assert len(decode_records(pulled.body)) == 1
    beyond = await one.replay("cpp-update-consumer-offset")
    assert (beyond.code, beyond.remark) == (
        29,
        "offset 2 of group GroupC for topic TopicA queue 0 was not stored: the queue ends at 1",
    )
    await one.send("TopicA")
    assert (await one.replay("cpp-update-consumer-offset")).code == 0
    offset = await one.replay("cpp-query-consumer-offset")
    assert offset.ext["offset"] == "2"
    assert (await one.replay("cpp-unregister-consumer")).code == 0
    assert (await one.replay("cpp-get-consumer-list")).code == 1


async def test_a_heartbeat_creates_group_and_retry_topic(one: Wire) -> None:
    assert (await one.replay("node-heartbeat-consumer")).code == 0
    topics = json.loads((await one.ask(21)).body)["topicConfigTable"]
    assert topics["%RETRY%GroupN"]["readQueueNums"] == 1
    groups = json.loads((await one.ask(201)).body)["subscriptionGroupTable"]
    assert "GroupN" in groups


async def test_all_heartbeats_are_understood(one: Wire) -> None:
    for name in ("cpp-heartbeat-producer", "cpp-heartbeat-pullconsumer", "node-heartbeat-producer"):
        assert (await one.replay(name)).code == 0
    connected = await one.ask(204, {"producerGroup": "interop_cpp_producer"})
    assert json.loads(connected.body)["connectionSet"][0]["language"] == "CPP"
    assert (await one.ask(204, {"producerGroup": "nobody"})).code == 1
    assert (await one.ask(203, {"consumerGroup": "nobody"})).code == 206


async def test_f5_a_held_pull_is_answered_when_a_message_comes(one: Wire) -> None:
    await one.send("T")
    held = one.send_pull("T", 0, 1, suspend_ms=60_000)
    await one.send("T", b"second")
    answer = await one.answer(held)
    assert [record.body for record in decode_records(answer.body)] == [b"second"]


async def test_an_offset_that_never_was_here_is_told_once_for_each_group_and_queue(
    one: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await one.send("T")
    with caplog.at_level(logging.WARNING, "dledger"):
        for offset in (7, 8):
            answer = await one.pull("T", 0, offset)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "1")
    (line,) = [each.getMessage() for each in caplog.records if "offset-beyond-end" in each.message]
    assert "topic=T queue=0 offset=7 end=1" in line
    assert "may have been restored from an older backup" in line


async def test_f8_a_held_pull_ends_with_19(one: Wire) -> None:
    await one.send("T")
    answer = await one.pull("T", 0, 1, suspend_ms=100)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")


async def test_a_held_pull_waits_on_after_unwanted_tags(one: Wire) -> None:
    await one.send("T", b"0", properties="TAGS\x01A\x02")
    held = one.send_pull("T", 0, 1, tags="A", suspend_ms=60_000)
    await one.send("T", b"no", properties="TAGS\x01B\x02")
    assert not one.has_answer(held)
    await one.send("T", b"yes", properties="TAGS\x01A\x02")
    answer = await one.answer(held)
    assert [record.body for record in decode_records(answer.body)] == [b"yes"]
    assert answer.ext["nextBeginOffset"] == "3"


async def test_f7_a_held_pull_that_skipped_messages_ends_after_them(one: Wire) -> None:
    await one.send("T", properties="TAGS\x01B\x02")
    for offset in range(1, 10):
        held = one.send_pull("T", 0, offset, tags="A", suspend_ms=1000 * offset)
        await one.send("T", properties="TAGS\x01B\x02")
        answer = await one.answer(held)
        if answer.code != 19:  # else the hold was over before the message was stored
            break
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(offset + 1))


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [(0, 0, "1"), (1, 19, "1"), (2, 21, "1")],
    ids=["AC8", "AC3", "AC4"],
)
async def test_pull_codes(one: Wire, offset: int, code: int, following: str) -> None:
    await one.send("T")
    answer = await one.pull("T", 0, offset)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, following)


async def test_361_is_the_same_pull(one: Wire) -> None:
    await one.send("T")
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "20",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    assert (await one.ask(361, ext)).code == 0


async def test_delayed_messages_come_when_due(one: Wire) -> None:
    answer = await one.send("T", b"later", 2, "DELAY\x012\x02TAGS\x01A\x02")
    assert answer.code == 0
    (waiting,) = await one.messages("SCHEDULE_TOPIC_XXXX", 1)
    (stored,) = await one.coming("T", 2, tags="A")
    assert (stored.body, stored.topic) == (b"later", "T")
    assert stored.store_timestamp_ms >= waiting.store_timestamp_ms + DELAYS_MS[1], "not before"


async def test_a_message_that_is_sent_back_comes_again(one: Wire) -> None:
    await one.send("T", b"try", 0, "KEYS\x01k\x02")
    (stored,) = await one.messages("T")
    ext = {"offset": str(stored.physical_offset), "group": "G", "delayLevel": "1"}
    assert (await one.ask(36, ext)).code == 0
    (again,) = await one.coming("%RETRY%G")
    properties = decode_properties(again.properties)
    assert (again.body, again.reconsume_times) == (b"try", 1)
    assert (properties["RETRY_TOPIC"], properties["KEYS"]) == ("T", "k")
    assert (await one.ask(36, ext | {"offset": "3"})).code == 1
    assert (await one.ask(36, ext | {"delayLevel": "-1"})).code == 0
    (dead,) = await one.messages("%DLQ%G")
    assert dead.body == b"try"


async def test_locks_have_one_holder(one: Wire) -> None:
    assert len(decode_lock_reply((await one.replay("cpp-lock-batch-mq")).body)) == 1
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "TopicA"}
    rival = {
        "clientId": "rival",
        "consumerGroup": "GroupOrd",
        "mqSet": [queue, queue | {"queueId": 9}],
    }
    held = decode_lock_reply((await one.ask(41, {}, json.dumps(rival).encode())).body)
    assert [item.queue_id for item in held] == [9]
    mine = rival | {"clientId": "17304-127.0.0.1@DEFAULT"}
    assert (await one.ask(42, {}, json.dumps(mine).encode())).code == 0
    held = decode_lock_reply((await one.ask(41, {}, json.dumps(rival).encode())).body)
    assert [item.queue_id for item in held] == [0, 9]


async def test_offsets_of_unknown_queues(one: Wire) -> None:
    ext = {"topic": "Unknown", "queueId": "3", "timestamp": "5"}
    for code in (29, 30, 31):
        answer = await one.ask(code, ext)
        assert (answer.code, answer.ext) == (0, {"offset": "0"})
    assert (await one.ask(32, ext)).ext == {"timestamp": "-1"}


async def test_queue_bounds_and_times(one: Wire) -> None:
    for _ in range(3):
        await one.send("T")
    ext = {"topic": "T", "queueId": "0"}
    assert (await one.ask(30, ext)).ext["offset"] == "3"
    assert (await one.ask(31, ext)).ext["offset"] == "0"
    first = (await one.messages("T"))[0]
    assert (await one.ask(32, ext)).ext["timestamp"] == str(first.store_timestamp_ms)
    assert (await one.ask(29, ext | {"timestamp": "1"})).ext["offset"] == "0"
    assert (await one.ask(29, ext | {"timestamp": str(2**62)})).ext["offset"] == "3"


async def test_consumer_offsets(one: Wire) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    assert (await one.ask(14, ext | {"setZeroIfNotFound": "false"})).code == 22
    assert (await one.replay("node-update-consumer-offset-minus-one")).code == 0
    for _ in range(9):
        await one.send("T")
    assert (await one.ask(15, ext | {"commitOffset": "9"})).code == 0
    assert (await one.ask(15, ext | {"commitOffset": "4"})).code == 0
    assert (await one.ask(14, ext)).ext == {"offset": "9"}, "a late commit does not rewind"
    assert b'"T@G":{0:9}' in (await one.ask(43)).body


async def test_a_query_waits_for_a_commit_that_is_on_its_way(one: Wire) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    await one.send("T")
    one.send_request(15, ext | {"commitOffset": "1"}, flag=2)
    assert (await one.ask(14, ext)).ext == {"offset": "1"}


async def test_offsets_that_come_with_pulls(one: Wire) -> None:
    await one.send("T")
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "1",
        "maxMsgNums": "32",
        "sysFlag": "5",
        "commitOffset": "1",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    assert (await one.ask(11, ext)).code == 19
    assert (await one.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"})).ext == {
        "offset": "1"
    }


async def test_topics_are_created_changed_and_deleted(one: Wire) -> None:
    ext = {
        "topic": "Made",
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    assert (await one.ask(17, ext)).code == 0
    assert (await one.send("Made", queue=1)).code == 0
    assert (await one.send("Made", queue=2)).code == 1
    assert (await one.ask(17, ext | {"perm": "4"})).code == 0
    assert (await one.send("Made")).code == 16
    assert (await one.ask(215, {"topic": "Made"})).code == 0
    assert (await one.ask(215, {"topic": "Made"})).code == 0
    assert "Made" not in json.loads((await one.ask(21)).body)["topicConfigTable"]


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "a/b"},
        {"topic": "TBW102"},
        {"readQueueNums": "0"},
        {"perm": "99"},
        {"writeQueueNums": "70000"},
    ],
)
async def test_topics_that_cannot_be(one: Wire, changes: dict[str, str]) -> None:
    ext = {
        "topic": "Made",
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    answer = await one.ask(17, ext | changes)
    assert answer.code == 1
    assert answer.remark


async def test_groups_are_created_and_deleted(one: Wire) -> None:
    body = b'{"groupName":"G2","retryMaxTimes":2,"consumeEnable":false}'
    assert (await one.ask(200, {}, body)).code == 0
    assert (await one.pull("T", group="G2")).code == 16
    assert (await one.ask(207, {"groupName": "G2", "cleanOffset": "true"})).code == 0
    assert (await one.ask(207, {"groupName": "CID_ONSAPI_PULL"})).code == 1


async def test_queries(one: Wire) -> None:
    sent = await one.send("T", b"findme", 0, "KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    ext = {
        "topic": "T",
        "key": "k2",
        "maxNum": "10",
        "beginTimestamp": "0",
        "endTimestamp": str(2**63 - 1),
    }
    found = await one.ask(12, ext)
    assert [record.body for record in decode_records(found.body)] == [b"findme"]
    unique = await one.ask(12, ext | {"key": "U1", "_UNIQUE_KEY_QUERY": "true"})
    assert unique.code == 0
    assert (await one.ask(12, ext | {"key": "k3"})).code == 22
    offset = int(sent.ext["msgId"][16:], 16)
    viewed = await one.ask(33, {"offset": str(offset)})
    assert decode_records(viewed.body)[0].body == b"findme"
    missing = await one.ask(33, {"offset": str(offset + 1)})
    assert (missing.code, bool(missing.remark)) == (1, True)


async def test_what_tools_read(one: Wire) -> None:
    await one.send("T")
    table = json.loads((await one.ask(28)).body)["table"]
    assert (table["brokerVersionDesc"], table["raftRole"]) == ("V4_9_8", "leader")
    assert (table["raftCatchUpReads"], table["raftCatchUpReadBytes"]) == ("0", "0"), "it is alone"
    assert len(table["putTps"].split(" ")) == 3
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert table["runtime"].startswith("[ 0 days, 0 hours, ")
    shown = (table["raftServing"], table["raftGroup"], table["raftClients"], table["raftStopping"])
    assert shown == ("true", "broker-a", "1", "")
    host, port = one.connection.peer.rsplit(":", 1)
    assert json.loads(table["raftMemberAddresses"])["n0"]["clients"] == f"{host}:{port}"
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    boot_ms, earliest_ms = int(table["bootTimestamp"]), int(table["earliestMessageTimeStamp"])
    assert boot_ms <= earliest_ms < boot_ms + 60_000
    today = int(table["msgPutTotalTodayNow"]) - int(table["msgPutTotalTodayMorning"])
    assert today == int(table["putMessageTimesTotal"]) > 0
    assert (table["msgGetTotalTodayNow"], table["getTotalTps"]) == ("0", "0.00 0.00 0.00")
    assert len(await one.messages("T")) == 1
    assert (await one.pull("T", offset=1)).code == 19
    table = json.loads((await one.ask(28)).body)["table"]
    assert table["msgGetTotalTodayNow"] == "1"
    config = await one.ask(26)
    assert "dLegerGroup=broker-a" in config.body.decode()
    assert json.loads(config.ext["version"])
    assert b'"maxOffset":1' in (await one.ask(202, {"topic": "T"})).body
    assert (await one.ask(202, {"topic": "Unknown"})).code == 17
    await one.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"})
    assert b'"consumerOffset":1' in (await one.ask(208, {"consumerGroup": "G"})).body
    assert json.loads((await one.ask(300, {"topic": "T"})).body) == {"groupList": ["G"]}


async def test_subscriptions_are_checked(one: Wire) -> None:
    body = {
        "clientId": "c",
        "group": "g",
        "subscriptionData": {"topic": "T", "subString": "a || b"},
    }
    assert (await one.ask(46, {}, json.dumps(body).encode())).code == 0
    sql = body | {
        "subscriptionData": {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}
    }
    assert (await one.ask(46, {}, json.dumps(sql).encode())).code == 0
    wrong = json.dumps(sql).replace("a > 1", "a >").encode()
    refused = await one.ask(46, {}, wrong)
    assert refused.code == 23
    assert "line 1, column 3" in (refused.remark or "")


@pytest.mark.parametrize("code", [39, 9999, 50_101])
async def test_unknown_requests(one: Wire, code: int) -> None:
    answer = await one.ask(code)
    if code == 50_101:
        assert answer.code == 16
    else:
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


async def test_a_link_of_a_stranger_is_refused(one: Wire) -> None:
    ext = {"group": "broker-a", "node": "n0", "proof": "00"}
    refused = await one.ask(50_100, ext)
    assert (refused.code, refused.remark) == (16, "n0 does not know the group's secret")
    assert (await one.ask(50_100, ext | {"group": "x"})).code == 16
    assert (await one.ask(50_100, ext | {"node": "n9"})).code == 16


async def test_headers_in_binary_are_understood(one: Wire) -> None:
    frame = encode_binary_command(make_request(310, 77, send_ext("T"), b"binary"))
    one.connection.send_nowait(frame)
    assert (await one.answer(77)).code == 0
    assert [record.body for record in await one.messages("T")] == [b"binary"]


async def test_a_batch_gets_one_answer_with_all_ids(one: Wire) -> None:
    body = encode_batch([BatchItem(0, b"%d" % number, b"") for number in range(5)])
    answer = await one.ask(320, send_ext("T") | {"m": "true"}, body)
    assert (answer.code, len(answer.ext["msgId"].split(","))) == (0, 5)
    assert [record.queue_offset for record in await one.messages("T")] == list(range(5))


async def test_requests_of_one_read_are_one_entry(one: Wire) -> None:
    await one.send("T")
    before = json.loads((await one.ask(28)).body)["table"]["raftCommitIndex"]
    opaques = [one.send_request(310, send_ext("T"), b"%d" % number) for number in range(50)]
    for opaque in opaques:
        assert (await one.answer(opaque)).code == 0
    after = json.loads((await one.ask(28)).body)["table"]["raftCommitIndex"]
    assert int(after) - int(before) < 25


async def test_oneway_sends_are_stored_and_not_answered(one: Wire) -> None:
    opaque = one.send_request(310, send_ext("T"), b"silent", flag=2)
    assert [stored.body for stored in await one.coming("T")] == [b"silent"]
    assert not one.has_answer(opaque)


async def test_too_many_sends_are_told_to_come_later(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, limits=Limits(staged_messages_max=10))
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        opaques = [wire.send_request(310, send_ext("T"), b"x") for _ in range(100)]
        answers = [await wire.answer(opaque) for opaque in opaques]
        codes = {answer.code for answer in answers}
        assert codes == {0, 2}
        assert all(
            (a.remark or "").startswith("[OVERLOAD]system busy") for a in answers if a.code == 2
        )
        stored = sum(answer.code == 0 for answer in answers)
        assert leader.state.topic_put_totals("T")[0] == stored


async def test_a_restart_forgets_nothing(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mark is a record of a queue itself, and may fall due between the two looks.
    monkeypatch.setattr(DigestWatch, "mark", lambda _: None)
    cluster = await make_cluster(1)
    async with cluster.wire(await cluster.leader()) as wire:
        await wire.send("T", b"kept", 1)
        await wire.ask(
            15, {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "1"}
        )
    digest = (await cluster.leader()).state.digests()
    await cluster.stop("n0")
    await cluster.start("n0")
    leader = await cluster.leader()
    assert leader.state.digests() == digest
    async with cluster.wire(leader) as wire:
        assert [record.body for record in await wire.messages("T", 1)] == [b"kept"]
        offset = await wire.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": "1"})
        assert offset.ext == {"offset": "1"}


async def test_a_closed_connection_takes_its_consumer_along(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as stays:
        async with cluster.wire(leader) as goes:
            await stays.replay("cpp-heartbeat-consumer")
            body = json.dumps(
                {
                    "clientID": "other",
                    "consumerDataSet": [{"groupName": "GroupC", "subscriptionDataSet": []}],
                }
            )
            await goes.ask(34, {}, body.encode())
            pushed = await stays.push(40)
            assert pushed.ext == {"consumerGroup": "GroupC"}
            assert (
                len(decode_consumer_list((await stays.replay("cpp-get-consumer-list")).body)) == 2
            )
            await until_notified(cluster, 2, stays, group="GroupC")
        await stays.push(40)
        assert len(decode_consumer_list((await stays.replay("cpp-get-consumer-list")).body)) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00\x00\x00\x08\x02\x00\x00\x04abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04abcd",
        b"\x7f\xff\xff\xff\x00\x00\x00\x00",
    ],
    ids=["http", "tls", "unknown type", "no json", "huge"],
)
async def test_garbage_ends_its_connection_only(
    make_cluster: ClusterMaker, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as good, cluster.wire(leader) as bad:
        bad.connection.send_nowait(garbage + bytes(16))
        with trio.fail_after(ANSWER_S):
            while not bad.connection.is_closed:
                await bad.heard.wait()
        assert (await good.send("T")).code == 0
    lines = [r for r in caplog.records if "closed the connection" in r.getMessage()]
    assert len(lines) == 1


async def test_half_a_frame_disturbs_nobody(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as good, cluster.wire(leader) as slow:
        frame = recorded("cpp-send-message")
        slow.connection.send_nowait(frame[:100])
        assert (await good.send("T")).code == 0
        slow.connection.send_nowait(frame[100:])
        assert (await slow.answer(1)).code == 0


async def test_missing_and_wrong_fields_are_named(one: Wire) -> None:
    answer = await one.ask(310, {"a": "P"}, b"x")
    assert answer.code == 1
    assert "is missing" in (answer.remark or "")
    answer = await one.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": "many"})
    assert answer.code == 1
    assert "queueId" in (answer.remark or "")
    assert (await one.ask(34, {}, b"{")).code == 1


async def test_a_mistake_of_ours_ends_nothing_but_the_request(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await make_cluster(1)
    leader = await cluster.leader()

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(leader.state.topics, "get", fail)
    async with cluster.wire(leader) as victim:
        answer = await victim.ask(202, {"topic": "T"})
        assert answer.code == 1
        assert "internal error (KeyError), which this node has logged" in (answer.remark or "")
        monkeypatch.undo()
        monkeypatch.setattr(SendLane, "_answer", fail)
        monkeypatch.setattr(Sends, "_answer", fail)
        spoiled = await victim.send("T")  # which stands, and waited for that
        assert spoiled.code == 1
        assert "outcome unknown: internal error (KeyError)" in (spoiled.remark or "")
        monkeypatch.undo()
        assert (await victim.send("T")).code == 0
    assert any("internal error in a request of" in r.getMessage() for r in caplog.records)


async def test_what_was_stored_before_the_start_is_not_of_today(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor of the last seconds, though it is applied again then."""
    cluster = await make_cluster(1)
    async with cluster.wire(await cluster.leader()) as wire:
        for _ in range(20):
            assert (await wire.send("T")).code == 0
    await cluster.stop("n0")
    noted: dict[RateWindows, list[int]] = {}
    sample = RateWindows.sample

    def note(self: RateWindows, now_ms: int, count: int) -> None:
        noted.setdefault(self, []).append(count)
        sample(self, now_ms, count)

    monkeypatch.setattr(RateWindows, "sample", note)
    monkeypatch.setattr(runtime_info, "SAMPLE_MS", 0)
    await cluster.start("n0")
    async with cluster.wire(await cluster.leader()) as wire:
        assert (await wire.send("T")).code == 0
        table = json.loads((await wire.ask(28)).body)["table"]
        await cluster.wait(lambda: any(counts[-1] >= 21 for counts in noted.values()))
    today = int(table["msgPutTotalTodayNow"]) - int(table["msgPutTotalTodayMorning"])
    assert 1 <= today < 20 < int(table["msgPutTotalTodayNow"])
    assert max(counts[-1] - counts[0] for counts in noted.values()) < 20
