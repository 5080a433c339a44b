"""Reads that need a confirmed leader: at once with the lease, else after one round for all that wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from broker.server.gate import Errand
from broker.server.linear import LinearReads
from broker.server.origin import Outputs
from dledger import EntryDamagedError, NotLeaderError
from dledger_mq.remoting.frame import Frame


class FakeLog:
    def __init__(self) -> None:
        self.reader = self
        self.is_serving = True
        self.is_current = False
        self.rounds = 0
        self.go = trio.Event()
        self.error: Exception | None = None

    async def barrier(self, *, timeout_s: float) -> int:
        assert timeout_s > 0
        self.rounds += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return 1


class FakeGate:
    def __init__(self) -> None:
        self.held: list[Errand] = []

    def hold(self, errand: Errand) -> None:
        self.held.append(errand)


def errand() -> Errand:
    return Errand(None, Frame(0, b"", b""), 14, 1, False, 0, True)  # type: ignore[arg-type]  # never answered here


class Bench:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.log, self.gate = FakeLog(), FakeGate()
        self.done: list[int] = []
        self.reads = LinearReads(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            self.gate,  # type: ignore[arg-type]  # the part of a gate that is used here
            Outputs(),
            nursery,
        )

    def read(self, number: int) -> None:
        self.reads.read(errand(), lambda: self.done.append(number))


@pytest.fixture
def bench(nursery: trio.Nursery) -> Bench:
    return Bench(nursery)


async def test_while_nobody_can_know_more_at_once(bench: Bench) -> None:
    bench.log.is_current = True
    bench.read(1)
    assert (bench.done, bench.log.rounds) == ([1], 0)


async def test_without_it_one_round_confirms_all_that_came_before(bench: Bench) -> None:
    bench.read(1)
    bench.read(2)
    await trio.testing.wait_all_tasks_blocked()
    bench.read(3)
    assert (bench.done, bench.log.rounds) == ([], 1)
    bench.log.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (bench.done, bench.log.rounds) == ([1, 2, 3], 2)


async def test_unconfirmed_reads_go_to_the_next_leader(bench: Bench) -> None:
    bench.log.error = NotLeaderError("n1", 2)
    bench.log.go.set()
    bench.read(1)
    await trio.testing.wait_all_tasks_blocked()
    assert bench.done == []
    (held,) = bench.gate.held
    assert "n1" in held.cause


async def test_a_read_of_a_damaged_entry_is_held(nursery: trio.Nursery) -> None:
    bench = Bench(nursery)

    def fails() -> None:
        raise EntryDamagedError("entry 7 is damaged on n0")

    bench.log.is_current = True
    bench.reads.read(errand(), fails)
    assert [each.cause for each in bench.gate.held] == ["entry 7 is damaged on n0"]
    bench.log.is_current = False
    bench.log.go.set()
    bench.reads.read(errand(), fails)
    bench.read(1)
    await trio.testing.wait_all_tasks_blocked()
    assert (len(bench.gate.held), bench.done) == (2, [1])
