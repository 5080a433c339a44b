"""Members whose store began empty: they support nobody until the group is founded, or a leader admits them.

docs/adr/0061 has the rule and why it is safe.
"""

from __future__ import annotations

from dledger.config import RaftConfig
from dledger.raft.effects import Commit, Effect, Resolve, Role, SaveHardState, Send, SendEntries
from dledger.raft.events import (
    GiveUpVote,
    Persisted,
    Propose,
    Received,
    Tick,
    TransferRequested,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.node import RaftNode

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
VOTERS = (N0, N1, N2)


class Member:
    """One node and its clock; everything it saves is durable at once, when asked."""

    def __init__(self, name: NodeId, *, store: int = 0, term: int = 0, entries: int = 0) -> None:
        log = LogLayout()
        for _ in range(entries):
            log.append(Term(term), 100)

        def draw(low: int, high: int) -> int:
            return (store or 99) if high > 1 << 40 else low

        state = HardState(Term(term), None, is_voter=not store)
        self.node = RaftNode(RaftConfig(name, VOTERS), state, log, draw=draw, now_ms=0)
        self.now_ms = 0

    def step(self, event: object) -> list[Effect]:
        return self.node.step(event, self.now_ms)  # type: ignore[arg-type] # an Event

    def receive(self, message: Message) -> list[Effect]:
        return self.step(Received(message))

    def time_out(self) -> list[Effect]:
        self.now_ms = self.node.next_deadline_ms()
        return self.step(Tick())

    def persist(self) -> list[Effect]:
        return self.step(Persisted(self.node.log.last_id))

    def free(self) -> None:
        """Beyond the promise that a start makes."""
        self.now_ms += 5000


def sent(effects: list[Effect], to: NodeId | None = None) -> list[Message]:
    return [each.message for each in effects if isinstance(each, Send) and to in {None, each.to}]


def saves(effects: list[Effect]) -> list[SaveHardState]:
    return [each for each in effects if isinstance(each, SaveHardState)]


def whether(candidate: NodeId, *, last: int = 0, term: int = 1, campaign: int = 9) -> Message:
    return PreVoteRequest(Term(term), candidate, Index(last), Term(last and 1), campaign)


def answer_of(source: NodeId, asked: Message, *, store: int = 0, granted: bool = False) -> Message:
    assert isinstance(asked, PreVoteRequest)
    term = asked.term if granted else Term(asked.term - 1)
    return PreVoteResponse(term, source, granted, store, asked.campaign)


# The member itself.


def test_a_new_store_grants_nothing_and_tells_its_number() -> None:
    member = Member(N0, store=77)
    member.free()
    (answer,) = sent(member.receive(whether(N1)))
    assert answer == PreVoteResponse(Term(0), N0, False, 77, 9)
    (answer,) = sent(member.receive(VoteRequest(Term(3), N1, Index(0), Term(0))))
    assert answer == VoteResponse(Term(3), N0, False)
    assert not member.node.is_voter


def test_a_store_with_entries_that_may_not_vote_tells_no_number_and_asks_nobody() -> None:
    member = Member(N0, store=77, term=1, entries=3)
    member.free()
    (answer,) = sent(member.receive(whether(N1, last=9, term=2)))
    assert answer == PreVoteResponse(Term(1), N0, False, 0, 9)
    assert sent(member.time_out()) == []
    assert member.node.role is Role.FOLLOWER
    request = TimeoutNow(Term(1), N1)
    assert sent(member.receive(request)) == []


def test_only_who_quotes_the_number_of_this_store_gets_its_founding_vote() -> None:
    member = Member(N0, store=77)
    member.free()
    wrong = VoteRequest(Term(1), N1, Index(0), Term(0), False, 76)
    assert sent(member.receive(wrong)) == [VoteResponse(Term(1), N0, False)]
    ahead = VoteRequest(Term(1), N1, Index(5), Term(1), False, 77)
    assert sent(member.receive(ahead)) == [VoteResponse(Term(1), N0, False)]
    right = VoteRequest(Term(1), N1, Index(0), Term(0), False, 77)
    effects = member.receive(right)
    assert saves(effects) == [SaveHardState(Term(1), N1, is_voter=True)]
    assert sent(effects) == [VoteResponse(Term(1), N0, True)]


# Founding.


def test_a_group_is_founded_when_all_say_twice_that_they_have_nothing() -> None:
    member = Member(N0, store=7)
    first = sent(member.time_out())[0]
    assert sent(member.receive(answer_of(N1, first, store=1))) == []
    again = sent(member.receive(answer_of(N2, first, store=2)))
    assert [type(each) for each in again] == [PreVoteRequest, PreVoteRequest]
    assert not member.node.is_voter
    # Answers to the first question say nothing about the second.
    assert sent(member.receive(answer_of(N1, first, store=1))) == []
    assert sent(member.receive(answer_of(N1, again[0], store=1))) == []
    effects = member.receive(answer_of(N2, again[0], store=2))
    assert saves(effects) == [SaveHardState(Term(1), N0, is_voter=True)]
    assert [(type(each), each.new_store) for each in sent(effects)] == [  # type: ignore[union-attr]
        (VoteRequest, 1),
        (VoteRequest, 2),
    ]


def test_a_store_that_was_lost_between_the_two_questions_founds_nothing() -> None:
    member = Member(N0, store=7)
    first = sent(member.time_out())[0]
    member.receive(answer_of(N1, first, store=1))
    second = sent(member.receive(answer_of(N2, first, store=2)))[0]
    member.receive(answer_of(N1, second, store=1))
    third = sent(member.receive(answer_of(N2, second, store=3)))
    assert [type(each) for each in third] == [PreVoteRequest, PreVoteRequest]
    assert not member.node.is_voter


def test_a_majority_of_new_stores_founds_nothing() -> None:
    member = Member(N0, store=7)
    first = sent(member.time_out())[0]
    assert sent(member.receive(answer_of(N1, first, store=1))) == []
    refusal = answer_of(N2, first)  # it has entries
    assert sent(member.receive(refusal)) == []
    assert not member.node.is_voter


def test_granted_pre_votes_of_voters_without_entries_count_for_the_founding() -> None:
    member = Member(N0, store=7)
    first = sent(member.time_out())[0]
    member.receive(answer_of(N1, first, granted=True))
    second = sent(member.receive(answer_of(N2, first, store=2)))[0]
    member.receive(answer_of(N1, second, granted=True))
    effects = member.receive(answer_of(N2, second, store=2))
    assert saves(effects) == [SaveHardState(Term(1), N0, is_voter=True)]


# The leader.


def leader() -> Member:
    """N0 leads term 1 with the votes of N1; its no-op is durable and not committed."""
    member = Member(N0)
    member.time_out()
    asked = PreVoteResponse(Term(1), N1, True)
    member.receive(asked)
    member.receive(VoteResponse(Term(1), N1, True))
    assert member.node.role is Role.LEADER
    member.persist()
    return member


def answer(
    member: Member,
    source: NodeId,
    *,
    match: int,
    store: int = 0,
    success: bool = True,
    round_: int | None = None,
) -> list[Effect]:
    response = AppendResponse(
        Term(1),
        source,
        member.node.last_round if round_ is None else round_,
        success,
        Index(match if success else 0),
        Index(0 if success else 1),
        Term(0),
        Index(match),
        store,
    )
    return member.receive(response)


def requests(effects: list[Effect], to: NodeId) -> list[SendEntries]:
    return [each for each in effects if isinstance(each, SendEntries) and each.to == to]


def test_what_a_new_store_confirms_commits_nothing_and_gives_no_lease() -> None:
    member = leader()
    effects = answer(member, N2, match=1, store=5)
    assert not [each for each in effects if isinstance(each, Commit)]
    member.persist()
    answer(member, N2, match=2, store=5)
    assert member.node.commit_index == 0
    assert not member.node.has_lease(member.now_ms)
    assert answer(member, N1, match=1)
    assert member.node.commit_index == 1


def test_a_leader_whose_others_are_new_stores_steps_down() -> None:
    member = leader()
    answer(member, N1, match=1)
    for _ in range(200):
        answer(member, N2, match=1, store=5)
        if member.node.role is not Role.LEADER:
            break
        member.time_out()
    assert member.node.role is Role.FOLLOWER


def test_a_lost_store_is_served_from_the_first_entry_within_the_same_term() -> None:
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1)
    member.step(Propose((b"x",), 1))
    member.persist()
    answer(member, N2, match=2)
    asked_before = member.node.last_round
    effects = answer(member, N2, match=0, store=5, success=False)
    assert [request.first for request in requests(effects, N2)][-1] == 1
    assert member.node.progress()[N2].match_index == 0
    # Late: what the lost store had answered.
    answer(member, N2, match=2, round_=asked_before)
    assert member.node.progress()[N2].match_index == 0
    assert not member.node.progress()[N2].is_voter


def test_it_is_admitted_when_the_voters_have_committed_what_is_younger_than_its_store() -> None:
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1, store=5)
    rejoin = int(member.node.log.last_index)
    assert rejoin == 2  # the no-op that the leader appended when it heard the number
    member.persist()
    effects = answer(member, N2, match=rejoin, store=5)
    assert not any(request.admits for request in requests(effects, N2))
    answer(member, N1, match=rejoin)
    assert member.node.commit_index == rejoin
    admitting = requests(member.time_out(), N2)
    assert all(request.admits for request in admitting)
    answer(member, N2, match=rejoin)
    assert member.node.progress()[N2].is_voter
    # Late: an answer from before it was admitted neither counts nor costs it its vote.
    answer(member, N2, match=0, store=5, success=False)
    assert member.node.progress()[N2].is_voter
    member.step(Propose((b"x",), 1))
    member.persist()
    answer(member, N2, match=3)
    assert member.node.commit_index == 3


def test_a_second_loss_is_noticed_before_and_after_it_was_admitted() -> None:
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1, store=5)
    answer(member, N2, match=0, store=6, success=False)
    assert member.node.progress()[N2].match_index == 0
    assert member.node.log.last_index == 3  # a no-op for each number


def test_the_admitted_member_saves_that_it_votes_before_it_says_so() -> None:
    member = Member(N2, store=5)
    request = AppendRequest(Term(1), N0, Index(0), Term(0), (), Index(0), 1)
    (plain,) = sent(member.receive(request))
    assert isinstance(plain, AppendResponse)
    assert plain.store == 5
    admitting = AppendRequest(Term(1), N0, Index(0), Term(0), (), Index(0), 2, admits=5)
    effects = member.receive(admitting)
    assert saves(effects) == [SaveHardState(Term(1), None, is_voter=True)]
    assert isinstance(effects[0], SaveHardState)
    (told_so,) = sent(effects)
    assert isinstance(told_so, AppendResponse)
    assert told_so.store == 0


def test_an_admitting_request_that_does_not_fit_the_log_admits_nobody() -> None:
    member = Member(N2, store=5)
    request = AppendRequest(Term(1), N0, Index(4), Term(1), (), Index(0), 1, admits=5)
    (refusal,) = sent(member.receive(request))
    assert isinstance(refusal, AppendResponse)
    assert (refusal.success, refusal.store) == (False, 5)


def test_a_number_that_comes_late_does_no_lasting_harm() -> None:
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1, store=5)
    rejoin = int(member.node.log.last_index)
    member.persist()
    answer(member, N1, match=rejoin)
    answer(member, N2, match=rejoin, store=5)
    member.time_out()
    answer(member, N2, match=rejoin)
    assert member.node.progress()[N2].is_voter
    asked_before = member.node.last_round
    answer(member, N2, match=0, store=4)  # of the store before store 5
    assert not member.node.progress()[N2].is_voter
    answer(member, N2, match=rejoin, round_=asked_before)  # perhaps of a lost store
    assert not member.node.progress()[N2].is_voter
    member.time_out()
    answer(member, N2, match=rejoin)
    view = member.node.progress()[N2]
    assert (view.is_voter, view.match_index) == (True, rejoin)


def test_a_late_request_that_admits_an_earlier_store_admits_nobody() -> None:
    member = Member(N2, store=6)
    late = AppendRequest(Term(1), N0, Index(0), Term(0), (), Index(0), 1, admits=5)
    (answered,) = sent(member.receive(late))
    assert isinstance(answered, AppendResponse)
    assert (answered.success, answered.store) == (True, 6)


def test_leadership_is_not_handed_to_it_unasked() -> None:
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1, store=5)
    member.step(TransferRequested(None, 3))
    assert member.node.transfer_target == N1


# A store that turned out to be an older copy (docs/adr/0103).


def test_who_gives_up_its_vote_saves_that_and_supports_nobody() -> None:
    member = Member(N2, term=1, entries=3)
    effects = member.step(GiveUpVote())
    assert saves(effects) == [SaveHardState(Term(1), None, is_voter=False)]
    assert isinstance(effects[0], SaveHardState)
    member.free()
    (answer_,) = sent(member.receive(VoteRequest(Term(3), N1, Index(9), Term(2))))
    assert answer_ == VoteResponse(Term(3), N2, False)
    assert sent(member.time_out()) == []
    assert not saves(member.step(GiveUpVote()))


def test_a_leader_that_gives_up_its_vote_leads_no_more() -> None:
    member = leader()
    member.step(Propose((b"x",), 1))
    effects = member.step(GiveUpVote())
    assert member.node.role is Role.FOLLOWER
    assert saves(effects) == [SaveHardState(Term(1), N0, is_voter=False)]
    assert [each.token for each in effects if isinstance(each, Resolve)] == [1]
    assert sent(member.time_out()) == []


def test_it_is_not_sent_again_what_it_holds_and_is_admitted_with_a_number_of_its_own() -> None:
    member = Member(N2, term=1, entries=3)
    member.node.step(GiveUpVote(), 0)
    request = AppendRequest(Term(1), N0, Index(3), Term(1), (), Index(0), 1)
    (held,) = sent(member.receive(request))
    assert isinstance(held, AppendResponse)
    assert (held.success, held.match_index) == (True, 3)
    assert held.store != 0
    admitting = AppendRequest(Term(1), N0, Index(3), Term(1), (), Index(0), 2, admits=held.store)
    assert saves(member.receive(admitting)) == [SaveHardState(Term(1), None, is_voter=True)]


def test_a_leader_voids_what_the_newer_store_had_confirmed_and_goes_on_from_where_the_copy_ends() -> (
    None
):
    member = leader()
    answer(member, N1, match=1)
    answer(member, N2, match=1)
    for token in range(5):
        member.step(Propose((b"x",), token))
    member.persist()
    answer(member, N2, match=6)
    rejected = AppendResponse(
        Term(1), N2, member.node.last_round, False, Index(0), Index(4), Term(0), Index(3), 5
    )
    effects = member.receive(rejected)
    view = member.node.progress()[N2]
    assert (view.is_voter, view.match_index) == (False, 0)
    assert next(request.first for request in requests(effects, N2)) == 4
