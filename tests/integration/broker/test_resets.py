"""Resets of a group's offsets (222, and 15 as old tools use it), and clients that follow them or do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.server.handlers import resets
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_json
from dledger_mq.remoting.message_queue import WireQueue
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire
from tests.integration.broker.test_tools import commit, subscribe

pytestmark = pytest.mark.usefixtures("patient")

END = "-1"


class Bench:
    """Topic T, 4 queues; queue 0 has ten messages, of which the group G has consumed eight.

    Attributes:
        client: a member of G, whose commits are its own connection's.
        tool: a connection of nobody.
    """

    def __init__(self, tool: Wire, client: Wire) -> None:
        self.tool = tool
        self.client = client

    async def fill(self) -> None:
        group = json.dumps({"groupName": "G"}).encode()
        assert (await self.tool.ask(200, {}, group)).code == 0
        for _ in range(10):
            assert (await self.tool.send("T")).code == 0
        await commit(self.tool, "G", 0, 8)

    async def reset(self, time: str = "0", **more: str) -> RemotingCommand:
        fields = {"topic": "T", "group": "G", "timestamp": time, "isForce": "true"}
        return await self.tool.ask(222, fields | more)

    async def stored(self) -> dict[int, int]:
        table = read_json((await self.tool.ask(43)).body)
        assert isinstance(table, dict)
        offsets: Any = table["offsetTable"]
        found: dict[int, int] = offsets["T@G"]
        return found

    async def ask_offset(self) -> str:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        return (await self.client.ask(14, fields)).ext["offset"]

    async def pull(self, offset: int) -> RemotingCommand:
        return await self.client.pull("T", 0, offset)


@pytest.fixture
async def bench(make_cluster: ClusterMaker) -> AsyncIterator[Bench]:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as tool, cluster.wire(leader) as client:
        made = Bench(tool, client)
        await made.fill()
        yield made


def offsets_in(answer: RemotingCommand) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    body = read_json(answer.body)
    assert isinstance(body, dict)
    table: Any = body["offsetTable"]
    assert all(
        isinstance(queue, WireQueue) and (queue.topic, queue.broker_name) == ("T", "broker-a")
        for queue in table
    )
    return {queue.queue_id: offset for queue, offset in table.items()}


async def test_a_group_that_nobody_is_in_goes_to_a_time_or_to_the_end(bench: Bench) -> None:
    assert offsets_in(await bench.reset()) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await bench.stored() == {0: 0, 1: 0, 2: 0, 3: 0}
    assert offsets_in(await bench.reset(END))[0] == 10
    assert (await bench.stored())[0] == 10
    third = (await bench.tool.messages("T"))[3].store_timestamp_ms
    found = offsets_in(await bench.reset(str(third)))[0]
    assert found <= 3
    assert (await bench.stored())[0] == found


async def test_without_force_it_only_goes_back(bench: Bench) -> None:
    assert offsets_in(await bench.reset(END, isForce="false")) == {0: 8, 1: 0, 2: 0, 3: 0}
    assert offsets_in(await bench.reset("0", isForce="false"))[0] == 0


async def test_one_queue_goes_to_an_offset(bench: Bench) -> None:
    assert offsets_in(await bench.reset(queueId="0", offset="3")) == {0: 3}
    assert await bench.stored() == {0: 3}
    beyond = await bench.reset(queueId="0", offset="11")
    assert (beyond.code, beyond.remark) == (1, "Target offset 11 not in consume queue range [0-10]")
    assert (await bench.reset(queueId="4")).code == 1
    assert (await bench.reset(queueId="-7")).code == 1
    assert offsets_in(await bench.reset(END, queueId="0")) == {0: 10}


async def test_what_is_not_there_is_not_reset(bench: Bench) -> None:
    assert (await bench.reset(topic="Unknown")).code == 17
    assert (await bench.reset(group="nobody")).code == 26
    assert (await bench.reset("soon")).code == 1
    assert await bench.stored() == {0: 8}


async def test_a_search_in_many_queues_goes_on_from_tick_to_tick(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resets, "QUEUES_PER_STEP", 1)
    assert offsets_in(await bench.reset()) == {0: 0, 1: 0, 2: 0, 3: 0}
    monkeypatch.setattr(resets, "QUEUES_MAX", 3)
    assert (await bench.reset()).code == 1
    assert offsets_in(await bench.reset(queueId="2")) == {2: 0}


async def test_old_places_of_a_client_count_again_once_it_has_asked(bench: Bench) -> None:
    await subscribe(bench.client, "G", "T", "*", [])
    await bench.reset()
    await commit(bench.client, "G", 0, 9)
    assert (await bench.stored())[0] == 0
    assert await bench.ask_offset() == "0"
    await commit(bench.client, "G", 0, 4)
    assert (await bench.stored())[0] == 4


async def test_a_client_that_pulls_from_its_old_place_is_sent_back(bench: Bench) -> None:
    await subscribe(bench.client, "G", "T", "*", [])
    assert (await bench.pull(8)).code == 0
    await bench.reset(queueId="0", offset="2")
    moved = await bench.pull(10)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "2")
    await commit(bench.client, "G", 0, 9)
    assert (await bench.stored())[0] == 2, "it was told, and has not followed yet"
    assert (await bench.pull(2)).code == 0
    assert (await bench.pull(8)).code == 0
    await commit(bench.client, "G", 0, 9)
    assert (await bench.stored())[0] == 9


async def test_a_skip_takes_a_reader_of_a_backlog_along(bench: Bench) -> None:
    await subscribe(bench.client, "G", "T", "*", [])
    await bench.reset(END)
    moved = await bench.pull(3)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "10")


async def test_members_that_keep_their_own_offsets_are_left_alone(bench: Bench) -> None:
    await subscribe(bench.client, "G", "T", "*", [], model="BROADCASTING")
    await bench.reset()
    assert (await bench.pull(8)).code == 0


async def test_members_are_told_each_in_its_form(bench: Bench) -> None:
    await subscribe(bench.client, "G", "T", "*", [])
    await subscribe(bench.tool, "G", "T", "*", [], client_id="c2", language="CPP")
    await bench.reset(queueId="0", offset="2")
    java, cpp = await bench.client.push(220), await bench.tool.push(220)
    assert java.is_oneway
    assert java.ext == cpp.ext
    assert java.ext == {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    assert java.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
    rows = [{"brokerName": "broker-a", "offset": 2, "queueId": 0, "topic": "T"}]
    assert json.loads(cpp.body) == {"offsetTable": rows}


async def test_old_tools_take_a_group_back_that_nobody_is_in(bench: Bench) -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert (await bench.tool.ask(15, fields)).code == 0
    assert (await bench.stored())[0] == 8, "it has not looked where the group is"
    assert (await bench.tool.ask(208, {"consumerGroup": "G"})).code == 0
    assert (await bench.tool.ask(15, fields)).code == 0
    assert (await bench.stored())[0] == 3
    await subscribe(bench.client, "G", "T", "*", [])
    await commit(bench.client, "G", 0, 9)
    assert (await bench.stored())[0] == 3
    assert await bench.ask_offset() == "3"
    await commit(bench.client, "G", 0, 9)
    await bench.tool.ask(15, fields)
    assert (await bench.stored())[0] == 9, "somebody is in it"


async def test_consumers_do_not_take_back_a_group_that_they_left(bench: Bench) -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert (await bench.tool.ask(208, {"consumerGroup": "G"})).code == 0
    await bench.tool.ask(15, fields | {"clientId": "c9"})
    await bench.client.ask(15, fields)
    bench.tool.send_request(15, fields, flag=2)
    assert (await bench.stored())[0] == 8


# Members of other nodes.


class Nodes(Bench):
    """The same with three nodes: the client is connected to one that follows, the tool to the leader."""

    cluster: Cluster

    async def stored_after_transfer(self) -> int:
        """Where G stands in queue 0, as the next leader says."""
        await self.cluster.transfer()
        leader = await self.cluster.leader()
        async with self.cluster.wire(leader) as tool:
            return (await Bench(tool, self.client).stored())[0]


@pytest.fixture
async def nodes(make_cluster: ClusterMaker) -> AsyncIterator[Nodes]:
    cluster = await make_cluster(3)
    leader, follower = await cluster.leader(), (await cluster.followers())[0]
    async with cluster.wire(leader) as tool, cluster.wire(follower) as client:
        made = Nodes(tool, client)
        made.cluster = cluster
        await made.fill()
        await subscribe(client, "G", "T", "*", [])
        yield made


async def test_members_of_other_nodes_are_told_and_follow(nodes: Nodes) -> None:
    await nodes.reset(queueId="0", offset="2")
    told = await nodes.client.push(220)
    assert told.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
    await commit(nodes.client, "G", 0, 9)
    assert (await nodes.stored())[0] == 2
    assert await nodes.ask_offset() == "2"
    await commit(nodes.client, "G", 0, 9)
    assert (await nodes.stored())[0] == 9


async def test_who_pulls_at_a_follower_from_where_the_group_stands_follows_too(
    nodes: Nodes,
) -> None:
    await nodes.reset(queueId="0", offset="2")
    assert (await nodes.pull(2)).code == 0
    leader = await nodes.cluster.leader()
    table = leader.state.offsets.resets
    await nodes.cluster.wait(
        lambda: (found := table.get("G", "T", 0)) is not None and "c1" in found.admitted
    )
    await commit(nodes.client, "G", 0, 9)
    assert (await nodes.stored())[0] == 9


async def test_a_reset_holds_over_a_failover(nodes: Nodes) -> None:
    await nodes.reset(queueId="0", offset="2")
    assert await nodes.stored_after_transfer() == 2
    await commit(nodes.client, "G", 0, 9)
    assert await nodes.stored_after_transfer() == 2
    assert await nodes.ask_offset() == "2"
    assert await nodes.stored_after_transfer() == 2
    await commit(nodes.client, "G", 0, 9)
    assert await nodes.stored_after_transfer() == 9
