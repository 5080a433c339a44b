"""The log workloads on a log that is a list: what they do, and that a log that lies is found."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jepsen.checkers.judging import judge
from jepsen.checkers.results import merged
from jepsen.generators import Limit
from jepsen.history.ops import OpLog
from jepsen.history.outcomes import Outcome
from jepsen.interpreter import Interpreter
from jepsen.systems.log_access import Log, LogSystem, Record
from jepsen.workloads.api import Workload
from jepsen.workloads.log_append import LogAppendWorkload
from jepsen.workloads.log_set import LogSetWorkload


class ListLog:
    """A log in memory; `forgets` drops an acknowledged record at that place."""

    def __init__(self, forgets: int = -1) -> None:
        self.records: list[Record] = []
        self._forgets = forgets
        self._count = 0

    async def append(self, record: Record) -> Outcome:
        self._count += 1
        if self._count % 10 == 0:
            return Outcome("fail", error="refused")
        if self._count % 11 == 0:
            return Outcome("info", error="unknown")
        if self._count != self._forgets:
            self.records.append(record)
        return Outcome("ok")

    async def read_whole(self) -> Outcome:
        return Outcome("ok", list(self.records))

    async def read(self, key: str) -> Outcome:
        return Outcome("ok", [element for name, element in self.records if name == key])


class ListSystem:
    """Just enough of a system."""

    folder = Path()
    nodes = ()
    links = None
    leader = None

    def __init__(self, log: ListLog) -> None:
        self._log = log

    def node(self, name: str) -> Any:
        raise KeyError(name)

    def store(self, name: str) -> Path:
        raise KeyError(name)

    @asynccontextmanager
    async def open_log(self, _process: int) -> AsyncIterator[Log]:
        yield self._log


async def verdict_of(workload: Workload, log: ListLog, operations: int = 400) -> bool | None:
    system: LogSystem = ListSystem(log)  # type: ignore[assignment]  # as much of one as workloads use
    history = OpLog()
    interpreter = Interpreter(history, lambda process: workload.client(system, process), workers=4)
    async with workload.setup(system):
        await interpreter.run(Limit(operations, workload.generator(random.Random(1), 4)))
        await interpreter.run(workload.final(4))
    assert interpreter.crashes == []
    return merged(judge(history.ops, workload.checkers()))


async def test_a_log_that_keeps_everything_is_valid() -> None:
    assert await verdict_of(LogSetWorkload(4), ListLog()) is True
    assert await verdict_of(LogAppendWorkload(4), ListLog()) is True


async def test_a_log_that_forgets_one_record_is_not() -> None:
    assert await verdict_of(LogSetWorkload(4), ListLog(forgets=34)) is False
    assert await verdict_of(LogAppendWorkload(4), ListLog(forgets=34)) is False


async def test_keys_are_given_up_and_each_is_read_at_the_end() -> None:
    workload, log = LogAppendWorkload(4), ListLog()
    await verdict_of(workload, log, operations=1500)
    assert len({key for key, _ in log.records}) > 8


async def test_the_whole_log_is_read_the_seldomer_the_longer_it_is() -> None:
    workload = LogSetWorkload(1)
    steps = [workload._next().f for _ in range(20_000)]
    assert steps[:1000].count("read") > 10
    assert steps.count("read") < 150
