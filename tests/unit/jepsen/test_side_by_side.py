"""Workloads side by side: each has workers of its own, and is judged by what these did."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen.checkers.results import Anomaly, Checker, CheckResult, judged
from jepsen.generators import (
    Context,
    Endless,
    Generator,
    Invocation,
    Limit,
    Once,
    Pending,
    Phases,
    Reserve,
    Share,
    each_slot,
)
from jepsen.history.ops import FIRST_LISTENER, OBSERVER, Op, OpLog
from jepsen.history.outcomes import Outcome
from jepsen.history.values import Rows, shaped
from jepsen.interpreter import Interpreter
from jepsen.systems.api import System
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.side_by_side import SideBySide, ops_of, shares


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.integers(0, 5000))
def test_a_share_counts_its_own_processes_without_holes(
    first: int, workers: int, others: int, inner: int
) -> None:
    share = Share(first, workers, first + workers + others)
    process = share.outer(inner)
    assert share.owns(process)
    assert share.inner(process) == inner
    owned = [each for each in range(10 * share.total) if share.owns(each)]
    assert [share.inner(each) for each in owned] == list(range(len(owned)))


def test_workers_are_shared_out_evenly_and_all_of_them() -> None:
    assert shares(["a", "b", "c"], 8) == {
        "a": Share(0, 3, 8),
        "b": Share(3, 3, 8),
        "c": Share(6, 2, 8),
    }


def does(name: str, count: int) -> Generator:
    return Limit(count, Endless(lambda: Invocation(name)))


def test_each_part_does_its_work_with_its_own_workers() -> None:
    one, two = Share(0, 1, 3), Share(1, 2, 3)
    generator: Generator = Reserve([(one, does("a", 2)), (two, does("b", 2))])
    done = []
    for free in ((0, 1, 2), (1, 2), (5, 3)):
        step, generator = generator.next(Context(0, free))
        assert isinstance(step, Invocation)
        done.append((step.f, step.process))
    assert done == [("a", 0), ("b", 1), ("b", 5)]
    step, generator = generator.next(Context(0, (1, 2)))
    assert isinstance(step, Pending), "the worker of the first part is busy"
    step, generator = generator.next(Context(0, (3,)))
    assert step == Invocation("a", process=3)
    assert generator.next(Context(0, (0, 1, 2)))[0] is None


def test_slots_and_phases_of_a_part_know_nothing_of_the_others() -> None:
    """A part's next phase waits for its own workers alone."""
    share = Share(2, 2, 4)
    slots = each_slot(2, lambda slot: Once(Invocation(f"slot {slot}")))
    phases = Phases([slots, Once(Invocation("after"))])
    generator: Generator = Reserve([(share, phases)])
    done = []
    for free in ((2, 3), (3,), (6, 7)):
        step, generator = generator.next(Context(0, free, busy=4 - len(free)))
        assert isinstance(step, Invocation)
        done.append((step.f, step.process))
    assert done == [("slot 0", 2), ("slot 1", 3), ("after", 6)]


class Echo(Workload):
    """Does so many things; its listener says something at each of them."""

    def __init__(self, name: str, count: int, workers: int) -> None:
        self.name = name
        self.workers = workers
        self.processes: set[int] = set()
        self._count = count

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        self.processes.add(process)
        yield self

    async def invoke(self, f: str, value: Any) -> Outcome:
        self.log.add(FIRST_LISTENER, "ok", "receive", {"q": [[0, self.name]]})
        self.log.add(OBSERVER, "info", "heard", self.name)
        return Outcome("info")

    def generator(self, chance: random.Random, workers: int) -> Generator:
        return does(self.name, self._count)

    def final(self, workers: int) -> Generator:
        return does(f"{self.name} at the end", 1)

    def checkers(self) -> Sequence[Checker]:
        return (self.check_own,)

    def check_own(self, ops: Sequence[Op]) -> CheckResult:
        found = [op for op in ops if op.is_client and op.type == "invoke"]
        wrong = [Anomaly("foreign", op.f, (op.index,)) for op in found if self.name not in op.f]
        heard = sum(op.f == "heard" for op in ops)
        return judged("own", wrong, {"done": len(found), "heard": heard})


async def test_a_run_of_two_is_judged_apart() -> None:
    log = OpLog()
    made: dict[str, Echo] = {}

    def maker(name: str, count: int) -> Any:
        def make(workers: int) -> Workload:
            made[name] = Echo(name, count, workers)
            return made[name]

        return make

    both = SideBySide({"one": maker("one", 5), "two": maker("two", 3)}, 3)
    both.log = log
    system: Any = None
    async with both.setup(system):
        interpreter = Interpreter(log, lambda process: both.client(system, process), workers=3)
        await interpreter.run(both.generator(random.Random(1), 3))
        await interpreter.run(both.final(3))
    assert interpreter.crashes == []
    assert (made["one"].workers, made["two"].workers) == (2, 1)
    assert made["two"].processes == set(range(len(made["two"].processes)))
    results = [check(log.ops) for check in both.checkers()]
    assert [(each.name, each.valid, each.counts) for each in results] == [
        ("one/own", True, {"done": 6, "heard": 10}),
        ("two/own", True, {"done": 4, "heard": 10}),
    ]
    listened = {
        name: [
            shaped(op.value, Rows)["q"][0].key for op in ops_of(share, log.ops) if op.f == "receive"
        ]
        for name, share in both.shares.items()
    }
    assert listened == {"one": ["one"] * 6, "two": ["two"] * 4}


def test_an_anomaly_points_into_the_whole_history() -> None:
    both = SideBySide({"one": lambda workers: Echo("one", 1, workers)}, 1)
    ops = [Op(0, 0, OBSERVER, "info", "note"), Op(1, 5, 0, "invoke", "another")]
    (check,) = both.checkers()
    assert check(ops).anomalies == (Anomaly("foreign", "another", (1,)),)


@pytest.mark.parametrize(
    "name", ["together", "together-cpp", "queue-cpp", "queue-java", "queue-node"]
)
def test_what_the_catalogue_has_side_by_side_can_be_made(name: str) -> None:
    from jepsen.catalogue import workload_entry

    entry = workload_entry(name)
    assert entry.make(entry.workers_min).checkers()
