"""The interpreter: workers, processes that end, clients that hang or crash. No real time passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from jepsen.generators import SECOND_NS, Endless, Invocation, Limit, TimeLimit, sequence
from jepsen.history.ops import OpLog, pairs
from jepsen.history.outcomes import Outcome
from jepsen.interpreter import Interpreter
from jepsen.workloads.api import WorkloadClient


class Scripted:
    """A client that does what a function says."""

    def __init__(self, process: int, act: Callable[[int, str, Any], Any]) -> None:
        self._process = process
        self._act = act

    async def invoke(self, f: str, value: Any) -> Outcome:
        outcome = self._act(self._process, f, value)
        if isinstance(outcome, float):
            await trio.sleep(outcome)
            outcome = Outcome("ok")
        assert isinstance(outcome, Outcome)
        return outcome


class Bench:
    """An interpreter over scripted clients, and what came of it."""

    def __init__(self, act: Callable[[int, str, Any], Any], workers: int = 2) -> None:
        self.log = OpLog(clock_ns=lambda: round(trio.current_time() * 1e9))
        self.opened: list[int] = []
        self._act = act
        self.interpreter = Interpreter(self.log, self._open, workers=workers, op_timeout_s=5)

    @asynccontextmanager
    async def _open(self, process: int) -> AsyncIterator[WorkloadClient]:
        self.opened.append(process)
        yield Scripted(process, self._act)


async def test_every_operation_has_its_end(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench(lambda _process, _f, value: Outcome("ok", value))
    await bench.interpreter.run(sequence([Invocation("a", 1), Invocation("b", 2)]))
    assert [(p.invoke.f, p.type) for p in pairs(bench.log.ops)] == [("a", "ok"), ("b", "ok")]
    assert [op.value for op in bench.log.ops] == [1, 1, 2, 2]


async def test_a_process_ends_with_an_unknown_outcome(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(lambda process, _f, _value: Outcome("info" if process < 2 else "ok"))
    await bench.interpreter.run(Limit(4, Endless(lambda: Invocation("send"))))
    assert sorted(op.process for op in bench.log.ops if op.type == "info") == [0, 1]
    assert sorted(op.process for op in bench.log.ops if op.type == "ok") == [2, 3]
    assert sorted(bench.opened) == [0, 1, 2, 3], "each process has a client of its own"


async def test_a_later_run_has_processes_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench(lambda process, _f, _value: Outcome("info" if process == 0 else "ok"))
    await bench.interpreter.run(Limit(2, Endless(lambda: Invocation("send"))))
    first = {op.process for op in bench.log.ops}
    await bench.interpreter.run(Limit(2, Endless(lambda: Invocation("poll"))))
    assert not first & {op.process for op in bench.log.ops if op.f == "poll"}


async def test_a_client_that_hangs_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench(lambda process, _f, _value: 1000.0 if process == 0 else Outcome("ok"))
    await bench.interpreter.run(Limit(3, Endless(lambda: Invocation("send"))))
    (given_up,) = [op for op in bench.log.ops if op.type == "info"]
    assert (given_up.process, given_up.t_ns) == (0, 5 * SECOND_NS)


async def test_a_client_that_crashes_is_told(autojump_clock: trio.testing.MockClock) -> None:
    def act(process: int, _f: str, _value: object) -> Outcome:
        if process == 0:
            raise KeyError("nothing there")
        return Outcome("ok")

    bench = Bench(act)
    await bench.interpreter.run(Limit(2, Endless(lambda: Invocation("send"))))
    assert bench.interpreter.crashes == ["send: KeyError: 'nothing there'"]
    assert [op.type for op in bench.log.ops if op.process == 0] == ["invoke", "info"]


async def test_work_goes_round_and_ends_with_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = Bench(lambda _process, _f, _value: 0.01, workers=4)
    endless = Endless(lambda: Invocation("send"))
    await bench.interpreter.run(TimeLimit(SECOND_NS, endless))
    counts = [sum(op.process == each for op in bench.log.ops) for each in range(4)]
    assert max(counts) - min(counts) <= 2
    assert sum(counts) >= 700
    assert bench.log.ops[-1].t_ns <= 1.02 * SECOND_NS
