"""For which topics messages wait: what was read once is kept, and what is not known is not shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from broker.server.figures import waiting_topics
from broker.server.figures.waiting_topics import WaitingTopics
from broker.store.control import AdvanceSchedule, DeliverTimers
from dledger.raft.entry import BodySpan
from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from tests.unit.store.lone_broker import START_MS, FakeLog, LoneBroker

TIMERS = "rmq_sys_wheel_timer"
DELAYS = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look is cut short because this process stood still."""
    monkeypatch.setattr(waiting_topics, "WAIT_S", 60.0)


class ColdLog:
    """A log of which nothing is in memory before it was asked for."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.loaded: set[int] = set()
        self.answers = True

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        entry = self.log.entry_at(position)
        if only_memory and entry.index not in self.loaded:
            return None
        return self.log.span_at(position, size_bytes)

    def load(
        self,
        places: Sequence[tuple[int, int]],
        done: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        assert is_wanted()
        if self.answers:
            self.loaded |= {self.log.entry_at(Position(place)).index for place, _ in places}
            done()


def timed(broker: LoneBroker, topic: str, due_ms: int) -> tuple[int, PhysicalOffset]:
    staged = broker.send(TIMERS, TIMER_OUT_MS=str(due_ms), REAL_TOPIC=topic, REAL_QID="0")
    return due_ms, staged.physical_offset(0)


def delayed(broker: LoneBroker, topic: str, level: int) -> None:
    broker.send(DELAYS, level - 1, DELAY=str(level), REAL_TOPIC=topic, REAL_QID="0")


def look_at(broker: LoneBroker, waiting_max: int = 100) -> tuple[WaitingTopics, ColdLog]:
    cold = ColdLog(broker.log)
    return WaitingTopics(broker.state, cold, waiting_max=waiting_max), cold  # type: ignore[arg-type]


async def test_what_waits_is_counted_until_it_is_delivered_and_read_once() -> None:
    broker = LoneBroker()
    first = timed(broker, "A", START_MS + 5000)
    timed(broker, "B", START_MS + 4000)
    timed(broker, "A", START_MS + 9000)
    delayed(broker, "A", 3)
    delayed(broker, "%RETRY%G", 3)
    delayed(broker, "A", 4)
    waiting, cold = look_at(broker)
    await waiting.refresh()
    assert waiting.timed == {"A": 2, "B": 1}
    assert waiting.delayed == {("A", 3): 1, ("%RETRY%G", 3): 1, ("A", 4): 1}
    broker.command(DeliverTimers([first]))
    broker.command(AdvanceSchedule(3, QueueOffset(0), QueueOffset(1)))
    cold.log = FakeLog()  # whatever were read again would not be there
    await waiting.refresh()
    assert waiting.timed == {"A": 1, "B": 1}
    assert waiting.delayed == {("%RETRY%G", 3): 1, ("A", 4): 1}


async def test_what_cannot_be_read_counts_with_no_topic_and_is_read_again() -> None:
    broker = LoneBroker()
    timed(broker, "A", START_MS + 5000)
    waiting, _ = look_at(broker)
    broker.log.damaged.add(broker.log.entries[-1].index)
    await waiting.refresh()
    assert waiting.timed == {"": 1}
    broker.log.damaged.clear()
    await waiting.refresh()
    assert waiting.timed == {"A": 1}


async def test_of_more_than_can_be_kept_nothing_is_said() -> None:
    broker = LoneBroker()
    for number in range(3):
        timed(broker, "A", START_MS + 5000 + number)
    delayed(broker, "A", 3)
    waiting, _ = look_at(broker, waiting_max=2)
    await waiting.refresh()
    assert waiting.timed is None
    assert waiting.delayed == {("A", 3): 1}


async def test_a_look_that_is_cut_short_says_nothing_and_the_next_goes_on_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = LoneBroker()
    timed(broker, "A", START_MS + 5000)
    waiting, cold = look_at(broker)
    await waiting.refresh()
    timed(broker, "B", START_MS + 6000)
    cold.answers = False
    monkeypatch.setattr(waiting_topics, "WAIT_S", 0.01)
    await waiting.refresh()
    assert (waiting.timed, waiting.delayed) == (None, None)
    monkeypatch.setattr(waiting_topics, "WAIT_S", 60.0)
    cold.answers = True
    await waiting.refresh()
    assert waiting.timed == {"A": 1, "B": 1}
