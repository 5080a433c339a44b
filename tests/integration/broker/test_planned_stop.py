"""A planned stop costs no request, seen with raw frames, whoever stops at the same time or led before."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio

from broker.server.broker import Broker
from dledger_mq.message.numbers import QueueId
from tests.integration.broker.conftest import ANSWER_S, Cluster, ClusterMaker, Wire, send_ext
from tests.integration.broker.test_three_nodes import heartbeat

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]

LONG_S = 4 * ANSWER_S
"""No test lasts so long: a stop that is to end before is wanted a second time."""


async def keep_sending(wire: Wire, codes: list[int], *, until: trio.Event) -> None:
    """Send one message after the other; `codes` takes the answers' codes."""
    while not until.is_set():
        codes.append((await wire.send("T", b"x" * 100)).code)


def topic_ext(name: str) -> dict[str, str]:
    return {"topic": name, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}


def has_ended(cluster: Cluster, node: str) -> bool:
    return cluster._ended[node].is_set()


async def led_by(cluster: Cluster, node: str) -> Broker:
    await cluster.transfer(node)
    broker = cluster.brokers[node]
    await cluster.wait(lambda: broker.is_serving)
    await cluster.followers()
    return broker


async def test_two_that_stop_at_the_same_time_leave_the_lead_to_the_third(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, stop_forward_s=LONG_S)
    first, second = await led_by(cluster, "n0"), cluster.brokers["n1"]
    term, codes, done = first.log.term, list[int](), trio.Event()
    async with (
        cluster.wire(first) as one,
        cluster.wire(second) as two,
        trio.open_nursery() as nursery,
    ):
        for wire in (one, two):
            nursery.start_soon(partial(keep_sending, wire, codes, until=done))
        await cluster.wait(lambda: len(codes) > 20)
        second.stop()
        first.stop()
        await cluster.wait(lambda: cluster.brokers["n2"].is_serving)
        # Many sends later, or long after that on a machine whose disk is slow.
        settled, until_s = len(codes), trio.current_time() + ANSWER_S / 2
        await cluster.wait(
            lambda: (
                len(codes) > settled + 500
                or (len(codes) > settled + 10 and trio.current_time() > until_s)
            ),
            timeout_s=LONG_S / 2,
        )
        assert cluster.brokers["n2"].is_serving
        assert cluster.brokers["n2"].log.term <= term + 3
        done.set()
    assert set(codes) == {0}


async def test_who_led_in_an_earlier_life_passes_requests_on_when_it_stops(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, stop_forward_s=LONG_S)
    old = (await led_by(cluster, "n0")).log.node_id
    await cluster.kill(str(old))
    await cluster.leader()
    broker = await cluster.start(str(old))
    await cluster.followers()
    codes, done = list[int](), trio.Event()
    async with cluster.wire(broker) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(partial(keep_sending, wire, codes, until=done))
        await cluster.wait(lambda: len(codes) > 20)
        broker.stop()
        begun = len(codes)
        await cluster.wait(lambda: len(codes) > begun + 50)
        assert not has_ended(cluster, str(old))
        done.set()
        broker.stop()
        await cluster.wait(lambda: has_ended(cluster, str(old)))
    assert set(codes) == {0}


@pytest.mark.parametrize("earlier", ["n1", "n2"], ids=["link kept", "new link"])
async def test_a_new_leader_that_has_not_heard_of_a_client_takes_its_offsets(
    make_cluster: ClusterMaker, earlier: str
) -> None:
    cluster = await make_cluster(3)
    await led_by(cluster, earlier)
    old = await led_by(cluster, "n0")
    queue = {"topic": "T", "queueId": "0"}
    lock = {"clientId": "c", "consumerGroup": "G", "mqSet": [{"brokerName": "broker-a", **queue}]}
    async with cluster.wire(old) as wire, cluster.wire(old) as reader:
        assert (await wire.send("T")).code == 0
        assert (await wire.ask(34, body=heartbeat("c"))).code == 0
        assert (await wire.ask(41, body=json.dumps(lock).encode())).code == 0
        answers, done = list[tuple[int, str]](), trio.Event()

        async def keep_committing() -> None:
            offset = {"consumerGroup": "G", **queue}
            while not done.is_set():
                answer = await wire.ask(15, offset | {"commitOffset": "1"})
                answers.append((answer.code, answer.remark))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_committing)
            # As if the news of the client were still on its way when the lead moves.
            for node in ("n1", "n2"):
                cluster.brokers[node]._controller.members.exchange.union.replace({}, 0)
            await cluster.transfer("n1")
            await cluster.wait(lambda: cluster.brokers["n1"].is_serving)
            begun = len(answers)
            await cluster.wait(lambda: len(answers) > begun + 20)
            done.set()
        assert [(code, text) for code, text in answers if code] == []
        answer = await reader.ask(14, {"consumerGroup": "G", **queue})
        assert answer.ext == {"offset": "1"}


async def test_requests_of_every_kind_in_flight_at_a_stop_are_answered(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, stop_forward_s=LONG_S)
    old = await led_by(cluster, "n0")
    queue = {"topic": "T", "queueId": "0"}
    offset = {"consumerGroup": "G", **queue}
    lock = {"clientId": "c", "consumerGroup": "G", "mqSet": [{"brokerName": "broker-a", **queue}]}
    async with cluster.wire(old) as wire:
        assert (await wire.send("T")).code == 0
        # Who holds the lock has to be known before its offsets are taken.
        assert (await wire.ask(34, body=heartbeat("c"))).code == 0
        assert (await wire.ask(41, body=json.dumps(lock).encode())).code == 0
        asked: dict[int, str] = {}
        stored = 1

        def ask_all() -> None:
            for _ in range(20):
                asked[wire.send_request(310, send_ext("T"), b"x" * 1000)] = "send"
            asked[wire.send_request(34, body=heartbeat("c"))] = "heartbeat"
            asked[wire.send_request(41, body=json.dumps(lock).encode())] = "lock"
            asked[wire.send_request(15, offset | {"commitOffset": "1"})] = "offset"
            asked[wire.send_request(30, queue)] = "max offset"
            asked[wire.send_request(17, topic_ext(f"T{len(asked)}"))] = "topic"
            wire.send_request(310, send_ext("T"), b"oneway", flag=2)

        for round_ in range(40):
            ask_all()
            stored += 21
            if round_ == 5:
                old.stop()
            await trio.sleep(0.02)
        answers = [(kind, await wire.answer(opaque)) for opaque, kind in asked.items()]
        refused = [(kind, answer.code, answer.remark) for kind, answer in answers if answer.code]
        assert refused == []
        assert not has_ended(cluster, "n0")
        new = await cluster.leader()
        assert new is not old
    # The last one-way send has no answer, and may come after all that have one.
    await cluster.wait(lambda: new.state.queues.min_max("T", QueueId(0))[1] >= stored)
    async with cluster.wire(new) as wire:
        assert (await wire.ask(30, queue)).ext == {"offset": str(stored)}
    old.stop()
    await cluster.wait(lambda: has_ended(cluster, "n0"))


async def test_a_client_that_connects_during_a_stop_is_served_and_the_second_wish_ends_it(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, stop_forward_s=LONG_S)
    old = await led_by(cluster, "n0")
    async with cluster.wire(old) as first:
        assert (await first.send("T")).code == 0
        old.stop()
        await cluster.wait(lambda: not old.log.is_leader)
        async with cluster.wire(old) as late:
            assert (await late.send("T")).code == 0
            held = late.send_pull("T", 0, 2, suspend_ms=20_000)
            await cluster.wait(lambda: old._controller.services.pulls.held_count == 1)
            old.stop()
            assert (await late.answer(held)).code in (19, 20)
    await cluster.wait(lambda: has_ended(cluster, "n0"))
