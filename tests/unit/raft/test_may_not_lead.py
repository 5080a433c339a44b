"""A member without a state votes and confirms, and does not campaign."""

from __future__ import annotations

from dledger.raft.effects import Role
from dledger.raft.events import Tick
from dledger.raft.ids import Index, Term
from dledger.raft.messages import TimeoutNow, VoteRequest, VoteResponse
from dledger.testing.make_roles import (
    N0,
    N1,
    append_request,
    let_time_out,
    make_group,
    receive,
    seed,
    sent,
)


def test_it_asks_for_no_votes_until_it_may() -> None:
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1")
    member.node.let_lead(may_lead=False)
    for _ in range(3):
        assert let_time_out(group, member) == []
    assert member.node.role is Role.FOLLOWER
    member.node.let_lead(may_lead=True)
    let_time_out(group, member)
    assert member.node.role is Role.PRE_CANDIDATE


def test_it_takes_no_hand_over() -> None:
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1")
    member.node.let_lead(may_lead=False)
    receive(member, append_request(N1, 1, "2@1"))
    receive(member, TimeoutNow(Term(1), N1))
    assert (member.node.role, member.node.term) == (Role.FOLLOWER, 1)


def test_it_votes_for_others_and_follows_them() -> None:
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1")
    member.node.let_lead(may_lead=False)
    group.now_ms += 10_000
    member.step(Tick())
    effects = receive(member, VoteRequest(Term(2), N1, Index(2), Term(1)))
    assert sent(effects) == [VoteResponse(Term(2), N0, True)]
    effects = receive(member, append_request(N1, 2, "2@1", "2", commit=3))
    assert member.node.commit_index == 3
