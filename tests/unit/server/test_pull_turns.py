"""Pulls that come in one turn of the loop have a share of it; the others wait for the next turns, in their order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from broker.server.handlers import pull_turns
from broker.server.handlers.pull_turns import SHARE_S, TURN_S_MAX, PullTurns


@dataclass
class Asked:
    """Something that takes so much of a turn."""

    number: int
    takes_s: float = SHARE_S
    is_closed: bool = False


@dataclass
class Bench:
    """The turns, by a clock that only work moves; what went on is kept, and None each time answers are sent."""

    now_s: float = 100.0
    went_on: list[int | None] = field(default_factory=list)
    turns: PullTurns[Asked] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = PullTurns(self._go_on)
        self.turns.answered = lambda: self.went_on.append(None)

    def _go_on(self, asked: Asked) -> None:
        self.went_on.append(asked.number)
        self.now_s += asked.takes_s

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turns.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(pull_turns, "perf_counter", lambda: made.now_s)
    return made


async def test_beyond_the_share_they_wait_for_the_next_turns_in_their_order(bench: Bench) -> None:
    async with bench.running():
        for number in range(4):
            bench.turns.take(Asked(number))
        assert bench.went_on == [0]
        await trio.testing.wait_all_tasks_blocked()
        assert bench.went_on == [0, 1, None, 2, None, 3, None], "one in each turn, then its answer"


async def test_small_ones_share_a_turn(bench: Bench) -> None:
    async with bench.running():
        for number in range(6):
            bench.turns.take(Asked(number, takes_s=SHARE_S * 0.4))
        assert bench.went_on == [0, 1, 2]
        await trio.testing.wait_all_tasks_blocked()
        assert bench.went_on == [0, 1, 2, 3, 4, 5, None]


async def test_none_overtakes_one_that_waits(bench: Bench) -> None:
    async with bench.running():
        bench.turns.take(Asked(0))
        bench.turns.take(Asked(1))
        bench.now_s += 2 * TURN_S_MAX
        bench.turns.take(Asked(2))
        assert bench.went_on == [0]
        await trio.testing.wait_all_tasks_blocked()
        assert [each for each in bench.went_on if each is not None] == [0, 1, 2]


async def test_one_that_comes_alone_goes_on_at_once(bench: Bench) -> None:
    async with bench.running():
        for number in range(3):
            bench.turns.take(Asked(number))
            bench.now_s += 2 * TURN_S_MAX
        assert bench.went_on == [0, 1, 2]


async def test_nothing_is_done_for_a_client_that_went_meanwhile(bench: Bench) -> None:
    async with bench.running():
        gone = Asked(1)
        for asked in (Asked(0), gone, Asked(2)):
            bench.turns.take(asked)
        gone.is_closed = True
        await trio.testing.wait_all_tasks_blocked()
        assert bench.went_on == [0, 2, None]


def test_without_a_loop_all_go_on_at_once(bench: Bench) -> None:
    for number in range(3):
        bench.turns.take(Asked(number))
    assert bench.went_on == [0, 1, 2]
