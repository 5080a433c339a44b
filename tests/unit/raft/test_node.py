"""RaftNode as a whole: what every step promises."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dledger.config import RaftConfig
from dledger.errors import PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.effects import (
    AppendEntries,
    Failed,
    MembersChanged,
    Resolve,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    SendEntries,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import PeerUnreachable, Persisted, Propose, Received, Tick
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogBase, LogLayout
from dledger.raft.membership import encode_membership
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
from dledger.raft.node import TERM_FAR, RaftNode
from dledger.raft.progress import ProgressState
from dledger.raft.roles import TRANSITIONS, Cause
from dledger.testing.core_group import CoreMember
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
    success,
)

NAMES = (N0, N1, N2)
LAST_TERM = Term(2**63 - 1)


def state_of(member: CoreMember) -> str:
    """Everything that the node remembers, as text."""

    def dump(value: object, depth: int = 0) -> object:
        names = getattr(type(value), "__slots__", None)
        if names is None or depth > 4:
            return repr(value)
        return [(name, dump(getattr(value, name), depth + 1)) for name in names]

    node = member.node
    return repr((dump(node._core), node._leader and dump(node._leader), node._campaign))


@pytest.mark.parametrize(
    "message",
    [
        append_request(N1, 9, "1@1", "2"),
        append_request(N1, 9, "3@2"),
        append_request(N1, 1, "0@0"),
        AppendRequest(
            Term(9),
            N1,
            Index(3),
            Term(1),
            (Entry(Index(4), Term(9), Position(5), EntryKind.NORMAL, b""),),
            Index(0),
            1,
        ),
        AppendResponse(Term(1), N1, 10_000, True, Index(1), Index(0), Term(0), Index(1)),
        AppendResponse(Term(1), N1, 1, True, Index(10_000), Index(0), Term(0), Index(1)),
        PreVoteRequest(Term(9), N0, Index(9), Term(8)),
        VoteRequest(Term(9), N0, Index(9), Term(8)),
        TimeoutNow(Term(9), N0),
    ],
)
def test_a_step_that_fails_changes_nothing(message: Message) -> None:
    group, member = make_role(Role.LEADER)
    member.step(Propose((b"a", b"b"), token=1))
    member.sync()
    receive(member, success(member, N1, 3))
    group.now_ms += 10
    before = state_of(member)
    with pytest.raises(PeerProtocolError):
        member.node.step(Received(message), group.now_ms + 1000)
    assert state_of(member) == before


def test_a_second_leader_of_a_term_is_refused_by_a_follower_too() -> None:
    member = make_group().members[N0]
    receive(member, append_request(N1, 1, "0@0"))
    with pytest.raises(PeerProtocolError, match="n2 leads term 1, as does n1"):
        receive(member, append_request(N2, 1, "0@0"))


def test_the_log_is_copied_at_the_start() -> None:
    layout = LogLayout()
    layout.append(Term(1), 50)
    node = RaftNode(
        RaftConfig(N0, NAMES), HardState(Term(1)), layout, draw=lambda low, _: low, now_ms=0
    )
    layout.append(Term(1), 50)
    assert node.log.last_index == 1


def test_what_lies_before_the_logs_start_is_committed() -> None:
    layout = LogLayout(LogBase(Index(10), Term(2), Position(480)))
    node = RaftNode(
        RaftConfig(N0, NAMES), HardState(Term(2)), layout, draw=lambda low, _: low, now_ms=0
    )
    assert node.commit_index == 10


def test_a_node_that_joins_takes_the_word_of_leaders_for_what_was_before_it() -> None:
    """It was told of one member that it can ask. The leader that added it is gone, the next one never heard of it."""
    layout, n3 = LogLayout(), NodeId("n3")
    for _ in range(3):
        layout.append(Term(1), 50)
    added = ConfigurationNote(EntryId(Term(1), Index(3)), Configuration(NAMES, (n3,)))
    node = RaftNode(
        replace(RaftConfig(n3, (N1,)), joins=True),
        HardState(Term(1), notes=(added,)),
        layout,
        draw=lambda low, _: low,
        now_ms=0,
    )
    body = encode_membership(Configuration(NAMES))
    first = Entry(Index(3), Term(2), Position(100), EntryKind.CONFIGURATION, body)
    request = AppendRequest(Term(2), N2, Index(2), Term(1), (first,), Index(0), 1)
    assert AppendEntries((first,)) in node.step(Received(request), 1)
    assert node.configuration.voters == NAMES


@pytest.mark.parametrize(
    "message",
    [
        VoteResponse(LAST_TERM, N1, False),
        PreVoteResponse(LAST_TERM, N1, False),
        VoteRequest(LAST_TERM, N1, Index(9), Term(9), is_transfer=True),
        msgspec.structs.replace(append_request(N1, 1, "1@1"), term=LAST_TERM),
    ],
)
def test_the_last_term_is_not_adopted_and_one_that_is_far_leaves_room_for_elections(
    message: Message,
) -> None:
    """One message would end the group for ever: nobody could ask for votes in a later term."""
    group, member = make_role(Role.FOLLOWER, "1,1", term=1)
    with pytest.raises(PeerProtocolError, match="names term"):
        member.step(Received(message))
    assert member.node.term == 1
    receive(member, VoteResponse(Term(TERM_FAR), N1, False))
    elect(group, member)
    assert member.node.term == TERM_FAR + 1
    assert all(message.term < LAST_TERM for message in (mail.message for mail in group.mail))


def test_a_clock_that_goes_back_is_not_followed() -> None:
    group, member = make_role(Role.LEADER)
    deadline_ms = member.node.next_deadline_ms()
    assert member.node.step(Tick(), group.now_ms - 10_000) == []
    assert member.node.next_deadline_ms() == deadline_ms


def test_entries_get_their_positions_without_gaps() -> None:
    _, member = make_role(Role.LEADER)
    start = member.node.log.end_position
    effects = member.step(Propose((b"", b"abc", b"x"), token=1))
    (append,) = [effect for effect in effects if isinstance(effect, AppendEntries)]
    assert [entry.position for entry in append.entries] == [start, start + 48, start + 99]
    assert member.node.log.end_position == start + 99 + 49


def test_role_changes_are_told_once() -> None:
    group = make_group(1)
    member = group.members[N0]
    changes = [effect for effect in member.step(Tick()) if isinstance(effect, RoleChanged)]
    assert changes == [RoleChanged(Role.LEADER, Term(1), N0)]
    assert not any(isinstance(effect, RoleChanged) for effect in member.step(Tick()))


def test_a_save_of_what_was_truncated_counts_for_nothing() -> None:
    member = make_group().members[N0]
    member.step(Received(append_request(N1, 1, "0@0", "1,1")))
    member.step(Received(append_request(N2, 2, "1@1", "2")))
    member.node.step(Persisted(EntryId(Term(1), Index(2))), 0)
    assert member.node.durable_index == 0
    member.node.step(Persisted(EntryId(Term(2), Index(2))), 0)
    assert member.node.durable_index == 2


def test_what_was_durable_before_a_truncation_is_not_durable_after_it() -> None:
    member = make_group().members[N0]
    seed(member, "1,1,1", term=1)
    assert member.node.durable_index == 3
    member.step(Received(append_request(N1, 2, "1@1", "2,2,2")))
    assert (member.node.durable_index, member.node.log.last_index) == (1, 4)


def test_a_conflict_is_never_reported_at_what_is_committed() -> None:
    member = make_group().members[N0]
    seed(member, "1,1,1", term=1)
    receive(member, append_request(N1, 1, "1@1", commit=1))
    effects = member.step(Received(append_request(N2, 2, "2@2")))
    (answer,) = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(answer, AppendResponse)
    assert (answer.conflict_index, answer.conflict_term) == (2, 1)


def test_an_answer_to_no_round_does_not_count_as_contact() -> None:
    group, member = make_role(Role.LEADER)
    answered_ms = member.node.progress()[N1].answered_ms
    group.now_ms += 10
    refusal = AppendResponse(member.node.term, N1, 0, False, Index(0), Index(0), Term(0), Index(0))
    assert receive(member, refusal) == []
    assert member.node.progress()[N1].answered_ms == answered_ms


def test_a_member_that_was_never_heard_is_not_probed_from_the_logs_start() -> None:
    """A new leader does not know what a member holds; a broken connection tells it nothing."""
    _, member = make_role(Role.LEADER, "1,1,1,1", term=1)
    member.step(PeerUnreachable(N1))
    assert member.node.progress()[N1].next_index == 5


def test_a_follower_behind_the_logs_start_is_reported_and_gets_heartbeats_only() -> None:
    start = LogBase(Index(5), Term(1), Position(1000))
    node = RaftNode(
        RaftConfig(N0, NAMES),
        HardState(Term(1)),
        LogLayout(start),
        draw=lambda low, _: low,
        now_ms=0,
    )
    group = make_group()
    leader = group.members[N0]
    leader.node = node
    before = [
        Entry(Index(i), Term(1), Position(i * 100), EntryKind.NORMAL, b"") for i in range(1, 6)
    ]
    leader.entries, leader.durable_entries = list(before), list(before)
    elect(group, leader)
    rejection = AppendResponse(
        node.term, N1, node.last_round, False, Index(0), Index(1), Term(0), Index(0)
    )
    assert requests(receive(leader, rejection)) == []
    assert node.progress()[N1].state is ProgressState.SNAPSHOT
    group.now_ms += 60
    (to_n1, to_n2) = requests(leader.step(Tick()))
    assert (to_n1.first, to_n1.end, to_n1.prev_index) == (6, 6, 5)
    assert (to_n1.first_kept, to_n2.first_kept) == (6, 0), (
        "only who lacks it is told where the log begins"
    )
    # It has found what lies before the log's start elsewhere.
    answers = requests(receive(leader, success(leader, N1, 5, round_=to_n1.round)))
    assert [(request.first, request.end) for request in answers] == [(6, 7)]


def test_a_leader_that_forgets_what_a_follower_lacks_stops_sending_to_it() -> None:
    """Probed or replicated to, with requests under way or not: the next entry is gone."""
    _, member = make_role(Role.LEADER, "1,1,1,1,1,1", term=1)
    node = member.node
    receive(member, success(member, N1, 2))
    receive(member, success(member, N2, 7))
    node.step(Persisted(node.log.last_id), 0)
    assert node.commit_index == 7
    node.forget_before(Index(5))
    assert node.log.first_index == 5
    assert node.log.term_of(Index(4)) == 1
    node._leader.replication.unreachable(N1)  # type: ignore[union-attr] # it leads
    receive(member, success(member, N1, 3))
    assert node.progress()[N1].state is ProgressState.SNAPSHOT
    effects = member.step(Propose((b"x",), 1))
    assert [request.to for request in requests(effects)] == [N2]


def test_a_log_begins_anew_only_at_a_follower_and_only_forward() -> None:
    _, leader = make_role(Role.LEADER)
    with pytest.raises(AssertionError, match="leader begins its log anew"):
        leader.node.begin_log_after(LogBase(Index(9), Term(1), Position(900)))
    _, member = make_role(Role.FOLLOWER, "1,1,1", term=2)
    node = member.node
    told = append_request(N1, 2, "3@1", commit=9)
    receive(member, msgspec.structs.replace(told, first_kept=Index(9)))
    node.begin_log_after(LogBase(Index(9), Term(1), Position(900)))
    assert (node.log.last_id, node.commit_index) == (EntryId(Term(1), Index(9)), 9)
    assert node.durable_index == 0, "nothing of it is on disk yet"
    assert node.step(Persisted(EntryId(Term(1), Index(9))), 0) == []
    assert node.durable_index == 9
    with pytest.raises(AssertionError, match="committed is 9"):
        node.begin_log_after(LogBase(Index(9), Term(1), Position(900)))


def test_a_log_that_begins_anew_begins_with_the_members_that_its_leader_tells() -> None:
    """What changed them may stand before the log, or after the place behind which it begins."""
    group, member = make_role(Role.FOLLOWER, "1,1,1", term=2)
    node = member.node
    changed = ConfigurationNote(EntryId(Term(1), Index(8)), Configuration((N0, N1)))
    told = msgspec.structs.replace(
        append_request(N1, 2, "3@1", commit=8), first_kept=Index(7), members=changed
    )
    receive(member, told)
    assert not node.knows_members_at(Index(9))
    with pytest.raises(AssertionError, match="members at entry 9 are not known"):
        node.begin_log_after(LogBase(Index(9), Term(1), Position(900)))
    effects = node.begin_log_after(LogBase(Index(7), Term(1), Position(700)))
    assert [type(effect) for effect in effects] == [SaveHardState, MembersChanged]
    assert (node.configuration, node.is_configuration_committed) == (Configuration((N0, N1)), False)
    # Up to there the log only repeats what was, and what comes after follows from it.
    body = encode_membership(Configuration((N0, N1, N2)))
    old = Entry(Index(8), Term(2), Position(700), EntryKind.CONFIGURATION, body)
    request = AppendRequest(Term(2), N1, Index(7), Term(1), (old,), Index(8), 2)
    node.step(Received(request), group.now_ms)
    assert node.log.last_index == 8
    assert (node.configuration, node.is_configuration_committed) == (Configuration((N0, N1)), True)


def test_large_entries_travel_alone_and_the_window_counts_bytes() -> None:
    group, member = make_role(Role.LEADER)
    config = RaftConfig(N0, NAMES, entries_bytes_max=1000, inflight_bytes_max=2500)
    member.node._core.config = config
    receive(member, success(member, N1, 1))
    group.mail.clear()
    effects = member.step(Propose((b"x" * 400, b"y" * 400, b"z" * 5000, b"a" * 10, b"b" * 10), 1))
    ranges = [(request.first, request.end) for request in requests(effects) if request.to == N1]
    # 2 x 448 bytes fit one request; 5048 go alone and fill the window.
    assert ranges == [(2, 4), (4, 5)]
    effects = receive(member, success(member, N1, 4))
    ranges = [(request.first, request.end) for request in requests(effects) if request.to == N1]
    assert ranges == [(5, 7)]


def test_a_request_takes_no_more_than_the_window_has_left() -> None:
    _, member = make_role(Role.LEADER)
    member.node._core.config = RaftConfig(
        N0, NAMES, entries_bytes_max=1000, inflight_bytes_max=1500
    )
    receive(member, success(member, N1, 1))
    effects = member.step(Propose((b"x" * 400,) * 5, 1))
    ranges = [(request.first, request.end) for request in requests(effects) if request.to == N1]
    # 896 bytes, then 604 are left for one entry, then one more may exceed the window.
    assert ranges == [(2, 4), (4, 5), (5, 6)]


def test_answered_heartbeats_do_not_open_the_window_again() -> None:
    """Heartbeats overtake entries on a slow line: their answers say nothing of what is still on its way."""
    group, member = make_role(Role.LEADER)
    member.node._core.config = config = RaftConfig(
        N0, NAMES, entries_bytes_max=1000, inflight_bytes_max=1000
    )
    receive(member, success(member, N1, 1))
    member.step(Propose((b"x" * 400,) * 20, 1))
    view = member.node.progress()[N1]
    assert view.inflight_bytes >= config.inflight_bytes_max
    for _ in range(20):
        group.now_ms = member.node.next_deadline_ms()
        effects = member.step(Tick())
        (twin,) = (request for request in requests(effects) if request.to == N1)
        answer = success(member, N1, 1, round_=twin.round)
        assert [each for each in requests(receive(member, answer)) if each.first < each.end] == []
        receive(member, success(member, N2, 1))
    assert member.node.progress()[N1].inflight_bytes == view.inflight_bytes


def test_a_lost_window_is_found_without_a_timeout() -> None:
    group, member = make_role(Role.LEADER)
    for peer in (N1, N2):
        receive(member, success(member, peer, 1))
    member.step(PeerUnreachable(N1))
    effects = member.step(Propose((b"x",), token=1))
    assert [request.to for request in requests(effects)] == [N2]
    group.now_ms += 60
    effects = member.step(Tick())
    assert [(request.to, request.first, request.end) for request in requests(effects)] == [
        (N1, 2, 2),
        (N2, 3, 3),
    ]


def test_a_duplicated_rejection_moves_nothing_twice() -> None:
    group = make_group()
    leader = group.members[N0]
    seed(leader, "1,1,1", term=1)
    elect(group, leader)
    rejection = AppendResponse(
        leader.node.term, N1, 1, False, Index(0), Index(2), Term(0), Index(1)
    )
    assert len(requests(receive(leader, rejection))) == 1
    assert requests(receive(leader, rejection)) == []
    assert leader.node.progress()[N1].next_index == 2


def test_a_rejection_that_arrives_late_does_not_undo_a_success() -> None:
    _, leader = make_role(Role.LEADER)
    receive(leader, success(leader, N1, 1))
    rejection = AppendResponse(
        leader.node.term, N1, 1, False, Index(0), Index(1), Term(0), Index(0)
    )
    receive(leader, rejection)
    assert leader.node.progress()[N1].match_index == 1
    assert leader.node.progress()[N1].next_index == 2


def test_sends_that_answer_a_save_stand_after_it() -> None:
    member = make_group().members[N0]
    effects = member.step(Received(append_request(N1, 1, "0@0", "1")))
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds == ["SaveHardState", "AppendEntries", "Send", "RoleChanged"]


def test_a_proposal_costs_no_work_for_the_entries_before_it() -> None:
    """The hot path: one append, one request a follower; no more effects for a longer log."""
    _, member = make_role(Role.LEADER)
    for peer in (N1, N2):
        receive(member, success(member, peer, 1))
    for token in range(50):
        effects = member.step(Propose((b"x",), token=token))
        assert len(effects) <= 3
        receive(member, success(member, N1, token + 2))
        receive(member, success(member, N2, token + 2))


def test_every_token_gets_one_answer_when_the_leader_resigns() -> None:
    _, member = make_role(Role.LEADER)
    for token in range(5):
        member.step(Propose((b"x",), token=token))
    effects = receive(member, append_request(N1, 5, "0@0"))
    tokens = [effect.token for effect in effects if isinstance(effect, Resolve)]
    assert tokens == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("obstacles", "why"),
    [
        (
            "the disks of n1 and n2 are full",
            "no majority answered (the disks of n1 and n2 are full)",
        ),
        ("", "no majority answered"),
    ],
)
def test_who_loses_an_entry_for_want_of_a_majority_is_told_what_is_known_then(
    obstacles: str, why: str
) -> None:
    group, member = make_role(Role.LEADER)
    member.step(Propose((b"x",), token=1))
    group.now_ms += 299
    member.step(Tick("the disk of n1 is full"))  # as it was then
    assert not member.node.lacks_majority()
    group.now_ms += 1
    member.step(Tick())
    assert (member.node.role, member.node.lacks_majority()) == (Role.LEADER, True)
    group.now_ms += 600
    effects = member.step(Tick(obstacles))
    assert (member.node.role, member.node.lacks_majority()) == (Role.FOLLOWER, False)
    (lost,) = (effect.outcome for effect in effects if isinstance(effect, Resolve))
    assert isinstance(lost, Failed)
    assert str(lost.error) == f"term 1 was lost before entry 2@1 was committed: {why}"


def test_the_description_names_what_matters() -> None:
    _, member = make_role(Role.LEADER)
    assert member.node.describe().splitlines() == [
        "n0 leader term=1 vote=n0 leader=n0 commit=0 durable=1 last=1@1",
        "  n1 probe match=0 next=1 inflight=0",
        "  n2 probe match=0 next=1 inflight=0",
    ]


def test_every_role_follows_a_higher_term_and_an_order_to_step_down() -> None:
    for role in (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER):
        for cause in (Cause.HIGHER_TERM, Cause.LEADER_HEARD, Cause.STEP_DOWN):
            assert TRANSITIONS[role, cause] is Role.FOLLOWER


def test_every_cause_is_used_and_only_a_won_vote_makes_a_leader() -> None:
    assert {cause for _, cause in TRANSITIONS} == set(Cause)
    makes_leader = [key for key, after in TRANSITIONS.items() if after is Role.LEADER]
    assert makes_leader == [
        (Role.PRE_CANDIDATE, Cause.VOTE_WON),
        (Role.CANDIDATE, Cause.VOTE_WON),
    ]


SOUP = """
import random, sys
sys.path.insert(0, {root!r})
from tests.property.raft.test_group import random_soup
soup = random_soup(7, move_count=3000)
print(*(member.node.describe() for member in soup.group.members.values()), sep="\\n")
print(len(soup.group.mail), soup.group.now_ms)
"""


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    root = str(Path(__file__).parents[3])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SOUP.format(root=root)],
            env={**os.environ, "PYTHONHASHSEED": seed_},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed_ in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert "commit=" in outputs.pop()


def test_sends_are_messages_to_others() -> None:
    group = make_group(5)
    member = group.members[N0]
    effects = elect(group, member)
    targets = [effect.to for effect in effects if isinstance(effect, Send | SendEntries)]
    assert targets == ["n1", "n2", "n3", "n4"]
