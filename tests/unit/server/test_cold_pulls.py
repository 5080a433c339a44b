"""Pulls of messages that are not in memory wait until they were read beside the loop; nothing is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.server.handlers import pull_answers
from broker.server.handlers.pull_loads import AHEAD_MAX, UNIT_WAITS_MAX
from broker.server.handlers.pull_request import Pull
from broker.server.requests.request import HOLD_MS
from broker.store.consume_queue import SEALED_UNITS
from broker.store.unit_stores import MemoryUnitStore, PartedUnits, QueueKey
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.codes import ResponseCode
from tests.unit.server.test_pulls_of_damaged_entries import Bench, Log, Origin, bodies
from tests.unit.store.lone_broker import LoneBroker


class ColdLog(Log):
    """A log of which some entries are not in memory, until the test lets a load end."""

    def __init__(self, broker: LoneBroker) -> None:
        super().__init__(broker)
        self.is_serving = True
        self.cold: set[int] = set()
        self.loads: list[tuple[Sequence[Any], Callable[[], None]]] = []
        self.wanted: list[Callable[[], bool]] = []
        self.readings: list[tuple[Callable[[], None], Callable[[], None], Callable[[], bool]]] = []
        self.read_on_the_loop = 0

    def span_at(self, position: Any, size_bytes: int, *, only_memory: bool = False) -> Any:
        index = self._log.entry_at(position).index
        if index in self.cold:
            if only_memory:
                return None
            self.read_on_the_loop += 1
        return super().span_at(position, size_bytes)

    def load(
        self, places: Sequence[Any], done: Callable[[], None], is_wanted: Callable[[], bool]
    ) -> None:
        self.loads.append((places, done))
        self.wanted.append(is_wanted)

    def read_beside(
        self, work: Callable[[], None], done: Callable[[], None], is_wanted: Callable[[], bool]
    ) -> None:
        self.readings.append((work, done, is_wanted))

    def end_reading(self, *, works: bool = True) -> None:
        """Let the oldest read of units end."""
        work, done, _ = self.readings.pop(0)
        if works:
            work()
        done()

    def end_load(self, count_max: int = 1 << 30) -> None:
        """Let the oldest load end, which has read so many of the wanted messages."""
        places, done = self.loads.pop(0)
        for position, _ in places[:count_max]:
            self.cold.discard(self._log.entry_at(position).index)
        done()


class ColdBench(Bench):
    """Pulls from a queue with ten messages, each in an entry of its own, of which none is in memory."""

    log: ColdLog
    log_type = ColdLog

    def __init__(self, held_max: int = 10) -> None:
        super().__init__(held_max)
        self.flushed = 0
        self.pulls.loads.answered = self._flush
        for number in range(10):
            self.broker.send(body=b"%d" % number)
        self.log.cold = {entry.index for entry in self.broker.log.entries}

    def _flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def bench() -> ColdBench:
    return ColdBench()


def test_it_is_answered_when_all_that_it_wants_was_read(bench: ColdBench) -> None:
    origin = bench.pull(2)
    assert origin.frames == []
    ((places, _),) = bench.log.loads
    assert len(places) == 8
    bench.log.end_load()
    assert bodies(origin) == [b"%d" % number for number in range(2, 10)]
    assert (bench.flushed, bench.log.read_on_the_loop) == (1, 0)


def test_what_is_in_memory_is_given_at_once_and_what_follows_is_read_ahead(
    bench: ColdBench,
) -> None:
    bench.log.cold -= {entry.index for entry in bench.broker.log.entries[:4]}
    known = bodies(bench.pull(0))
    assert known == [b"%d" % number for number in range(len(known))]
    assert 0 < len(known) < 10
    bench.log.end_load()
    origin = bench.pull(len(known))
    assert known + bodies(origin) == [b"%d" % number for number in range(10)]


def test_what_one_load_did_not_bring_is_read_ahead_and_not_waited_for(bench: ColdBench) -> None:
    origin = bench.pull(0)
    bench.log.end_load(3)
    assert bodies(origin) == [b"0", b"1", b"2"]
    ((places, _),) = bench.log.loads
    assert len(places) == 7


def test_a_pull_waits_once_and_then_its_first_message_is_read_at_any_price(
    bench: ColdBench,
) -> None:
    origin = bench.pull(0)
    bench.log.end_load(0)
    assert bodies(origin) == [b"0"]
    assert bench.log.read_on_the_loop == 1


def test_nothing_is_read_for_a_pull_that_was_given_up(bench: ColdBench) -> None:
    bench.pull(0)
    (is_wanted,) = bench.log.wanted
    assert is_wanted()
    bench.pulls.loads.expire(1 << 60)
    assert not is_wanted()


def test_a_damaged_message_is_waited_for_as_ever(bench: ColdBench) -> None:
    first = bench.broker.log.entries[-10].index
    origin = bench.pull(0)
    places, done = bench.log.loads.pop(0)
    bench.broker.log.damaged = {first}
    done()
    assert origin.frames == []
    bench.broker.log.damaged.clear()
    bench.log.cold.clear()
    bench.expire(1)
    assert len(bodies(origin)) == len(places)


class ColdUnits(MemoryUnitStore):
    """Units that the system does not have in memory until somebody brings them there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_warm = False
        self.read_on_the_loop = 0

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        self.read_on_the_loop += not self.is_warm
        return super().read(key, first, count)

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        return super().read(key, first, count) if self.is_warm else None

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        def warm() -> None:
            self.is_warm = True

        return warm


@pytest.fixture
def units(bench: ColdBench) -> ColdUnits:
    """The units of the queue, which left memory."""
    units = ColdUnits()
    queue = bench.broker.state.queues.get("T", QueueId(0))
    assert queue is not None
    queue._store = PartedUnits(units, SEALED_UNITS)
    assert queue.spill(0) == 10
    return units


def test_units_of_the_queue_are_waited_for_and_then_its_messages(
    bench: ColdBench, units: ColdUnits
) -> None:
    origin = bench.pull(2)
    assert (origin.frames, bench.log.loads) == ([], [])
    bench.log.end_reading()
    assert origin.frames == []
    bench.log.end_load()
    assert bodies(origin) == [b"%d" % number for number in range(2, 10)]
    assert (units.read_on_the_loop, bench.log.read_on_the_loop) == (0, 0)


def test_units_that_left_memory_again_at_once_are_read_on_the_loop(
    bench: ColdBench, units: ColdUnits
) -> None:
    bench.log.cold.clear()
    origin = bench.pull(0)
    for _ in range(UNIT_WAITS_MAX):
        bench.log.end_reading(works=False)
    assert bodies(origin) == [b"%d" % number for number in range(10)]
    assert units.read_on_the_loop


def test_units_are_not_read_for_a_client_that_went(bench: ColdBench, units: ColdUnits) -> None:
    origin = bench.pull(0)
    origin.is_closed = True
    ((_, _, is_wanted),) = bench.log.readings
    assert not is_wanted()
    bench.log.end_reading()
    assert (origin.frames, bench.flushed) == ([], 0)


def test_a_pull_whose_client_went_is_dropped(bench: ColdBench) -> None:
    origin = bench.pull(0)
    origin.is_closed = True
    bench.log.end_load()
    assert (origin.frames, bench.flushed) == ([], 0)


def test_nothing_is_read_for_a_client_that_went_or_was_answered(bench: ColdBench) -> None:
    gone, late, there = bench.pull(0), bench.pull(1), bench.pull(2)
    assert [is_wanted() for is_wanted in bench.log.wanted] == [True] * 3
    gone.is_closed = True
    assert [is_wanted() for is_wanted in bench.log.wanted] == [False, True, True]
    bench.expire(HOLD_MS)
    assert [is_wanted() for is_wanted in bench.log.wanted] == [False] * 3
    assert (gone.frames, len(late.frames), len(there.frames)) == ([], 1, 1)


def test_nothing_is_read_ahead_for_a_client_that_went(bench: ColdBench) -> None:
    bench.log.cold.discard(bench.broker.log.entries[-10].index)
    origin = bench.pull(0)
    assert bodies(origin) == [b"0"]
    (is_wanted,) = bench.log.wanted
    assert is_wanted(), "it was answered, and will ask for more"
    origin.is_closed = True
    assert not is_wanted()


def test_a_disk_that_takes_too_long_lets_the_client_ask_again_from_its_own_offset(
    bench: ColdBench,
) -> None:
    origin = bench.pull(2)
    bench.expire(HOLD_MS - 1)
    assert origin.frames == []
    bench.expire(HOLD_MS)
    assert is_to_ask_again(origin, 2)
    assert bench.log.read_on_the_loop == 0
    bench.log.end_load()
    assert len(origin.answers()) == 1, "what came too late is in memory now"
    assert bodies(bench.pull(2)) == [b"%d" % number for number in range(2, 10)]


def is_to_ask_again(origin: Origin, offset: int) -> bool:
    """Return whether the only answer denies nothing, and skips nothing."""
    (answer,) = origin.answers()
    return (
        answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and answer.ext["nextBeginOffset"] == str(offset)
        and not answer.body
    )


def test_a_pull_that_was_given_up_makes_room_for_another_one(bench: ColdBench) -> None:
    bench = ColdBench(held_max=1)
    gone = bench.pull(0)
    gone.is_closed = True
    bench.expire(1)
    waiting = bench.pull(5)
    assert waiting.frames == []
    assert bench.log.read_on_the_loop == 0


def test_no_more_wait_than_may(bench: ColdBench) -> None:
    bench = ColdBench(held_max=1)
    first = bench.pull(0)
    assert bodies(bench.pull(5)) == [b"5"], "read on the loop"
    assert len(bench.log.loads) == 2
    bench.log.end_load()
    assert len(bodies(first)) == 10


def test_a_node_that_ends_reads_nothing_for_those_that_wait_and_lets_none_wait(
    bench: ColdBench,
) -> None:
    origin = bench.pull(4)
    bench.pulls.answer_held()
    assert is_to_ask_again(origin, 4)
    assert bench.log.read_on_the_loop == 0
    bench.log.end_load()
    assert len(origin.answers()) == 1
    bench.log.cold = {entry.index for entry in bench.broker.log.entries}
    assert bodies(bench.pull(3)) == [b"3"]
    assert bench.log.loads == []


def test_a_held_pull_whose_message_is_not_in_memory_waits_for_it_too(bench: ColdBench) -> None:
    applied, expired = bench.pull(10, suspend_ms=10_000), bench.pull(10, suspend_ms=5)
    bench.broker.send(body=b"new")
    bench.log.cold = {bench.broker.log.entries[-1].index}
    bench.expire(5)
    bench.pulls.applied()
    assert applied.frames == expired.frames == []
    bench.log.end_load()
    bench.log.end_load()
    assert bodies(applied) == bodies(expired) == [b"new"]
    bench.expire(HOLD_MS + 6)
    assert len(applied.answers()) == 1


def test_reading_ahead_is_bounded(bench: ColdBench) -> None:
    first = bench.broker.log.entries[-10].index
    for _ in range(AHEAD_MAX + 5):
        bench.log.cold.discard(first)
        assert bodies(bench.pull(0)) == [b"0"]
    assert len(bench.log.loads) == AHEAD_MAX


@pytest.fixture
def backlogs(bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pull that is asked for reads a backlog, as far as is known; the newest three messages are none."""
    end = bench.broker.log.end_position
    newest = bench.broker.log.entries[-3].position
    monkeypatch.setattr(pull_answers, "BACKLOG_BYTES", end - newest)
    bench.log.cold.clear()
    asked: list[bool] = []
    take = bench.pulls.turns.take

    def noted(pull: Pull) -> None:
        asked.append(pull.is_backlog)
        take(pull)

    monkeypatch.setattr(bench.pulls.turns, "take", noted)
    return asked


def test_who_was_given_what_is_old_reads_a_backlog_until_it_is_given_what_is_new(
    bench: ColdBench, backlogs: list[bool]
) -> None:
    for offset in (0, 2, 4, 8, 0):
        bench.pull(offset, count=2)
    assert backlogs == [False, True, True, True, False]


def test_a_reader_of_a_backlog_is_forgotten_with_its_connection(
    bench: ColdBench, backlogs: list[bool]
) -> None:
    bench.pull(0, count=2)
    bench.pulls.connection_closed(Origin.number)
    bench.pull(2, count=2)
    assert backlogs == [False, False]


def test_a_connection_that_is_gone_by_then_is_not_noted(
    bench: ColdBench, backlogs: list[bool]
) -> None:
    bench.log.cold = {entry.index for entry in bench.broker.log.entries}
    gone = bench.pull(0, count=2)
    bench.pulls.connection_closed(Origin.number)
    gone.is_closed = True
    bench.log.end_load()
    bench.pulls.role_changed()
    assert (backlogs, bench.pulls._answers.backlog_readers) == ([False], set())


def test_new_messages_let_backlogs_pause(bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[None] = []
    monkeypatch.setattr(bench.pulls.turns, "note_new", lambda: noted.append(None))
    bench.pulls.applied()
    assert noted == [None]


def test_a_pull_that_waited_for_its_turn_has_its_whole_time_for_the_disk(
    bench: ColdBench, backlogs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.pull(0, count=2)
    rows: list[Pull] = []
    monkeypatch.setattr(bench.pulls.turns, "take", rows.append)
    waiting = bench.pull(2)
    bench.log.cold = {entry.index for entry in bench.broker.log.entries}
    bench.expire(10 * HOLD_MS)
    bench.pulls.turns._go_on(rows[0])
    bench.expire(11 * HOLD_MS - 1)
    assert waiting.frames == []
    bench.log.end_load()
    assert len(bodies(waiting)) == 8
