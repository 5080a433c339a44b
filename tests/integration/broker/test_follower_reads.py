"""Backlogs are read from followers, which read what the leader would; a consumer that has caught up is back there."""

from __future__ import annotations

import pytest
import trio

from broker.server import stopping
from broker.server.broker import Broker
from broker.store.reading import GetLimits
from dledger_mq.message.record import decode_records
from tests.integration.broker.conftest import ANSWER_S, Cluster, ClusterMaker

SPAN_BYTES = 20_000
BODY = b"x" * 1000
COUNT = 60


async def make_backlog(make_cluster: ClusterMaker) -> Cluster:
    cluster = await make_cluster(3, reads=GetLimits(memory_span_bytes=SPAN_BYTES))
    async with cluster.wire(await cluster.leader()) as wire:
        for number in range(COUNT):
            answer = await wire.send("T", b"%d " % number + BODY)
            assert answer.code == 0, answer.remark
    return cluster


def by_broker_id(cluster: Cluster, broker_id: int, leader: Broker) -> Broker:
    """The broker of an id in the route."""
    if broker_id == 0:
        return leader
    return next(
        broker
        for broker in cluster.brokers.values()
        if broker.config.broker_id_as_follower == broker_id
    )


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_consumer_that_follows_the_suggestions_gets_every_message_in_order(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_backlog(make_cluster)
    leader, followers = await cluster.leader(), await cluster.followers()

    def have_all() -> bool:
        """Who lacks something is suggested to nobody."""
        end = leader.log.reader.applied_index
        return all(each.log.reader.applied_index >= end for each in followers)

    await cluster.wait(have_all)
    offset, broker_id, bodies = 0, 0, list[bytes]()
    asked: list[int] = []
    with trio.fail_after(ANSWER_S):
        while offset < COUNT or asked[-1] != 0:
            async with cluster.wire(by_broker_id(cluster, broker_id, leader)) as wire:
                answer = await wire.pull("T", offset=offset)
            asked.append(broker_id)
            if answer.code == 0:
                bodies += [record.body for record in decode_records(answer.body)]
            offset = int(answer.ext["nextBeginOffset"])
            broker_id = int(answer.ext["suggestWhichBrokerId"])
            if asked == [0] and broker_id == 0:  # its followers have yet to report
                offset, asked, bodies = 0, [], []
    assert bodies == [b"%d " % number + BODY for number in range(COUNT)]
    assert asked[0] == asked[-1] == 0
    served = asked[1:-1]
    assert len(set(served) - {0}) == 1, "one queue has one follower"
    assert len([each for each in served if each]) > len(served) // 2, asked


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_topic_that_was_deleted_and_made_again_is_the_new_one_at_once(
    make_cluster: ClusterMaker,
) -> None:
    """The deletion is acknowledged when the leader has applied it; a follower may do that later."""
    cluster = await make_backlog(make_cluster)
    leader = await cluster.leader()
    follower, other = await cluster.followers()
    made = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    async with (
        cluster.wire(leader) as leading,
        cluster.wire(follower) as one,
        cluster.wire(other) as two,
    ):
        for number in range(20):
            body = b"new %d" % number
            assert (await leading.ask(215, {"topic": "T"})).code == 0
            assert (await leading.ask(17, made)).code == 0
            assert (await leading.send("T", body)).code == 0
            for wire in (one, two):
                assert [record.body for record in await wire.messages("T")] == [body]


@pytest.mark.slow
async def test_a_follower_without_a_leader_sends_its_reader_away_and_serves_who_comes_back(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_backlog(make_cluster)
    leader = await cluster.leader()
    follower, other = await cluster.followers()
    await cluster.wait(lambda: follower.log.reader.applied_index == leader.log.reader.applied_index)
    await cluster.kill(leader.config.node_id)
    await cluster.kill(other.config.node_id)
    await cluster.wait(lambda: follower.log.leader_id is None)
    async with cluster.wire(follower) as wire:
        for offset in (0, COUNT + 5):
            queue_id = int(offset > 0)
            answer = await wire.pull("T", queue_id, offset)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (19, str(offset))
            assert answer.ext["suggestWhichBrokerId"] == "0"
        assert len(await wire.messages("T")) > 1
        beyond = await wire.pull("T", 1, COUNT + 5)
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (19, str(COUNT + 5))
        # With a leader it is as before.
        await cluster.start(other.config.node_id)
        await cluster.leader()
        beyond = await wire.pull("T", 1, COUNT + 5)
        while beyond.code == 19:  # until this node knows the leader
            beyond = await wire.pull("T", 1, COUNT + 5)
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (21, "0")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_an_offset_that_a_pull_at_a_follower_carries_is_committed(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_backlog(make_cluster)
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire:
        ext = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "7",
            "maxMsgNums": "1",
            "sysFlag": "5",
            "commitOffset": "7",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        assert (await wire.ask(11, ext)).code == 0
        place = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        with trio.fail_after(ANSWER_S):
            while (await wire.ask(14, place)).ext.get("offset") != "7":
                pass


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("leads", [True, False])
async def test_a_pull_that_waits_at_a_node_that_stops_is_answered(
    make_cluster: ClusterMaker, leads: bool
) -> None:
    """Java 4.9 and C++ wait 30 s for the answer to a pull whose connection has ended."""
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    node = leader if leads else (await cluster.followers())[0]
    async with cluster.wire(leader) as wire:
        await wire.send("T")
    async with cluster.wire(node) as wire:
        await wire.pull("T")
        held = wire.send_pull("T", 0, 1, suspend_ms=60_000)
        await wire.pull("T", 1, 0)  # answered after the one before is held
        assert not wire.has_answer(held)
        await cluster.stop(node.config.node_id)
        answer = await wire.answer(held)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")
    assert answer.ext["suggestWhichBrokerId"] == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_the_reader_of_a_follower_that_stops_is_back_at_the_leader_before_its_end(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "READERS_S", ANSWER_S)
    cluster = await make_backlog(make_cluster)
    leader = await cluster.leader()
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire, trio.open_nursery() as nursery:
        own = str(follower.config.broker_id_as_follower)
        assert (await wire.pull("T")).ext["suggestWhichBrokerId"] == own
        nursery.start_soon(cluster.stop, follower.config.node_id)
        with trio.fail_after(ANSWER_S):
            answer = await wire.pull("T")
            while answer.ext["suggestWhichBrokerId"] != "0":
                answer = await wire.pull("T")
        assert answer.code == 0
        follower.stop()  # a second wish: nobody else is waited for
        async with cluster.wire(leader) as leading:
            for _ in range(20):  # nor does the leader send it there again
                assert (await leading.pull("T")).ext["suggestWhichBrokerId"] != own
