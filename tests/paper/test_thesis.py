"""A test for each rule of Ongaro's thesis, beyond the paper, that this core follows."""

from __future__ import annotations

import pytest

from dledger.errors import LeadershipLostError, NotLeaderError, TransferringError
from dledger.raft.effects import (
    Committed,
    Effect,
    Failed,
    Outcome,
    ReadAt,
    Resolve,
    Role,
    TransferDone,
)
from dledger.raft.events import (
    PeerUnreachable,
    Persisted,
    Propose,
    ReadRequested,
    Received,
    StepDown,
    Tick,
    TransferRequested,
)
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.messages import (
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.testing.core_group import CoreGroup, CoreMember
from dledger.testing.make_roles import (
    N0,
    N1,
    N2,
    append_request,
    elect,
    make_group,
    make_role,
    receive,
    requests,
    seed,
    sent,
    success,
)


def ready_leader() -> tuple[CoreGroup, CoreMember]:
    """A leader whose no-op is committed and on every member."""
    group, member = make_role(Role.LEADER)
    for peer in (N1, N2):
        receive(member, success(member, peer, 1))
    return group, member


def outcomes(effects: list[Effect]) -> dict[int, Outcome]:
    return {effect.token: effect.outcome for effect in effects if isinstance(effect, Resolve)}


# 3.10 Leadership transfer


def test_the_leader_stops_to_accept_proposals() -> None:
    """3.10, step 1: "The prior leader stops accepting new client requests." """
    _, member = ready_leader()
    member.step(TransferRequested(N1, token=1))
    outcome = outcomes(member.step(Propose((b"x",), token=2)))[2]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, TransferringError)


def test_the_target_is_told_when_its_log_matches_the_leaders() -> None:
    """3.10, steps 2 and 3: "The prior leader fully updates the target server's log to match its own
    log [...] The prior leader sends a TimeoutNow request to the target server."
    """
    _, member = ready_leader()
    member.step(Propose((b"x",), token=1))
    member.sync()
    assert sent(member.step(TransferRequested(N1, token=2))) == []
    assert sent(receive(member, success(member, N2, 2))) == []
    assert sent(receive(member, success(member, N1, 2))) == [TimeoutNow(Term(1), N0)]


def test_the_target_campaigns_at_once_and_everybody_listens() -> None:
    """3.10 and 4.2.3: TimeoutNow "has the same effect as the target server's election timer firing";
    its vote requests carry a flag, and voters answer although they have just heard their leader.
    """
    group = make_group()
    target, voter = group.members[N1], group.members[N2]
    for member in (target, voter):
        receive(member, append_request(N0, 1, "0@0"))
    (request, _) = sent(receive(target, TimeoutNow(Term(1), N0)))
    assert request == VoteRequest(Term(2), N1, Index(0), Term(0), is_transfer=True)
    assert sent(receive(voter, request)) == [VoteResponse(Term(2), N2, True)]


@pytest.mark.parametrize(
    "word", [TimeoutNow(Term(0), N0), TimeoutNow(Term(1), N2), TimeoutNow(Term(2), N0)]
)
def test_only_the_current_leader_may_announce_it(word: TimeoutNow) -> None:
    """3.10 names "the prior leader" as the sender; any other word is late or wrong."""
    member = make_group().members[N1]
    receive(member, append_request(N0, 1, "0@0"))
    assert receive(member, word) == []
    assert (member.node.role, member.node.term) == (Role.FOLLOWER, 1)


def test_a_transfer_is_done_when_a_new_term_is_seen() -> None:
    """3.10: "leadership transfer is complete once the prior leader steps down"."""
    _, member = ready_leader()
    member.step(TransferRequested(N1, token=1))
    effects = receive(member, VoteRequest(Term(2), N1, Index(1), Term(1), is_transfer=True))
    assert outcomes(effects) == {1: TransferDone(N1)}
    assert member.node.role is Role.FOLLOWER


def test_a_transfer_that_takes_too_long_is_given_up() -> None:
    """3.10: "If leadership transfer does not complete after about an election timeout, the prior leader
    aborts the transfer and resumes accepting client requests."
    """
    group, member = ready_leader()
    member.step(TransferRequested(N1, token=1))
    for _ in range(20):
        group.now_ms += 50
        member.step(Tick())
        receive(member, success(member, N1, 1))
    assert member.node.transfer_target is None
    assert 2 not in outcomes(member.step(Propose((b"x",), token=2)))
    assert member.node.pending_count == 1


def test_after_the_word_the_lease_is_gone_for_the_term() -> None:
    """Not in the thesis: the word may arrive after the transfer was given up, and whoever has it is
    elected without regard to the promises that the lease rests on.
    """
    group, member = ready_leader()
    assert member.node.has_lease(group.now_ms)
    member.step(TransferRequested(N1, token=1))
    assert not member.node.has_lease(group.now_ms)
    for _ in range(20):
        group.now_ms += 50
        member.step(Tick())
        receive(member, success(member, N1, 1))
    assert not member.node.has_lease(group.now_ms)


# 4.2.3 Disruptive servers, 9.6 pre-vote


@pytest.mark.parametrize(("silence_ms", "listens"), [(0, False), (299, False), (300, True)])
def test_a_member_that_hears_a_leader_supports_nobody(silence_ms: int, listens: bool) -> None:
    """4.2.3: "if a server receives a RequestVote request within the minimum election timeout of hearing
    from a current leader, it does not update its term or grant its vote."
    """
    group = make_group()
    member = group.members[N1]
    receive(member, append_request(N0, 1, "0@0"))
    group.now_ms += silence_ms
    would = sent(receive(member, PreVoteRequest(Term(2), N2, Index(0), Term(0))))
    assert would == [PreVoteResponse(Term(2) if listens else Term(1), N1, listens)]
    does = sent(receive(member, VoteRequest(Term(2), N2, Index(0), Term(0))))
    assert does == ([VoteResponse(Term(2), N1, True)] if listens else [])
    assert member.node.term == (2 if listens else 1)


def test_a_leader_with_its_majority_does_not_listen_either() -> None:
    """4.2.3, for the leader itself."""
    group, member = ready_leader()
    assert receive(member, VoteRequest(Term(9), N2, Index(9), Term(8))) == []
    group.now_ms += 300
    receive(member, VoteRequest(Term(9), N2, Index(9), Term(8)))
    assert member.node.term == 9


def test_a_restarted_member_keeps_a_promise_it_may_have_made() -> None:
    """6.4.1: the lease "assumes a bound on clock drift" and that promises hold; a crash forgets them."""
    group = make_group()
    member = group.members[N1]
    group.now_ms = 10_000
    member.restart()
    group.now_ms += 299
    assert receive(member, VoteRequest(Term(5), N2, Index(0), Term(0))) == []
    group.now_ms += 1
    assert sent(receive(member, VoteRequest(Term(5), N2, Index(0), Term(0)))) == [
        VoteResponse(Term(5), N1, True)
    ]


def test_a_bound_member_gives_no_vote_in_its_own_term_either() -> None:
    """4.2.3: it has voted for nobody in this term, but it hears the term's leader."""
    member = make_group().members[N1]
    receive(member, append_request(N0, 1, "0@0"))
    (answer,) = sent(receive(member, VoteRequest(Term(1), N2, Index(0), Term(0))))
    assert answer == VoteResponse(Term(1), N1, False)


@pytest.mark.parametrize(("asked_term", "is_granted"), [(4, False), (5, False), (6, True)])
def test_a_pre_vote_is_for_a_later_term_only(asked_term: int, is_granted: bool) -> None:
    """9.6: whoever is behind learns of the term instead, and asks again for the next."""
    group = make_group()
    member = group.members[N1]
    seed(member, "", term=5)
    group.now_ms += 300
    request = PreVoteRequest(Term(asked_term), N2, Index(9), Term(4))
    (answer,) = sent(receive(member, request))
    assert answer == PreVoteResponse(Term(6) if is_granted else Term(5), N1, is_granted)


def test_a_pre_vote_changes_nothing_at_the_voter() -> None:
    """9.6: a candidate "only increments its term if it first learns from a majority of the cluster that
    they would be willing to grant the candidate their votes".
    """
    group = make_group()
    group.now_ms = 300
    member = group.members[N1]
    before = member.node.describe()
    for candidate in (N0, N2):
        (answer,) = receive(member, PreVoteRequest(Term(1), candidate, Index(0), Term(0)))
        assert sent([answer]) == [PreVoteResponse(Term(1), N1, True)]
    assert member.node.describe() == before


def test_a_pre_candidate_that_finds_no_majority_keeps_its_term() -> None:
    """9.6, the other half."""
    group, member = make_role(Role.PRE_CANDIDATE)
    for _ in range(50):
        group.now_ms = member.node.next_deadline_ms()
        member.step(Tick())
        receive(member, PreVoteResponse(Term(0), N1, False))
    assert (member.node.role, member.node.term) == (Role.PRE_CANDIDATE, 0)


# 6.2 Check quorum


def test_a_leader_without_a_majority_steps_down() -> None:
    """6.2: "a leader in Raft steps down if an election timeout elapses without a successful round of
    heartbeats to a majority of its cluster".
    """
    group, member = ready_leader()
    member.step(Propose((b"x",), token=1))
    member.step(ReadRequested(token=2))
    answers: dict[int, Outcome] = {}
    for _ in range(15):
        assert member.node.role is Role.LEADER
        group.now_ms += 60
        answers |= outcomes(member.step(Tick()))
    assert member.node.role is Role.FOLLOWER
    lost = answers[1]
    assert isinstance(lost, Failed)
    assert isinstance(lost.error, LeadershipLostError)
    assert not lost.error.definite


# 6.4 Reads


def test_a_read_waits_for_the_start_of_the_term() -> None:
    """6.4, step 1: "If the leader has not yet marked an entry from its current term committed, it waits
    until it has done so."
    """
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1", term=1)
    elect(group, member)
    member.step(ReadRequested(token=1))
    assert outcomes(receive(member, success(member, N1, 2))) == {}
    assert outcomes(receive(member, success(member, N1, 3))) == {1: ReadAt(Index(3))}


def test_a_read_needs_a_round_that_was_sent_after_it_came() -> None:
    """6.4, step 3: "It issues a new round of heartbeats and waits for their acknowledgments from a
    majority of the cluster."
    """
    group, member = ready_leader()
    old_round = member.node.last_round
    group.now_ms += 290
    effects = member.step(ReadRequested(token=1))
    assert [request.round for request in requests(effects)] == [old_round + 1, old_round + 2]
    assert outcomes(receive(member, success(member, N1, 1, round_=old_round))) == {}
    assert outcomes(receive(member, success(member, N1, 1, round_=old_round + 1))) == {
        1: ReadAt(Index(1))
    }


def test_many_reads_share_a_round() -> None:
    """6.4: the leader "can amortize this cost: a single round of heartbeats" for any number of reads."""
    group, member = ready_leader()
    group.now_ms += 290
    rounds = sum(len(requests(member.step(ReadRequested(token=token)))) for token in range(1000))
    assert rounds == 2
    first = receive(member, success(member, N1, 1))
    assert list(outcomes(first)) == [0], "the others came while its round was under way"
    second = receive(member, success(member, N1, 1))
    assert list(outcomes(second)) == list(range(1, 1000))


def test_a_read_that_was_not_answered_did_not_happen() -> None:
    """6.4: a deposed leader must not answer."""
    group, member = ready_leader()
    group.now_ms += 290
    member.step(ReadRequested(token=1))
    outcome = outcomes(receive(member, append_request(N1, 2, "1@1")))[1]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, NotLeaderError)
    assert outcome.error.definite


@pytest.mark.parametrize(("elapsed_ms", "has_lease"), [(0, True), (269, True), (270, False)])
def test_the_lease_counts_from_when_the_round_was_sent(elapsed_ms: int, has_lease: bool) -> None:
    """6.4.1: "the leader [...] extends its lease to start + election timeout / clock drift bound", where
    start is when the round was sent.
    """
    group, member = ready_leader()
    group.now_ms += 200
    member.step(Tick())
    sent_ms, round_ = group.now_ms, member.node.last_round
    group.now_ms += 100
    receive(member, success(member, N1, 1, round_=round_))
    assert member.node.has_lease(sent_ms + elapsed_ms) == has_lease


def test_answers_in_any_order_do_not_shorten_the_lease() -> None:
    """6.4.1: the latest round counts."""
    group, member = ready_leader()
    old_round = member.node.last_round
    group.now_ms += 200
    member.step(Tick())
    receive(member, success(member, N1, 1))
    receive(member, success(member, N1, 1, round_=old_round))
    assert member.node.has_lease(group.now_ms + 269)


def test_a_leader_that_has_committed_nothing_has_no_lease() -> None:
    """6.4, step 1: a majority listens to it, but it does not know yet what is committed."""
    group = make_group()
    member = group.members[N0]
    seed(member, "1,1", term=1)
    elect(group, member)
    receive(member, success(member, N1, 2))
    receive(member, success(member, N2, 2))
    assert not member.node.has_lease(group.now_ms)
    receive(member, success(member, N2, 3))
    assert member.node.has_lease(group.now_ms)


# 10.2.1 Writing to the leader's disk in parallel


def test_the_leader_counts_itself_when_its_disk_is_done() -> None:
    """10.2.1: "The leader may even commit an entry before it has been written to its own disk, if a
    majority of followers have written it to their disks".
    """
    _, member = ready_leader()
    member.step(Propose((b"x",), token=1))
    member.step(Propose((b"y",), token=2))
    assert outcomes(member.step(Persisted(EntryId(Term(1), Index(2))))) == {}
    id_2, id_3 = EntryId(Term(1), Index(2)), EntryId(Term(1), Index(3))
    assert outcomes(receive_only(member, N1, 3)) == {1: Committed(id_2, id_2)}
    assert outcomes(receive_only(member, N2, 3)) == {2: Committed(id_3, id_3)}


def receive_only(member: CoreMember, source: NodeId, match: int) -> list[Effect]:
    """An answer, without the sync that `receive` adds."""
    return member.step(Received(success(member, source, match)))


# what the thesis leaves to the implementation


def test_a_broken_connection_to_the_leader_shortens_the_wait() -> None:
    """The promise to the leader is kept; then the follower asks within 150 ms."""
    group = make_group(timeout_ms=900)
    member = group.members[N1]
    receive(member, append_request(N0, 1, "0@0"))
    assert member.node.next_deadline_ms() == group.now_ms + 900
    group.now_ms += 10
    member.step(PeerUnreachable(N2))
    assert member.node.next_deadline_ms() == group.now_ms - 10 + 900
    member.step(PeerUnreachable(N0))
    assert member.node.next_deadline_ms() == group.now_ms - 10 + 300 + 150


def test_a_node_told_to_step_down_lets_others_go_first() -> None:
    group, member = ready_leader()
    member.step(StepDown("disk full"))
    assert member.node.role is Role.FOLLOWER
    assert member.node.next_deadline_ms() >= group.now_ms + 3 * 900
