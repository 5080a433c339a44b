"""Leaders whose disks are slow hand over, in groups under faults, and nothing is lost or held up by that."""

from __future__ import annotations

from dataclasses import replace

from dledger.raft.effects import Role
from dledger.raft.events import Propose
from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_fault_kinds import ALL_KINDS
from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import SimVerdict, run_settings

SLOW_FOR_MS = 60_000
"""Longer than any of these runs."""


def settings_of(seed: int) -> SimSettings:
    """Slow disks and little else."""
    weights = dict.fromkeys(ALL_KINDS, 0) | {"slow-disk": 10, "heal": 10}
    return replace(draw_settings(seed), fault_weights=weights, slow_disk_ms=5, loss_permille=0)


def test_a_slow_leader_hands_over_to_a_fast_member_which_keeps_the_lead() -> None:
    settings = SimSettings(seed=1, slow_sync_ms_max=1200, sync_ms_max=2, prefers_first=True)
    cluster = SimCluster(settings)
    for node in cluster.nodes.values():
        cluster.start(node)

    def leads(name: str) -> bool:
        leader = cluster.leader()
        return leader is not None and leader.node_id == name

    assert cluster.run_until(10_000, lambda: leads("n0"))
    for time_ms in range(cluster.now_ms, cluster.now_ms + 30_000, 40):
        cluster.at(time_ms, lambda: append(cluster))
    cluster.nodes[NodeId("n0")].slow_until_ms = cluster.now_ms + SLOW_FOR_MS
    assert cluster.run_until(cluster.now_ms + 15_000, lambda: not leads("n0"))
    assert cluster.reached["slow-disk-handover"] == 1
    cluster.run_until(cluster.now_ms + 10_000)  # it is preferred, and left alone
    slow = cluster.nodes[NodeId("n0")].engine
    assert slow is not None
    assert slow.node.role is Role.FOLLOWER
    assert cluster.reached["slow-disk-handover"] == 1


def append(cluster: SimCluster) -> None:
    leader = cluster.leader()
    if leader is not None:
        cluster.step(leader, Propose((b"%d" % cluster.step_count,), token=cluster.step_count))


def test_groups_with_slow_disks_are_fine_and_their_leaders_hand_over() -> None:
    results = [run_settings(settings_of(seed)) for seed in range(1, 16)]
    assert [each.problem for each in results if each.verdict is not SimVerdict.FINE] == []
    assert sum(each.reached["slow-disk-handover"] for each in results) > 0
