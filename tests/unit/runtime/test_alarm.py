"""The alarm that starts passes: what rings it, its time, and the turn for everybody else."""

from __future__ import annotations

from collections.abc import Callable

import trio
import trio.testing

from dledger.runtime.alarm import Alarm

Clock = trio.testing.MockClock
HOUR_S = 3600.0


class Ringing:
    """An alarm with its task, and when it went off."""

    def __init__(self, clock: Clock) -> None:
        self.alarm = Alarm()
        self.at_s: list[float] = []
        self.next_s = HOUR_S
        self.more: Callable[[], None] = lambda: None
        self._clock = clock

    def act(self) -> None:
        self.at_s.append(self._clock.current_time())
        self.alarm.set_to(self.next_s)
        self.more()


async def test_it_goes_off_when_rung_once_for_all_that_rang_before(autojump_clock: Clock) -> None:
    ringing = Ringing(autojump_clock)
    async with trio.open_nursery() as nursery:
        ringing.alarm.set_to(HOUR_S)
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.testing.wait_all_tasks_blocked()
        assert ringing.at_s == []
        ringing.alarm.ring()
        ringing.alarm.ring()
        assert ringing.at_s == [], "with the task's next turn"
        await trio.testing.wait_all_tasks_blocked()
        assert ringing.at_s == [0]
        nursery.cancel_scope.cancel()


async def test_it_goes_off_when_rung_before_it_runs(autojump_clock: Clock) -> None:
    ringing = Ringing(autojump_clock)
    async with trio.open_nursery() as nursery:
        ringing.alarm.ring()
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.testing.wait_all_tasks_blocked()
        assert ringing.at_s == [0]
        nursery.cancel_scope.cancel()


async def test_who_rings_while_it_acts_is_heard_and_others_have_their_turn(
    autojump_clock: Clock,
) -> None:
    ringing = Ringing(autojump_clock)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while len(ringing.at_s) < 10:
            turns += 1
            await trio.lowlevel.checkpoint()

    def ring_again() -> None:
        if len(ringing.at_s) < 10:
            ringing.alarm.ring()

    ringing.more = ring_again
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ringing.alarm.run, ringing.act)
        nursery.start_soon(take_turns)
        ringing.alarm.ring()
        await trio.testing.wait_all_tasks_blocked()
        assert len(ringing.at_s) == 10
        assert turns >= 9
        nursery.cancel_scope.cancel()


async def test_its_time_is_moved_on_and_back_while_it_waits(autojump_clock: Clock) -> None:
    ringing = Ringing(autojump_clock)
    async with trio.open_nursery() as nursery:
        ringing.alarm.set_to(5)
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.sleep(4)
        ringing.alarm.set_to(5)
        await trio.sleep(4)
        assert ringing.at_s == []
        ringing.alarm.set_to(0.5)
        await trio.sleep(1)
        assert ringing.at_s == [8.5]
        nursery.cancel_scope.cancel()


async def test_a_later_time_does_not_put_it_off_where_a_bound_is_meant(
    autojump_clock: Clock,
) -> None:
    ringing = Ringing(autojump_clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.sleep(1)
        ringing.alarm.set_within(3)
        ringing.alarm.set_within(2)
        ringing.alarm.set_within(10)
        await trio.sleep(20)
        assert ringing.at_s == [3]
        nursery.cancel_scope.cancel()


async def test_its_time_comes_again_and_again(autojump_clock: Clock) -> None:
    ringing = Ringing(autojump_clock)
    ringing.next_s = 2
    async with trio.open_nursery() as nursery:
        ringing.alarm.set_to(1)
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.sleep(6)
        assert ringing.at_s == [1, 3, 5]
        ringing.alarm.ring()
        await trio.sleep(0.5)
        assert ringing.at_s == [1, 3, 5, 6]
        await trio.sleep(3)
        assert ringing.at_s == [1, 3, 5, 6, 8]
        nursery.cancel_scope.cancel()


async def test_rung_in_the_moment_of_its_time_it_keeps_the_next_time(autojump_clock: Clock) -> None:
    ringing = Ringing(autojump_clock)
    async with trio.open_nursery() as nursery:
        ringing.alarm.set_to(1)
        ringing.next_s = 2
        nursery.start_soon(ringing.alarm.run, ringing.act)
        await trio.testing.wait_all_tasks_blocked()
        ringing.alarm.set_to(0)  # the time has come as the next turn begins,
        ringing.alarm.ring()  # and the task is about to run anyway
        await trio.sleep(1)
        first_count = len(ringing.at_s)
        assert first_count in {1, 2}
        await trio.sleep(5)
        assert len(ringing.at_s) >= first_count + 2, "its next time came, and the one after it"
        nursery.cancel_scope.cancel()
