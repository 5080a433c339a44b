"""Members come back with older copies of their disks, across terms: nothing committed is lost.

docs/adr/0103 has the rule. The planted bug shows that the simulator would see it broken.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dledger.engine import Engine
from dledger.raft.effects import Effect
from dledger.raft.events import Event, GiveUpVote
from dledger.raft.ids import NodeId
from dledger.raft.node import RaftNode
from dledger.storage.member_file import MEMBER_NAME
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_victims import Victims
from dledger.testing.simulation import Simulation, SimVerdict, run_settings

COPIES = {"old-copy": 6, "crash-one": 1, "partition-leader": 2, "partition-one": 1, "heal": 3}
CUT_AND_COPIES = {"old-copy": 6, "cut-committing-leader": 3, "heal": 1, "crash-one": 1}


def settings_of(seed: int, weights: dict[str, int]) -> SimSettings:
    return replace(
        draw_settings(seed),
        node_count=(3, 5)[seed % 2],
        fault_weights=weights,
        fault_interval_ms=200,
        restart_ms_max=200,
        chaos_ms=8000,
        fsync=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
@pytest.mark.parametrize("weights", [COPIES, CUT_AND_COPIES], ids=["copies", "cut-and-copies"])
def test_a_group_survives_old_copies(seed: int, weights: dict[str, int]) -> None:
    result = run_settings(settings_of(seed, weights))
    assert result.verdict is SimVerdict.FINE, result.problem


class Proud(RaftNode):
    """Goes on voting with a store that it knows to be old."""

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        return [] if isinstance(event, GiveUpVote) else super().step(event, now_ms)


class ProudEngine(Engine):
    node_type = Proud


@pytest.mark.slow
def test_a_group_whose_old_copies_go_on_voting_loses_data() -> None:
    problems = []
    for seed in range(1, 60):
        result = Simulation(settings_of(seed, COPIES), engine_type=ProudEngine).run()
        if result.verdict is SimVerdict.WRONG:
            problems.append(result.problem)
            break
    assert problems


@pytest.mark.slow
def test_a_store_without_its_record_counts_again_when_its_member_is_admitted() -> None:
    cluster = SimCluster(SimSettings(seed=1, fault_weights={"old-copy": 1}))
    victims = Victims(cluster, Random(1))
    for node in cluster.nodes.values():
        cluster.start(node)

    def is_whole() -> bool:
        victims.look_for_proof()
        return not victims.unproven and cluster.leader() is not None

    assert cluster.run_until(5000, is_whole)
    leader = cluster.leader()
    assert leader is not None
    victim, other = (node for node in cluster.nodes.values() if node is not leader)
    cluster.stop(victim, power_loss=False)
    victim.disk.lose(MEMBER_NAME)
    victims.unproven.add(NodeId(victim.node_id))
    cluster.start(victim)
    assert victim.engine is not None
    assert victim.engine.node.is_voter
    victims.look_for_proof()
    assert not victims.is_spare(other)
    assert cluster.run_until(cluster.now_ms + 5000, lambda: victim.missed is not None)
    assert not victims.is_spare(other)
    assert cluster.run_until(cluster.now_ms + 5000, is_whole)
    assert victims.is_spare(other)
