"""A member that could not run blames nobody for its own silence; promises and leases go by the clock all the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dledger.raft.core import STANDSTILLS_MAX
from dledger.raft.effects import ReadAt, Resolve, Role, SendEntries
from dledger.raft.events import Propose, ReadRequested, Received, StoodStill, Tick
from dledger.raft.ids import Index, Term
from dledger.raft.messages import PreVoteRequest, PreVoteResponse, VoteResponse
from dledger.testing.core_group import CoreGroup, CoreMember
from dledger.testing.make_roles import (
    N0,
    N1,
    N2,
    append_request,
    campaign,
    let_time_out,
    make_role,
    receive,
    sent,
    success,
)


def follower_of_n1() -> tuple[CoreGroup, CoreMember]:
    group, member = make_role(Role.FOLLOWER, "1", term=1)
    receive(member, append_request(N1, 1, "1@1"))
    return group, member


def leader() -> tuple[CoreGroup, CoreMember]:
    group, member = make_role(Role.LEADER)
    receive(member, success(member, N1, 1))
    return group, member


def test_a_follower_waits_longer_by_the_time_in_which_nothing_could_reach_it() -> None:
    group, member = follower_of_n1()
    deadline_ms = member.node.next_deadline_ms()
    group.now_ms += 5000
    member.step(StoodStill(4900))
    assert member.node.next_deadline_ms() == deadline_ms + 4900
    member.step(Tick())
    assert member.node.role is Role.FOLLOWER
    let_time_out(group, member)
    assert member.node.role is Role.PRE_CANDIDATE


def test_who_hardly_ever_runs_believes_in_the_end_that_nobody_is_there() -> None:
    group, member = follower_of_n1()
    for _ in range(STANDSTILLS_MAX):
        group.now_ms += 1000
        member.step(StoodStill(1000))
        member.step(Tick())
        assert member.node.role is Role.FOLLOWER
    group.now_ms += 1000
    member.step(StoodStill(1000))
    member.step(Tick())
    assert member.node.role is Role.PRE_CANDIDATE


def test_a_leader_that_is_heard_begins_a_new_silence() -> None:
    group, member = follower_of_n1()
    for _ in range(3 * STANDSTILLS_MAX):
        group.now_ms += 1000
        member.step(StoodStill(1000))
        receive(member, append_request(N1, 1, "1@1"))
        member.step(Tick())
        assert member.node.role is Role.FOLLOWER


def test_a_promise_is_over_when_the_clock_says_so() -> None:
    """Who stood still may vote as soon as everybody else may: it must not hold up an election."""
    group, member = follower_of_n1()
    lease_ms = group.configs[N0].lease_ms
    group.now_ms += lease_ms
    member.step(StoodStill(lease_ms))
    answer = sent(receive(member, PreVoteRequest(Term(2), N2, Index(1), Term(1), 0)))[0]
    assert isinstance(answer, PreVoteResponse)
    assert answer.granted


def test_a_lease_whose_clock_stood_still_too_is_worth_what_docs_say() -> None:
    """A virtual machine that its host stopped: docs/guarantees.md tells how long it may answer reads alone."""
    group, member = leader()
    sent_ms = group.now_ms
    assert member.node.has_lease(sent_ms), "no clock of its own tells it otherwise"
    for rest_ms, has_lease in ((269, True), (270, False)):
        assert member.node.has_lease(sent_ms + rest_ms) is has_lease
    receive(member, append_request(N2, 2, "1@1"))
    assert not member.node.has_lease(sent_ms), "unless it hears of a later term first"


def test_a_leader_that_stood_still_keeps_its_followers_but_not_its_lease() -> None:
    group, member = leader()
    assert member.node.has_lease(group.now_ms)
    group.now_ms += 5000
    member.step(StoodStill(4950))
    assert not member.node.has_lease(group.now_ms)
    effects = member.step(ReadRequested(1))
    assert not [each for each in effects if isinstance(each, Resolve)]
    member.step(Tick())
    assert member.node.role is Role.LEADER
    group.now_ms += 5
    outcomes = [
        each.outcome
        for each in receive(member, success(member, N1, 1))
        if isinstance(each, Resolve)
    ]
    assert outcomes == [ReadAt(Index(1))]


def test_a_leader_whose_followers_stay_silent_after_it_stood_still_steps_down() -> None:
    group, member = leader()
    group.now_ms += 5000
    member.step(StoodStill(5000))
    until_ms = group.now_ms + 2 * group.configs[N0].election_timeout_max_ms
    while member.node.role is Role.LEADER:
        group.now_ms = member.node.next_deadline_ms()
        assert group.now_ms < until_ms
        member.step(Tick())


def test_a_heartbeat_is_answered_while_the_disk_writes() -> None:
    """It confirms what is durable; what is not yet is confirmed when it is, by the answer to its own request."""
    group, member = make_role(Role.FOLLOWER, "1", term=1)
    receive(member, append_request(N1, 1, "1@1"))
    group.mail.clear()
    member.step(Received(append_request(N1, 1, "1@1", "1,1", commit=1)))
    assert group.mail == []
    member.step(Received(append_request(N1, 1, "3@1")))
    (mail,) = group.mail
    assert mail.message == success_of(member, match=1, last=3)
    member.sync()
    assert [each.message for each in group.mail[1:]] == [success_of(member, match=3, last=3)]
    member.step(Received(append_request(N1, 1, "3@1")))
    assert group.mail[-1].message == success_of(member, match=3, last=3)


def success_of(member: CoreMember, *, match: int, last: int) -> object:
    answer = success(member, N0, match, round_=1)
    return replace(answer, last_index=Index(last))


def test_no_answer_tells_of_a_term_that_is_not_durable() -> None:
    group, member = make_role(Role.FOLLOWER, "1", term=1)
    group.mail.clear()
    member.step(Received(append_request(N1, 2, "1@1")))
    assert group.mail == []
    member.sync()
    assert len(group.mail) == 1


def test_a_leader_sends_on_to_a_member_that_answers_while_its_disk_is_slow() -> None:
    """It is not taken for lost, and is not sent again what it has."""
    group, member = leader()
    receive(member, success(member, N2, 1))
    member.step(Propose((b"x",), token=1))
    member.sync()
    config = group.configs[N0]
    for _ in range(3 * config.election_timeout_max_ms // config.heartbeat_interval_ms):
        group.now_ms = member.node.next_deadline_ms()
        effects = member.step(Tick())
        for peer in (N1, N2):
            effects += member.step(Received(success(member, peer, 1)))
        again = [
            each for each in effects if isinstance(each, SendEntries) and each.first < each.end
        ]
        assert again == []
    assert member.node.role is Role.LEADER
    assert {view.inflight_count for view in member.node.progress().values()} == {1}


def test_a_vote_that_comes_after_the_timeout_counts_as_long_as_the_term_lasts() -> None:
    """Votes wait for disks: where a sync takes longer than the timeout, all of them come late."""
    group, member = make_role(Role.FOLLOWER)
    campaign(group, member)
    term = member.node.term
    let_time_out(group, member)
    assert (member.node.role, member.node.term) == (Role.PRE_CANDIDATE, term)
    receive(member, VoteResponse(term, N1, True))
    assert (member.node.role, member.node.term) == (Role.LEADER, term)


@pytest.mark.parametrize("ends_by", ["leader", "term", "next-election"])
def test_a_vote_that_comes_when_the_election_is_over_counts_for_nothing(ends_by: str) -> None:
    group, member = make_role(Role.FOLLOWER)
    campaign(group, member)
    term = member.node.term
    let_time_out(group, member)
    match ends_by:
        case "leader":
            receive(member, append_request(N2, term, "0@0"))
        case "term":
            receive(member, append_request(N2, term + 1, "0@0"))
        case _:
            receive(member, PreVoteResponse(Term(term + 1), N2, True))
            assert member.node.role is Role.CANDIDATE
    role = member.node.role
    receive(member, VoteResponse(term, N1, True))
    assert member.node.role is role
