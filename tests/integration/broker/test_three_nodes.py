"""A group of three in one process: whatever node a client is connected to, it is served."""

from __future__ import annotations

import json

import pytest
import trio

from broker.server import broker as broker_module
from broker.server.broker import Broker
from broker.server.controller import BrokerController
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.group_bodies import decode_consumer_list, decode_lock_reply
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire, send_ext


def heartbeat(client_id: str, group: str = "G") -> bytes:
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()


async def until_notified(cluster: Cluster, count: int, *wires: Wire, group: str = "G") -> None:
    """Wait until every node knows so many members, and forget the notices: what comes later tells of something else."""

    def is_over() -> bool:
        nodes = [broker._controller.members for broker in cluster.brokers.values()]
        return all(
            len(node.exchange.union.members(group)) == count and not node._notice_ms
            for node in nodes
        )

    await cluster.wait(is_over)
    for wire in wires:
        await consumers(wire, group)  # comes after them over the same connection
        wire.pushed.clear()


async def consumers(wire: Wire, group: str = "G") -> list[str]:
    answer = await wire.ask(38, {"consumerGroup": group})
    return sorted(decode_consumer_list(answer.body)) if answer.code == 0 else []


def same_everywhere(cluster: Cluster) -> bool:
    applied = {broker.log.reader.applied_index for broker in cluster.brokers.values()}
    digests = {str(broker.state.digests()) for broker in cluster.brokers.values()}
    return len(applied) == len(digests) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_sends_to_any_node_reach_the_leader(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    for broker in await cluster.followers():
        async with cluster.wire(broker) as wire:
            answer = await wire.send("T", b"forwarded", 1)
            assert answer.code == 0, answer.remark
            assert set(answer.ext) >= {"msgId", "queueId", "queueOffset"}
    async with cluster.wire(await cluster.leader()) as wire:
        stored = await wire.messages("T", 1)
        assert [record.body for record in stored] == [b"forwarded"] * 2
        assert all(record.born_host[:4] == bytes((127, 0, 0, 1)) for record in stored)
    await cluster.wait(lambda: same_everywhere(cluster))


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_pull_at_a_follower_waits_for_what_comes(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    follower, _ = await cluster.followers()
    async with cluster.wire(await cluster.leader()) as leading, cluster.wire(follower) as following:
        await leading.send("T", b"0")
        await cluster.wait(lambda: "T" in follower.state.topics)
        beyond = await following.pull("T", 0, 2, suspend_ms=60_000)
        assert (beyond.code, beyond.ext["nextBeginOffset"]) == (21, "1"), "as the leader says"
        held = following.send_pull("T", 0, 1, suspend_ms=60_000)
        await leading.send("T", b"1")
        answer = await following.answer(held)
        assert [record.body for record in decode_records(answer.body)] == [b"1"]
        assert answer.ext["suggestWhichBrokerId"] == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_requests_that_only_the_leader_can_answer(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire:
        await wire.send("T")
        queue = {"topic": "T", "queueId": "0"}
        offset = {"consumerGroup": "G", **queue}
        assert (await wire.ask(30, queue)).ext == {"offset": "1"}
        assert (await wire.ask(15, offset | {"commitOffset": "1"})).code == 0
        assert (await wire.ask(14, offset)).ext == {"offset": "1"}
        lock = {
            "clientId": "c",
            "consumerGroup": "G",
            "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}],
        }
        assert len(decode_lock_reply((await wire.ask(41, {}, json.dumps(lock).encode())).body)) == 1
        topic = {"topic": "Made", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        assert (await wire.ask(17, topic)).code == 0
        key = {
            "topic": "T",
            "key": "none",
            "maxNum": "1",
            "beginTimestamp": "0",
            "endTimestamp": "9",
        }
        assert (await wire.ask(12, key)).code == 22


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_every_node_gives_the_same_member_list(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    one, two = await cluster.followers()
    async with (
        cluster.wire(leader) as at_leader,
        cluster.wire(one) as at_one,
        cluster.wire(two) as at_two,
    ):
        for wire, name in ((at_leader, "c0"), (at_one, "c1"), (at_two, "c2")):
            assert (await wire.ask(34, {}, heartbeat(name))).code == 0
            assert name in await consumers(wire), (
                "the list has the caller right after its heartbeat"
            )
        for wire in (at_leader, at_one, at_two):
            assert await consumers(wire) == ["c0", "c1", "c2"]
        for wire in (at_leader, at_one):
            assert (await wire.push(40)).ext == {"consumerGroup": "G"}
        await until_notified(cluster, 3, at_one)
        assert (await at_two.ask(35, {"clientID": "c2", "consumerGroup": "G"})).code == 0
        assert (await at_one.push(40)).ext == {"consumerGroup": "G"}
        assert await consumers(at_one) == ["c0", "c1"]
    assert "%RETRY%G" in leader.state.topics


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("leads", [True, False])
async def test_members_learn_at_once_that_one_of_them_died_whatever_node_they_are_connected_to(
    make_cluster: ClusterMaker, leads: bool
) -> None:
    """A process that is killed takes its leave of nobody: the end of its connection has to do."""
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    one, two = await cluster.followers()
    its_node = leader if leads else one
    async with (
        cluster.wire(leader) as at_leader,
        cluster.wire(one) as at_one,
        cluster.wire(two) as at_two,
    ):
        for wire, name in ((at_leader, "c0"), (at_one, "c1"), (at_two, "c2")):
            assert (await wire.ask(34, {}, heartbeat(name))).code == 0
        async with cluster.wire(its_node) as victim:
            assert (await victim.ask(34, {}, heartbeat("victim"))).code == 0
            await until_notified(cluster, 4, at_leader, at_one, at_two)
        for wire in (at_leader, at_one, at_two):
            assert (await wire.push(40)).ext == {"consumerGroup": "G"}
            assert await consumers(wire) == ["c0", "c1", "c2"]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_pull_at_a_follower_uses_the_subscription_of_the_group(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire:
        await wire.send("T", b"x")
        await wire.ask(34, {}, heartbeat("c1"))
        await cluster.wait(lambda: "T" in follower.state.topics)
        ext = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "3",
            "commitOffset": "0",
            "suspendTimeoutMillis": "60000",
            "subVersion": "1",
        }
        answer = await wire.ask(11, ext)
        assert (answer.code, len(decode_records(answer.body))) == (0, 1)


async def is_refused(broker: Broker) -> bool:
    address = broker.addresses[0]
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError:
        return True
    await stream.aclose()
    return False


@pytest.mark.slow
async def test_a_node_that_is_back_lets_clients_in_when_it_can_help_them(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await make_cluster(3)
    follower, other = await cluster.followers()
    name, last = str(follower.log.node_id), str(other.log.node_id)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        await wire.send("T")
    await cluster.kill(name)
    with monkeypatch.context() as patch:
        patch.setattr(broker_module, "USEFUL_WAIT_S", 30.0)  # the machine may be busy
        assert (await cluster.start(name)).log.leader_id == leader.log.node_id
    # Without a majority nobody leads; it lets them in after a while, to tell them.
    for node in (name, str(leader.log.node_id), last):
        await cluster.kill(node)
    wait, is_over = Broker._wait_until_useful, trio.Event()

    async def wait_on(broker: Broker, controller: BrokerController) -> None:
        await wait(broker, controller)
        await is_over.wait()

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(Broker, "_wait_until_useful", wait_on)
        nursery.start_soon(cluster.start, name)
        await cluster.wait(lambda: name in cluster.brokers)
        assert await is_refused(cluster.brokers[name])
        is_over.set()
    assert not await is_refused(cluster.brokers[name])
    assert cluster.brokers[name].log.leader_id is None


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_transfer_fails_no_send(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    acknowledged: list[bytes] = []

    async def produce(wire: Wire, done: trio.Event) -> None:
        for number in range(200):
            body = b"%d" % number
            answer = await wire.send("T", body)
            assert answer.code == 0, answer.remark
            acknowledged.append(body)
        done.set()

    async with cluster.wire(leader) as wire, trio.open_nursery() as nursery:
        done = trio.Event()
        nursery.start_soon(produce, wire, done)
        await cluster.wait(lambda: len(acknowledged) > 20)
        await cluster.transfer()
        await done.wait()
    new = await cluster.leader()
    assert new is not leader
    async with cluster.wire(new) as wire:
        stored: list[bytes] = []
        while len(stored) < 200:
            stored += [record.body for record in await wire.messages("T", 0, len(stored))]
    assert stored == acknowledged


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_an_orderly_stop_of_the_leader_fails_no_send(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    name = str(leader.log.node_id)
    async with cluster.wire(leader) as wire:
        await wire.send("T")
        opaques = [wire.send_request(310, send_ext("T"), b"%d" % number) for number in range(100)]
        await wire.answer(opaques[0])
        leader.stop()
        for opaque in opaques[1:]:
            answer = await wire.answer(opaque)
            assert answer.code == 0, answer.remark
        await cluster.stop(name)
    assert (await cluster.leader()) is not leader


@pytest.mark.slow
async def test_without_a_majority_the_reason_is_told(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    for broker in await cluster.followers():
        await cluster.kill(str(broker.log.node_id))
    await cluster.wait(lambda: not leader.is_serving)
    async with cluster.wire(leader) as wire:
        sent = wire.send_request(310, send_ext("T"), b"x")
        answer = await wire.answer(sent)
        assert answer.code == 14
        assert "no leader is known" in (answer.remark or "")
        assert f"in term {leader.log.term}" in (answer.remark or "")


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_clients_of_a_killed_leader_stay_listed_until_they_come_back(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    one, two = await cluster.followers()
    async with cluster.wire(one) as at_one, cluster.wire(two) as at_two:
        async with cluster.wire(leader) as at_leader:
            await at_leader.ask(34, {}, heartbeat("c0"))
            await at_one.ask(34, {}, heartbeat("c1"))
            await at_two.ask(34, {}, heartbeat("c2"))
            assert await consumers(at_one) == ["c0", "c1", "c2"]
            await cluster.wait(lambda: all(len(b.members("G")) == 3 for b in (one, two)))
            await cluster.kill(str(leader.log.node_id))
        await cluster.leader()
        assert await consumers(at_one) == ["c0", "c1", "c2"]
        assert await consumers(at_two) == ["c0", "c1", "c2"]


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_delayed_messages_survive_a_failover_and_come_once(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, delay_levels_ms=(1_500,))
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        for number in range(5):
            assert (await wire.send("T", b"%d" % number, 0, "DELAY\x011\x02")).code == 0
    await cluster.kill(str(leader.log.node_id))
    new = await cluster.leader()
    async with cluster.wire(new) as wire:
        got: list[bytes] = []
        while len(got) < 5:
            pulled = await wire.pull("T", 0, len(got), suspend_ms=5_000)
            got += [record.body for record in decode_records(pulled.body)]
        assert got == [b"%d" % number for number in range(5)]
        assert (await wire.pull("T", 0, 5)).code == 19
    assert new.state.refusals.alarm_count == 0


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_members_with_another_secret_cannot_pass_requests_on(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, secret="open sesame")
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire:
        assert (await wire.send("T")).code == 0
    async with cluster.wire(await cluster.leader()) as wire:
        ext = {"group": "broker-a", "node": str(follower.log.node_id), "proof": "0" * 64}
        assert (await wire.ask(50_100, ext)).code == 16
        assert (await wire.ask(50_101, {"address": "1.2.3.4:5"}, b"")).code == 16


@pytest.mark.slow
async def test_a_node_that_starts_from_a_snapshot_skips_no_message_before_it_hears_of_a_leader(
    make_cluster: ClusterMaker,
) -> None:
    """Clients come back to a restarted node within milliseconds, with the offset that they had."""
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    node = leader.config.node_id
    async with cluster.wire(leader) as wire:
        for number in range(5):
            await wire.send("T", b"%d" % number)
        assert len(await wire.messages("T")) == 5  # the group is made
    assert leader.log.reader.snapshotter is not None
    assert await leader.log.reader.snapshotter.take()
    for each in list(cluster.brokers):
        await cluster.kill(each)
    alone = await cluster.start(node)
    assert alone.log.leader_id is None
    async with cluster.wire(alone) as wire:
        answer = await wire.pull("T", offset=1)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1"), "ask the leader"
        stored = await wire.messages("T", offset=1)  # who comes back knows of no other node
    assert [record.body for record in stored] == [b"1", b"2", b"3", b"4"]
