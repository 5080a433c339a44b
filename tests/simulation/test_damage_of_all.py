"""All logs are damaged at once, each entry whole on one member: they heal each other, and lose nothing.

Broken repairs show that the simulator would see it if they did not; snapshots that nobody verifies likewise.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from broker.testing.broker_simulation import BrokerSimulation
from broker.testing.settings import draw_broker_settings
from dledger.codec.snapshot import FrameChain, SnapshotFormatError
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.repair.store_repair import StoreRepair
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_damage import EntryPlace, entry_places, flips_on_all
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import SimResult, SimVerdict, run_settings

DAMAGE_ALL = {"damage-all": 5, "kill-one": 3, "partition-leader": 1, "heal": 4}
FLIPPED = {"flip-snapshot": 10, "kill-one": 6, "heal": 4}

FLIPPED_SEEDS = (1, 2, 4, 5, 6)
"""Without the third, which is as long as all of these; a snapshot is refused in them, and misused by the first."""


def damaged_settings(seed: int) -> SimSettings:
    return replace(
        draw_settings(seed),
        node_count=(3, 5)[seed % 2],
        fault_weights=DAMAGE_ALL,
        fsync=True,
    )


def flipped_run(seed: int) -> SimResult:
    drawn = draw_broker_settings(seed)
    busy = replace(drawn, node_count=3, fault_weights=FLIPPED, snapshot_interval_ms=200)
    return BrokerSimulation(busy).run()


def test_of_each_entry_one_copy_is_left_alone_and_they_go_round() -> None:
    whole = {(index, index): EntryPlace("data/0", 100 * index, 100) for index in range(1, 31)}
    short = {name: place for name, place in whole.items() if name[0] <= 20}
    flips = flips_on_all([whole, whole, short], 1.0, Random(1))
    struck = [{flip.byte_offset // 100 for flip in each} for each in flips]
    for index in range(1, 31):
        holders = 3 if index <= 20 else 2
        assert sum(index in each for each in struck) == holders - 1, index
    assert all(len(each) > 5 for each in struck), "each replica loses something"
    assert all(flip.path == "data/0" and 0 <= flip.bit < 8 for each in flips for flip in each)


def test_what_only_one_replica_has_is_not_struck() -> None:
    alone = {(1, 7): EntryPlace("data/0", 0, 60)}
    assert flips_on_all([alone, {}, {}], 1.0, Random(1)) == [[], [], []]


def test_entries_are_found_where_they_stand() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(5000, lambda: cluster.checker.committed_count > 0)
    leader = cluster.leader()
    assert leader is not None
    assert leader.engine is not None
    found = entry_places(leader.disk)
    assert sorted(index for index, _ in found) == list(
        range(1, int(leader.engine.log.last_id.index) + 1)
    )
    for index, chain_crc in found:
        assert leader.engine.log.chain_crc_of(index) == chain_crc  # type: ignore[arg-type]


@pytest.mark.slow
def test_damaged_logs_heal_each_other() -> None:
    damages = 0
    for seed in range(1, 16):
        result = run_settings(damaged_settings(seed))
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        damages += result.coverage["damage-all"]
    assert damages >= 10


@pytest.mark.slow
def test_damaged_members_that_help_nobody_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps_silent(self: StoreRepair, request: RepairRequest) -> RepairAnswer:
        return RepairAnswer(self._config.raft.node_id, request.number, (), lacks=False)

    monkeypatch.setattr(StoreRepair, "_answer", keeps_silent)
    runs = (run_settings(damaged_settings(seed)) for seed in range(1, 15))
    assert any(result.verdict is SimVerdict.STUCK for result in runs)


@pytest.mark.slow
def test_damaged_snapshots_are_noticed_and_not_used() -> None:
    results = [flipped_run(seed) for seed in FLIPPED_SEEDS]
    for result in results:
        assert result.verdict is SimVerdict.FINE, result.problem
    assert sum(result.reached["snapshot-refused"] for result in results) > 0


@pytest.mark.slow
def test_snapshots_that_nobody_verifies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = FrameChain.check

    def unheeded(chain: FrameChain, head: bytes, data: bytes, byte_offset: int) -> None:
        with suppress(SnapshotFormatError):
            check(chain, head, data, byte_offset)

    monkeypatch.setattr(FrameChain, "check", unheeded)
    problems = (flipped_run(seed).problem for seed in FLIPPED_SEEDS)
    told = ("which is damaged", "has written")
    assert any(text in problem for problem in problems for text in told)
