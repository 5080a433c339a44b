"""Reads that wait for a round."""

from __future__ import annotations

from dledger.raft.ids import Index
from dledger.raft.reads import WaitingReads


def test_a_read_needs_a_later_round_and_its_index_committed() -> None:
    reads = WaitingReads()
    reads.add(1, index=Index(5), after_round=10)
    assert reads.take_ready(confirmed_round=10, commit_index=Index(9)) == []
    assert reads.take_ready(confirmed_round=11, commit_index=Index(4)) == []
    assert reads.take_ready(confirmed_round=11, commit_index=Index(5)) == [(1, 5)]
    assert len(reads) == 0


def test_a_new_round_is_needed_only_for_who_came_after_the_last() -> None:
    reads = WaitingReads()
    assert not reads.needs_round_after(0)
    reads.add(1, index=Index(5), after_round=10)
    assert reads.needs_round_after(10)
    assert not reads.needs_round_after(11)


def test_all_are_taken_when_leadership_ends() -> None:
    reads = WaitingReads()
    reads.add(1, index=Index(5), after_round=10)
    reads.add(2, index=Index(6), after_round=10)
    assert reads.take_all() == [1, 2]
    assert len(reads) == 0
