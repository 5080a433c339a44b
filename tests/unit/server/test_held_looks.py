"""Queues that pulls wait for: few are looked at at once, and many in turns of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from broker.server.handlers.held_looks import QUEUES_MAX, HeldLooks


class Bench:
    """Queues that are numbers; what was looked at in each turn is kept, None when answers are sent."""

    def __init__(self, count: int) -> None:
        self.queues = list(range(count))
        self.looked: list[Sequence[int] | None] = []
        self.looks = HeldLooks(
            lambda: tuple(self.queues), lambda: len(self.queues), self.looked.append
        )
        self.looks.answered = lambda: self.looked.append(None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.looks.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


async def test_few_are_looked_at_at_once() -> None:
    bench = Bench(QUEUES_MAX)
    async with bench.running():
        bench.looks.look()
        assert bench.looked == [tuple(range(QUEUES_MAX))]


async def test_many_are_looked_at_in_turns_in_which_others_have_theirs() -> None:
    bench = Bench(2 * QUEUES_MAX + 1)
    async with bench.running():
        bench.looks.look()
        assert bench.looked == []
        turns = 0
        while len(bench.looked) < 6:
            await trio.lowlevel.checkpoint()
            turns += 1
            assert len(bench.looked) <= 2 * turns, "one look in a turn"
    assert bench.looked[1::2] == [None] * 3
    assert [each for some in bench.looked[::2] for each in some or ()] == bench.queues


async def test_what_is_applied_during_a_round_is_seen_by_the_next() -> None:
    bench = Bench(QUEUES_MAX + 1)
    async with bench.running():
        for _ in range(3):  # which are one
            bench.looks.look()
        while not bench.looked:
            await trio.lowlevel.checkpoint()
        bench.looks.look()
        await trio.testing.wait_all_tasks_blocked()
        assert len([some for some in bench.looked if some]) == 4
        bench.queues = [1]
        bench.looks.look()
        assert bench.looked[-1] == (1,)
    bench.queues = list(range(QUEUES_MAX + 1))
    bench.looks.look()
    assert bench.looked[-1] == tuple(bench.queues), "nobody makes rounds any more"
