"""A set in the log: elements are appended, the whole log is read.

The model. A log that only grows, read as a set: an append that is acknowledged stands in it for ever and once, one that
is refused never does, and one whose outcome is unknown stands in it once or never. Whoever reads the whole log sees
every element that was acknowledged before he asked (set-full, `checkers/set_full.py`).

What is done. Each process appends numbers of its own. Reads come seldom, and the seldomer the longer the log is: each
reads everything. In the end everything is read again, by new processes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

from jepsen.checkers.results import Checker
from jepsen.checkers.set_full import check_set_full
from jepsen.generators import (
    MILLISECOND_NS,
    Endless,
    Generator,
    Invocation,
    Stagger,
    TimeLimit,
    Until,
)
from jepsen.history.outcomes import Outcome
from jepsen.history.values import shaped
from jepsen.systems.api import System
from jepsen.systems.log_access import Log, Record, logs, records_of
from jepsen.workloads.api import Workload, WorkloadClient

KEY: Final = "set"
READ_EVERY: Final = 60
READ_GROWTH: Final = 0.05
FINAL_READS: Final = 3
FINAL_TIMEOUT_NS: Final = 60_000 * MILLISECOND_NS
FINAL_PAUSE_NS: Final = 50 * MILLISECOND_NS


class LogSetWorkload(Workload):
    """The workload of a growing set in the log.

    Attributes:
        reads_done: reads of the whole log that succeeded.
    """

    name = "log-set"

    def __init__(self, _workers: int = 1) -> None:
        self.reads_done = 0
        self._numbers = itertools.count()
        self._next_read = READ_EVERY

    def setup(self, _system: System) -> AbstractAsyncContextManager[None]:
        """Do nothing: a log needs no topics."""
        return nullcontext()

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open the log."""
        async with logs(system).open_log(process) as log:
            yield LogSetClient(self, log)

    def generator(self, _chance: random.Random, _workers: int) -> Generator:
        """Generate appends, and a read after each twentieth of growth, at least `READ_EVERY`."""
        return Endless(self._next)

    def _next(self) -> Invocation:
        number = next(self._numbers)
        if number < self._next_read:
            return Invocation("add", number)
        self._next_read = number + max(READ_EVERY, round(number * READ_GROWTH))
        return Invocation("read")

    def final(self, _workers: int) -> Generator:
        """Read until some reads have succeeded."""
        wanted = self.reads_done + FINAL_READS
        reads = Stagger(FINAL_PAUSE_NS, Endless(lambda: Invocation("read")), random.Random(0))
        return TimeLimit(FINAL_TIMEOUT_NS, Until(lambda: self.reads_done >= wanted, reads))

    def checkers(self) -> Sequence[Checker]:
        """Return the judge of each element."""
        return (check_set_full,)


class LogSetClient:
    """Appends and reads as one process."""

    def __init__(self, workload: LogSetWorkload, log: Log) -> None:
        self._workload = workload
        self._log = log

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        if f == "add":
            added = await self._log.append(Record(KEY, shaped(value, int)))
            return Outcome(added.type, value, added.error, added.node)
        outcome = await self._log.read_whole()
        if outcome.type != "ok":
            return outcome
        self._workload.reads_done += 1
        elements = [element for key, element in records_of(outcome) if key == KEY]
        return Outcome("ok", elements, node=outcome.node)
