"""Pops against a model that keeps one line per message: who may be handed out, when, and never twice at a time (R)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.store import pops
from broker.store.control import (
    AckMessages,
    ChangeInvisible,
    DropPopped,
    PopMessages,
    PutTopic,
    ResetOffsets,
)
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger.raft.entry import EntryKind
from dledger_mq.message.numbers import QueueId
from tests.unit.store.lone_broker import LoneBroker

KEY = ("g", "T", QueueId(0))
OFFSETS = st.integers(0, 90)


@dataclass
class Line:
    """One message as the model knows it; `popped_ms` None: it is acknowledged."""

    popped_ms: int | None
    due_ms: int
    times: int


class PoppedQueueMachine(RuleBasedStateMachine):
    """One queue and one group, under clocks, snapshots and failovers."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = LoneBroker()
        self.broker.command(PutTopic(TopicConfig("T", 1, 1)))
        for _ in range(100):
            self.broker.stage()
        self.broker.commit()
        self.lines: dict[int, Line] = {}
        self.stands = 0
        self.skipped_ms = 0

    def handle(self, offset: int, stale: bool) -> tuple[int, int]:
        line = self.lines.get(offset)
        popped_ms = line.popped_ms if line is not None and line.popped_ms is not None else 7
        return offset, popped_ms - int(stale)

    def is_known(self, handle: tuple[int, int]) -> bool:
        line = self.lines.get(handle[0])
        return line is not None and line.popped_ms == handle[1]

    def time_ms(self) -> int:
        return self.broker.now_ms - self.skipped_ms

    @rule(
        gaps=st.lists(st.integers(0, 2), max_size=8),
        again=st.lists(st.tuples(OFFSETS, st.booleans()), max_size=6, unique_by=lambda e: e[0]),
        invisible_ms=st.integers(1, 300),
        behind=st.sampled_from([0, 0, 0, 1]),
    )
    def pop(
        self, gaps: list[int], again: list[tuple[int, bool]], invisible_ms: int, behind: int
    ) -> None:
        state = self.broker.state
        at = state.offsets.get(*KEY)
        taken = [sum(gaps[: n + 1]) + n for n in range(len(gaps))]
        first = self.stands
        end = first + (taken[-1] + 1 if taken else 0)
        handles = [self.handle(*each) for each in again]
        seen = at if not behind else (at or 0) + behind
        place = self.broker.command(
            PopMessages(*KEY, seen, first, end, taken, handles, invisible_ms)
        )
        outcome = state.pops.outcome(place)
        assert outcome is not None
        may_take = bool(taken) and not behind and end <= 100
        assert outcome.is_taken == may_take
        expected = {
            offset
            for offset, popped_ms in handles
            if self.is_known((offset, popped_ms)) and self.lines[offset].due_ms <= self.time_ms()
        }
        assert outcome.again == expected
        if may_take:
            self.stands = end
        new = [first + each for each in taken] if may_take else []
        for offset in [*expected, *new]:
            times = self.lines[offset].times + 1 if offset in expected else 1
            due_ms = outcome.popped_ms - self.skipped_ms + invisible_ms
            self.lines[offset] = Line(outcome.popped_ms, due_ms, times)

    @rule(offset=OFFSETS, stale=st.booleans())
    def acknowledge(self, offset: int, stale: bool) -> None:
        handle = self.handle(offset, stale)
        place = self.broker.command(AckMessages(*KEY, [handle]))
        known = self.is_known(handle)
        assert self.broker.state.pops.changed_at(place) == (int(known),)
        if known:
            self.lines[offset].popped_ms = None

    @rule(offset=OFFSETS, stale=st.booleans(), invisible_ms=st.integers(1, 300))
    def change(self, offset: int, stale: bool, invisible_ms: int) -> None:
        handle = self.handle(offset, stale)
        place = self.broker.command(ChangeInvisible(*KEY, *handle, invisible_ms))
        (popped_ms,) = self.broker.state.pops.changed_at(place)
        assert bool(popped_ms) == self.is_known(handle)
        if popped_ms:
            line = self.lines[offset]
            assert popped_ms > handle[1]
            line.popped_ms, line.due_ms = popped_ms, popped_ms - self.skipped_ms + invisible_ms

    @rule(offset=OFFSETS)
    def drop(self, offset: int) -> None:
        handle = self.handle(offset, stale=False)
        place = self.broker.command(DropPopped(*KEY, [handle]))
        is_due = self.is_known(handle) and self.lines[offset].due_ms <= self.time_ms()
        assert self.broker.state.pops.changed_at(place) == (int(is_due),)
        if is_due:
            self.lines[offset].popped_ms = None

    @rule(ms=st.integers(1, 200))
    def wait(self, ms: int) -> None:
        self.broker.now_ms += ms

    @rule(ms=st.integers(0, 100_000))
    def fail_over(self, ms: int) -> None:
        """Another leader, whose clock is ahead; its first record follows at once."""
        broker = self.broker
        broker.log.term += 1
        self.skipped_ms += broker.now_ms + ms - broker.state.last_store_ms
        broker.now_ms += ms
        broker.state.apply([broker.log.append(b"", EntryKind.NOOP)])
        broker.send("other")

    @rule()
    def take_a_snapshot(self) -> None:
        state = BrokerState()
        state.restore(self.broker.state.snapshot())
        assert state.digest() == self.broker.state.digest()
        self.broker.state = state
        self.broker.staging = type(self.broker.staging)(state, self.broker.staging.store_host)

    @invariant()
    def the_same_is_in_flight(self) -> None:
        queue = self.broker.state.pops.queue(KEY)
        found = [] if queue is None else queue.in_order()
        expected = [
            (offset, line.popped_ms, line.due_ms, line.times)
            for offset, line in sorted(self.lines.items())
            if line.popped_ms is not None
        ]
        assert [tuple(each) for each in found] == expected
        assert self.broker.state.pops.count == len(expected)
        if queue is not None:
            dues = [line.due_ms for line in self.lines.values() if line.popped_ms is not None]
            assert (queue.next_due_ms, queue.last_due_ms) == (min(dues), max(dues))
            due = {each.offset for each in queue.due(self.time_ms(), 100)}
            assert due == {e[0] for e in expected if e[2] <= self.time_ms()}


GROUPS = ("a", "b", "c")


class SharedFlightMachine(RuleBasedStateMachine):
    """Groups that take as much as they may, against a count for each: the rest is nobody's alone."""

    MOST = 20
    KEPT = 5
    FEW = 2

    def __init__(self) -> None:
        super().__init__()
        self.broker = LoneBroker()
        self.broker.command(PutTopic(TopicConfig("T", 1, 1)))
        for _ in range(100):
            self.broker.stage()
        self.broker.commit()
        self.handles: dict[str, list[tuple[int, int]]] = {group: [] for group in GROUPS}
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(pops, "IN_FLIGHT_MAX", self.MOST)
        self.patched.setattr(pops, "FEW_MAX", self.FEW)

    def teardown(self) -> None:
        self.patched.undo()

    @property
    def total(self) -> int:
        return sum(map(len, self.handles.values()))

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 8))
    def pop(self, group: str, count: int) -> None:
        state = self.broker.state
        at = state.offsets.get(group, "T", QueueId(0))
        first = at or 0
        command = PopMessages(
            group, "T", QueueId(0), at, first, first + count, list(range(count)), [], 60_000
        )
        outcome = state.pops.outcome(self.broker.command(command))
        assert outcome is not None
        then, left = len(self.handles[group]) + count, self.MOST - self.total - count
        fits = then <= left - self.KEPT or (then <= self.FEW and left >= 0)
        assert outcome.is_taken == (fits and first + count <= 100)
        if outcome.is_taken:
            self.handles[group] += [(first + each, outcome.popped_ms) for each in range(count)]

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 8))
    def acknowledge(self, group: str, count: int) -> None:
        handles = self.handles[group][:count]
        del self.handles[group][:count]
        if handles:
            self.broker.command(AckMessages(group, "T", QueueId(0), handles))

    @rule(group=st.sampled_from(GROUPS))
    def reset(self, group: str) -> None:
        self.broker.command(ResetOffsets(group, "T", [(QueueId(0), 0)]))
        self.handles[group] = []

    @rule()
    def take_a_snapshot(self) -> None:
        state = BrokerState()
        state.restore(self.broker.state.snapshot())
        assert state.digest() == self.broker.state.digest()
        self.broker.state = state
        self.broker.staging = type(self.broker.staging)(state, self.broker.staging.store_host)

    @invariant()
    def the_counts_agree_and_whoever_has_nothing_may_begin(self) -> None:
        table = self.broker.state.pops
        assert table.count == self.total < self.MOST
        for group, handles in self.handles.items():
            assert table.of_group(group) == len(handles)
        assert table.has_room("new", self.FEW)


TestPoppedQueue = pytest.mark.slow(PoppedQueueMachine.TestCase)
TestPoppedQueue.settings = settings(max_examples=25, stateful_step_count=40)

TestSharedFlight = pytest.mark.slow(SharedFlightMachine.TestCase)
TestSharedFlight.settings = settings(max_examples=25, stateful_step_count=40)
