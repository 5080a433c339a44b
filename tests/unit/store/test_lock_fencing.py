"""Locks over failovers, and the offsets that they guard (P1, P2, P5, P6; docs/divergence.md)."""

from __future__ import annotations

import pytest

from broker.service.offsets import PendingOffsets, fenced_remark
from broker.store.control import CommitOffsets, LockQueues, OffsetCommit, UnlockQueues
from broker.store.locks import LOCK_LIVE_MS
from broker.store.state import BrokerState
from dledger.raft.entry import EntryKind
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.store.lone_broker import LoneBroker

QUEUE = ("g", "T", QueueId(0))


class Bench(LoneBroker):
    def lock(self, client_id: str) -> bool:
        offset = self.command(LockQueues("g", client_id, [("T", 0)]))
        return bool(self.state.locks.granted_at(offset))

    def commit_offset(self, client_id: str, offset: int, *, is_forced: bool = False) -> int | None:
        commit = OffsetCommit(*QUEUE, offset, client_id)
        self.command(CommitOffsets([commit], is_forced))
        return self.state.offsets.get(*QUEUE)

    def new_term(self, pause_ms: int = 0) -> None:
        """A failover, with the clock of the new leader `pause_ms` ahead of the old one's."""
        self.log.term += 1
        self.now_ms += pause_ms
        self.state.apply([self.log.append(b"", EntryKind.NOOP)])

    def restart(self) -> None:
        """The state goes through a snapshot."""
        state = BrokerState()
        state.restore(self.state.snapshot())
        self.state = state
        self.staging = type(self.staging)(state, self.staging._store_host)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_the_holder_commits(bench: Bench) -> None:
    assert bench.commit_offset("b", 1) == 1, "nobody holds the queue"
    assert bench.lock("a")
    assert bench.commit_offset("b", 5) == 1
    assert bench.commit_offset("", 6) == 1, "nobody knows who that is"
    assert bench.commit_offset("a", 4) == 4
    assert bench.state.locks.fenced_count == 2
    bench.command(UnlockQueues("g", "a", [("T", 0)]))
    assert bench.commit_offset("b", 5) == 5


def test_a_holder_that_lost_its_lock_is_fenced_by_the_next_one_only(bench: Bench) -> None:
    bench.lock("a")
    bench.now_ms += LOCK_LIVE_MS + 1
    assert bench.commit_offset("a", 3) == 3, "expired, and nobody else came"
    assert bench.lock("b")
    assert bench.commit_offset("a", 9) == 3
    assert bench.commit_offset("b", 4) == 4


def test_a_reset_asks_nobody(bench: Bench) -> None:
    bench.lock("a")
    bench.commit_offset("a", 4)
    assert bench.commit_offset("tool", 1, is_forced=True) == 1


def test_refused_commits_are_told_by_record(bench: Bench) -> None:
    bench.lock("a")
    commits = [OffsetCommit(*QUEUE, 1, "b"), OffsetCommit("g", "T", 1, 1, "b")]
    offset = bench.command(CommitOffsets(commits))
    assert bench.state.locks.fenced_at(offset) == [(QUEUE, "b")]
    assert bench.state.locks.fenced_at(offset + 1) == []


def test_p5_locks_survive_the_leader(bench: Bench) -> None:
    bench.lock("a")
    bench.new_term()
    assert not bench.lock("b")
    assert bench.commit_offset("b", 5) is None
    bench.restart()
    assert not bench.lock("b")
    assert bench.lock("a")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_ahead_at_the_new_leader_expires_no_lock(
    bench: Bench, *, restarts: bool
) -> None:
    bench.lock("a")
    bench.new_term(pause_ms=10 * LOCK_LIVE_MS)
    if restarts:
        bench.restart()
    assert not bench.lock("b")
    bench.now_ms += LOCK_LIVE_MS
    assert not bench.lock("b")
    bench.now_ms += 1
    assert bench.lock("b"), "time goes on within the term"


def test_failovers_do_not_keep_the_lock_of_a_dead_client_alive(bench: Bench) -> None:
    bench.lock("a")
    for _ in range(7):
        bench.new_term(pause_ms=1000)
        bench.command(UnlockQueues("g", "nobody", []))
        bench.now_ms += 10_000
        bench.command(UnlockQueues("g", "nobody", []))
    assert bench.lock("b")


def test_commits_of_different_clients_stay_apart_until_the_fold_judges_them() -> None:
    pending = PendingOffsets()
    pending.add(QUEUE, QueueOffset(9), client_id="stale")
    pending.add(QUEUE, QueueOffset(5), client_id="holder")
    pending.add(QUEUE, QueueOffset(4), client_id="holder")
    (commits,) = pending.take()
    assert [(each.client_id, each.offset) for each in commits] == [("stale", 9), ("holder", 5)]


def test_the_remark_says_who_holds_the_queue_and_who_asked() -> None:
    assert "locked by a, not by b" in fenced_remark(QUEUE, "b", "a")
    assert "no heartbeat" in fenced_remark(QUEUE, "", "a")
