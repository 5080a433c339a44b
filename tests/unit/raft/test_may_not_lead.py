"""A member without a state votes and confirms, and does not campaign."""

from __future__ import annotations

from msgspec.structs import replace

from dledger.config import RaftConfig
from dledger.errors import TransferFailedError
from dledger.raft.effects import Effect, Failed, Resolve, Role
from dledger.raft.events import Propose, Tick, TransferRequested
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.raft.transfer import PREFERRED_CHECK_MS
from dledger.testing.core_group import CoreGroup, CoreMember
from dledger.testing.make_roles import (
    N0,
    N1,
    N2,
    append_request,
    elect,
    let_time_out,
    make_group,
    receive,
    seed,
    sent,
    success,
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


def led(*preferred: NodeId) -> tuple[CoreGroup, CoreMember]:
    """Make a group that n0 leads; n2, which may not lead, has answered."""
    names = (N0, N1, N2)
    configs = [RaftConfig(name, names, preferred_leaders=preferred) for name in names]
    group = CoreGroup(configs, lambda _: lambda low, _high: low)
    leader = group.members[N0]
    elect(group, leader)
    answer(leader, N2, may_lead=False)
    return group, leader


def answer(leader: CoreMember, source: NodeId, *, may_lead: bool = True) -> list[Effect]:
    said = success(leader, source, leader.node.log.last_index)
    return receive(leader, replace(said, may_lead=may_lead))


def transfer_error(effects: list[Effect]) -> str:
    (outcome,) = [effect.outcome for effect in effects if isinstance(effect, Resolve)]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, TransferFailedError)
    return str(outcome.error)


def test_it_says_so_to_its_leader() -> None:
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1")
    for may_lead in (False, True):
        member.node.let_lead(may_lead=may_lead)
        (said,) = sent(receive(member, append_request(N1, 1, "2@1")))
        assert isinstance(said, AppendResponse)
        assert (said.success, said.may_lead) == (True, may_lead)


def test_its_leader_keeps_the_lead_and_the_lease_though_it_is_preferred() -> None:
    group, leader = led(N2)
    answer(leader, N1)
    for _ in range(400):
        group.now_ms = leader.node.next_deadline_ms()
        leader.step(Tick())
        leader.sync()
        answer(leader, N1)
        answer(leader, N2, may_lead=False)
        assert leader.node.transfer_target is None
        assert leader.node.has_lease(group.now_ms)
    group.now_ms += PREFERRED_CHECK_MS
    answer(leader, N2)
    leader.step(Tick())
    assert leader.node.transfer_target == N2, "it has a state again"


def test_a_leader_that_stops_hands_over_to_another_one() -> None:
    _, leader = led()
    effects = leader.step(TransferRequested(None, token=1))
    assert "any member" in transfer_error(effects)
    answer(leader, N1)
    assert leader.step(TransferRequested(None, token=2)) != []
    assert leader.node.transfer_target == N1


def test_who_asks_for_it_by_name_is_refused_at_once() -> None:
    _, leader = led()
    error = transfer_error(leader.step(TransferRequested(N2, token=1)))
    assert "n2 has lost its state" in error
    assert leader.node.transfer_target is None


def test_a_hand_over_ends_when_its_target_says_so() -> None:
    _, leader = led()
    answer(leader, N1)
    leader.step(Propose((b"x",), token=1))
    leader.step(TransferRequested(N1, token=2))
    assert leader.node.transfer_target == N1
    assert "n1 has lost its state" in transfer_error(
        receive(leader, replace(success(leader, N1, 1), may_lead=False))
    )
    assert leader.node.transfer_target is None


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
