"""A planned stop costs no request, seen with raw frames, whoever stops at the same time or led before."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from broker.server.broker import Broker
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire

pytestmark = pytest.mark.slow

FORWARD_S = 3
LONG_S = 30.0


async def keep_sending(wire: Wire, codes: list[int], *, until: trio.Event) -> None:
    """Send one message after the other; `codes` takes the answers' codes."""
    while not until.is_set():
        codes.append((await wire.send("T", b"x" * 100)).code)


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
        settled = len(codes)
        await cluster.wait(lambda: len(codes) > settled + 500)
        assert cluster.brokers["n2"].is_serving
        assert cluster.brokers["n2"].log.term <= term + 3
        done.set()
    assert set(codes) == {0}


async def test_who_led_in_an_earlier_life_passes_requests_on_when_it_stops(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, stop_forward_s=FORWARD_S)
    old = (await led_by(cluster, "n0")).log.node_id
    await cluster.kill(str(old))
    await cluster.leader()
    broker = await cluster.start(str(old))
    await cluster.followers()
    codes, done = list[int](), trio.Event()
    async with cluster.wire(broker) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(partial(keep_sending, wire, codes, until=done))
        await cluster.wait(lambda: len(codes) > 20)
        begun_s = trio.current_time()
        broker.stop()
        await trio.sleep(FORWARD_S - 1)
        assert not has_ended(cluster, str(old))
        done.set()
        await cluster.wait(lambda: has_ended(cluster, str(old)))
        assert trio.current_time() - begun_s < FORWARD_S + 3
    assert set(codes) == {0}
