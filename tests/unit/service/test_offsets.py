"""Consumer offsets: what gathers, and what a query is told (rules I)."""

from __future__ import annotations

import pytest

from broker.service.offsets import COMMITS_PER_RECORD_MAX, PendingOffsets, consumer_offset
from broker.store.state import BrokerState
from dledger_mq.message.numbers import QueueId, QueueOffset


def state(*, first: int = 0, count: int = 0, stored: int | None = None) -> BrokerState:
    made = BrokerState()
    if count:
        queue = made.queues.create((b"T", 0))
        for number in range(count):
            queue.append(1000 * number, 100, 0)
        queue.min_offset = QueueOffset(first)
    if stored is not None:
        made.offsets.commit("g", "T", 0, stored)
    return made


@pytest.mark.parametrize(
    ("given", "zero", "told"),
    [
        ({"count": 50, "stored": 7}, True, 7),
        ({"count": 50}, True, 0),
        ({"count": 50}, False, None),
        ({"first": 10, "count": 50}, True, None),
        ({}, True, 0),
        ({"stored": 0}, True, 0),
    ],
    ids=[
        "stored",
        "AC29 young queue",
        "setZeroIfNotFound false",
        "AC29 old queue",
        "no message yet",
        "stored 0",
    ],
)
def test_i4_queries(given: dict[str, int], zero: bool, told: int | None) -> None:
    found = consumer_offset(state(**given), "g", "T", 0, zero_if_missing=zero, log_end=10**6)
    assert found == told


def test_d17_a_first_message_that_is_not_in_memory_leaves_it_to_the_client() -> None:
    assert consumer_offset(state(count=5), "g", "T", 0, zero_if_missing=True, log_end=2**40) is None


def test_pending_offsets_keep_the_furthest() -> None:
    pending = PendingOffsets()
    assert not pending
    for offset in (5, 9, 3):
        pending.add(("g", "T", QueueId(0)), QueueOffset(offset))
    assert len(pending) == 1
    assert pending.has(("g", "T", QueueId(0)))
    assert not pending.has(("g", "T", QueueId(1)))
    assert [(commit.group, commit.offset) for commit in pending.take()[0]] == [("g", 9)]
    assert pending.take() == []


def test_a_record_stays_small() -> None:
    pending = PendingOffsets()
    for queue in range(COMMITS_PER_RECORD_MAX + 1):
        pending.add(("g", "T", QueueId(queue)), QueueOffset(1))
    assert [len(piece) for piece in pending.take()] == [COMMITS_PER_RECORD_MAX, 1]


def test_an_offset_that_is_none_is_no_commit() -> None:
    pending = PendingOffsets()
    with pytest.raises(AssertionError, match="is none to commit"):
        pending.add(("g", "T", QueueId(0)), QueueOffset(-1))
    assert not pending.has(("g", "T", QueueId(0)))
    assert pending.take() == []
