"""What is popped and not acknowledged (R): handed out once for its time, over failovers and snapshots."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.store import pops
from broker.store.control import (
    AckMessages,
    ChangeInvisible,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropPopped,
    OffsetCommit,
    PopMessages,
    PutGroup,
    PutTopic,
    RemoveOffsets,
    ResetOffsets,
    SetRequestMode,
)
from broker.store.emptying import STEP_ITEMS
from broker.store.groups import SubscriptionGroupConfig
from broker.store.pops import PopOutcome, Pops, RequestMode
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger.raft.entry import EntryKind
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.store.lone_broker import LoneBroker

KEY = ("g", "T", QueueId(0))
INVISIBLE_MS = 1000


class Bench(LoneBroker):
    """A topic with ten messages, and a group that pops them."""

    def __init__(self) -> None:
        super().__init__()
        self.command(PutTopic(TopicConfig("T", 1, 1)))
        self.command(PutGroup(SubscriptionGroupConfig("g")))
        for number in range(10):
            self.send("T", body=b"%d" % number)

    @property
    def stands(self) -> int | None:
        return self.state.offsets.get(*KEY)

    def pop(
        self,
        count: int = 1,
        again: list[tuple[int, int]] | None = None,
        *,
        at: int | None = -1,
        ordered: bool = False,
        attempt: str = "",
        invisible_ms: int = INVISIBLE_MS,
    ) -> PopOutcome:
        seen = self.stands if at == -1 else at
        first = seen or 0
        place = self.command(
            PopMessages(
                *KEY,
                at=seen,
                first=first,
                end=first + count,
                taken=list(range(count)),
                again=again or [],
                invisible_ms=invisible_ms,
                is_ordered=ordered,
                attempt_id=attempt,
            )
        )
        outcome = self.state.pops.outcome(place)
        assert outcome is not None
        return outcome

    def ack(self, *handles: tuple[int, int]) -> tuple[int, ...]:
        return self.state.pops.changed_at(self.command(AckMessages(*KEY, list(handles))))

    def drop(self, *handles: tuple[int, int]) -> tuple[int, ...]:
        return self.state.pops.changed_at(self.command(DropPopped(*KEY, list(handles))))

    def change(self, offset: int, popped_ms: int, invisible_ms: int) -> int:
        place = self.command(ChangeInvisible(*KEY, offset, popped_ms, invisible_ms))
        return self.state.pops.changed_at(place)[0]

    def flying(self) -> list[int]:
        queue = self.state.pops.queue(KEY)
        return [] if queue is None else [each.offset for each in queue.in_order()]

    def new_term(self, pause_ms: int) -> None:
        self.log.term += 1
        self.now_ms += pause_ms
        self.state.apply([self.log.append(b"", EntryKind.NOOP)])

    def restart(self) -> None:
        before = self.state.digest()
        state = BrokerState()
        state.restore(self.state.snapshot())
        assert state.digest() == before
        self.state = state
        self.staging = type(self.staging)(state, self.staging._store_host)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("others", [0, 50, 600, 760, 900, 1000])
@pytest.mark.parametrize("held", [0, 1, 30, 31, 100, 200])
def test_the_room_of_a_group_is_what_it_may_have_more(
    others: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pops, "IN_FLIGHT_MAX", 1024)
    monkeypatch.setattr(pops, "FEW_MAX", 32)
    table = Pops()
    for group, count in (("others", others), ("g", held)):
        offsets = [QueueOffset(each) for each in range(min(count, 1024 - table.count))]
        key = (group, "T", QueueId(0))
        table.hand_out(key, offsets, [], now_ms=1, skipped_ms=0, invisible_ms=1)
    room = table.room("g")
    assert [n for n in range(1025) if table.has_room("g", n)] == list(range(room + 1)) or not room
    assert not table.has_room("g", room + 1)
    assert sum(count for _, _, count in table.groups()) == table.count
    by_queue = {(name, topic, 0): count for name, topic, count in table.groups()}
    assert dict(table.queues()) == by_queue


def test_a_pop_hands_out_and_moves_the_group_on(bench: Bench) -> None:
    outcome = bench.pop(3)
    assert outcome.is_taken
    assert outcome.popped_ms == bench.state.last_store_ms
    assert (bench.stands, bench.flying(), bench.state.pops.count) == (3, [0, 1, 2], 3)


def test_of_two_pops_at_one_place_the_first_gets_it(bench: Bench) -> None:
    assert bench.pop(3, at=None).is_taken
    assert bench.pop(3, at=None) == pops.NOTHING
    assert (bench.stands, bench.flying()) == (3, [0, 1, 2])


def test_nothing_is_handed_out_beyond_the_end_of_the_queue(bench: Bench) -> None:
    assert bench.pop(11) == pops.NOTHING
    assert bench.stands is None


def test_nothing_is_handed_out_of_a_topic_that_was_deleted(bench: Bench) -> None:
    bench.command(DeleteTopic("T"))
    assert bench.pop(0, at=None) == pops.NOTHING
    assert bench.stands is None


def test_pop_times_of_a_queue_differ_within_one_millisecond(bench: Bench) -> None:
    times = {bench.pop(1).popped_ms for _ in range(5)}
    assert len(times) == 5


def test_what_is_acknowledged_is_gone_and_only_under_its_handle(bench: Bench) -> None:
    popped_ms = bench.pop(3).popped_ms
    assert bench.ack((1, popped_ms), (2, popped_ms + 1), (1, popped_ms)) == (1, 0, 0)
    assert bench.flying() == [0, 2]
    assert bench.ack((0, popped_ms), (2, popped_ms)) == (1, 1)
    assert bench.state.pops.queue(KEY) is None
    assert bench.state.pops.count == 0


def test_nobody_gets_again_what_is_not_due(bench: Bench) -> None:
    popped_ms = bench.pop(2).popped_ms
    bench.now_ms = popped_ms + INVISIBLE_MS - 1
    assert not bench.pop(0, [(0, popped_ms)]).again
    bench.now_ms = popped_ms + INVISIBLE_MS
    second = bench.pop(0, [(0, popped_ms), (1, popped_ms - 1), (9, popped_ms)])
    assert second.again == {0}
    assert second.popped_ms > popped_ms
    queue = bench.state.pops.queue(KEY)
    assert queue is not None
    assert {each.offset: each.times for each in queue.items()} == {0: 2, 1: 1}


def test_an_old_handle_acknowledges_until_somebody_else_has_the_message(bench: Bench) -> None:
    popped_ms = bench.pop(2).popped_ms
    bench.now_ms = popped_ms + 5 * INVISIBLE_MS
    bench.pop(0, [(0, popped_ms)])
    assert bench.ack((0, popped_ms), (1, popped_ms)) == (0, 1)
    assert bench.flying() == [0]


def test_a_changed_time_makes_a_new_handle(bench: Bench) -> None:
    popped_ms = bench.pop(1).popped_ms
    changed_ms = bench.change(0, popped_ms, 5000)
    assert changed_ms > popped_ms
    assert bench.ack((0, popped_ms)) == (0,)
    assert bench.change(0, popped_ms, 5000) == 0
    bench.now_ms = changed_ms + 4999
    assert not bench.pop(0, [(0, changed_ms)]).again
    bench.now_ms += 1
    assert bench.pop(0, [(0, changed_ms)]).again == {0}


def test_a_failover_forgets_nothing_and_its_clock_hands_out_nothing_early(bench: Bench) -> None:
    popped_ms = bench.pop(3).popped_ms
    bench.ack((1, popped_ms))
    bench.new_term(pause_ms=3_600_000)
    bench.restart()
    assert bench.flying() == [0, 2]
    assert not bench.pop(0, [(0, popped_ms)]).again, "an hour of another clock is no hour"
    bench.now_ms += INVISIBLE_MS
    assert bench.pop(0, [(0, popped_ms), (1, popped_ms), (2, popped_ms)]).again == {0, 2}


def test_only_what_is_due_is_dropped(bench: Bench) -> None:
    popped_ms = bench.pop(2).popped_ms
    assert bench.drop((0, popped_ms)) == (0,)
    bench.now_ms = popped_ms + INVISIBLE_MS
    assert bench.drop((0, popped_ms), (0, popped_ms)) == (1, 0)
    assert bench.flying() == [1]


def test_in_order_nothing_new_comes_and_the_group_stays_until_all_is_acknowledged(
    bench: Bench,
) -> None:
    first = bench.pop(2, ordered=True, attempt="a")
    assert first.is_taken
    assert bench.stands == 0
    assert bench.pop(1, ordered=True, attempt="b") == pops.NOTHING
    assert not bench.pop(1).is_taken, "nor not in order"
    bench.ack((0, first.popped_ms))
    assert bench.stands == 0
    bench.now_ms = first.popped_ms + INVISIBLE_MS
    again = bench.pop(1, [(1, first.popped_ms)], ordered=True, attempt="b")
    assert (again.is_taken, again.again) == (False, {1})
    bench.ack((1, again.popped_ms))
    assert bench.stands == 2
    assert bench.pop(1, ordered=True, attempt="c").is_taken


def test_a_pop_in_order_may_be_repeated_by_its_attempt(bench: Bench) -> None:
    first = bench.pop(2, ordered=True, attempt="a")
    wanted = [(0, first.popped_ms), (1, first.popped_ms)]
    assert not bench.pop(0, wanted, ordered=True, attempt="").again
    assert bench.pop(0, wanted, ordered=True, attempt="a").again == {0, 1}
    queue = bench.state.pops.queue(KEY)
    assert queue is not None
    assert [each.times for each in queue.items()] == [1, 1], "its answer was lost"


def test_an_attempt_whose_time_was_over_takes_nothing_from_the_one_that_followed(
    bench: Bench,
) -> None:
    first = bench.pop(1, ordered=True, attempt="a")
    bench.now_ms = first.popped_ms + INVISIBLE_MS
    second = bench.pop(0, [(0, first.popped_ms)], ordered=True, attempt="b")
    assert second.again == {0}
    assert not bench.pop(0, [(0, second.popped_ms)], ordered=True, attempt="a").again
    assert bench.pop(0, [(0, second.popped_ms)], ordered=True, attempt="b").again == {0}


@pytest.mark.parametrize(
    "command",
    [
        ResetOffsets("g", "T", [(0, 0)]),
        CommitOffsets([OffsetCommit("g", "T", 0, 1)], is_forced=True),
        RemoveOffsets("g"),
        DeleteTopic("T"),
        DeleteGroup("g"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_sets_the_group_elsewhere_forgets_what_is_in_flight(
    bench: Bench, command: ResetOffsets | CommitOffsets | RemoveOffsets | DeleteTopic | DeleteGroup
) -> None:
    bench.command(SetRequestMode("g", "T", is_pop=True, share_count=0))
    popped_ms = bench.pop(3).popped_ms
    bench.command(command)
    assert bench.flying() == []
    assert bench.state.pops.count == 0
    assert bench.ack((0, popped_ms)) == (0,)
    is_gone = isinstance(command, DeleteTopic | DeleteGroup)
    assert (bench.state.pops.mode("g", "T") is None) == is_gone


def test_a_pop_goes_on_after_a_reset_without_being_admitted(bench: Bench) -> None:
    bench.pop(5)
    bench.command(ResetOffsets("g", "T", [(0, 2)]))
    assert bench.pop(3).is_taken
    assert (bench.stands, bench.flying()) == (5, [2, 3, 4])


def test_a_late_commit_of_a_client_that_pulls_takes_nothing_back(bench: Bench) -> None:
    bench.pop(5)
    bench.command(CommitOffsets([OffsetCommit("g", "T", 0, 2)]))
    assert (bench.stands, bench.flying()) == (5, [0, 1, 2, 3, 4])


def test_modes_are_kept(bench: Bench) -> None:
    bench.command(SetRequestMode("g", "T", is_pop=True, share_count=3))
    bench.restart()
    assert bench.state.pops.mode("g", "T") == RequestMode(is_pop=True, share_count=3)
    assert bench.state.pops.mode("g", "U") is None


def test_a_state_without_pops_is_written_as_before(bench: Bench) -> None:
    assert "pops" not in bench.state.digests()
    assert "pops" not in bench.state.tables()
    bench.restart()
    bench.pop(1)
    assert {"pops"} <= bench.state.digests().keys() & bench.state.tables().keys()


def test_what_is_due_is_told_by_group_and_topic_and_forgotten_with_the_flight(
    bench: Bench,
) -> None:
    """One question, however many queues a topic has: all pops that wait ask it in each tick."""
    table = bench.state.pops
    popped = bench.pop(2)
    due_ms = popped.popped_ms + INVISIBLE_MS
    assert not table.is_due("g", "T", due_ms - 1)
    assert table.is_due("g", "T", due_ms)
    assert not table.is_due("other", "T", due_ms)
    bench.restart()
    table = bench.state.pops
    assert (table.is_due("g", "T", due_ms), table.in_flight("g", "T")) == (True, 2)
    bench.ack((0, popped.popped_ms), (1, popped.popped_ms))
    assert (table.is_due("g", "T", due_ms), table.in_flight("g", "T")) == (False, 0)
    bench.pop(1)
    table.forget("g", None)
    assert not table.is_due("g", "T", due_ms + INVISIBLE_MS)


def test_a_snapshot_keeps_orders_and_counts(bench: Bench) -> None:
    first = bench.pop(2, ordered=True, attempt="a")
    again = bench.pop(0, [(0, first.popped_ms)], ordered=True, attempt="a")
    before = bench.state.pops.queue(KEY)
    bench.restart()
    after = bench.state.pops.queue(KEY)
    assert before is not None
    assert after is not None
    assert after.in_order() == before.in_order()
    assert (after.end, after.attempt_id) == (2, "a")
    bench.ack((0, again.popped_ms), (1, first.popped_ms))
    assert bench.stands == 2


@pytest.mark.slow
def test_a_million_in_flight_that_lie_on_their_own_are_bounded_in_memory() -> None:
    """The worst case: each was popped alone. What `IN_FLIGHT_MAX` says must hold."""
    count = 25_000  # as many bytes for each as with 100 000
    table = Pops()
    tracemalloc.start()
    for number in range(count):
        table.hand_out(
            KEY, [QueueOffset(number * 64)], [], now_ms=10**12, skipped_ms=0, invisible_ms=60_000
        )
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 300
    assert not table.may_take(KEY, pops.IN_FLIGHT_MAX * 3 // 8 - count + 1)
    assert table.may_take(KEY, pops.IN_FLIGHT_MAX * 3 // 8 - count)
    table.forget(None, "T")
    assert (table.count, table.queue(KEY)) == (0, None)
    steps = 0
    while table.discarded:
        table.let_go()
        steps += 1
    assert steps > count // STEP_ITEMS, "the fold frees a little at a time"


def test_what_is_forgotten_of_a_large_queue_is_freed_by_the_entries_that_follow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pops, "STEP_ITEMS", 2)
    bench.pop(3)
    bench.command(RemoveOffsets("g"))
    assert bench.state.pops.discarded
    digest = bench.state.pops.digest
    for _ in range(9):
        bench.send("other")
    assert not bench.state.pops.discarded
    assert bench.state.pops.digest == digest
    assert bench.pop(3, at=None).is_taken


def test_no_group_takes_the_last_of_what_may_be_in_flight(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with groups of its own kept everybody else from popping."""
    monkeypatch.setattr(pops, "IN_FLIGHT_MAX", 12)
    monkeypatch.setattr(pops, "FEW_MAX", 2)
    table = bench.state.pops
    assert not bench.pop(5).is_taken
    popped_ms = bench.pop(4).popped_ms
    assert not bench.pop(1).is_taken, "no more is left of what is not kept for those that have few"
    assert [table.has_room("other", count) for count in (2, 3)] == [True, False]
    assert (table.of_group("g"), table.of_group("other")) == (4, 0)
    bench.restart()
    table = bench.state.pops
    assert (table.of_group("g"), table.has_room("g", 1)) == (4, False)
    bench.ack((0, popped_ms))
    assert bench.pop(1).is_taken
    bench.command(RemoveOffsets("g"))
    assert (table.of_group("g"), table.has_room("g", 4)) == (0, True)


def test_a_full_flight_keeps_nothing_from_being_handed_out_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    popped_ms = bench.pop(4).popped_ms
    monkeypatch.setattr(pops, "IN_FLIGHT_MAX", 1)
    bench.now_ms = popped_ms + INVISIBLE_MS
    assert bench.pop(0, [(0, popped_ms)]).again == {0}
