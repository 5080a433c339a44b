"""Plays one scenario: its director in the place of the schedule, its expectations beside the checkers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from jepsen.checkers.results import Anomaly, CheckResult
from jepsen.checklist.stage import UNMET, Scenario, SkippedError, Stage
from jepsen.history.ops import NEMESIS, Op, OpLog
from jepsen.nemeses.api import Fault
from jepsen.run import RunResult, RunSettings, Show, execute, first_of, show_nothing
from jepsen.systems.api import Subject

TIME_LIMIT_S: Final = 300.0
WORKLOAD: Final = "queue"
DIRECTED: Final = "director"


class Script:
    """A `Breaker` that follows the director of a scenario.

    Attributes:
        injected: how often the director was at work: once.
        crashes: what the director raised.
        skipped: what the director found lacking.
        may_end_nodes: it does what it likes to their disks.
    """

    may_end_nodes = True

    def __init__(
        self, scenario: Scenario, faults: Sequence[Fault], system: Subject, *, log: OpLog, seed: int
    ) -> None:
        self.injected: dict[str, int] = {}
        self.crashes: list[str] = []
        self.skipped = ""
        self._scenario = scenario
        self._faults = faults
        self._system = system
        chance = random.Random(f"{seed}/director")
        named = dict(zip(scenario.faults, faults, strict=True))
        self._stage = Stage(system, log, chance, named)

    async def run(self) -> None:
        """Follow the director to the end."""
        self.injected[self._scenario.name] = 1
        try:
            await self._scenario.direct(self._stage)
        except SkippedError as lack:
            self.skipped = str(lack)
        except Exception as error:  # noqa: BLE001 - the root of a director: what it raises is a finding
            cause = first_of(error)
            self.crashes.append(f"{self._scenario.name}: {type(cause).__name__}: {cause}")

    async def cure_all(self) -> None:
        """Undo what the director left in force: faults, links, stopped nodes."""
        for fault in self._faults:
            await fault.cure(self._system)
        if self._system.links is not None:
            self._system.links.heal()
        for node in self._system.nodes:
            node.resume()
            if node.pid is None:
                node.start()
        await trio.lowlevel.checkpoint()


def check_expectations(ops: Sequence[Op]) -> CheckResult:
    """Report each expectation of the director that did not hold as an anomaly."""
    unmet = [op for op in ops if op.process == NEMESIS and op.f == UNMET]
    anomalies = tuple(Anomaly("expectation", op.error, (op.index,)) for op in unmet)
    return CheckResult(DIRECTED, not anomalies, anomalies)


def play(scenario: Scenario, folder: Path, *, seed: int, show: Show = show_nothing) -> RunResult:
    """Play a scenario and judge it; every process has ended when this returns."""
    settings = RunSettings(
        WORKLOAD,
        ",".join(scenario.faults) or "none",
        TIME_LIMIT_S,
        nodes=scenario.nodes,
        seed=seed,
        rate=scenario.rate,
        network=scenario.network,
        groups=scenario.groups,
        command=f"dledger-jepsen checklist --row {scenario.row} --way process --seed {seed}",
    )
    scripts: list[Script] = []

    def break_it(
        _settings: RunSettings, faults: Sequence[Fault], system: Subject, log: OpLog
    ) -> Script:
        scripts.append(Script(scenario, faults, system, log=log, seed=seed))
        return scripts[0]

    result = execute(settings, folder, show, break_it=break_it, more_checkers=(check_expectations,))
    skipped = scripts[0].skipped if scripts else ""
    return dataclasses.replace(result, skipped=skipped) if skipped else result
