"""Members of a simulated group that stand still find what came in their sockets, as processes do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.raft.effects import Role
from dledger.raft.events import Event, Received
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import VoteRequest
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_draws import draw_settings, purpose_of
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_purposes import Purpose
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_shrink import override
from dledger.testing.simulation import SimVerdict, run_settings

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
pytestmark = pytest.mark.slow

SETTLED_MS = 5000
SEEDS = range(1, 9)
STEADY_SEED = 24
"""Drawn for a run in which a second leader is a finding."""


def settled(seed: int) -> SimCluster:
    """A group with a leader whom all follow."""
    cluster = SimCluster(SimSettings(seed=seed, sockets=True))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(SETTLED_MS, lambda: is_followed(cluster))
    return cluster


def is_followed(cluster: SimCluster) -> bool:
    leader = cluster.leader()
    return leader is not None and all(
        each.engine is not None and each.engine.node.leader_id == leader.node_id
        for each in cluster.nodes.values()
    )


def is_led_by_another(cluster: SimCluster, before: SimNode) -> bool:
    leader = cluster.leader()
    return leader is not None and leader is not before


def listen(cluster: SimCluster) -> list[VoteRequest]:
    """The vote requests that members are given from now on."""
    heard: list[VoteRequest] = []
    step = cluster.step

    def step_and_note(node: SimNode, event: Event) -> bool:
        if isinstance(event, Received) and isinstance(event.message, VoteRequest):
            heard.append(event.message)
        return step(node, event)

    cluster.step = step_and_note  # type: ignore[method-assign]
    return heard


def terms(cluster: SimCluster) -> set[int]:
    return {int(each.engine.node.term) for each in cluster.running() if each.engine is not None}


def test_a_machine_that_stood_still_has_the_same_leader_afterwards() -> None:
    for seed in SEEDS:
        cluster = settled(seed)
        before, leader = terms(cluster), cluster.leader()
        for node in cluster.nodes.values():
            cluster.pause(node, cluster.now_ms + 3000)
        cluster.run_until(cluster.now_ms + 8000)
        assert (terms(cluster), cluster.leader()) == (before, leader), f"seed {seed}"


def test_a_leader_that_stood_still_alone_for_long_is_replaced() -> None:
    cluster = settled(1)
    leader = cluster.leader()
    assert leader is not None
    cluster.pause(leader, cluster.now_ms + 3000)
    assert cluster.run_until(cluster.now_ms + 2500, lambda: is_led_by_another(cluster, leader))
    cluster.run_until(cluster.now_ms + 3000)
    assert leader.engine is not None
    assert leader.engine.node.role is Role.FOLLOWER


def test_what_came_on_one_connection_keeps_its_order_and_several_mix() -> None:
    orders: set[tuple[NodeId, ...]] = set()
    for seed in SEEDS:
        cluster = settled(seed)
        node = cluster.nodes[N0]
        cluster.pause(node, cluster.now_ms + 100)
        for number in range(5):
            for source in (N1, N2):
                message = VoteRequest(Term(0), source, Index(number), Term(0), False)
                cluster._deliver(node, message)
        heard = listen(cluster)
        cluster.run_until(cluster.now_ms + 100)
        for source in (N1, N2):
            assert [each.last_index for each in heard if each.source == source] == [0, 1, 2, 3, 4]
        orders.add(tuple(each.source for each in heard))
    assert len(orders) > 1


def test_no_run_of_standstills_changes_its_leader() -> None:
    seeds = [seed for seed in range(1, 100) if purpose_of(seed) is Purpose.STILL]
    assert len(seeds) >= 3
    for seed in seeds:
        settings = draw_settings(seed)
        assert settings.demands_steady
        result = run_settings(settings)
        assert result.verdict is SimVerdict.FINE, result.problem
        assert result.coverage["stand-still"]


@pytest.mark.parametrize(
    "change",
    [
        "slow_disk_ms=5",
        "faults=slow-disk:1,kill-one:1",
        "loss_permille=10",
        "spike_permille=10",
        "transfer_permille=10",
        "prefers_first=True",
    ],
)
def test_a_knob_that_gives_a_reason_for_another_leader_ends_the_demand(change: str) -> None:
    drawn = draw_settings(STEADY_SEED)
    assert drawn.demands_steady
    assert override(drawn, ["faults=slow-disk:1", "client_count=0"]).demands_steady
    assert not override(drawn, [change]).demands_steady


def test_a_leader_of_a_steady_run_that_hands_over_for_its_disk_is_no_finding() -> None:
    settings = override(
        draw_settings(STEADY_SEED), ["faults=slow-disk:10,heal:10", "slow_disk_ms=5"]
    )
    result = run_settings(settings)
    assert result.verdict is SimVerdict.FINE, result.problem
    assert result.reached["slow-disk-handover"]


def test_older_draws_know_nothing_of_sockets() -> None:
    assert not any(draw_settings(seed, draws=3).sockets for seed in range(1, 50))
    assert all(draw_settings(seed).sockets for seed in range(1, 50))
    assert replace(draw_settings(5), sockets=False) != draw_settings(5)
