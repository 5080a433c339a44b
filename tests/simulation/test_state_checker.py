"""The checker is checked: small histories by hand, one wrong step each, and what it says to it."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.codec.entry import chain_crc, seal
from dledger.raft.configuration import Configuration
from dledger.raft.effects import Committed, Role
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.messages import AppendResponse, VoteRequest, VoteResponse
from dledger.testing.state_checker import StateChecker, Violation

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


class FakeLog:
    def __init__(self) -> None:
        self.layout = LogLayout()
        self.stored: list[Entry] = []

    def entries(self, first: Index, end: Index) -> list[Entry]:
        return self.stored[first - 1 : end - 1]


class FakeNode:
    def __init__(self, log: FakeLog) -> None:
        self._log = log
        self.term = Term(0)
        self.vote: NodeId | None = None
        self.role = Role.FOLLOWER
        self.commit_index = Index(0)
        self.configuration = Configuration((N0, N1, N2))

    @property
    def log(self) -> LogLayout:
        return self._log.layout


class Member:
    """As much of an engine as the checker looks at, driven by hand."""

    def __init__(self, checker: StateChecker, node_id: NodeId) -> None:
        self.checker: Any = checker
        self.node_id = node_id
        self.log = FakeLog()
        self.node = FakeNode(self.log)
        checker.started(node_id, self)  # type: ignore[arg-type]  # stands in for an engine

    def append(self, *bodies: str, term: int = 1) -> None:
        for body in bodies:
            stored = self.log.stored
            position = Position(sum(entry.size_bytes for entry in stored))
            bare = Entry(
                Index(len(stored) + 1), Term(term), position, EntryKind.NORMAL, body.encode()
            )
            stored.append(seal(bare, chain_crc(stored[-1]) if stored else 0))
            self.log.layout.append(Term(term), stored[-1].size_bytes)
        self.look()

    def cut(self, first: int) -> None:
        del self.log.stored[first - 1 :]
        self.log.layout.truncate_from(Index(first))
        self.look()

    def look(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.node, name, value)
        self.checker.observe(self.node_id, self)

    def send(self, to: NodeId, message: Any) -> None:
        self.checker.sent(self.node_id, to, message, self)

    def restart(self) -> None:
        self.node.role, self.node.commit_index = Role.FOLLOWER, Index(0)
        self.checker.started(self.node_id, self)


def group() -> tuple[StateChecker, Member, Member, Member]:
    checker = StateChecker((N0, N1, N2))
    return checker, Member(checker, N0), Member(checker, N1), Member(checker, N2)


def confirm(index: int, term: int = 1) -> AppendResponse:
    return AppendResponse(Term(term), N0, 1, True, Index(index), Index(0), Term(0), Index(index))


def test_a_good_history_passes() -> None:
    checker, one, two, _ = group()
    one.look(term=1, role=Role.LEADER)
    one.append("a", "b")
    two.append("a", "b")
    two.look(term=1)
    one.look(commit_index=2)
    two.look(commit_index=1)
    checker.handed_out(N1, two.log.stored[:1])
    checker.acknowledged([b"b"], Committed(EntryId(Term(1), Index(2)), EntryId(Term(1), Index(2))))
    checker.refused([b"c"])
    checker.read(floor_index=Index(2), index=Index(2))
    assert checker.is_committed(b"b")
    assert (checker.committed_count, checker.leader_count) == (2, 1)


def test_two_leaders_in_one_term() -> None:
    _, one, two, _ = group()
    one.look(term=1, role=Role.LEADER)
    with pytest.raises(Violation, match="term 1 has two leaders: n0 and n1"):
        two.look(term=1, role=Role.LEADER)


def test_the_same_member_may_not_lead_a_term_again_after_a_crash() -> None:
    _, one, _, _ = group()
    one.look(term=1, role=Role.LEADER)
    one.restart()
    with pytest.raises(Violation, match="two leaders"):
        one.look(role=Role.LEADER)


def test_two_votes_in_one_term() -> None:
    _, one, _, _ = group()
    one.look(term=1)
    one.send(N1, VoteResponse(Term(1), N0, True))
    one.send(N2, VoteResponse(Term(1), N0, False))
    with pytest.raises(Violation, match="n0 votes in term 1 for n1 and for n2"):
        one.send(N2, VoteResponse(Term(1), N0, True))


def test_a_vote_that_a_crash_forgot() -> None:
    _, one, _, _ = group()
    one.look(term=1)
    one.send(N1, VoteRequest(Term(1), N0, Index(0), Term(0)))
    with pytest.raises(Violation, match="voted for n0 in term 1; after the crash its vote is None"):
        one.restart()


def test_a_term_that_a_crash_forgot() -> None:
    _, one, _, _ = group()
    one.look(term=2)
    one.send(N1, VoteResponse(Term(2), N0, False))
    one.node.term = Term(1)
    with pytest.raises(Violation, match="knew term 2 before the crash and term 1 after it"):
        one.restart()


def test_a_term_that_goes_back() -> None:
    _, one, _, _ = group()
    one.look(term=2)
    with pytest.raises(Violation, match="goes back from term 2"):
        one.look(term=1)


def test_a_confirmed_entry_that_a_crash_took() -> None:
    _, one, _, _ = group()
    one.look(term=1)
    one.append("a", "b", "c")
    one.send(N1, confirm(2))
    del one.log.stored[1:]
    one.log.layout.truncate_from(Index(2))
    with pytest.raises(Violation, match="had confirmed entries up to 2"):
        one.restart()


def test_an_unconfirmed_entry_may_be_lost_and_a_confirmed_one_removed_by_a_leader() -> None:
    _, one, _, _ = group()
    one.look(term=1)
    one.append("a", "b", "c")
    one.send(N1, confirm(2))
    one.restart()
    one.cut(2)
    one.restart()
    # What a leader had removed is confirmed no longer, and what is confirmed afterwards is.
    one.append("d", term=2)
    one.look(term=2)
    one.send(N1, confirm(2, term=2))
    del one.log.stored[1:]
    one.log.layout.truncate_from(Index(2))
    with pytest.raises(Violation, match="had confirmed entries up to 2"):
        one.restart()


def test_another_entry_of_the_same_name() -> None:
    _, one, two, _ = group()
    one.append("a")
    with pytest.raises(Violation, match="n1 holds another 1@1"):
        two.append("b")


def test_the_same_entry_after_another_prefix() -> None:
    _, one, two, _ = group()
    one.append("a", term=1)
    one.append("c", term=3)
    two.append("b", term=2)
    with pytest.raises(Violation, match="n1 holds another 2@3"):
        two.append("c", term=3)


def test_a_leader_without_what_is_committed() -> None:
    _, one, two, three = group()
    one.look(term=1, role=Role.LEADER)
    one.append("a")
    one.look(commit_index=1)
    with pytest.raises(Violation, match="n2 leads term 2 without the 1 entries"):
        three.look(term=2, role=Role.LEADER)
    two.append("a")
    two.look(term=3, role=Role.LEADER)


def test_a_late_winner_of_an_old_term_need_not_have_later_commits() -> None:
    checker, one, _, three = group()
    one.look(term=2, role=Role.LEADER)
    one.append("a", term=2)
    one.look(commit_index=1)
    three.look(term=1, role=Role.LEADER)
    assert (checker.committed_count, checker.leader_count) == (1, 2)


def test_a_committed_entry_that_changes() -> None:
    _, one, two, _ = group()
    one.append("a")
    one.look(term=1, commit_index=1)
    two.append("b", term=2)
    with pytest.raises(Violation, match="n1 commits other entries up to 1"):
        two.look(term=2, commit_index=1)


def test_a_committed_entry_that_is_removed() -> None:
    _, one, _, _ = group()
    one.append("a", "b")
    one.look(term=1, commit_index=2)
    with pytest.raises(Violation, match="n0 removes entry 2"):
        one.cut(2)


def test_a_commit_index_that_goes_back_or_beyond_the_log() -> None:
    _, one, _, _ = group()
    one.append("a", "b")
    one.look(commit_index=2)
    with pytest.raises(Violation, match="goes back from 2 to 1"):
        one.look(commit_index=1)
    _, other, _, _ = group()
    with pytest.raises(Violation, match="commits entry 1, but its log ends at 0"):
        other.look(commit_index=1)


def test_entries_handed_out_in_disorder_or_too_early() -> None:
    checker, one, _, _ = group()
    one.append("a", "b")
    one.look(commit_index=1)
    with pytest.raises(Violation, match="hands out entry 2 after 0"):
        checker.handed_out(N0, one.log.stored[1:])
    checker.handed_out(N0, one.log.stored[:1])
    with pytest.raises(Violation, match="not committed"):
        checker.handed_out(N0, one.log.stored[1:])


def test_answers_that_are_not_true() -> None:
    checker, one, _, _ = group()
    one.append("a", "b")
    one.look(commit_index=1)
    first = EntryId(Term(1), Index(1))
    second = EntryId(Term(1), Index(2))
    with pytest.raises(Violation, match="acknowledged but not committed"):
        checker.acknowledged([b"b"], Committed(second, second))
    with pytest.raises(Violation, match="does not hold"):
        checker.acknowledged([b"x"], Committed(first, first))
    with pytest.raises(Violation, match="2 bodies are acknowledged as"):
        checker.acknowledged([b"a", b"b"], Committed(first, first))
    with pytest.raises(Violation, match="refused proposal is committed"):
        checker.refused([b"a"])
    with pytest.raises(Violation, match="entry 3 was acknowledged before it began"):
        checker.read(floor_index=Index(3), index=Index(2))


def test_a_refused_body_that_is_committed_later_and_one_committed_twice() -> None:
    checker, one, _, _ = group()
    checker.refused([b"b"])
    one.append("a", "b")
    with pytest.raises(Violation, match="its proposal was refused"):
        one.look(commit_index=2)
    _, other, _, _ = group()
    other.append("a", "a")
    with pytest.raises(Violation, match="holds the body of entry 1 again"):
        other.look(commit_index=2)


def test_a_lone_member_may_lose_a_term_that_nobody_heard_of() -> None:
    checker = StateChecker((N0,))
    one = Member(checker, N0)
    one.look(term=1, role=Role.LEADER)
    one.append("lost")
    one.log.stored.clear()
    one.log.layout.truncate_from(Index(1))
    one.node.term = Term(0)
    one.restart()
    one.look(term=1, role=Role.LEADER)
    one.append("kept")
    one.look(commit_index=1)
    assert checker.is_committed(b"kept")
