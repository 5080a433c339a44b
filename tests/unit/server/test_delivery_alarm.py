"""When a delivering task has its turn: what is due is never late, and nothing wakes where nothing is due."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from broker.server.deliveries.deliveries import CLOCK_LOOK_S, LOOK_S, DeliveryAlarm
from broker.server.requests.origin import Outputs

Clock = trio.testing.MockClock
DAY_S = 86_400.0


class Due:
    """A task whose due time the test sets; it notes its turns."""

    def __init__(self, clock: Clock) -> None:
        self.due_s: float | None = None
        self.turns_s: list[float] = []
        self.delivered_s: list[float] = []
        self._clock = clock

    def wait_ms(self) -> int | None:
        return None if self.due_s is None else round(1000 * (self.due_s - self._now_s()))

    def tick(self) -> None:
        self.turns_s.append(self._now_s())
        if self.due_s is not None and self._now_s() >= self.due_s:
            self.delivered_s.append(self._now_s())
            self.due_s = None

    def _now_s(self) -> float:
        return self._clock.current_time()


@asynccontextmanager
async def running(due: Due) -> AsyncIterator[DeliveryAlarm]:
    alarm = DeliveryAlarm(due, Outputs())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.run)
        await trio.sleep(1)
        yield alarm
        nursery.cancel_scope.cancel()


async def test_nothing_wakes_where_nothing_is_due(autojump_clock: Clock) -> None:
    due = Due(autojump_clock)
    async with running(due) as alarm:
        await trio.sleep(DAY_S)
        assert len(due.turns_s) == 1, "the first look"
        alarm.look()
        await trio.sleep(DAY_S)
        assert len(due.turns_s) == 1, "a change alone is looked at in passing"
        for _ in range(50):
            alarm.look()
        await trio.sleep(DAY_S)
        assert len(due.turns_s) == 2, "many changes are one turn"


async def test_what_comes_is_delivered_when_it_is_due(autojump_clock: Clock) -> None:
    due = Due(autojump_clock)
    async with running(due) as alarm:
        due.due_s = trio.current_time() + 10
        alarm.look()
        await trio.sleep(20)
        (at_s,) = due.delivered_s
        assert 11 <= at_s < 11.002
        assert len(due.turns_s) <= 3 + 10 / CLOCK_LOOK_S


async def test_what_comes_later_with_a_shorter_delay_is_late_by_one_look_at_most(
    autojump_clock: Clock,
) -> None:
    due = Due(autojump_clock)
    async with running(due) as alarm:
        due.due_s = trio.current_time() + 10
        alarm.look()
        await trio.sleep(1)
        wanted_s = due.due_s = trio.current_time() + 0.001
        alarm.look()
        await trio.sleep(1)
        (at_s,) = due.delivered_s
        assert wanted_s <= at_s <= wanted_s + LOOK_S


async def test_a_clock_that_was_set_is_noticed_while_something_waits(autojump_clock: Clock) -> None:
    due = Due(autojump_clock)
    async with running(due) as alarm:
        due.due_s = trio.current_time() + DAY_S
        alarm.look()
        await trio.sleep(1)
        set_s = due.due_s = trio.current_time()
        await trio.sleep(1)
        (at_s,) = due.delivered_s
        assert at_s <= set_s + CLOCK_LOOK_S
