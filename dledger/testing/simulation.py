"""One run from one seed: chaos first, then calm and a demand for progress.

First phase (safety): clients work while anything may fail; `StateChecker` looks after every step.
Second phase (liveness): every member is started, every link healed, no disk fails; a new append must
be acknowledged and reach every member within a bounded virtual time, and no caller of a member that
is still up may be left without an answer.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import IntEnum

from dledger.engine import Engine
from dledger.testing.cluster import SimCluster, StuckError
from dledger.testing.sim_clients import CallCounts, SimClients
from dledger.testing.sim_faults import SimFaults
from dledger.testing.sim_settings import SimSettings, draw_settings
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import Violation


class Verdict(IntEnum):
    """How a run ended; the value is the exit code of the command."""

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
        calls: how the clients' calls ended.
        digest: of the trace; empty when none was kept.
    """

    seed: int
    verdict: Verdict
    problem: str
    virtual_ms: int
    step_count: int
    committed_count: int
    leader_count: int
    fault_count: int
    calls: CallCounts
    digest: str


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
        self._cluster = SimCluster(settings, engine_type=engine_type, trace=trace)
        self._clients = SimClients(self._cluster)
        self._faults = SimFaults(self._cluster)

    def run(self) -> SimResult:
        """Run both phases and judge."""
        verdict, problem = Verdict.FINE, ""
        try:
            self._chaos()
            self._calm()
        except Violation as violation:
            verdict, problem = Verdict.WRONG, str(violation)
        except StuckError as stuck:
            verdict, problem = Verdict.STUCK, str(stuck)
        except Exception:  # noqa: BLE001 - the root of a run: whatever a member raises is the run's finding
            verdict, problem = Verdict.CRASHED, traceback.format_exc()
        self._cluster.say(None, f"verdict: {verdict.name.lower()} {problem}".rstrip())
        return SimResult(
            seed=self._settings.seed,
            verdict=verdict,
            problem=problem,
            virtual_ms=self._cluster.now_ms,
            step_count=self._cluster.step_count,
            committed_count=self._cluster.checker.committed_count,
            leader_count=self._cluster.checker.leader_count,
            fault_count=self._faults.struck_count,
            calls=self._clients.counts,
            digest=self._trace.digest() if self._trace is not None else "",
        )

    def _chaos(self) -> None:
        """Anything may fail."""
        for node in self._cluster.nodes.values():
            self._cluster.start(node)
        self._clients.start()
        self._faults.start()
        self._cluster.run_until(self._settings.chaos_ms)

    def _calm(self) -> None:
        """Nothing fails; the group must come together and go on."""
        cluster = self._cluster
        self._faults.stop()
        self._clients.is_stopped = True
        cluster.calm()
        cluster.say(None, "calm: everything is healed")
        self._clients.probe()
        if not cluster.run_until(cluster.now_ms + self._settings.settle_ms_max, self._is_settled):
            raise StuckError(self._why_not_settled())

    def _is_settled(self) -> bool:
        """Whether the probe reached every member and nobody waits any more."""
        if not self._clients.is_probe_acknowledged:
            return False
        wanted = self._cluster.checker.acknowledged_index
        for node in self._cluster.nodes.values():
            engine = node.engine
            if engine is None or engine.node.commit_index < wanted:
                return False
        return not self._clients.unanswered()

    def _why_not_settled(self) -> str:
        """What is missing after all that time."""
        settings = self._settings
        if not self._clients.is_probe_acknowledged:
            return f"no append was acknowledged in {settings.settle_ms_max} ms without faults"
        waiting = self._clients.unanswered()
        if waiting:
            return f"never answered: {', '.join(waiting)}"
        places = ", ".join(
            f"{node.node_id} {'down' if node.engine is None else f'at {node.engine.node.commit_index}'}"
            for node in self._cluster.nodes.values()
        )
        return f"members did not catch up with {self._cluster.checker.acknowledged_index}: {places}"


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
