"""Queues by their first due time, always as the table of pops has them."""

from __future__ import annotations

import pytest

from broker.store.due_queues import DueQueues
from broker.store.emptying import STEP_ITEMS
from broker.store.pops import PopKey, Pops
from dledger_mq.message.numbers import QueueId, QueueOffset

FIRST, SECOND, THIRD = (("g", "T", QueueId(number)) for number in range(3))


def hand_out(table: Pops, key: PopKey, offset: int, *, invisible_ms: int) -> int:
    """Pop one message at 1000; return its pop time."""
    outcome = table.hand_out(
        key, [QueueOffset(offset)], [], now_ms=1000, skipped_ms=0, invisible_ms=invisible_ms
    )
    return outcome.popped_ms


def due(table: Pops, until_ms: int = 10**13) -> list[tuple[int, PopKey]]:
    return table.due_queues.due(until_ms, None, 10)


def test_queues_stand_where_their_first_message_is_due() -> None:
    table = Pops()
    late = hand_out(table, FIRST, 0, invisible_ms=900)
    hand_out(table, SECOND, 0, invisible_ms=500)
    assert due(table) == [(1500, SECOND), (1900, FIRST)]
    early = hand_out(table, FIRST, 1, invisible_ms=100)
    assert due(table) == [(1101, FIRST), (1500, SECOND)]
    assert due(table, 1400) == [(1101, FIRST)]
    assert table.acknowledge(FIRST, QueueOffset(1), early)
    assert due(table) == [(1500, SECOND), (1900, FIRST)]
    table.change(FIRST, QueueOffset(0), late, now_ms=1000, skipped_ms=0, invisible_ms=10)
    assert due(table) == [(1012, FIRST), (1500, SECOND)]


def test_a_queue_with_nothing_in_flight_or_in_order_stands_nowhere() -> None:
    table = Pops()
    popped = hand_out(table, FIRST, 0, invisible_ms=10)
    hand_out(table, SECOND, 0, invisible_ms=10)
    hand_out(table, THIRD, 0, invisible_ms=10)
    table.acknowledge(FIRST, QueueOffset(0), popped)
    table.forget(None, "T", None)
    assert (due(table), len(table.due_queues)) == ([], 0)
    hand_out(table, SECOND, 1, invisible_ms=10)
    table.begin_attempt(SECOND, QueueOffset(2), "a")
    assert due(table) == []


def test_a_loaded_table_has_the_same_order() -> None:
    table, loaded = Pops(), Pops()
    hand_out(table, FIRST, 0, invisible_ms=900)
    hand_out(table, SECOND, 0, invisible_ms=500)
    hand_out(table, THIRD, 0, invisible_ms=700)
    table.begin_attempt(THIRD, QueueOffset(1), "a")
    loaded.load(table.dump())
    assert due(loaded) == due(table) == [(1500, SECOND), (1900, FIRST)]


def test_a_look_goes_on_behind_the_last_one() -> None:
    queues = DueQueues()
    for number in range(5):
        queues.put(("g", "T", QueueId(number)), 7)
    first = queues.due(7, None, 3)
    assert [key[2] for _, key in first + queues.due(7, first[-1], 3)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_what_is_given_up_is_forgotten_in_short_steps() -> None:
    """Sorted due times, too: to free a million at once would hold up the loop."""
    table = Pops()
    count = 20 * STEP_ITEMS
    for number in range(count):
        hand_out(table, FIRST, number * 64, invisible_ms=1000)
    queue = table.queue(FIRST)
    assert queue is not None
    left = len(queue._due)
    for _ in table.giving_up():
        assert left - len(queue._due) <= STEP_ITEMS
        left = len(queue._due)
    assert (left, len(queue._blocks)) == (0, 0)
