"""One run from one seed: safety first, then liveness of a core, then of all (as TigerBeetle's VOPR).

Safety: clients work while anything may fail; `StateChecker` looks after every step.
Core: a majority of members with sound stores is healed, and the links between them; the others stay as
they are: down, paused, cut off or half heard. A new append must be acknowledged within a bounded virtual
time, and no caller of a core member may be left without an answer. Every other run the others are cut off
for good; then it must reach the whole core, too (a leader outside that one core member cannot hear would
do as well for the rest).
All: everybody is healed, and whose store is damaged gets an empty disk. The same is demanded of all, and
every log must hold the same bytes.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from dledger.engine import Engine
from dledger.errors import CorruptionError
from dledger.raft.ids import NodeId
from dledger.raft.transfer import GIVE_BACK_MS
from dledger.testing.cluster import STATES, SimCluster
from dledger.testing.sim_clients import CallCounts, SimClients
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_faults import SimFaults
from dledger.testing.sim_forgetting import ForgettingCluster
from dledger.testing.sim_loop import StuckError
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import Violation

RETURN_MS_MAX = GIVE_BACK_MS * 11 // 10
"""Longest time, in ms, after which a preferred leader that was stopped in order leads again."""


class SimVerdict(IntEnum):
    """The end of a run; the value is the exit code of the command."""

    FINE = 0
    WRONG = 1
    STUCK = 3
    CRASHED = 4


@dataclass(frozen=True, slots=True)
class SimResult:
    """One finished run.

    Attributes:
        verdict: what the checks say.
        problem: what went wrong, empty when nothing did; with the traceback of a crash.
        virtual_ms: when it ended.
        step_count: events that members saw.
        committed_count, leader_count: entries committed, terms led.
        fault_count: faults struck.
        coverage: how often each thing that can go wrong did.
        reached: how often the group came to each of the states that it should come to.
        calls: how the clients' calls ended.
        work: what else was done, by name.
        digest: of the trace; empty when none was kept.
    """

    seed: int
    verdict: SimVerdict
    problem: str
    virtual_ms: int
    step_count: int
    committed_count: int
    leader_count: int
    fault_count: int
    coverage: dict[str, int]
    reached: dict[str, int]
    calls: CallCounts
    digest: str
    work: dict[str, int] = field(default_factory=dict)


class Clients(Protocol):
    """The interface of a simulated group's clients, as a run needs it.

    Attributes:
        is_stopped: set once they shall begin nothing more.
    """

    is_stopped: bool

    @property
    def counts(self) -> CallCounts:
        """The outcomes of their calls."""
        ...

    def start(self) -> None:
        """Let every client begin."""
        ...

    def probe(self) -> None:
        """Send requests until one is acknowledged."""
        ...

    @property
    def is_probe_acknowledged(self) -> bool:
        """Return whether the last probe was acknowledged."""
        ...

    def unanswered(self) -> list[str]:
        """Return the calls that running members of the calm core have not answered."""
        ...


class Simulation:
    """The members, clients and faults of one run."""

    def __init__(
        self,
        settings: SimSettings,
        *,
        engine_type: type[Engine] = Engine,
        trace: Trace | None = None,
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._cluster = self._make_cluster(engine_type)
        self._clients = self._make_clients()
        self._is_core_alone = False
        self._faults = SimFaults(self._cluster)

    def _make_cluster(self, engine_type: type[Engine]) -> SimCluster:
        if self._settings.keep_entries:
            return ForgettingCluster(self._settings, engine_type=engine_type, trace=self._trace)
        return SimCluster(self._settings, engine_type=engine_type, trace=self._trace)

    def _make_clients(self) -> Clients:
        return SimClients(self._cluster)

    def _work(self) -> dict[str, int]:
        """Return the counts of other work than the clients' calls, by name."""
        return {}

    def run(self) -> SimResult:
        """Run all parts and judge."""
        verdict, problem = SimVerdict.FINE, ""
        try:
            self._chaos()
            self._settle("core", self._faults.pick_core())
            self._settle("all", self._cluster.node_ids)
            self._compare()
        except Violation as violation:
            verdict, problem = SimVerdict.WRONG, str(violation)
        except StuckError as stuck:
            verdict, problem = SimVerdict.STUCK, str(stuck)
        except Exception:  # noqa: BLE001 - the root of a run: whatever a member raises is the run's finding
            verdict, problem = SimVerdict.CRASHED, traceback.format_exc()
        self._cluster.trace_line(None, f"verdict: {verdict.name.lower()} {problem}".rstrip())
        return SimResult(
            seed=self._settings.seed,
            verdict=verdict,
            problem=problem,
            virtual_ms=self._cluster.now_ms,
            step_count=self._cluster.step_count,
            committed_count=self._cluster.checker.committed_count,
            leader_count=self._cluster.checker.leader_count,
            fault_count=self._faults.struck_count,
            coverage=self._coverage(),
            reached=self._reached(),
            calls=self._clients.counts,
            digest=self._trace.digest() if self._trace is not None else "",
            work=self._work(),
        )

    def _chaos(self) -> None:
        """Run the phase in which any fault may strike."""
        cluster = self._cluster
        for node in cluster.nodes.values():
            cluster.start(node)
        self._clients.start()
        if not self._settings.demands_steady:
            self._faults.start()
            cluster.run_until(self._settings.chaos_ms)
            return
        if not cluster.run_until(self._settings.settle_ms_max, self._has_lease):
            raise StuckError("no leader has a lease though nothing is wrong")
        cluster.leaders_allowed = cluster.checker.leader_count
        self._faults.start()
        cluster.run_until(cluster.now_ms + self._settings.chaos_ms)
        if self._settings.prefers_first:
            self._faults.stop()
            self._clients.is_stopped = True
            if not cluster.run_until(cluster.now_ms + RETURN_MS_MAX, self._has_lease):
                raise StuckError("the preferred leader does not lead again though nothing is wrong")
        cluster.leaders_allowed = None

    def _has_lease(self) -> bool:
        """Return whether a leader exists that holds its lease, and is the preferred one if there is one."""
        leader = self._cluster.leader()
        if leader is None or leader.engine is None:
            return False
        if self._settings.prefers_first and leader.node_id != self._cluster.voters[0]:
            return False
        return leader.engine.node.has_lease(leader.local_ms(self._cluster.now_ms))

    def _settle(self, phase: str, members: Iterable[NodeId]) -> None:
        """Heal these members, and require that they elect a leader and acknowledge a new entry in time."""
        cluster = self._cluster
        self._faults.stop()
        self._clients.is_stopped = True
        cluster.trace_line(None, f"calm ({phase}): {' '.join(sorted(members))} are healed")
        self._is_core_alone = self._faults.draws_even()
        cluster.calm_down(members, is_cut_off=self._is_core_alone)
        self._clients.probe()
        lacked: float = math.inf
        while not cluster.run_until(cluster.now_ms + self._settle_ms_max(), self._is_settled):
            lacks = self._lacks()
            if not 0 < lacks < lacked:
                raise StuckError(f"{phase}: {self._why_not_settled()}")
            lacked = lacks  # a long way, on which they come on

    def _settle_ms_max(self) -> int:
        """Return the time, in ms, within which a healed group must settle."""
        settings = self._settings
        is_all_damaged = self._faults.counts["damage-all"] > 0
        return settings.settle_ms_max + (settings.repair_ms_max if is_all_damaged else 0)

    def _compare(self) -> None:
        """Check that every member has the same bytes; or names those that are damaged, if its disk has lied."""
        members = self._cluster.configuration().members
        for node in self._cluster.running():
            assert node.engine is not None, "it runs"
            if node.node_id not in members:
                continue
            try:
                self._cluster.checker.compare(node.node_id, node.engine)
            except CorruptionError as error:
                if not node.is_damaged:
                    raise
                self._cluster.trace_line(node, f"has bytes that it refuses to give: {error}")

    def _coverage(self) -> dict[str, int]:
        """Return the count of each kind of fault, with 0 for those that did not occur."""
        counts = Counter(dict.fromkeys(self._settings.fault_weights, 0))
        counts.update(self._faults.counts)
        counts.update({f"message-{name}": n for name, n in self._cluster.network.counts.items()})
        for node in self._cluster.nodes.values():
            fired = node.disk.fired.items()
            counts.update({f"disk-{name}": n for name, n in fired if name not in STATES})
        return dict(counts)

    def _reached(self) -> dict[str, int]:
        """Return the count of each state that the group reached, with 0 for those that it did not."""
        checker = self._cluster.checker
        counts = Counter(dict.fromkeys(STATES, 0))
        counts.update(self._cluster.reached)
        counts.update(checker.changes)
        counts["re-elected"] = max(0, checker.leader_count - 1)
        counts["truncated"] = checker.truncated_count
        counts["older-term-committed"] = checker.older_term_count
        for node in self._cluster.nodes.values():
            for name in ("lost-unsynced", "torn"):
                counts[name] += node.disk.fired[name]
        return dict(counts)

    def _calm_members(self) -> list[SimNode]:
        """Return the calm nodes that are members of the group."""
        members = self._cluster.configuration().members
        return [node for node in self._calm_nodes() if node.node_id in members]

    def _calm_nodes(self) -> list[SimNode]:
        nodes = self._cluster.nodes
        return [nodes[node_id] for node_id in sorted(self._cluster.calm)]

    def _is_settled(self) -> bool:
        """Return whether the probe reached every calm member and nobody waits any more."""
        if not self._clients.is_probe_acknowledged or self._clients.unanswered():
            return False
        if not self._is_core_alone and len(self._cluster.calm) < len(self._cluster.node_ids):
            return True
        wanted = self._cluster.checker.committed_count
        for node in self._calm_members():
            engine = node.engine
            if engine is None or engine.node.commit_index < wanted or not engine.node.is_voter:
                return False
        return True

    def _lacks(self) -> int:
        """Return how many entries calm members lack, all together; 0: it is not, or not only, entries."""
        if not self._clients.is_probe_acknowledged or self._clients.unanswered():
            return 0
        engines = [node.engine for node in self._calm_members() if node.engine is not None]
        if len(engines) < len(self._calm_members()):
            return 0
        wanted = self._cluster.checker.committed_count
        return sum(max(0, wanted - engine.node.commit_index) for engine in engines)

    def _why_not_settled(self) -> str:
        """Describe what is missing after all that time."""
        if not self._clients.is_probe_acknowledged:
            return f"no append was acknowledged in {self._settle_ms_max()} ms without faults"
        waiting = self._clients.unanswered()
        if waiting:
            return f"never answered: {', '.join(waiting)}"
        places = ", ".join(f"{node.node_id} {_place(node)}" for node in self._calm_nodes())
        return f"members did not catch up with {self._cluster.checker.committed_count}: {places}"


def _place(node: SimNode) -> str:
    """Describe how far a member has come."""
    if node.engine is None:
        return "down"
    voter = "" if node.engine.node.is_voter else " without a vote"
    return f"at {node.engine.node.commit_index}{voter}"


def run_seed(
    seed: int,
    *,
    wire: bool = False,
    engine_type: type[Engine] = Engine,
    trace: Trace | None = None,
) -> SimResult:
    """Run one seed, with a trace if one is given."""
    return run_settings(draw_settings(seed, wire=wire), engine_type=engine_type, trace=trace)


def run_settings(
    settings: SimSettings, *, engine_type: type[Engine] = Engine, trace: Trace | None = None
) -> SimResult:
    """Run settings, drawn or made by hand."""
    return Simulation(settings, engine_type=engine_type, trace=trace).run()
