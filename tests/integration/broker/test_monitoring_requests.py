"""The pages and buttons of rocketmq-dashboard and the rounds of rocketmq-exporter, as the requests that they make.

Taken from their sources: of the dashboard (July 2026, on RocketMQ 5.3.3) its controllers and the services behind them,
of the exporter (June 2025) MetricsCollectTask and ClientMetricTaskRunnable. Each test goes the way of a page: it asks
the name server for what the page asks it, and then the brokers that the name server has named, and compares what the
page shows with what was sent.

Pages without requests: the switches of "Ops" and "Proxy" and the limits of "Monitor" are the dashboard's own, its
health checks return nothing, and its charts are drawn from what `DashboardCollectTask` has written to files. What the
pages of rights ask (3001 to 3010) belongs to the tests of access.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker.namesrv.config import NameServerConfig
from broker.namesrv.server import NameServer
from broker.server.broker import Broker
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_json
from tests.integration.broker.conftest import ANSWER_S, Cluster, ClusterMaker, Wire
from tests.integration.broker.test_tools import commit, subscribe

pytestmark = pytest.mark.usefixtures("patient", "long_minute")

CLUSTER, BROKER = "DefaultCluster", "broker-a"
TRACE = "RMQ_SYS_TRACE_TOPIC"
DEAD = "%DLQ%G"
SENT = 5
"""Messages in queue 0 of T, of which group G has consumed CONSUMED."""
CONSUMED = 2
LATE_MS = str(2**62)


class Tool:
    """What a monitoring tool asks: a name server, and the broker that it names; and a client that is watched."""

    def __init__(self, namesrv: Wire, broker: Wire, client: Wire) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.client = client
        self.stored: list[RemotingCommand] = []

    async def named(self, code: int, ext: dict[str, str] | None = None) -> Any:
        """Ask the name server."""
        return await _body(self.namesrv, code, ext)

    async def body_of(self, code: int, ext: dict[str, str] | None = None) -> Any:
        """Ask the broker."""
        return await _body(self.broker, code, ext)

    async def route(self, topic: str) -> None:
        """Look where a topic is, as is done before nearly everything: the answer names the broker with id 0."""
        (found,) = (await self.named(105, {"topic": topic}))["brokerDatas"]
        assert (found["cluster"], found["brokerName"]) == (CLUSTER, BROKER)
        assert found["brokerAddrs"]["0"]

    async def members(self, group: str) -> Any:
        """Who consumes in a group; the route is that of its retry topic."""
        return await self.body_of(203, {"consumerGroup": group})

    async def messages(self, topic: str, queue: int, first: int, count: int) -> list[StoredMessage]:
        """Pull as tools do: at once, under a group that is theirs, and without a subscription of it."""
        fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": str(queue)}
        fields |= {"queueOffset": str(first), "maxMsgNums": str(count), "sysFlag": "4"}
        fields |= {"commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0"}
        fields |= {"subscription": "*", "expressionType": "TAG"}
        answer = await self.broker.ask(11, fields)
        assert answer.code in (0, 19), answer.remark
        return decode_records(answer.body) if answer.code == 0 else []

    async def found(self, ext: dict[str, str]) -> list[StoredMessage]:
        """Query by key; `ext` has topic and key."""
        fields = {"maxNum": "64", "beginTimestamp": "0", "endTimestamp": LATE_MS}
        answer = await self.broker.ask(12, fields | ext)
        assert answer.code in (0, 22), answer.remark
        return decode_records(answer.body) if answer.code == 0 else []


async def _body(wire: Wire, code: int, ext: dict[str, str] | None) -> Any:
    answer = await wire.ask(code, ext, version=409)
    assert answer.code == 0, f"{code}: {answer.remark}"
    return read_json(answer.body) if answer.body else None


@asynccontextmanager
async def named_cluster(
    make_cluster: ClusterMaker, nodes: int
) -> AsyncIterator[tuple[Cluster, Wire]]:
    """A group that has registered with a name server, and a connection to that."""
    async with trio.open_nursery() as nursery:
        address = await nursery.start(NameServer(NameServerConfig(Address("127.0.0.1", 0))).run)
        cluster = await make_cluster(nodes, namesrvs=(address,), trace_topic=TRACE)
        wire = Wire(await connect(address, nursery, timeout_s=ANSWER_S))
        nursery.start_soon(wire.run)

        async def is_whole() -> bool:
            """All nodes are there, and the one that leads has number 0."""
            leader = await cluster.leader()
            addresses = await _registered(wire)
            return len(addresses) == nodes and addresses.get("0") == str(leader.service_address)

        await until(is_whole)
        yield cluster, wire
        wire.connection.close("the test is over")
        nursery.cancel_scope.cancel()


async def _registered(namesrv: Wire) -> dict[str, str]:
    table = (await _body(namesrv, 106, None))["brokerAddrTable"]
    addresses = table[BROKER]["brokerAddrs"] if table else {}
    return {str(broker_id): address for broker_id, address in addresses.items()}


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so: what a broker has told name servers makes no event here."""
    with trio.fail_after(ANSWER_S):
        while not await is_so():
            await trio.lowlevel.checkpoint()


async def fill(tool: Tool) -> None:
    """Messages in T, of which G has consumed some; a group H that nobody is in; a producer; a dead letter."""
    for name in ("G", "H"):
        group = json.dumps({"groupName": name, "retryMaxTimes": 3}).encode()
        assert (await tool.broker.ask(200, {}, group)).code == 0
    await subscribe(tool.client, "G", "T", "*", [])
    for number in range(SENT):
        named = f"KEYS\x01k\x02UNIQ_KEY\x01u{number}\x02"
        tool.stored.append(await tool.broker.send("T", b"body %d" % number, properties=named))
    consumed = await tool.client.messages("T", group="G")
    await commit(tool.client, "G", 0, CONSUMED)
    producer = {"clientID": "p1", "consumerDataSet": [], "producerDataSet": [{"groupName": "P"}]}
    assert (await tool.client.ask(34, {}, json.dumps(producer).encode())).code == 0
    await subscribe(tool.client, "G", "T", "*", [])
    back = {"offset": str(consumed[0].physical_offset), "group": "G", "originTopic": "T"}
    back |= {"unitMode": "false", "maxReconsumeTimes": "16", "delayLevel": "-1"}
    assert (await tool.client.ask(36, back)).code == 0


@pytest.fixture
async def tool(make_cluster: ClusterMaker) -> AsyncIterator[Tool]:
    async with named_cluster(make_cluster, 1) as (cluster, namesrv):
        leader: Broker = await cluster.leader()
        async with cluster.wire(leader) as broker, cluster.wire(leader) as client:
            made = Tool(namesrv, broker, client)
            await fill(made)

            async def knows_topics() -> bool:
                return {"T", DEAD} <= set((await made.named(206))["topicList"])

            await until(knows_topics)
            yield made


# The dashboard, page by page.


@pytest.mark.slow
async def test_the_page_of_the_cluster_and_its_charts(make_cluster: ClusterMaker) -> None:
    async with named_cluster(make_cluster, 3) as (cluster, namesrv):
        leader = await cluster.leader()
        async with cluster.wire(leader) as wire:
            for number in range(SENT):
                await wire.send("T", b"%d" % number)
        info = await _body(namesrv, 106, None)
        assert info["clusterAddrTable"] == {CLUSTER: [BROKER]}
        addresses = await _registered(namesrv)
        assert set(addresses.values()) == {str(b.service_address) for b in cluster.brokers.values()}
        assert addresses["0"] == str(leader.service_address)
        # Every node of the table is asked, on the connection of its own.
        for broker in cluster.brokers.values():
            async with cluster.wire(broker) as wire:
                shown = (await _body(wire, 28, None))["table"]
                # The chart of brokers is the mean of these three figures.
                assert len([float(text) for text in shown["getTotalTps"].split(" ")]) == 3
                put = int(shown["msgPutTotalTodayNow"]) - int(shown["msgPutTotalTodayMorning"])
                # The log's own records are messages, too.
                assert broker is not leader or put >= SENT
                # The button "Config".
                settings = (await wire.ask(26)).body.decode()
                for key in ("brokerName", "brokerRole", "brokerId", "brokerClusterName"):
                    assert f"\n{key}=" in f"\n{settings}", key


async def test_the_charts_of_topics(tool: Tool) -> None:
    topics = (await tool.named(206))["topicList"]
    assert "T" in topics
    await tool.named(106)  # the names of clusters and brokers are no topics to it
    await tool.route("T")
    groups = (await tool.body_of(300, {"topic": "T"}))["groupList"]
    assert groups == ["G"]
    put = await tool.body_of(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    assert (put["statsDay"]["sum"], put["statsMinute"]["tps"] > 0) == (SENT, True)
    got = await tool.body_of(315, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"})
    assert got["statsDay"]["sum"] == SENT


async def test_the_page_of_topics(tool: Tool) -> None:
    listed = (await tool.named(206))["topicList"]
    system = await tool.named(304)
    assert {"T", "%RETRY%G"} <= set(listed)
    assert "T" not in system["topicList"]
    if system.get("brokerAddr"):  # then it asks that broker, too
        assert "T" not in (await tool.body_of(305))["topicList"]
    kinds = (await tool.body_of(21))["topicConfigTable"]
    assert {"topicName", "readQueueNums", "writeQueueNums", "perm", "order"} <= kinds["T"].keys()
    # The button "Status".
    await tool.route("T")
    offsets = (await tool.body_of(202, {"topic": "T"}))["offsetTable"]
    by_queue = {queue.queue_id: row for queue, row in offsets.items()}
    assert {queue: row["maxOffset"] for queue, row in by_queue.items()} == {
        0: SENT,
        1: 0,
        2: 0,
        3: 0,
    }
    assert by_queue[0]["lastUpdateTimestamp"] > 0
    # "Router" is the route alone; "Consumer manage" asks for each group, and each of its clients.
    assert (await tool.body_of(300, {"topic": "T"}))["groupList"] == ["G"]
    await tool.route("%RETRY%G")
    await shows_progress(tool, {"consumerGroup": "G", "topic": "T"})
    # "Topic config", and its form.
    await tool.route("T")
    assert (await tool.body_of(351, {"topic": "T"}))["readQueueNums"] == 4
    form = {"topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2"}
    form |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert (await tool.broker.ask(17, form | {"attributes": "+message.type=FIFO"})).code == 0
    made = await tool.body_of(351, {"topic": "Made"})
    assert (made["writeQueueNums"], made["attributes"]) == (2, {"message.type": "FIFO"})
    # "Send message", and "Delete" at the broker and the name server.
    assert (await tool.broker.send("Made")).code == 0
    assert (await tool.broker.ask(215, {"topic": "Made"})).code == 0
    assert (await tool.namesrv.ask(216, {"topic": "Made"})).code == 0
    assert "Made" not in (await tool.body_of(21))["topicConfigTable"]


async def shows_progress(tool: Tool, ext: dict[str, str]) -> None:
    """How far a group is, with the client that has each queue: it is asked for its running info."""
    stats = await tool.body_of(208, ext)
    assert stats["consumeTps"] >= 0
    rows = {(queue.topic, queue.queue_id): row for queue, row in stats["offsetTable"].items()}
    row = rows["T", 0]
    assert (row["brokerOffset"], row["consumerOffset"]) == (SENT, CONSUMED)
    assert CONSUMED <= row["pullOffset"] <= SENT, "what the members hold is not less than nothing"
    assert 0 < row["lastTimestamp"] <= time.time() * 1000 + 60_000
    (member,) = (await tool.members("G"))["connectionSet"]
    fields = {"consumerGroup": "G", "clientId": member["clientId"], "jstackEnable": "false"}
    opaque = tool.broker.send_request(307, fields)
    info = b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"commitOffset":2}}}'
    tool.client.reply(await tool.client.push(307), info)
    assert (await tool.broker.answer(opaque)).body == info


async def test_the_page_of_consumer_groups(tool: Tool) -> None:
    await tool.named(106)
    table = (await tool.body_of(201))["subscriptionGroupTable"]
    wanted = {"groupName", "consumeEnable", "retryQueueNums", "retryMaxTimes", "brokerId"}
    assert {"G", "H"} <= table.keys()
    assert wanted <= table["G"].keys()
    # A row for each group; "Refresh" asks for one of them anew.
    await tool.route("%RETRY%G")
    stats = await tool.body_of(208, {"consumerGroup": "G"})
    lag = sum(
        row["brokerOffset"] - row["consumerOffset"]
        for queue, row in stats["offsetTable"].items()
        if queue.topic == "T"
    )
    assert lag == SENT - CONSUMED
    found = await tool.members("G")
    assert {"consumeFromWhere", "consumeType", "messageModel", "subscriptionTable"} <= found.keys()
    (member,) = found["connectionSet"]
    assert {"clientAddr", "clientId", "language", "version"} <= member.keys()
    nobody = await tool.broker.ask(203, {"consumerGroup": "H"})
    assert nobody.code == 206, "which it takes for a group that is not online"
    # "Consume detail"; "Client" is the list of members again, and its window the running info.
    await shows_progress(tool, {"consumerGroup": "G"})
    # "Config": its form, and "Delete", which takes the topics of the group along.
    changed = json.dumps({"groupName": "H", "retryMaxTimes": 7}).encode()
    assert (await tool.broker.ask(200, {}, changed)).code == 0
    assert (await tool.body_of(201))["subscriptionGroupTable"]["H"]["retryMaxTimes"] == 7
    assert (await tool.broker.ask(207, {"groupName": "H", "cleanOffset": "true"})).code == 0
    for topic in ("%RETRY%H", "%DLQ%H"):
        assert (await tool.broker.ask(215, {"topic": topic})).code == 0
        assert (await tool.namesrv.ask(216, {"topic": topic})).code == 0
    assert "H" not in (await tool.body_of(201))["subscriptionGroupTable"]


@pytest.mark.parametrize(("button", "time_ms", "place"), [("reset", "0", 0), ("skip", "-1", SENT)])
async def test_offsets_are_reset_and_skipped(
    tool: Tool, button: str, time_ms: str, place: int
) -> None:
    del button
    await tool.route("T")
    fields = {"topic": "T", "group": "G", "timestamp": time_ms, "isForce": "true"}
    table = (await tool.body_of(222, fields))["offsetTable"]
    assert {queue.queue_id: offset for queue, offset in table.items()} == {
        0: place,
        1: 0,
        2: 0,
        3: 0,
    }
    stats = await tool.body_of(208, {"consumerGroup": "G", "topic": "T"})
    places = {queue.queue_id: row["consumerOffset"] for queue, row in stats["offsetTable"].items()}
    assert places[0] == place


async def test_the_page_of_producers(tool: Tool) -> None:
    await tool.route("T")
    found = await tool.body_of(204, {"producerGroup": "P"})
    (producer,) = found["connectionSet"]
    assert producer["clientId"] == "p1"
    assert {"clientAddr", "language", "version"} <= producer.keys()


async def test_messages_by_topic_and_time_by_key_and_by_id(tool: Tool) -> None:
    await tool.route("T")
    now_ms = str(int(time.time() * 1000) + 60_000)
    spans = []
    for time_ms in ("0", now_ms):
        answer = await tool.broker.ask(29, {"topic": "T", "queueId": "0", "timestamp": time_ms})
        spans.append(int(answer.ext["offset"]))
    assert spans == [0, SENT]
    page = await tool.messages("T", 0, spans[0], 32)
    assert [message.body for message in page] == [b"body %d" % number for number in range(SENT)]
    assert await tool.messages("T", 0, SENT, 32) == []
    by_key = await tool.found({"topic": "T", "key": "k"})
    assert {message.body for message in by_key} == {message.body for message in page}
    by_id = await tool.found({"topic": "T", "key": "u3", "_UNIQUE_KEY_QUERY": "true"})
    assert [message.body for message in by_id] == [b"body 3"]
    # Who has consumed it: each group of the topic, if its members are there; then its place is compared.
    assert (await tool.body_of(300, {"topic": "T"}))["groupList"] == ["G"]
    assert (await tool.members("G"))["consumeType"] == "CONSUME_PASSIVELY"
    await tool.body_of(208, {"consumerGroup": "G"})
    # "Resend": a member handles it at once.
    (member,) = (await tool.members("G"))["connectionSet"]
    await consumes_directly(tool, member["clientId"], tool.stored[3].ext["msgId"], b"body 3")


async def consumes_directly(tool: Tool, client_id: str, msg_id: str, body: bytes) -> None:
    """309: the client gets the message with the question, and what it says comes back."""
    fields = {"consumerGroup": "G", "clientId": client_id, "msgId": msg_id, "brokerName": BROKER}
    opaque = tool.broker.send_request(309, fields)
    asked = await tool.client.push(309)
    assert body in asked.body
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":1}'
    tool.client.reply(asked, result)
    assert (await tool.broker.answer(opaque)).body == result


async def test_dead_letters(tool: Tool) -> None:
    none = await tool.namesrv.ask(105, {"topic": "%DLQ%H"})
    assert none.code == 17, "which the page takes for a group without dead letters"
    await tool.route(DEAD)
    (letter,) = await tool.messages(DEAD, 0, 0, 32)
    assert letter.body == b"body 0"
    # "Export" looks for it by its id, as the page of messages does, and "Resend" gives it to a member.
    found = await tool.found({"topic": DEAD, "key": "u0", "_UNIQUE_KEY_QUERY": "true"})
    assert [each.physical_offset for each in found] == [letter.physical_offset]
    offsets = (await tool.body_of(202, {"topic": DEAD}))["offsetTable"]
    assert sum(row["maxOffset"] for row in offsets.values()) == 1


async def test_the_trace_of_a_message(tool: Tool) -> None:
    record = b"Pub\x011700000000000\x01region\x01P\x01T\x01u3"
    assert (await tool.broker.send(TRACE, record, properties="KEYS\x01u3\x02")).code == 0
    await tool.route(TRACE)
    traced = await tool.found({"topic": TRACE, "key": "u3"})
    assert [each.body for each in traced] == [record]
    assert await tool.found({"topic": TRACE, "key": "u4"}) == []


# The exporter: a round each minute and quarter of one.


async def test_the_rounds_of_the_exporter(tool: Tool) -> None:
    info = await tool.named(106)
    assert info["clusterAddrTable"] == {CLUSTER: [BROKER]}
    for topic in ("T", DEAD):
        await tool.route(topic)
        table = (await tool.body_of(202, {"topic": topic}))["offsetTable"]
        assert sum(row["maxOffset"] for row in table.values()) == (SENT if topic == "T" else 1)
    (producer,) = (await tool.body_of(328))["data"]["P"]
    assert {"clientId", "remoteIP", "language", "version", "lastUpdateTimestamp"} <= producer.keys()
    await shows_progress(tool, {"consumerGroup": "G", "topic": "T"})
    # The age of what a group lacks is that of the message where it stands.
    (next_one,) = await tool.messages("T", 0, CONSUMED, 1)
    assert next_one.body == b"body %d" % CONSUMED
    figures = {
        ("TOPIC_PUT_NUMS", "T"): SENT,
        ("TOPIC_PUT_SIZE", "T"): sum(
            each.size_bytes for each in await tool.messages("T", 0, 0, 32)
        ),
        ("GROUP_GET_NUMS", "T@G"): SENT,
        ("BROKER_GET_NUMS", CLUSTER): None,
        ("BROKER_PUT_NUMS", CLUSTER): None,
    }
    for (name, key), wanted in figures.items():
        found = (await tool.body_of(315, {"statsName": name, "statsKey": key}))["statsMinute"]
        assert wanted is None or found["sum"] == wanted, name
        assert found["tps"] > 0
    unknown = await tool.broker.ask(315, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@G"})
    assert unknown.code == 1, "which it passes over"
    reads_as_the_exporter((await tool.body_of(28))["table"])


WHOLE_NUMBERS = (
    *("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
    *("msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize"),
    *("pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize"),
    *("queryThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize"),
    *("sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity"),
    *("queryThreadPoolQueueCapacity", "bootTimestamp", "commitLogMinOffset"),
    *("commitLogMaxOffset", "dispatchMaxBuffer", "brokerVersion", "pageCacheLockTimeMills"),
    *("getMessageEntireTimeMax", "putMessageEntireTimeMax", "putMessageTimesTotal"),
    *("startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp"),
    *("remainTransientStoreBufferNumbs", "dispatchBehindBytes", "putMessageSizeTotal"),
)
NUMBERS = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
RATES = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")


def reads_as_the_exporter(table: dict[str, str]) -> None:
    """Its BrokerRuntimeStats reads all of these, and shows nothing of a broker that lacks one."""
    for name in WHOLE_NUMBERS:
        int(table[name])
    for name in NUMBERS:
        float(table[name])
    for name in RATES:
        assert len([float(each) for each in table[name].split(" ")]) == 3
    room = table["commitLogDirCapacity"].split(" ")
    assert all(float(number) > 0 for number in (room[2], room[6]))
    assert all(unit[-2] == "B" for unit in (room[3], room[7]))
    number, unit = table["remainHowManyDataToFlush"].split(" ")
    assert float(number) >= 0
    assert unit[0] in "BKMGTPE"
    classes = [each.split(":") for each in table["putMessageDistributeTime"].split(" ")]
    assert len({name.strip("[]") for name, _ in classes}) == 13
    assert all(int(count) >= 0 for _, count in classes)
    for name, text in table.items():
        if name.startswith("scheduleMessageOffset"):
            at, end = map(int, text.split(","))
            assert 0 <= at <= end
    assert table["runtime"]
    assert table["brokerVersionDesc"]
