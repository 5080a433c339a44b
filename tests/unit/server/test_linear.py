"""Reads that need a confirmed leader: at once with the lease, else after one round for all that wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from broker.server.requests.linear import LinearReads
from broker.server.requests.origin import Outputs
from dledger import NotLeaderError


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


class Bench:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.log = FakeLog()
        self.failed: list[Exception] = []
        self.done: list[int] = []
        self.reads = LinearReads(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            Outputs(),
            nursery,
        )

    def read(self, number: int) -> None:
        self.reads.read(lambda: self.done.append(number), self.failed.append)


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
    assert bench.failed == [bench.log.error]
