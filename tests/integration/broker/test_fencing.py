"""Offset commits of a queue that another client has locked (15, and with pulls) in a group of three."""

from __future__ import annotations

import json

import pytest

from dledger_mq.remoting.group_bodies import decode_lock_reply
from dledger_mq.remoting.header import RemotingCommand
from tests.integration.broker.conftest import ClusterMaker, Wire
from tests.integration.broker.test_three_nodes import heartbeat, same_everywhere

pytestmark = pytest.mark.usefixtures("patient")

OFFSET = {"consumerGroup": "G", "topic": "T", "queueId": "0"}


async def lock(wire: Wire, client_id: str) -> int:
    """How many queues were granted."""
    body = {
        "clientId": client_id,
        "consumerGroup": "G",
        "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}],
    }
    return len(decode_lock_reply((await wire.ask(41, {}, json.dumps(body).encode())).body))


async def commit(wire: Wire, offset: int, **more: str) -> RemotingCommand:
    return await wire.ask(15, OFFSET | {"commitOffset": str(offset)} | more)


async def stored(wire: Wire) -> str:
    return (await wire.ask(14, OFFSET)).ext["offset"]


@pytest.mark.slow
async def test_p6_only_the_holder_commits_whatever_node_it_asks(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    follower, other = await cluster.followers()
    async with (
        cluster.wire(await cluster.leader()) as a,
        cluster.wire(follower) as b,
        cluster.wire(other) as unknown,
    ):
        for number in range(4):
            await a.send("T", b"%d" % number)
        assert (await a.ask(34, {}, heartbeat("a"))).code == 0
        assert (await b.ask(34, {}, heartbeat("b"))).code == 0
        assert (await commit(b, 1)).code == 0, "nobody has locked the queue"
        assert await lock(a, "a") == 1
        assert await lock(b, "b") == 0
        refused = await commit(b, 3)
        assert refused.code == 1
        assert "locked by a, not by b" in str(refused.remark)
        assert "who commits is not known" in str((await commit(unknown, 3)).remark)
        assert (await commit(unknown, 2, clientId="a")).code == 0
        assert (await commit(a, 3)).code == 0
        await b.ask(11, pull_with_commit(4))
        assert await stored(b) == "3"
        await a.ask(11, pull_with_commit(4))
        assert await stored(b) == "4"
    await cluster.wait(lambda: same_everywhere(cluster))


@pytest.mark.slow
async def test_p5_a_new_leader_knows_who_holds_a_queue(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    old = await cluster.leader()
    async with cluster.wire(old) as wire:
        await wire.send("T")
        assert await lock(wire, "a") == 1
        await cluster.wait(lambda: same_everywhere(cluster))
    await cluster.kill(str(old.log.node_id))
    async with cluster.wire(await cluster.leader()) as wire:
        assert await lock(wire, "b") == 0
        assert (await commit(wire, 1, clientId="b")).code == 1
        assert await lock(wire, "a") == 1
        assert (await commit(wire, 1)).code == 0, "known by its lock request"


def pull_with_commit(offset: int) -> dict[str, str]:
    return {
        **OFFSET,
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "5",
        "commitOffset": str(offset),
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
