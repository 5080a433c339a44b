"""The requests of rocketmq-exporter and rocketmq-dashboard to a broker, and the members of the answers that they read.

Taken from their sources: the exporter's MetricsCollectTask and ClientMetricTaskRunnable, the dashboard's services for
topics, consumers, producers, messages and clusters. What is asked of name servers is tested with these, and the figures
of 28 and 315 where they are made.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger_mq.remoting.json_body import read_json
from tests.integration.broker.conftest import ClusterMaker, Wire
from tests.integration.broker.test_tools import commit, subscribe

QUEUE = {"brokerName", "queueId", "topic"}


class Bench:
    """A group with a member, its offsets, a producer, and messages in its topic."""

    def __init__(self, tool: Wire, client: Wire) -> None:
        self.tool = tool
        self.client = client
        self.msg_id = ""

    async def fill(self) -> None:
        for name in ("G", "H"):
            await self.tool.ask(200, {}, json.dumps({"groupName": name}).encode())
        await subscribe(self.client, "G", "T", "*", [])
        for number in range(3):
            sent = await self.tool.send("T", properties=f"KEYS\x01k\x02UNIQ_KEY\x01u{number}\x02")
        self.msg_id = sent.ext["msgId"]
        await commit(self.client, "G", 0, 1)
        producer = {
            "clientID": "p1",
            "consumerDataSet": [],
            "producerDataSet": [{"groupName": "P"}],
        }
        await self.tool.ask(34, {}, json.dumps(producer).encode())

    async def body(self, code: int, ext: dict[str, str] | None = None) -> Any:
        answer = await self.tool.ask(code, ext)
        assert answer.code == 0, answer.remark
        return read_json(answer.body)


@pytest.fixture
async def bench(make_cluster: ClusterMaker) -> AsyncIterator[Bench]:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as tool, cluster.wire(leader) as client:
        made = Bench(tool, client)
        await made.fill()
        yield made


async def test_figures_of_topics_and_groups(bench: Bench) -> None:
    topic = (await bench.body(202, {"topic": "T"}))["offsetTable"]
    assert {row["maxOffset"] for row in topic.values()} == {0, 3}
    assert all({"minOffset", "lastUpdateTimestamp"} <= row.keys() for row in topic.values())
    assert "G" in (await bench.body(300, {"topic": "T"}))["groupList"]
    stats = await bench.body(208, {"consumerGroup": "G", "topic": "T"})
    assert "consumeTps" in stats
    (row,) = [row for queue, row in stats["offsetTable"].items() if queue.queue_id == 0]
    assert (row["brokerOffset"], row["consumerOffset"]) == (3, 1)
    assert row["lastTimestamp"] > 0


async def test_who_is_connected(bench: Bench) -> None:
    found = await bench.body(203, {"consumerGroup": "G"})
    assert {"consumeFromWhere", "consumeType", "messageModel", "subscriptionTable"} <= found.keys()
    (connection,) = found["connectionSet"]
    assert {"clientAddr", "clientId", "language", "version"} <= connection.keys()
    nobody = await bench.tool.ask(203, {"consumerGroup": "H"})
    assert nobody.code == 206, "which both take for a group that is not online"
    (producer,) = (await bench.body(328))["data"]["P"]
    assert {"clientId", "remoteIP", "language", "version", "lastUpdateTimestamp"} <= producer.keys()
    found = await bench.body(204, {"producerGroup": "P"})
    assert [each["clientId"] for each in found["connectionSet"]] == ["p1"]


async def test_what_a_client_says_of_itself_comes_as_it_is(bench: Bench) -> None:
    fields = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "false"}
    opaque = bench.tool.send_request(307, fields)
    info = b'{"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"commitOffset":1}}}'
    bench.client.reply(await bench.client.push(307), info)
    assert (await bench.tool.answer(opaque)).body == info


async def test_the_exporter_looks_at_the_message_where_a_group_is(bench: Bench) -> None:
    fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": "0", "queueOffset": "1"}
    fields |= {"maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}
    fields |= {"suspendTimeoutMillis": "15000", "subVersion": "0", "expressionType": "TAG"}
    found = await bench.tool.ask(11, fields)
    assert (found.code, found.ext["nextBeginOffset"], found.ext["minOffset"]) == (0, "2", "0")


async def test_tables_and_settings(bench: Bench) -> None:
    groups = (await bench.body(201))["subscriptionGroupTable"]
    assert {"G", "H"} <= groups.keys()
    wanted = {"groupName", "consumeEnable", "retryQueueNums", "retryMaxTimes", "brokerId"}
    assert wanted <= groups["G"].keys()
    topics = (await bench.body(21))["topicConfigTable"]
    wanted = {"topicName", "readQueueNums", "writeQueueNums", "perm", "order"}
    assert wanted <= topics["T"].keys()
    settings = (await bench.tool.ask(26)).body.decode()
    for key in ("brokerName", "brokerRole", "brokerId", "brokerClusterName", "useTLS"):
        assert f"\n{key}=" in f"\n{settings}", key


async def test_messages_by_id_and_key(bench: Bench) -> None:
    offset = str(int(bench.msg_id[-16:], 16))
    assert (await bench.tool.ask(33, {"offset": offset})).code == 0
    fields = {"topic": "T", "key": "k", "maxNum": "64", "beginTimestamp": "0"}
    found = await bench.tool.ask(12, fields | {"endTimestamp": str(2**62)})
    assert (found.code, "indexLastUpdateTimestamp" in found.ext) == (0, True)


async def test_a_reset_in_the_dashboard(bench: Bench) -> None:
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    table = (await bench.body(222, fields))["offsetTable"]
    assert {queue.topic for queue in table} == {"T"}
    assert set(table.values()) == {0}
