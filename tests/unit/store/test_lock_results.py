"""What locks were granted is kept for the answers: so much of it, however many queues a client names."""

from __future__ import annotations

import pytest

from broker.store import locks
from broker.store.locks import QueueLockTable, TopicQueue
from dledger_mq.message.numbers import PhysicalOffset, QueueId, StoreTimeMs


def lock(table: QueueLockTable, at: int, count: int) -> tuple[TopicQueue, ...] | None:
    place = PhysicalOffset(at)
    queues = [("T", QueueId(number)) for number in range(count)]
    table.lock("G", "c", queues, now_ms=StoreTimeMs(1), physical_offset=place)
    return table.granted_at(place)


def test_results_of_many_queues_go_before_there_are_many_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "GRANTED_KEPT_MAX", 10)
    table = QueueLockTable()
    for at in (1, 2, 3):
        assert len(lock(table, at, 4) or ()) == 4
    assert [table.granted_at(PhysicalOffset(at)) is None for at in (1, 2, 3)] == [
        True,
        False,
        False,
    ]
    assert len(lock(table, 4, 11) or ()) == 11, "the newest is always there"
    assert table.granted_at(PhysicalOffset(3)) is None


def test_what_is_restored_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GRANTED_KEPT_MAX", 10)
    table, restored = QueueLockTable(), QueueLockTable()
    for at in (1, 2):
        lock(table, at, 4)
    restored.load(table.dump())
    for each in (table, restored):
        lock(each, 3, 4)
        assert each.granted_at(PhysicalOffset(1)) is None
    assert restored.dump() == table.dump()
