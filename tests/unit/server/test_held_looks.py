"""What pulls wait for: little is looked at at once, and much in turns of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from broker.server.handlers.held_looks import AT_ONCE_MAX, HeldLook, HeldLooks


class Bench:
    """Queues that are numbers; what was looked at in each turn is kept, None when answers are sent."""

    def __init__(self, count: int) -> None:
        self.queues = list(range(count))
        self.looked: list[Sequence[int] | None] = []
        self.looks = HeldLooks()
        self._look = self.look_with(self.looked.append)
        self.looks.answered = lambda: self.looked.append(None)

    def look_with(
        self, act: Callable[[Sequence[int]], None], at_once_max: int = AT_ONCE_MAX
    ) -> HeldLook[int]:
        return HeldLook(lambda: tuple(self.queues), lambda: len(self.queues), act, at_once_max)

    def look(self) -> None:
        self.looks.begin(self._look)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.looks.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


async def test_few_are_looked_at_at_once() -> None:
    bench = Bench(AT_ONCE_MAX)
    async with bench.running():
        bench.look()
        assert bench.looked == [tuple(range(AT_ONCE_MAX))]


async def test_many_are_looked_at_in_turns_in_which_others_have_theirs() -> None:
    bench = Bench(2 * AT_ONCE_MAX + 1)
    async with bench.running():
        bench.look()
        assert bench.looked == []
        turns = 0
        while len(bench.looked) < 6:
            await trio.lowlevel.checkpoint()
            turns += 1
            assert len(bench.looked) <= 2 * turns, "one look in a turn"
    assert bench.looked[1::2] == [None] * 3
    assert [each for some in bench.looked[::2] for each in some or ()] == bench.queues


async def test_what_is_applied_during_a_round_is_seen_by_the_next() -> None:
    bench = Bench(AT_ONCE_MAX + 1)
    async with bench.running():
        for _ in range(3):  # which are one
            bench.look()
        while not bench.looked:
            await trio.lowlevel.checkpoint()
        bench.look()
        await trio.testing.wait_all_tasks_blocked()
        assert len([some for some in bench.looked if some]) == 4
        bench.queues = [1]
        bench.look()
        assert bench.looked[-1] == (1,)
    bench.queues = list(range(AT_ONCE_MAX + 1))
    bench.look()
    assert bench.looked[-1] == tuple(bench.queues), "nobody makes rounds any more"


async def test_each_way_to_look_has_rounds_of_its_own() -> None:
    bench = Bench(AT_ONCE_MAX + 1)
    few: list[Sequence[int]] = []
    look = bench.look_with(few.append, AT_ONCE_MAX // 2)
    async with bench.running():
        bench.looks.begin(look)
        bench.look()
        assert few == []
        await trio.testing.wait_all_tasks_blocked()
        assert [len(some) for some in few] == [AT_ONCE_MAX // 2, AT_ONCE_MAX // 2, 1]
        assert [len(some) for some in bench.looked if some] == [AT_ONCE_MAX, 1]
