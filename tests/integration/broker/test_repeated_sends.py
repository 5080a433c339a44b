"""Retries after a failover, or through another node, find what was stored (docs/adr/0150; unlike C22)."""

from __future__ import annotations

import pytest

from broker.server.broker import Broker
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.properties import encode_properties
from dledger_mq.remoting.header import RemotingCommand
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire, send_ext
from tests.integration.broker.test_three_nodes import same_everywhere

pytestmark = pytest.mark.usefixtures("patient")

KEY = "UNIQ_KEY\x010000000000000000000000000000000A\x02"


async def send(wire: Wire, *, born: int, body: bytes = b"x", keys: str = KEY) -> RemotingCommand:
    return await wire.ask(310, send_ext("T", 1, keys) | {"g": str(born)}, body)


async def send_batch(wire: Wire, *, born: int) -> RemotingCommand:
    items = [BatchItem(0, b"%d" % n, encode_properties({"UNIQ_KEY": f"{n:032X}"})) for n in (1, 2)]
    ext = send_ext("T", 2) | {"g": str(born), "m": "true"}
    return await wire.ask(320, ext, encode_batch(items))


async def stored(cluster: Cluster, broker: Broker) -> list[int]:
    await cluster.wait(lambda: same_everywhere(cluster))
    return [broker.state.queues.min_max("T", queue)[1] for queue in range(4)]


@pytest.mark.slow
async def test_a_new_leader_recognises_single_and_batch_sends(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    old = await cluster.leader()
    async with cluster.wire(old) as wire:
        answers = [await send(wire, born=1), await send_batch(wire, born=1)]
        await cluster.wait(lambda: same_everywhere(cluster))
    await cluster.kill(str(old.log.node_id))
    leader = await cluster.leader()
    (follower,) = await cluster.followers()
    async with cluster.wire(leader) as wire, cluster.wire(follower) as other:
        again = [await send(wire, born=2), await send_batch(other, born=2)]
        assert [a.ext["msgId"] for a in again] == [a.ext["msgId"] for a in answers]
        assert [a.ext["queueOffset"] for a in again] == ["0", "0"]
        on_purpose = await send(other, born=3)
        assert on_purpose.ext["queueOffset"] == "1", "the repeat was answered"
    assert await stored(cluster, leader) == [0, 2, 2, 0]


@pytest.mark.slow
async def test_a_retry_through_another_node_finds_what_a_dead_one_passed_on(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    dying, other = await cluster.followers()
    async with cluster.wire(dying) as wire:
        first = await send(wire, born=1)
    links = len(leader._origins)
    await cluster.kill(str(dying.log.node_id))
    await cluster.wait(lambda: len(leader._origins) < links)
    async with cluster.wire(other) as wire:
        again = await send(wire, born=2)
        assert again.ext["msgId"] == first.ext["msgId"]
        assert (await send(wire, born=3)).ext["queueOffset"] == "1", "now it was told: on purpose"
    assert await stored(cluster, leader) == [0, 2, 0, 0]


@pytest.mark.slow
async def test_an_answer_for_a_client_that_is_gone_is_no_confirmation(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    follower, other = await cluster.followers()
    async with cluster.wire(leader) as direct, cluster.wire(other) as wire:
        assert (await direct.send("T", queue=1)).code == 0
        gatherers = leader.log.appender.gatherers
        held = gatherers.copy()
        gatherers.clear()
        async with cluster.wire(follower) as gone:
            gone.send_request(310, send_ext("T", 1, KEY) | {"g": "1"}, b"x")
            await cluster.wait(lambda: leader._controller.commits.staging.staged_count == 1)
        gatherers += held
        leader._controller.commits.flush()
        await cluster.wait(lambda: leader.state.queues.min_max("T", 1)[1] == 2)
        repeats = leader._controller.services.repeats
        assert repeats is not None
        await cluster.wait(lambda: bool(repeats._unanswered))
        assert (await send(wire, born=2)).ext["queueOffset"] == "1"
    assert await stored(cluster, leader) == [0, 2, 0, 0]


@pytest.mark.slow
async def test_the_switch_off_stores_every_send(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, recognise_repeats=False)
    async with cluster.wire(await cluster.leader()) as wire:
        offsets = [(await send(wire, born=1)).ext["queueOffset"] for _ in range(2)]
    assert offsets == ["0", "1"]
