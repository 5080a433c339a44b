"""Pulls that wait: rules F."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from broker.service.holds import HOLD_MS_MAX, SHORT_POLL_MS, HeldPulls, hold_ms
from broker.service.wait_room import WaitRoom
from dledger_mq.message.numbers import QueueId, QueueOffset


@dataclass(eq=False)
class Pull:
    place: tuple[str, QueueId]
    held_until_ms: int
    connection: int
    next_offset: QueueOffset = QueueOffset(0)
    is_held: bool = False
    kept_bytes: int = 0
    shared: tuple[object, int] | None = None


def pull(topic: str = "T", queue: int = 0, deadline: int = 100, connection: int = 1) -> Pull:
    return Pull((topic, QueueId(queue)), deadline, connection)


@pytest.mark.parametrize(
    ("wanted", "long", "held"),
    [
        (15_000, True, 15_000),
        (60_000, True, HOLD_MS_MAX),
        (-5, True, 0),
        (15_000, False, SHORT_POLL_MS),
    ],
    ids=["F2 as asked", "before the client gives up", "nonsense", "F2 short polling"],
)
def test_f2_how_long(wanted: int, long: bool, held: int) -> None:
    assert hold_ms(wanted, long_polling=long) == held


def test_f3_by_queue() -> None:
    holds: HeldPulls[Any] = HeldPulls(10)
    first, second, other = pull(), pull(), pull(queue=1)
    for item in (first, second, other):
        assert holds.hold(item)
    queues = holds.queues()
    assert (queues, holds.queue_count) == ([(b"T", 0), (b"T", 1)], 2)
    assert holds.all() == [first, second, other]
    second.next_offset = QueueOffset(7)
    ends = {(b"T", 0): SimpleNamespace(max_offset=7), (b"T", 1): SimpleNamespace(max_offset=1)}
    assert holds.reached(queues, ends) == [first, other]
    assert holds.reached(queues[1:], ends) == [other]
    assert holds.reached(queues, {}) == []
    ends[b"T", 0].max_offset = 8
    assert holds.reached(queues[:1], ends) == [first, second]
    holds.release(first)
    holds.release(first)
    assert holds.reached(queues, ends) == [second, other]
    holds.release(other)
    assert holds.reached(queues, ends) == [second]
    assert (holds.count, holds.queue_count) == (1, 1)


def test_f8_by_deadline() -> None:
    holds: HeldPulls[Any] = HeldPulls(10)
    late, soon, gone = pull(deadline=200), pull(deadline=100), pull(deadline=50)
    for item in (late, soon, gone):
        holds.hold(item)
    holds.release(gone)
    assert holds.take_due(99) == []
    assert holds.take_due(100) == [soon]
    assert holds.take_due(500) == [late]
    assert (holds.count, holds.queues()) == (0, [])


def test_too_many_are_not_held() -> None:
    holds: HeldPulls[Any] = HeldPulls(1)
    assert holds.hold(pull())
    assert not holds.hold(pull())


def test_large_ones_share_a_room() -> None:
    holds: HeldPulls[Any] = HeldPulls(10, WaitRoom(50_000))
    first, second, small = pull(deadline=50), pull(), pull()
    first.kept_bytes = second.kept_bytes = 30_000
    assert holds.hold(first)
    assert not holds.hold(second)
    assert not second.is_held
    assert holds.hold(small)
    assert holds.take_due(50) == [first]
    assert holds.hold(second)


def test_a_closed_connection_drops_its_pulls() -> None:
    holds: HeldPulls[Any] = HeldPulls(10)
    mine, other = pull(connection=1), pull(connection=2)
    holds.hold(mine)
    holds.hold(other)
    holds.connection_closed(1)
    assert holds.take_due(1_000) == [other]


def test_one_that_is_held_again_is_due_when_it_was_held_until_last() -> None:
    holds: HeldPulls[Any] = HeldPulls(10)
    again = pull(deadline=50)
    holds.hold(again)
    holds.release(again)
    again.held_until_ms = 80
    holds.hold(again)
    assert holds.take_due(79) == []
    assert holds.take_due(80) == [again]


def test_a_pull_is_held_once() -> None:
    holds: HeldPulls[Pull] = HeldPulls(10)
    mine = pull()
    assert holds.hold(mine)
    with pytest.raises(AssertionError, match="held twice"):
        holds.hold(mine)
    assert holds.count == 1
