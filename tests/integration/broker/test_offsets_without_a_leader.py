"""Asked at any node, an offset is the latest committed one or no number at all; so are the bounds of queues."""

from __future__ import annotations

from typing import Any

import pytest

from broker.service.asking_again import OFFSET_UNKNOWN
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.remoting.group_bodies import decode_consumer_list
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire, send_ext

PLACE = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
JAVA_5 = {"language": "JAVA", "version": 479}
JAVA_4 = {"language": "JAVA", "version": 409}
CPP = {"language": "CPP", "version": 63}
NODE = {"language": "JAVA", "version": 121}
GO = {"language": "GO", "version": 317}

NUMBERS: list[tuple[int, dict[str, str]]] = [
    (29, {"topic": "T", "queueId": "0", "timestamp": "1"}),
    (30, {"topic": "T", "queueId": "0"}),
    (31, {"topic": "T", "queueId": "0"}),
    (32, {"topic": "T", "queueId": "0"}),
    (43, {}),
    (202, {"topic": "T"}),
    (208, {"consumerGroup": "G", "topic": "T"}),
]
"""Everything else that tells offsets."""


async def group_of_200(make_cluster: ClusterMaker) -> Cluster:
    cluster = await make_cluster(3)
    async with cluster.wire(await cluster.leader()) as wire:
        batch = encode_batch(
            BatchItem(0, b"x", b"UNIQ_KEY\x01%d\x02" % number) for number in range(200)
        )
        assert (await wire.ask(320, {**send_ext("T"), "m": "true"}, batch)).code == 0
        assert (await wire.ask(15, {**PLACE, "commitOffset": "200"})).code == 0
    return cluster


async def offset(wire: Wire, **client: Any) -> tuple[int, str | None]:
    answer = await wire.ask(14, PLACE, **client)
    return answer.code, answer.ext.get("offset")


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_node_without_a_leader_tells_no_number(
    make_cluster: ClusterMaker, restarted: bool
) -> None:
    """Restarted it has applied nothing; left alone it has applied what may be old."""
    cluster = await group_of_200(make_cluster)
    lone = str((await cluster.leader()).log.node_id)
    for peer in cluster.peers:
        if restarted or str(peer.node_id) != lone:
            await cluster.kill(str(peer.node_id))
    broker = await cluster.start(lone) if restarted else cluster.brokers[lone]
    await cluster.wait(lambda: not broker.is_serving)
    async with cluster.wire(broker) as wire:
        asked = {
            name: wire.send_request(14, PLACE, **client)
            for name, client in {"java 5": JAVA_5, "java 4": JAVA_4, "c++": CPP, "node": NODE, "go": GO}.items()
        }  # fmt: skip
        no_zero = {**PLACE, "setZeroIfNotFound": "false"}
        asked |= {
            f"{name}, no zero": wire.send_request(14, no_zero, **client)
            for name, client in {"java 5": JAVA_5, "c++": CPP}.items()
        }
        listed = wire.send_request(38, {"consumerGroup": "G"}, **NODE)
        others = [wire.send_request(code, ext, **JAVA_4) for code, ext in NUMBERS]
        told = {name: await wire.answer(opaque) for name, opaque in asked.items()}
        assert {name: (answer.code, answer.ext) for name, answer in told.items()} == {
            "java 5": (14, {}),
            "java 4": (14, {}),
            "c++": (0, {"offset": str(OFFSET_UNKNOWN)}),
            "node": (0, {"offset": str(OFFSET_UNKNOWN)}),
            "go": (14, {}),
            "java 5, no zero": (14, {}),
            "c++, no zero": (0, {"offset": str(OFFSET_UNKNOWN)}),
        }
        assert all("no leader is known" in (answer.remark or "") for answer in told.values())
        assert decode_consumer_list((await wire.answer(listed)).body) == []
        assert [(await wire.answer(opaque)).code for opaque in others] == [14] * len(NUMBERS)
    for peer in cluster.peers:
        if str(peer.node_id) not in cluster.brokers:
            await cluster.start(str(peer.node_id))
    await cluster.leader()
    async with cluster.wire(broker) as wire:
        while (found := await offset(wire, **CPP)) == (0, str(OFFSET_UNKNOWN)):
            pass  # until this node knows the leader
        assert found == (0, "200")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_question_is_held_until_there_is_a_leader(make_cluster: ClusterMaker) -> None:
    cluster = await group_of_200(make_cluster)
    leader = await cluster.leader()
    follower = (await cluster.followers())[0]
    async with cluster.wire(follower) as wire:
        await cluster.kill(str(leader.log.node_id))
        assert await offset(wire, **CPP) == (0, "200")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_every_node_tells_what_the_leader_knows(make_cluster: ClusterMaker) -> None:
    cluster = await group_of_200(make_cluster)
    followers = await cluster.followers()
    assert len(followers) == 2
    for broker in followers:
        async with cluster.wire(broker) as wire:
            assert await offset(wire, **JAVA_4) == (0, "200")
            answers = [await wire.ask(code, ext, **JAVA_4) for code, ext in NUMBERS]
            assert [answer.code for answer in answers] == [0] * len(NUMBERS)
            assert [answer.ext["offset"] for answer in answers[:3]] == ["0", "200", "0"]
            assert b'"0":200' in answers[4].body.replace(b"0:200", b'"0":200')
