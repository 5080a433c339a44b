"""What a follower does with a request, against the log matching property itself.

Logs are grown as real leaders grow them: a leader of a higher term continues some prefix of what was
there. So any two logs that agree in index and term agree in everything before.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import PeerProtocolError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.follower import AppendPlan, Conflict, plan_append
from dledger.raft.ids import Index, NodeId, Position, Term
from dledger.raft.log_layout import LogBase, LogLayout
from dledger.raft.messages import AppendRequest


def grow(log: list[Entry], term: int, count: int) -> list[Entry]:
    """`count` entries of `term` after a log; body sizes depend on term and index."""
    grown = list(log)
    for _ in range(count):
        position = grown[-1].end_position if grown else Position(0)
        index = Index(len(grown) + 1)
        body = b"x" * (term * 3 + index)
        grown.append(Entry(index, Term(term), position, EntryKind.NORMAL, body))
    return grown


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
    """A follower's and a leader's log out of one history."""
    logs: list[list[Entry]] = [[]]
    for term in range(1, draw(st.integers(1, 6)) + 1):
        base = draw(st.sampled_from(logs))
        cut = draw(st.integers(0, len(base)))
        logs.append(grow(base[:cut], term, draw(st.integers(1, 4))))
    return draw(st.sampled_from(logs)), draw(st.sampled_from(logs))


def shape_of(entries: list[Entry]) -> LogLayout:
    layout = LogLayout()
    for entry in entries:
        layout.append(entry.term, entry.size_bytes)
    return layout


def common_length(a: list[Entry], b: list[Entry]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def make_request(leader: list[Entry], prev_index: int, count: int) -> AppendRequest:
    prev_term = leader[prev_index - 1].term if prev_index else Term(0)
    entries = tuple(leader[prev_index : prev_index + count])
    return AppendRequest(Term(9), NodeId("n0"), Index(prev_index), prev_term, entries, Index(0), 1)


@given(two_logs(), st.integers(0, 99), st.integers(0, 6), st.integers(0, 99))
def test_the_plan_makes_the_logs_agree(
    logs: tuple[list[Entry], list[Entry]], at: int, count: int, committed: int
) -> None:
    follower, leader = logs
    common = common_length(follower, leader)
    commit_index = Index(committed % (common + 1))
    prev_index = at % (len(leader) + 1)
    request = make_request(leader, prev_index, count)
    plan = plan_append(shape_of(follower), commit_index, request)
    if isinstance(plan, Conflict):
        assert prev_index > common, "logs that agree there are not in conflict"
        # The leader gets nearer, never below what is committed.
        assert commit_index < plan.index <= prev_index
        return
    assert prev_index <= common
    after = list(follower)
    if plan.truncate_from is not None:
        assert plan.truncate_from > common, "what agrees is never removed"
        after = after[: plan.truncate_from - 1]
    after += plan.new
    assert [entry.index for entry in after] == list(range(1, len(after) + 1))
    assert plan.match_index == prev_index + len(request.entries)
    assert after[: plan.match_index] == leader[: plan.match_index]
    if prev_index + len(request.entries) <= common:
        assert after == follower, "a request without news changes nothing"


@given(two_logs())
def test_a_leader_that_contradicts_a_commit_is_refused(
    logs: tuple[list[Entry], list[Entry]],
) -> None:
    follower, leader = logs
    common = common_length(follower, leader)
    if common in {len(follower), len(leader)}:
        return
    request = make_request(leader, common, len(leader))
    with pytest.raises(PeerProtocolError, match="committed"):
        plan_append(shape_of(follower), Index(common + 1), request)


@given(two_logs(), st.data())
def test_a_malformed_request_is_refused(
    logs: tuple[list[Entry], list[Entry]], data: st.DataObject
) -> None:
    follower, leader = logs
    common = common_length(follower, leader)
    entries = leader[common:]
    if not entries:
        return
    place = data.draw(st.integers(0, len(entries) - 1))
    bad = entries[place]
    wrong = data.draw(
        st.sampled_from(
            [
                Entry(Index(bad.index + 1), bad.term, bad.position, bad.kind, bad.body),
                Entry(bad.index, Term(10), bad.position, bad.kind, bad.body),
                Entry(bad.index, Term(0), bad.position, bad.kind, bad.body),
                Entry(bad.index, bad.term, Position(bad.position + 1), bad.kind, bad.body),
            ]
        )
    )
    entries[place] = wrong
    good = make_request(leader, common, 0)
    request = AppendRequest(
        good.term, good.source, good.prev_index, good.prev_term, tuple(entries), Index(0), 1
    )
    with pytest.raises(PeerProtocolError):
        plan_append(shape_of(follower), Index(0), request)


def test_entries_before_the_logs_start_are_committed_hence_equal() -> None:
    leader = grow([], 1, 6)
    start = LogBase(Index(4), Term(1), leader[4].position)
    plan = plan_append(LogLayout(start), Index(4), make_request(leader, 2, 4))
    assert plan == AppendPlan(Index(6), None, tuple(leader[4:6]))
