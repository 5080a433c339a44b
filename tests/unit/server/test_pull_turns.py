"""Pulls that come in one turn of the loop have a share of it; the others wait for the next turns, in their order."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from broker.server.handlers import pull_turns
from broker.server.handlers.backlog_share import COMING_S, PIECE_S_MAX, SHARE, BacklogShare
from broker.server.handlers.pull_turns import SHARE_S, TURN_S_MAX, PullTurns


@dataclass
class Asked:
    """Something that takes so much of a turn."""

    number: int
    takes_s: float = SHARE_S
    is_closed: bool = False
    is_backlog: bool = False


@dataclass
class Bench:
    """The turns, by a clock that only work and waits move; what went on is kept, None when answers are sent."""

    clock: trio.testing.MockClock
    went_on: list[int | None] = field(default_factory=list)
    went_on_s: list[float] = field(default_factory=list)
    turns: PullTurns[Asked] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = PullTurns(self._go_on)
        self.turns.answered = lambda: self.went_on.append(None)

    @property
    def now_s(self) -> float:
        return self.clock.current_time()

    def work(self, takes_s: float) -> None:
        self.clock.jump(takes_s)

    def _go_on(self, asked: Asked) -> None:
        self.went_on.append(asked.number)
        self.went_on_s.append(self.now_s)
        self.work(asked.takes_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turns.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock) -> Bench:
    made = Bench(mock_clock)
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


async def test_each_turn_of_the_connections_has_its_share(bench: Bench) -> None:
    async with bench.running():
        for number in range(6):
            bench.turns.take(Asked(number, takes_s=SHARE_S * 0.6))
            if number % 2:
                bench.turns.turn_ended()
        assert bench.went_on == [0, 1, 2, 3, 4, 5], "two in each turn, and none had to wait"


@pytest.mark.parametrize("is_backlog", [False, True])
async def test_the_end_of_a_turn_gives_nothing_while_one_waits(
    bench: Bench, is_backlog: bool
) -> None:
    async with bench.running():
        bench.turns.take(Asked(0))
        bench.turns.take(Asked(1, is_backlog=is_backlog))
        bench.turns.turn_ended()
        bench.turns.take(Asked(2))
        assert bench.went_on == [0]
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(each for each in bench.went_on if each is not None) == [0, 1, 2]


async def test_none_overtakes_one_that_waits(bench: Bench) -> None:
    async with bench.running():
        bench.turns.take(Asked(0))
        bench.turns.take(Asked(1))
        bench.work(2 * TURN_S_MAX)
        bench.turns.take(Asked(2))
        assert bench.went_on == [0]
        await trio.testing.wait_all_tasks_blocked()
        assert [each for each in bench.went_on if each is not None] == [0, 1, 2]


async def test_one_that_comes_alone_goes_on_at_once(bench: Bench) -> None:
    async with bench.running():
        for number in range(3):
            bench.turns.take(Asked(number))
            bench.work(2 * TURN_S_MAX)
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


def backlog(count: int, takes_s: float = SHARE_S) -> list[Asked]:
    return [Asked(number, takes_s, is_backlog=True) for number in range(count)]


async def test_backlogs_pause_while_messages_come(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    async with bench.running():
        bench.turns.note_new()
        for each in backlog(4):
            bench.turns.take(each)
        assert bench.went_on == [0]
        mock_clock.autojump_threshold = 0
        await trio.sleep(4 * SHARE_S / SHARE)
        assert [each for each in bench.went_on if each is not None] == [0, 1, 2, 3]
        pauses = [later - earlier for earlier, later in itertools.pairwise(bench.went_on_s)]
        assert pauses == pytest.approx([SHARE_S / SHARE] * 3)


async def test_what_is_new_passes_a_backlog_that_pauses(bench: Bench) -> None:
    async with bench.running():
        bench.turns.note_new()
        for each in backlog(2):
            bench.turns.take(each)
        bench.work(2 * TURN_S_MAX)
        bench.turns.note_new()
        bench.turns.take(Asked(7))
        bench.turns.take(Asked(8))
        await trio.testing.wait_all_tasks_blocked()
        assert [each for each in bench.went_on if each is not None] == [0, 7, 8, 1]


async def test_a_backlog_pauses_though_what_is_new_goes_on(bench: Bench) -> None:
    async with bench.running():
        bench.turns.note_new()
        for each in (*backlog(2), Asked(7, SHARE_S / 5)):
            bench.turns.take(each)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.went_on == [0, 7, None]


async def test_without_messages_backlogs_do_not_pause(bench: Bench) -> None:
    async with bench.running():
        bench.turns.note_new()
        bench.work(COMING_S)
        for each in backlog(3):
            bench.turns.take(each)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.went_on == [0, 1, None, 2, None]


async def test_a_backlog_goes_on_when_no_more_messages_come(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    async with bench.running():
        bench.turns.note_new()
        for each in backlog(40, PIECE_S_MAX):
            bench.turns.resume(each, bench.turns._go_on)
        began_s = bench.now_s
        bench.turns.note_new()
        bench.turns.take(Asked(41, is_backlog=True))
        assert bench.went_on[-1] != 41
        mock_clock.autojump_threshold = 0
        await trio.sleep(2 * COMING_S)
        assert 41 in bench.went_on
        assert bench.went_on_s[-1] - began_s == pytest.approx(COMING_S)


async def test_what_a_backlog_waited_for_counts_when_it_goes_on(bench: Bench) -> None:
    async with bench.running():
        bench.turns.note_new()
        (read, asked) = backlog(2)
        bench.turns.resume(read, bench.turns._go_on)
        bench.turns.take(asked)
        assert bench.went_on == [0]


def test_a_pause_is_bounded_by_the_piece_of_work_before_it() -> None:
    share = BacklogShare()
    share.note_new(0.0)
    share.spend(0.001, 0.001)
    assert share.wait_s(0.001) == pytest.approx(0.001 * (1 / SHARE - 1))
    share.spend(1.0, 5.0)
    share.note_new(1.0)
    assert share.wait_s(1.0) == pytest.approx(PIECE_S_MAX * (1 / SHARE - 1))


def test_what_was_spent_while_nothing_came_is_not_made_up_for() -> None:
    share = BacklogShare()
    for _ in range(5):
        share.spend(1.0, PIECE_S_MAX)
        assert share.wait_s(1.0) == 0
    share.note_new(1.0)
    assert share.wait_s(1.0) == 0
