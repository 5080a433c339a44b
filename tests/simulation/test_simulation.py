"""The simulator itself: its verdicts, its command, its settings, its network and its clocks."""

from __future__ import annotations

import json
import math
import os
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from broker.testing.settings import draw_broker_settings
from dledger.engine import Engine
from dledger.raft.events import Event, Propose, Received, Tick
from dledger.raft.ids import NodeId
from dledger.raft.messages import AppendRequest
from dledger.testing import sim, sim_command
from dledger.testing.cluster import STATES, SimCluster
from dledger.testing.sim_clients import SimClients
from dledger.testing.sim_command import WorkersSilentError, run_many, show_tally
from dledger.testing.sim_disk import SimDisk
from dledger.testing.sim_draws import DRAWS_NOW, draw_settings
from dledger.testing.sim_fault_kinds import ALL_KINDS, MEMBER_KINDS, SNAPSHOT_KINDS
from dledger.testing.sim_faults import SimFaults
from dledger.testing.sim_forgetting import FORGETTING_STATES
from dledger.testing.sim_network import SimNetwork
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_shrink import override
from dledger.testing.sim_tally import SILENT_SEEDS_MIN, Tally
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import SimResult, Simulation, SimVerdict, run_seed

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
SWEEP_COUNT = 120
"""In so many runs all comes that is not rare: where runs have changed and something is silent, there are too few."""


class Idle(Engine):
    """Does nothing, ever."""

    def step(self, event: Event, now_ms: int) -> None:
        pass

    def next_deadline_ms(self) -> int:
        return 1 << 60


class Raising(Engine):
    def step(self, event: Event, now_ms: int) -> None:
        if isinstance(event, Tick):
            raise ZeroDivisionError("on purpose")
        super().step(event, now_ms)


def calm_run(engine_type: type[Engine] = Engine, **changes: int) -> Simulation:
    return Simulation(SimSettings(seed=1, **changes), engine_type=engine_type)


# Verdicts.


@pytest.mark.parametrize("node_count", [1, 3, 5])
def test_a_run_without_faults_is_fine(node_count: int) -> None:
    result = calm_run(node_count=node_count).run()
    assert result.verdict is SimVerdict.FINE
    assert result.calls.acknowledged > 10
    assert result.calls.unknown == 0
    assert result.leader_count == 1 + result.calls.transfers


def test_no_progress_is_stuck() -> None:
    result = calm_run(Idle, client_count=0).run()
    assert result.verdict is SimVerdict.STUCK
    assert "no append was acknowledged" in result.problem


def test_a_call_that_is_never_answered_is_stuck() -> None:
    class Deaf(Engine):
        def take_resolved(self) -> list[tuple[int, object]]:  # type: ignore[override]  # drops
            return [each for each in super().take_resolved() if each[0] != 1]

    result = Simulation(SimSettings(seed=1, settle_ms_max=3000), engine_type=Deaf).run()
    assert result.verdict is SimVerdict.STUCK
    assert "never answered: call 1" in result.problem


def test_a_member_that_does_not_come_on_is_stuck() -> None:
    class Halting(Engine):
        def step(self, event: Event, now_ms: int) -> None:
            message = event.message if isinstance(event, Received) else None
            is_n2 = self.node._core.config.node_id == N2
            if not (is_n2 and isinstance(message, AppendRequest) and message.entries):
                super().step(event, now_ms)

    result = Simulation(SimSettings(seed=1, settle_ms_max=3000), engine_type=Halting).run()
    assert result.verdict is SimVerdict.STUCK
    assert "all: members did not catch up" in result.problem
    assert result.virtual_ms < 30_000, "one more calm shows that it does not"


def test_an_exception_of_a_member_is_a_crash_with_its_traceback() -> None:
    result = calm_run(Raising).run()
    assert result.verdict is SimVerdict.CRASHED
    assert "ZeroDivisionError: on purpose" in result.problem


def test_the_exit_codes_differ() -> None:
    assert [int(verdict) for verdict in SimVerdict] == [0, 1, 3, 4]


# The command.


def test_the_command_sums_up_and_exits_with_the_worst_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = tmp_path / "new" / "failing.txt"
    few = ["--first", "1", "--seeds", "3", "--processes", "1", "--failures", str(kept)]
    assert sim.main([*few, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["first"], told["seeds"], told["fine"], told["bad"]) == (1, 3, 3, [])
    assert told["simulated_per_real"] > 1

    def wrong_at_two(settings: SimSettings, *, trace: Trace | None = None) -> SimResult:
        verdict = SimVerdict.WRONG if settings.seed == 2 else SimVerdict.STUCK
        return replace(run_seed(1), seed=settings.seed, verdict=verdict, problem="x")

    monkeypatch.setattr(sim, "LOG_SIMULATOR", replace(sim.LOG_SIMULATOR, run=wrong_at_two))
    assert not kept.exists()
    assert sim.main([*few, "--set", "client_count=1"]) == int(SimVerdict.WRONG)
    assert "--seed 2 --trace" in capsys.readouterr().out
    rows = kept.read_text().splitlines()
    assert rows[2] == (
        f"python -m dledger.testing.sim --seed 2 --trace --draws {DRAWS_NOW} --set client_count=1  # wrong: x"
    )
    changes = rows[3].split(": ", 1)[1].split()
    told = override(replace(draw_settings(3), fault_weights={}), changes)
    wanted = override(draw_settings(2), ["client_count=1"])
    struck = {kind: weight for kind, weight in wanted.fault_weights.items() if weight}
    assert replace(told, seed=2) == replace(wanted, fault_weights=struck)


def test_seeds_are_fresh_unless_told_and_the_base_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bases = set()
    for _ in range(2):
        assert sim.main(["--seeds", "1", "--processes", "1", "--json"]) == 0
        bases.add(json.loads(capsys.readouterr().out)["first"])
    assert len(bases) == 2
    assert sim.main(["--seconds", "0.01", "--processes", "1"]) == 0
    assert "fresh seeds from" in capsys.readouterr().out


def die(seed: int) -> SimResult:
    """What a run looks like whose process the system kills for its memory."""
    os._exit(9)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_sweep_and_is_told_with_its_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sim_command, "ANSWER_S_MAX", 0.5)
    results = run_many(die, iter(range(1, 9)), processes=2, until_s=math.inf)
    with pytest.raises(WorkersSilentError, match="no result of seeds 1 to 4"):
        next(results)


def test_what_never_went_wrong_in_many_runs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    result = replace(run_seed(1), coverage={"pause": 2, "earthquake": 0}, reached={})
    for _ in range(SILENT_SEEDS_MIN):
        tally.add(result)
    assert tally.silent() == ["earthquake"]
    show_tally(sim.LOG_SIMULATOR, Console(), tally, 1.0)
    assert "never came, which is a defect: earthquake" in capsys.readouterr().out


@pytest.mark.slow
def test_everything_goes_wrong_somewhere_and_all_is_fine() -> None:
    tally = Tally()
    # Some of them with messages that pass through the codecs of the wire.
    results = [run_seed(seed, wire=seed % 8 == 0) for seed in range(1, SWEEP_COUNT)]
    for result in results:
        assert result.verdict is SimVerdict.FINE, f"seed {result.seed}: {result.problem}"
        assert result.committed_count > 0, result.seed
        tally.add(result)
    # What is rare in mixed runs has runs of its own, in test_forgetting.py.
    assert set(tally.silent()) <= {*FORGETTING_STATES, *SNAPSHOT_KINDS}
    for name in ("message-lost", "message-replayed", "message-duplicated", "message-late"):
        assert tally.coverage[name] > 0
    for name in ("fail-read", "fail-write", "fail-sync", "full-disk", "misdirect-write"):
        assert tally.coverage[f"disk-{name}"] > 0
    assert set(STATES) <= tally.seeds.keys(), "and so none of them is silent"
    assert sum(result.calls.acknowledged for result in results) > 5 * SWEEP_COUNT
    assert sum(result.calls.reads for result in results) > 5 * SWEEP_COUNT
    assert sum(result.fault_count for result in results) > 5 * SWEEP_COUNT
    assert sum(result.leader_count for result in results) > 2 * SWEEP_COUNT


def test_a_replay_prints_settings_trace_and_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--seed", "2", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "heartbeat_ms" in told
    assert "calm (core): " in told
    assert "calm (all): n0 n1 n2" in told
    assert run_digest(2)[:16] in told


def run_digest(seed: int) -> str:
    return run_seed(seed, trace=Trace()).digest


# Settings and faults.


def test_every_fault_has_its_turn_and_its_absence() -> None:
    drawn = [draw_broker_settings(seed).fault_weights for seed in range(100)]
    of_logs = [draw_settings(seed).fault_weights for seed in range(100)]
    for kind in ALL_KINDS:
        # The members of brokers do not change.
        source = of_logs if kind in MEMBER_KINDS else drawn
        weights = [weights.get(kind, 0) for weights in source]
        assert any(weights), kind
        assert not all(weights), kind


def test_every_fault_can_strike() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    faults = SimFaults(cluster)
    assert sorted(faults._strikes) == sorted(ALL_KINDS)
    for node in cluster.nodes.values():
        cluster.start(node)
    cluster.run_until(2000)
    for kind in ALL_KINDS:
        faults._strikes[kind]()
        cluster.run_until(cluster.now_ms + 200)


def test_the_page_explains_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text()
    table = page.partition("### Faults")[2].partition("\n| came to |")[0]
    named: list[str] = []
    for cell in re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]:
        first, *others = cell.split(", ")
        family = first.rpartition("-")[0]
        named += [first, *(family + each if each.startswith("-") else each for each in others)]
    assert sorted(each for each in named if each.strip("-")) == sorted(ALL_KINDS)


def test_stopped_faults_strike_no_more() -> None:
    cluster = SimCluster(SimSettings(seed=1, fault_weights={"crash-all": 1}, fault_interval_ms=5))
    faults = SimFaults(cluster)
    faults.start()
    cluster.run_until(100)
    struck = faults.struck_count
    assert struck > 0
    faults.stop()
    cluster.run_until(200)
    assert faults.struck_count == struck


def test_a_core_goes_on_while_the_others_stay_as_they_are() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(5000, lambda: cluster.leader() is not None)
    cluster.stop(cluster.nodes[N2], power_loss=False)
    cluster.start_later(cluster.nodes[N2])
    cluster.pause(cluster.nodes[N1], cluster.now_ms + 50)
    cluster.network.cut_both([N0], [N1, N2])
    cluster.calm_down([N0, N1])
    cluster.run_until(cluster.now_ms + 5000)
    assert cluster.leader() is not None
    assert cluster.nodes[N2].engine is None
    assert not cluster.network.is_open(N0, N2)
    cluster.calm_down([N0, N1, N2])
    cluster.run_until(cluster.now_ms + 3000)
    logs = [node.engine.log.last_id for node in cluster.nodes.values() if node.engine]
    assert len(logs) == 3
    assert len(set(logs)) == 1


def test_a_member_with_a_damaged_vote_keeps_its_log_and_votes_again_when_admitted() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(5000, lambda: cluster.leader() is not None)
    cluster.run_until(cluster.now_ms + 500)
    victim = cluster.nodes[N2]
    victim.disk.flip_bit("hard_state", 5)
    cluster.stop(victim, power_loss=False)
    cluster.start(victim)
    assert victim.engine is not None
    assert victim.engine.log.last_id.index
    assert not victim.engine.node.is_voter
    cluster.run_until(cluster.now_ms + 3000)
    assert victim.engine is not None
    assert victim.engine.node.is_voter


def test_a_member_with_a_damaged_log_is_mended_by_the_others() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(5000, lambda: cluster.leader() is not None)
    cluster.run_until(cluster.now_ms + 500)
    victim = cluster.nodes[N2]
    assert victim.engine is not None
    before = victim.engine.log.last_id
    cluster.stop(victim, power_loss=False)
    victim.disk.flip_bit("data/00000000000000000000", 5)
    cluster.start(victim)
    assert victim.engine is None
    assert victim.repair is not None
    assert cluster.run_until(cluster.now_ms + 3000, lambda: victim.engine is not None)
    assert victim.engine is not None
    assert victim.engine.log.last_id >= before
    assert victim.engine.node.is_voter


def test_a_member_with_an_older_copy_of_its_store_catches_up_and_counts_again() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    for node in cluster.nodes.values():
        cluster.start(node)
    assert cluster.run_until(5000, lambda: cluster.leader() is not None)
    cluster.run_until(cluster.now_ms + 500)
    leader = cluster.leader()
    assert leader is not None
    victim = next(node for node in cluster.nodes.values() if node is not leader)
    older = deepcopy(victim.disk)

    def append(token: int) -> None:
        assert leader is not None
        assert leader.engine is not None
        cluster.step(leader, Propose((b"%d" % token,), token))
        cluster.run_until(cluster.now_ms + 200)

    for token in range(1, 6):
        append(token)
    cluster.stop(victim, power_loss=False)
    older.restart()
    victim.disk = older
    cluster.checker.wiped(victim.node_id)
    cluster.start(victim)
    cluster.run_until(cluster.now_ms + 2000)
    append(6)
    assert cluster.leader() is leader
    assert leader.engine is not None
    assert victim.engine is not None
    assert victim.engine.log.last_id == leader.engine.log.last_id
    view = leader.engine.node.progress()[victim.node_id]
    assert view.is_voter
    assert view.match_index == leader.engine.log.last_id.index


# The network.


def network(**settings: int) -> SimNetwork:
    return SimNetwork(SimSettings(seed=1, **settings), Random(1))


def test_a_cut_is_directed_and_heals() -> None:
    net = network()
    net.cut([N0], [N1, N2])
    assert net.arrivals(N0, N1, 5) == ()
    assert not net.is_open(N0, N2)
    assert net.arrivals(N1, N0, 5) != ()
    net.cut_both([N1], [N2])
    assert not net.is_open(N2, N1)
    assert net.describe() == "n0-x->n1 n0-x->n2 n1-x->n2 n2-x->n1"
    net.heal()
    assert net.is_open(N0, N1)
    assert net.describe() == "whole"


def test_a_clogged_link_holds_back_and_a_replay_comes_much_later() -> None:
    net = network(replay_permille=1000, replay_ms_max=4000)
    net.clog(N0, N1, 500)
    first, again = net.arrivals(N0, N1, 100)
    assert first == 500
    assert 500 < again <= 4501
    assert net.arrivals(N1, N0, 100)[0] < 200
    assert net.counts["replayed"] == 2


def test_losses_duplicates_and_delays_come_as_often_as_the_settings_say() -> None:
    net = network(loss_permille=300, duplicate_permille=500, delay_min_ms=2, delay_max_ms=4)
    counts = [0, 0, 0]
    for _ in range(2000):
        arrivals = net.arrivals(N0, N1, 100)
        counts[len(arrivals)] += 1
        assert all(102 <= arrival <= 108 for arrival in arrivals)
    assert 500 < counts[0] < 700
    assert 600 < counts[2] < 800
    net.calm_down([N0, N1])
    assert net.arrivals(N0, N1, 100) == (101,)


def test_spikes_reorder_messages() -> None:
    net = network(spike_permille=100, spike_ms_max=500)
    arrivals = [net.arrivals(N0, N1, sent_ms)[0] for sent_ms in range(300)]
    assert arrivals != sorted(arrivals)


# Clocks and the loop.


@pytest.mark.parametrize("drift", [-30, -1, 0, 1, 30])
def test_a_deadline_is_reached_exactly_when_the_local_clock_shows_it(drift: int) -> None:
    node = SimNode(
        N0, SimDisk(Random(1)), Random(1).randint, clock_zero_ms=12_345, clock_drift_permille=drift
    )
    for local_ms in range(12_345, 14_345):
        true_ms = node.true_ms(local_ms)
        assert node.local_ms(true_ms) >= local_ms
        assert true_ms == 0 or node.local_ms(true_ms - 1) < local_ms


def test_events_run_in_order_of_time_and_then_of_scheduling() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    seen: list[str] = []
    cluster.at(20, seen.append, "late")
    cluster.at(10, seen.append, "first")
    cluster.at(10, seen.append, "second")
    cluster.run_until(15)
    assert seen == ["first", "second"]
    assert cluster.now_ms == 15
    assert cluster.run_until(100, lambda: "late" in seen)
    assert cluster.now_ms == 20


def test_a_paused_member_does_nothing_and_catches_up() -> None:
    cluster = SimCluster(SimSettings(seed=1))
    clients = SimClients(cluster)
    clients.start()
    for node in cluster.nodes.values():
        cluster.start(node)
    cluster.run_until(2000)
    leader = cluster.leader()
    assert leader is not None
    cluster.pause(leader, 4000)
    assert not cluster.step(leader, Tick())
    assert cluster.leader() is None
    cluster.run_until(3990)
    new_leader = cluster.leader()
    assert new_leader is not None
    assert new_leader is not leader
    clients.is_stopped = True
    cluster.run_until(6000)
    ends = {str(node.engine.log.last_id) for node in cluster.nodes.values() if node.engine}
    assert len(ends) == 1
