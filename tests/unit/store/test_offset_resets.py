"""Resets of a group's offsets, and who may commit there afterwards (broker/store/resets.py)."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from broker.store.control import (
    AdmitToReset,
    CommitOffsets,
    DeleteGroup,
    LockQueues,
    OffsetCommit,
    PutGroup,
    RemoveOffsets,
    ResetOffsets,
)
from broker.store.groups import SubscriptionGroupConfig
from broker.store.resets import ADMITTED_MAX
from broker.store.state import BrokerState
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from tests.unit.store.lone_broker import LoneBroker

QUEUE = ("g", "T", QueueId(0))


class Bench(LoneBroker):
    """Queue 0 of T with ten messages, of which the group has consumed eight."""

    def __init__(self) -> None:
        super().__init__()
        for _ in range(10):
            self.send("T", queue_id=0)
        self.commit_offset("a", 8)

    def reset(self, offset: int) -> PhysicalOffset:
        return PhysicalOffset(self.command(ResetOffsets("g", "T", [(0, offset)])))

    def admit(self, client_id: str, since: int) -> None:
        self.command(AdmitToReset("g", "T", 0, since, client_id))

    def commit_offset(self, client_id: str, offset: int) -> int | None:
        self.command(CommitOffsets([OffsetCommit(*QUEUE, offset, client_id)]))
        return self.offset

    @property
    def offset(self) -> int | None:
        return self.state.offsets.get(*QUEUE)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_clients_hold_from_before_a_reset_does_not_undo_it(bench: Bench) -> None:
    since = bench.reset(2)
    assert bench.offset == 2
    assert bench.commit_offset("a", 9) == 2
    assert bench.commit_offset("", 9) == 2
    bench.admit("a", since)
    assert bench.commit_offset("b", 9) == 2, "another client has still to follow it"
    assert bench.commit_offset("a", 3) == 3
    assert bench.commit_offset("a", 1) == 3, "commits never rewind"
    assert bench.state.offsets.ignored_count == 4


def test_a_reset_is_over_where_the_queue_ended_when_it_was_made(bench: Bench) -> None:
    since = bench.reset(2)
    bench.send("T", queue_id=0)
    bench.admit("a", since)
    assert bench.commit_offset("a", 9) == 9
    assert bench.commit_offset("b", 10) == 9, "not yet"
    assert bench.commit_offset("a", 10) == 10
    assert not bench.state.offsets.resets
    assert bench.commit_offset("b", 11) == 11


def test_a_skip_is_over_once_anybody_follows_it(bench: Bench) -> None:
    since = bench.reset(10)
    assert bench.commit_offset("a", 9) == 10
    assert bench.state.offsets.resets
    bench.admit("b", since)
    assert not bench.state.offsets.resets
    assert bench.commit_offset("a", 9) == 10


def test_who_followed_an_earlier_reset_has_to_follow_the_next_one_too(bench: Bench) -> None:
    first = bench.reset(5)
    bench.admit("a", first)
    second = bench.reset(2)
    bench.admit("a", first)
    assert bench.commit_offset("a", 6) == 2
    bench.admit("a", second)
    assert bench.commit_offset("a", 6) == 6


def test_a_reset_asks_no_lock(bench: Bench) -> None:
    bench.command(LockQueues("g", "a", [("T", 0)]))
    since = bench.reset(2)
    bench.admit("b", since)
    assert bench.commit_offset("b", 9) == 2, "the queue is a's"
    assert bench.commit_offset("a", 9) == 2, "who has not seen the reset"
    bench.admit("a", since)
    assert bench.commit_offset("a", 9) == 9


def test_resets_of_several_queues_stand_in_one_record(bench: Bench) -> None:
    since = bench.command(ResetOffsets("g", "T", [(0, 1), (1, 0), (7, 3)]))
    assert bench.state.offsets.of("g", "T") == {0: 1, 1: 0, 7: 3}
    found = [bench.state.offsets.resets.get("g", "T", QueueId(queue)) for queue in (0, 1, 7)]
    assert [each and each.since for each in found] == [since] * 3
    assert [each and each.end for each in found] == [10, 0, 3]


@pytest.mark.parametrize("forgetting", [RemoveOffsets("g", "T"), DeleteGroup("g", True)])
def test_a_reset_goes_with_the_offsets(
    bench: Bench, forgetting: RemoveOffsets | DeleteGroup
) -> None:
    bench.command(PutGroup(SubscriptionGroupConfig("g")))
    bench.reset(2)
    bench.command(forgetting)
    assert bench.offset is None
    assert bench.commit_offset("b", 4) == 4


def test_clients_beyond_the_bound_ask_again(bench: Bench) -> None:
    since = bench.reset(2)
    for number in range(ADMITTED_MAX + 1):
        bench.admit(f"c{number}", since)
    assert bench.commit_offset("c0", 4) == 2
    assert bench.commit_offset("c1", 4) == 4


def test_a_snapshot_keeps_resets_and_has_no_word_of_them_without_any(bench: Bench) -> None:
    before = bench.state.offsets.dump()
    since = bench.reset(2)
    bench.admit("a", since)
    restored = BrokerState()
    restored.restore(bench.state.snapshot())
    assert restored.digests() == bench.state.digests()
    assert restored.offsets.dump() == bench.state.offsets.dump()
    assert restored.offsets.resets.get(*QUEUE) == bench.state.offsets.resets.get(*QUEUE)
    bench.commit_offset("a", 10)
    assert [len(msgpack.decode(each)) for each in (before, bench.state.offsets.dump())] == [4, 4]


def test_replicas_differ_in_their_digest_if_one_misses_an_admission(bench: Bench) -> None:
    other = Bench()
    for each in (bench, other):
        each.reset(2)
    assert bench.state.digests() == other.state.digests()
    found = bench.state.offsets.resets.get(*QUEUE)
    assert found
    bench.admit("a", found.since)
    other.admit("a", found.since - 1)
    assert bench.state.offsets.digest != other.state.offsets.digest
