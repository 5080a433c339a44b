"""Takes the systems through the rows, one system after the other, each in a folder that is removed."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.compare.results import (
    BenchMachine,
    BenchRowResult,
    SystemComparison,
    SystemResult,
    line_of,
    ratios_of,
)
from bench.compare.rows import BenchRow, RowKind
from bench.compare.runners import Contender, RowRunner
from bench.floor import measure_floor
from bench.load.driver import LackingError
from bench.load.running import LoadError, RoundPlan
from bench.progress import Stages
from bench.systems.brokers import Setup
from dledger.version import __version__
from jepsen.processes import NotReadyError, ProcessDiedError

START_S: Final = 15.0
"""Of a system's start, for the progress that is shown; on a busy machine it takes more."""

JVM_START_S: Final = 2.0
FAULT_S: Final = 5.0
FAILURES: Final = (LoadError, ProcessDiedError, NotReadyError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The systems that are compared, the rows, and their times.

    Attributes:
        contenders: the first is what all others are held against.
        rows: of the table.
        pace: of each row.
        heat_s: of each system once, with some of everything, before its first row.
        setup: of the groups.
        keep: the folder for stores and logs; None: a temporary one, which is removed.
    """

    contenders: Sequence[Contender]
    rows: Sequence[BenchRow]
    pace: RoundPlan
    heat_s: float
    setup: Setup
    keep: Path | None = None

    def row_s(self, row: BenchRow) -> float:
        """Return the seconds of a row, nearly."""
        if row.kind is RowKind.MEMORY:
            return 0.0
        if row.is_fault:
            return FAULT_S * self.pace.rounds
        return self.pace_of(row).total_s + (JVM_START_S if row.is_java else 0.0)

    def pace_of(self, row: BenchRow) -> RoundPlan:
        """Return the times of a row; a client that is a virtual machine itself warms up for twice as long."""
        warm_up_s = self.pace.warm_up_s * (2 if row.is_java else 1)
        return replace(self.pace, warm_up_s=warm_up_s)

    @property
    def system_s(self) -> float:
        """The seconds of one system, nearly."""
        return START_S + self.heat_s + sum(map(self.row_s, self.rows))


def compare(plan: Plan, stages: Stages, command: str) -> SystemComparison:
    """Run everything; what is interrupted ends with what was measured until then."""
    load_before = os.getloadavg()[0]
    systems: list[SystemResult] = []
    is_interrupted = False
    try:
        for contender in plan.contenders:
            description = contender.describe(plan.setup)
            systems.append(SystemResult(name=contender.name, description=description))
            _take_through(contender, plan, systems[-1], stages)
    except KeyboardInterrupt:
        is_interrupted = True
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return SystemComparison(
        version=__version__,
        command=command,
        machine=BenchMachine(
            cores=os.cpu_count() or 1,
            memory_mib=memory_bytes >> 20,
            python=platform.python_version(),
            load_before=load_before,
            load_after=os.getloadavg()[0],
        ),
        systems=systems,
        ratios=ratios_of(systems),
        is_interrupted=is_interrupted,
    )


def _take_through(contender: Contender, plan: Plan, result: SystemResult, stages: Stages) -> None:
    """Run one system; the rows that it got stand in `result`, also when it fails or is interrupted."""
    result.skipped = contender.lacking(plan.setup)
    if result.skipped:
        stages.line(f"{result.name} skipped: {result.skipped}")
        return
    stages.stage(f"{result.name}: starting", START_S)
    stages.line(f"{result.name}: {result.description}")
    folder = Path(tempfile.mkdtemp(prefix=f"dledger-bench-{contender.name}-", dir=plan.keep))
    try:
        result.floor = measure_floor(folder)
        began = time.monotonic()
        with contender.start(folder / "group", plan.setup) as runner:
            result.started_s = time.monotonic() - began
            stages.stage(f"{result.name}: warming up", plan.heat_s)
            runner.warm_up(plan.heat_s)
            for row in plan.rows:
                stages.stage(f"{result.name}: {row.label}", plan.row_s(row))
                found = _row_of(runner, row, plan)
                result.rows = [*result.rows, found]
                stages.line(f"  {row.label}: {line_of(found)}")
    except FAILURES as error:
        result.failed = str(error)
        stages.line(f"{result.name} failed: {error}")
    finally:
        if plan.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _row_of(runner: RowRunner, row: BenchRow, plan: Plan) -> BenchRowResult:
    """Measure one row; what fails is noted, and the next row may succeed."""
    try:
        if row.kind is RowKind.MEMORY:
            return BenchRowResult(row=row.name, label=row.label, memory=runner.leader_memory())
        measured = runner.run(row, plan.pace_of(row))
        memory = (
            None if row.is_fault else runner.leader_memory()
        )  # a new process has not worked yet
        return BenchRowResult(row=row.name, label=row.label, measured=measured, memory=memory)
    except LackingError as error:
        return BenchRowResult(row=row.name, label=row.label, skipped=str(error))
    except ProcessDiedError:
        raise
    except FAILURES as error:
        return BenchRowResult(row=row.name, label=row.label, failed=str(error))
