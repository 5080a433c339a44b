from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client.process_queue import FlowLimits, ProcessQueue
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset

QUEUE = MessageQueue("T", "broker-a", 0)


def held(*offsets: int, next_offset: int) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, QueueOffset(offsets[0] if offsets else next_offset))
    queue.add(
        [QueueOffset(each) for each in offsets], [10] * len(offsets), QueueOffset(next_offset)
    )
    return queue


def test_the_lowest_unfinished_offset_is_committed() -> None:
    queue = held(5, 6, 7, next_offset=8)
    assert queue.committable == 5
    queue.finish([6])
    assert queue.committable == 5
    queue.finish([5])
    assert queue.committable == 7
    queue.finish([7])
    assert queue.committable == 8


def test_messages_that_the_filter_dropped_are_passed_over_once_nothing_is_held() -> None:
    queue = held(5, next_offset=800)
    assert queue.committable == 5
    queue.finish([5])
    assert queue.committable == 800


def test_a_reset_goes_back_and_what_was_held_before_no_longer_counts() -> None:
    queue = held(5, 6, next_offset=7)
    queue.reset(2)
    queue.finish([6])
    assert (queue.committable, queue.next_offset, queue.message_count, queue.byte_count) == (
        2,
        2,
        0,
        0,
    )


def test_pulling_pauses_at_each_limit() -> None:
    limits = FlowLimits(messages_max=3, bytes_max=100, span_max=1000)
    assert not held(1, 2, next_offset=3).is_full(limits)
    assert held(1, 2, 3, next_offset=4).is_full(limits)
    assert held(1, next_offset=1001).is_full(limits)
    assert not held(next_offset=5000).is_full(limits)
    heavy = ProcessQueue(QUEUE, 0)
    heavy.add([0], [100], 1)
    assert heavy.is_full(limits)


def test_needs_commit_until_the_broker_knows() -> None:
    queue = held(next_offset=4)
    assert queue.needs_commit
    queue.committed = QueueOffset(4)
    assert not queue.needs_commit


@given(st.sets(st.integers(0, 60), max_size=30), st.randoms(use_true_random=False))
def test_committable_never_falls_and_covers_only_finished_ones(
    offsets: set[int], chance: Random
) -> None:
    queue = ProcessQueue(QUEUE, QueueOffset(0))
    queue.add([QueueOffset(each) for each in sorted(offsets)], [1] * len(offsets), QueueOffset(61))
    unfinished, last = set(offsets), 0
    for offset in chance.sample(sorted(offsets), len(offsets)):
        queue.finish([offset])
        unfinished.discard(offset)
        assert queue.committable == min(unfinished, default=61)
        assert queue.committable >= last
        last = queue.committable
    assert (queue.byte_count, queue.message_count) == (0, 0)


@pytest.mark.parametrize("offsets", [(4,), (6, 5), (5, 5), (7,)])
def test_offsets_come_in_order_from_where_the_pull_began_to_where_the_next_begins(
    offsets: tuple[int, ...],
) -> None:
    queue = ProcessQueue(QUEUE, QueueOffset(5))
    with pytest.raises(AssertionError):
        queue.add([QueueOffset(each) for each in offsets], [1] * len(offsets), QueueOffset(7))
