"""A test for each sentence of the Raft paper (extended version) that a core can break.

The sentence stands in the docstring with its section. Where this implementation departs, the test
says so (docs/divergence.md has the reasons). Idea: etcd's raft_paper_test.go.
"""

from __future__ import annotations

import pytest

from dledger.config import RaftConfig
from dledger.raft.configuration import Configuration
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Role,
    SaveHardState,
    Send,
    TruncateLog,
)
from dledger.raft.events import Propose, Tick
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.membership import configuration_in
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.testing.core_group import CoreGroup
from dledger.testing.make_roles import (
    N0,
    N1,
    N2,
    append_request,
    campaign,
    elect,
    let_time_out,
    make_group,
    make_role,
    receive,
    requests,
    seed,
    sent,
    success,
)
from dledger.testing.script_words import seeded_entries

ROLES = [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER]


# 5.1 Raft basics


@pytest.mark.parametrize("role", ROLES)
def test_a_larger_term_is_adopted_and_ends_every_leadership(role: Role) -> None:
    """5.1: "If one server's current term is smaller than the other's, then it updates its current
    term to the larger value. If a candidate or leader discovers that its term is out of date, it
    immediately reverts to follower state."
    """
    _, member = make_role(role)
    effects = receive(member, append_request(N1, 7, "0@0"))
    assert (member.node.term, member.node.role, member.node.leader_id) == (7, Role.FOLLOWER, N1)
    assert effects[0] == SaveHardState(Term(7), None)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "answer",
    [
        VoteResponse(Term(7), N1, False),
        PreVoteResponse(Term(7), N1, False),
        AppendResponse(Term(7), N1, 0, False, Index(0), Index(0), Term(0), Index(0)),
    ],
)
def test_a_larger_term_in_an_answer_is_adopted_too(role: Role, answer: Message) -> None:
    """5.1, the same sentence, for answers."""
    _, member = make_role(role)
    receive(member, answer)
    assert (member.node.term, member.node.role, member.node.leader_id) == (7, Role.FOLLOWER, None)


@pytest.mark.parametrize("role", ROLES)
def test_a_request_of_a_stale_term_is_rejected(role: Role) -> None:
    """5.1: "If a server receives a request with a stale term number, it rejects the request." """
    _, member = make_role(role)
    receive(member, append_request(N1, 7, "0@0"))
    (answer,) = sent(receive(member, VoteRequest(Term(6), N2, Index(9), Term(6))))
    assert answer == VoteResponse(Term(7), N0, False)
    (answer,) = sent(receive(member, append_request(N2, 6, "0@0", "6")))
    assert isinstance(answer, AppendResponse)
    assert (answer.term, answer.success) == (7, False)
    assert member.entries[-1:] != seeded_entries("6")


@pytest.mark.parametrize("role", ROLES)
def test_an_answer_of_a_stale_term_changes_nothing(role: Role) -> None:
    """5.1: terms act as a logical clock; what an earlier term said is void."""
    _, member = make_role(role, "1,1,5", term=5)
    before = member.node.describe()
    for term in range(1, member.node.term):
        for answer in (
            VoteResponse(Term(term), N1, True),
            PreVoteResponse(Term(term), N1, True),
            AppendResponse(Term(term), N1, 1, True, Index(3), Index(0), Term(0), Index(3)),
        ):
            assert receive(member, answer) == []
    assert member.node.describe() == before


# 5.2 Leader election


def test_servers_start_as_followers() -> None:
    """5.2: "When servers start up, they begin as followers." """
    assert [m.node.role for m in make_group().members.values()] == [Role.FOLLOWER] * 3


def test_a_follower_stays_one_while_it_hears_a_leader() -> None:
    """5.2: "A server remains in follower state as long as it receives valid RPCs from a leader or
    candidate."
    """
    group = make_group()
    member = group.members[N0]
    for _ in range(20):
        group.now_ms += 400
        receive(member, append_request(N1, 1, "0@0"))
        member.step(Tick())
        assert member.node.role is Role.FOLLOWER


def test_a_leader_sends_heartbeats_to_all_periodically() -> None:
    """5.2: "Leaders send periodic heartbeats (AppendEntries RPCs that carry no log entries) to all
    followers in order to maintain their authority."
    """
    group, member = make_role(Role.LEADER)
    for _ in range(3):
        group.now_ms += 60
        heartbeats = requests(member.step(Tick()))
        assert [heartbeat.to for heartbeat in heartbeats] == [N1, N2]
        assert all(heartbeat.first == heartbeat.end for heartbeat in heartbeats)


def test_a_follower_that_hears_nothing_begins_an_election() -> None:
    """5.2: "If a follower receives no communication over a period of time called the election
    timeout, then it assumes there is no viable leader and begins an election." Here it asks whether
    it would win first (thesis 9.6).
    """
    group = make_group(timeout_ms=500)
    member = group.members[N0]
    group.now_ms = 499
    assert member.step(Tick()) == []
    group.now_ms = 500
    asked = sent(member.step(Tick()))
    assert asked == [PreVoteRequest(Term(1), N0, Index(0), Term(0), campaign=500)] * 2
    assert (member.node.role, member.node.term) == (Role.PRE_CANDIDATE, 0)


def test_a_candidate_increments_its_term_votes_for_itself_and_asks_in_parallel() -> None:
    """5.2: "To begin an election, a follower increments its current term and transitions to candidate
    state. It then votes for itself and issues RequestVote RPCs in parallel to each of the other
    servers in the cluster."
    """
    group = make_group()
    effects = campaign(group, group.members[N0])
    assert effects[0] == SaveHardState(Term(1), N0)
    request = VoteRequest(Term(1), N0, Index(0), Term(0))
    assert effects[1:3] == [Send(N1, request), Send(N2, request)]


@pytest.mark.parametrize(
    ("voter_count", "vote_count", "is_won"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (4, 1, False),
        (4, 2, True),
        (5, 1, False),
        (5, 2, True),
        (5, 4, True),
    ],
)
def test_a_candidate_wins_with_a_majority(voter_count: int, vote_count: int, is_won: bool) -> None:
    """5.2: "A candidate wins an election if it receives votes from a majority of the servers in the
    full cluster for the same term."
    """
    group = make_group(voter_count)
    member = group.members[N0]
    campaign(group, member)
    for i in range(1, voter_count):
        vote = VoteResponse(Term(1), NodeId(f"n{i}"), i <= vote_count)
        for _ in range(2):  # a vote that comes twice counts once
            receive(member, vote)
    assert (member.node.role is Role.LEADER) == is_won


def test_a_voter_votes_once_in_a_term_for_who_comes_first() -> None:
    """5.2: "Each server will vote for at most one candidate in a given term, on a first-come-first-
    served basis."
    """
    group = make_group()
    group.now_ms = 300
    member = group.members[N0]
    effects = receive(member, VoteRequest(Term(1), N1, Index(0), Term(0)))
    assert effects[:2] == [
        SaveHardState(Term(1), N1),
        Send(N1, VoteResponse(Term(1), N0, True)),
    ]
    (answer,) = sent(receive(member, VoteRequest(Term(1), N2, Index(0), Term(0))))
    assert answer == VoteResponse(Term(1), N0, False)


def test_a_winner_tells_everybody_at_once() -> None:
    """5.2: "Once a candidate wins an election, it becomes leader. It then sends heartbeat messages to
    all of the other servers to establish its authority and prevent new elections."
    """
    group = make_group()
    assert [request.to for request in requests(elect(group, group.members[N0]))] == [N1, N2]


def test_a_candidate_yields_to_a_leader_of_its_own_term() -> None:
    """5.2: "If the leader's term (included in its RPC) is at least as large as the candidate's current
    term, then the candidate recognizes the leader as legitimate and returns to follower state."
    """
    _, member = make_role(Role.CANDIDATE)
    receive(member, append_request(N1, 1, "0@0"))
    assert (member.node.role, member.node.leader_id) == (Role.FOLLOWER, N1)


def test_a_candidate_rejects_a_leader_of_an_earlier_term_and_goes_on() -> None:
    """5.2: "If the term in the RPC is smaller than the candidate's current term, then the candidate
    rejects the RPC and continues in candidate state."
    """
    _, member = make_role(Role.CANDIDATE)
    (answer,) = sent(receive(member, append_request(N1, 0, "0@0")))
    assert isinstance(answer, AppendResponse)
    assert (answer.term, answer.success) == (1, False)
    assert member.node.role is Role.CANDIDATE


def test_a_candidate_of_a_stale_term_gets_no_vote_even_if_nobody_has_it() -> None:
    """5.1 and 5.2: the vote of this term is not given to somebody who asks for another one's."""
    group = make_group()
    member = group.members[N0]
    receive(member, VoteResponse(Term(7), N1, False))
    group.now_ms += 300
    (answer,) = sent(receive(member, VoteRequest(Term(6), N2, Index(9), Term(6))))
    assert answer == VoteResponse(Term(7), N0, False)
    assert member.node.vote is None


def test_giving_a_vote_begins_the_wait_anew() -> None:
    """5.2, figure 2 (followers): "If election timeout elapses without receiving AppendEntries RPC from
    current leader or granting vote to candidate: convert to candidate".
    """
    group = make_group()
    member = group.members[N0]
    receive(member, VoteResponse(Term(7), N1, False))
    group.now_ms += 400
    receive(member, VoteRequest(Term(7), N2, Index(0), Term(0)))
    assert member.node.vote == N2
    assert member.node.next_deadline_ms() == group.now_ms + 500


def test_a_split_vote_ends_with_the_timeout_and_a_new_term() -> None:
    """5.2: "When this happens, each candidate will time out and start a new election by incrementing
    its term". Here with a pre-vote before it.
    """
    group, member = make_role(Role.CANDIDATE)
    campaign(group, member)
    assert (member.node.role, member.node.term) == (Role.CANDIDATE, 2)


def test_election_timeouts_are_drawn_anew_from_a_fixed_interval() -> None:
    """5.2: "election timeouts are chosen randomly from a fixed interval [...] Each candidate restarts
    its randomized election timeout at the start of an election".
    """
    drawn: list[tuple[int, int]] = []

    def draw(low: int, high: int) -> int:
        drawn.append((low, high))
        return low + len(drawn)

    names = (N0, N1, N2)
    group = CoreGroup([RaftConfig(name, names) for name in names], lambda _: draw)
    drawn.clear()
    start_ms = group.now_ms
    member = group.members[N0]
    let_time_out(group, member)
    receive(member, PreVoteResponse(Term(1), N1, True))
    # The pre-vote disturbs nobody and is repeated sooner; the election has the paper's interval.
    assert drawn == [(300, 450), (450, 900)]
    assert member.node.next_deadline_ms() == group.now_ms + 452 > start_ms


# 5.3 Log replication


def test_a_leader_appends_and_sends_in_parallel() -> None:
    """5.3: "The leader appends the command to its log as a new entry, then issues AppendEntries RPCs
    in parallel to each of the other servers to replicate the entry."
    """
    _, member = make_role(Role.LEADER)
    for peer in (N1, N2):
        receive(member, success(member, peer, 1))
    effects = member.step(Propose((b"x",), token=1))
    assert isinstance(effects[0], AppendEntries)
    assert effects[0].entries[0].id == EntryId(Term(1), Index(2))
    assert [(request.to, request.first, request.end) for request in requests(effects)] == [
        (N1, 2, 3),
        (N2, 2, 3),
    ]


@pytest.mark.parametrize(
    ("voter_count", "ack_count", "is_committed"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (5, 1, False),
        (5, 2, True),
    ],
)
def test_an_entry_on_a_majority_is_committed(
    voter_count: int, ack_count: int, is_committed: bool
) -> None:
    """5.3: "A log entry is committed once the leader that created the entry has replicated it on a
    majority of the servers."
    """
    group = make_group(voter_count)
    member = group.members[N0]
    elect(group, member)
    for i in range(1, ack_count + 1):
        receive(member, success(member, NodeId(f"n{i}"), 1))
    assert (member.node.commit_index == 1) == is_committed


@pytest.mark.parametrize("terms", ["", "1", "1,1,2", "1,2,2,2"])
def test_preceding_entries_are_committed_with_it(terms: str) -> None:
    """5.3: "This also commits all preceding entries in the leader's log, including entries created by
    previous leaders."
    """
    group = make_group()
    member = group.members[N0]
    seed(member, terms, term=2)
    elect(group, member)
    noop_index = member.node.noop_index
    assert noop_index is not None
    effects = receive(member, success(member, N1, noop_index))
    assert Commit(noop_index) in effects


def test_the_commit_index_travels_with_every_request() -> None:
    """5.3: "The leader keeps track of the highest index it knows to be committed, and it includes that
    index in future AppendEntries RPCs (including heartbeats) so that the other servers eventually find
    out."
    """
    group, member = make_role(Role.LEADER)
    receive(member, success(member, N1, 1))
    group.now_ms += 60
    assert {request.commit_index for request in requests(member.step(Tick()))} == {1}
    receive(member, success(member, N2, 1))
    assert {r.commit_index for r in requests(member.step(Propose((b"x",), token=1)))} == {1}


@pytest.mark.parametrize(
    ("entries", "leader_commit", "expected"),
    [("1,1", 1, 1), ("1,1", 2, 2), ("1,1", 9, 2), ("", 9, 0)],
)
def test_a_follower_learns_what_is_committed(
    entries: str, leader_commit: int, expected: int
) -> None:
    """5.3: "Once a follower learns that a log entry is committed, it applies the entry to its local
    state machine (in log order)." Figure 2: commitIndex = min(leaderCommit, index of last new entry).
    """
    member = make_group().members[N0]
    receive(member, append_request(N1, 1, "0@0", entries, commit=leader_commit))
    assert member.node.commit_index == expected


@pytest.mark.parametrize(
    ("prev", "is_accepted", "conflict"),
    [
        ("0@0", True, (0, 0)),
        ("1@1", True, (0, 0)),
        ("3@2", True, (0, 0)),
        ("3@3", False, (2, 2)),
        ("4@2", False, (4, 0)),
        ("9@3", False, (4, 0)),
    ],
)
def test_a_follower_refuses_what_does_not_join_its_log(
    prev: str, is_accepted: bool, conflict: tuple[int, int]
) -> None:
    """5.3: "If the follower does not find an entry in its log with the same index and term, then it
    refuses the new entries." And, at its end: it "can include the term of the conflicting entry and
    the first index it stores for that term".
    """
    member = make_group().members[N0]
    seed(member, "1,2,2")
    (answer,) = sent(receive(member, append_request(N1, 3, prev)))
    assert isinstance(answer, AppendResponse)
    assert answer.success == is_accepted
    assert (answer.conflict_index, answer.conflict_term) == conflict


FIGURE_7_LEADER = "1,1,1,4,4,5,5,6,6,6"
FIGURE_7_FOLLOWERS = {
    "a": "1,1,1,4,4,5,5,6,6",
    "b": "1,1,1,4",
    "c": "1,1,1,4,4,5,5,6,6,6,6",
    "d": "1,1,1,4,4,5,5,6,6,6,7,7",
    "e": "1,1,1,4,4,4,4",
    "f": "1,1,1,2,2,2,3,3,3,3,3",
}


@pytest.mark.parametrize("name", list(FIGURE_7_FOLLOWERS))
def test_every_follower_of_figure_7_is_brought_into_line(name: str) -> None:
    """5.3: "In Raft, the leader handles inconsistencies by forcing the followers' logs to duplicate its
    own. This means that conflicting entries in follower logs will be overwritten with entries from the
    leader's log." And: "the leader decrements nextIndex and retries"; here by whole terms.
    """
    group = make_group()
    leader, follower = group.members[N0], group.members[N1]
    seed(leader, FIGURE_7_LEADER, term=7)
    seed(follower, FIGURE_7_FOLLOWERS[name], term=7)
    elect(group, leader)
    own_log = list(leader.entries)
    rejections = 0
    while group.mail:
        mail = group.mail.pop(0)
        if {mail.to, mail.message.source} != {N0, N1} or not isinstance(
            mail.message, AppendRequest | AppendResponse
        ):
            continue
        rejections += isinstance(mail.message, AppendResponse) and not mail.message.success
        receive(group.members[mail.to], mail.message)
    assert follower.entries == own_log
    assert rejections <= 3, "one round for each term, not for each entry"
    # "A leader never overwrites or deletes entries in its own log" (leader append-only, figure 3).
    assert leader.entries == own_log


def test_a_leader_that_knows_the_conflicting_term_tries_its_last_entry_of_it() -> None:
    """5.3, at its end: "the leader can decrement nextIndex to bypass all of the conflicting entries in
    that term". If it has that term too, the logs can agree at its last entry of it.
    """
    _, leader = make_role(Role.LEADER, "1,1,1,3", term=3)
    rejection = AppendResponse(
        leader.node.term, N1, 1, False, Index(0), Index(1), Term(1), Index(9)
    )
    (request,) = requests(receive(leader, rejection))
    assert (request.prev_index, request.prev_term) == (3, 1)


def test_a_lost_request_is_repeated_for_ever() -> None:
    """5.3: "If followers crash or run slowly, or if network packets are lost, the leader retries
    AppendEntries RPCs indefinitely (even after it has responded to the client) until all followers
    eventually store all log entries."
    """
    group = make_group()
    leader, slow = group.members[N0], group.members[N2]
    elect(group, leader)
    for _ in range(60):
        group.now_ms += 60
        leader.step(Tick())
        receive(leader, success(leader, N1, 1))
        group.mail.clear()
    group.now_ms += 60
    leader.step(Tick())
    while group.mail:
        mail = group.mail.pop(0)
        if mail.to == N2 or mail.message.source == N2:
            receive(group.members[mail.to], mail.message)
    assert slow.entries == leader.entries


def test_a_repeated_request_changes_nothing() -> None:
    """5.5: "Raft RPCs are idempotent [...] if a follower receives an AppendEntries request that
    includes log entries already present in its log, it ignores those entries in the new request."
    """
    member = make_group().members[N0]
    request = append_request(N1, 1, "0@0", "1,1")
    first = receive(member, request)
    assert any(isinstance(effect, AppendEntries) for effect in first)
    again = receive(member, request)
    assert [type(effect) for effect in again] == [Send]
    assert sent(again) == sent(first)


def test_a_contradiction_removes_the_entry_and_all_after_it() -> None:
    """Figure 2, AppendEntries, rule 3: "If an existing entry conflicts with a new one (same index but
    different terms), delete the existing entry and all that follow it".
    """
    member = make_group().members[N0]
    seed(member, "1,1,1,1", term=1)
    effects = receive(member, append_request(N1, 2, "1@1", "1,2"))
    assert TruncateLog(Index(3)) in effects
    assert [entry.term for entry in member.entries] == [1, 1, 2]


# 5.4 Safety


@pytest.mark.parametrize(
    ("voter_log", "last", "is_granted"),
    [
        ("1", (1, 1), True),
        ("1", (1, 2), True),
        ("1", (2, 1), True),
        ("1,1", (1, 1), False),
        ("1,1", (2, 1), True),
        ("2", (1, 1), False),
        ("2", (1, 9), False),
        ("1,1,2", (2, 2), False),
    ],
)
def test_a_vote_needs_a_log_at_least_as_up_to_date(
    voter_log: str, last: tuple[int, int], is_granted: bool
) -> None:
    """5.4.1: "the voter denies its vote if its own log is more up-to-date than that of the candidate.
    [...] If the logs have last entries with different terms, then the log with the later term is more
    up-to-date. If the logs end with the same term, then whichever log is longer is more up-to-date."
    (last is (term, index).)
    """
    group = make_group()
    member = group.members[N0]
    seed(member, voter_log, term=2)
    group.now_ms += 300
    last_term, last_index = Term(last[0]), Index(last[1])
    (would,) = sent(receive(member, PreVoteRequest(Term(3), N1, last_index, last_term)))
    assert would == PreVoteResponse(Term(3) if is_granted else Term(2), N0, is_granted)
    (does,) = sent(receive(member, VoteRequest(Term(3), N1, last_index, last_term)))
    assert does == VoteResponse(Term(3), N0, is_granted)


@pytest.mark.parametrize(
    ("match", "commit_index"), [(1, 0), (2, 0), (3, 3)], ids=["old", "last old", "own"]
)
def test_only_entries_of_the_own_term_are_committed_by_counting(
    match: int, commit_index: int
) -> None:
    """5.4.2: "Raft never commits log entries from previous terms by counting replicas. Only log entries
    from the leader's current term are committed by counting replicas; once an entry from the current
    term has been committed in this way, then all prior entries are committed indirectly".
    """
    group = make_group()
    member = group.members[N0]
    seed(member, "1,2", term=2)
    elect(group, member)
    receive(member, success(member, N1, match))
    assert member.node.commit_index == commit_index


# 8 Client interaction


def test_a_leader_begins_its_term_with_an_entry_that_changes_no_state() -> None:
    """8: "Raft handles this by having each leader commit a blank no-op entry into the log at the start
    of its term." Ours is not blank: it names the members (docs/adr/0155).
    """
    group = make_group()
    (append,) = [
        effect for effect in elect(group, group.members[N0]) if isinstance(effect, AppendEntries)
    ]
    (entry,) = append.entries
    assert configuration_in(entry) == Configuration((N0, N1, N2))
