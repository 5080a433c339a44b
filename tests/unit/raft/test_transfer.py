"""To whom leadership is handed, and what the caller is told when it goes wrong."""

from __future__ import annotations

import pytest

from dledger.config import RaftConfig
from dledger.errors import DLedgerError, LeadershipLostError, TransferFailedError
from dledger.raft.effects import Failed, Resolve, Role
from dledger.raft.events import Propose, Received, StepDown, Tick, TransferRequested
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import TimeoutNow
from dledger.testing.core_group import CoreGroup, CoreMember
from dledger.testing.make_roles import N0, N1, N2, elect, make_role, receive, sent, success


def make_leader(
    *preferred: NodeId, entries_bytes_max: int = 4_000_000
) -> tuple[CoreGroup, CoreMember]:
    names = (N0, N1, N2)
    configs = [
        RaftConfig(name, names, preferred_leaders=preferred, entries_bytes_max=entries_bytes_max)
        for name in names
    ]
    group = CoreGroup(configs, lambda _: lambda low, _high: low)
    elect(group, group.members[N0])
    return group, group.members[N0]


def lead_for(
    group: CoreGroup, member: CoreMember, duration_ms: int, matches: dict[NodeId, int]
) -> list[tuple[int, NodeId]]:
    """Let time pass; these members answer each heartbeat. Who was told to campaign, and when."""
    told: list[tuple[int, NodeId]] = []
    start_ms = group.now_ms
    while group.now_ms < start_ms + duration_ms:
        group.now_ms = min(member.node.next_deadline_ms(), start_ms + duration_ms)
        effects = member.step(Tick())
        for peer, match in matches.items():
            effects += receive(member, success(member, peer, match))
        told += [
            (group.now_ms - start_ms, mail.to)
            for mail in group.mail
            if isinstance(mail.message, TimeoutNow)
        ]
        group.mail.clear()
    return told


def error_of(effects: list[object]) -> DLedgerError:
    (outcome,) = [effect.outcome for effect in effects if isinstance(effect, Resolve)]
    assert isinstance(outcome, Failed)
    return outcome.error


def test_without_a_target_the_one_with_most_of_the_log_is_chosen() -> None:
    _, member = make_role(Role.LEADER)
    member.step(Propose((b"x",), token=1))
    member.sync()
    receive(member, success(member, N1, 1))
    receive(member, success(member, N2, 2))
    assert sent(member.step(TransferRequested(None, token=2))) == [TimeoutNow(Term(1), N0)]
    assert member.node.transfer_target == N2


def test_without_a_target_who_does_not_answer_is_not_chosen() -> None:
    _, member = make_role(Role.LEADER)
    error = error_of([*member.step(TransferRequested(None, token=1))])
    assert isinstance(error, TransferFailedError)
    assert error.definite


def test_the_word_waits_until_nobody_waits_for_a_proposal() -> None:
    _, member = make_role(Role.LEADER)
    receive(member, success(member, N1, 1))
    member.step(Propose((b"x",), token=1))
    assert sent(member.step(TransferRequested(N1, token=2))) == []
    # The target has everything; nobody else has, the leader's own disk included.
    assert sent(member.step(Received(success(member, N1, 2)))) == []
    assert sent(member.sync()) == [TimeoutNow(Term(1), N0)]


def test_a_leader_that_steps_down_after_the_word_does_not_know_how_it_ends() -> None:
    _, member = make_role(Role.LEADER)
    receive(member, success(member, N1, 1))
    member.step(TransferRequested(N1, token=1))
    error = error_of([*member.step(StepDown("disk full"))])
    assert isinstance(error, LeadershipLostError)
    assert not error.definite


@pytest.mark.parametrize(
    ("preferred", "told"),
    [((N2,), {N2}), ((N1, N2), {N1}), ((N0, N2), set()), ((), set())],
)
def test_a_leader_that_is_not_preferred_hands_over(
    preferred: tuple[NodeId, ...], told: set[NodeId]
) -> None:
    group, member = make_leader(*preferred)
    words = lead_for(group, member, 1500, {N1: 1, N2: 1})
    assert {to for _, to in words} == told
    assert all(at_ms >= 1000 for at_ms, _ in words)


def test_a_preferred_member_that_is_silent_is_left_alone() -> None:
    group, member = make_leader(N2)
    receive(member, success(member, N2, 1))
    assert lead_for(group, member, 1500, {N1: 1}) == []


def test_a_preferred_member_that_is_far_behind_is_left_alone() -> None:
    group, member = make_leader(N2, entries_bytes_max=1000)
    lead_for(group, member, 900, {N1: 1, N2: 1})
    member.step(Propose((b"x" * 600,) * 9, token=1))
    member.sync()
    assert lead_for(group, member, 200, {N1: 10, N2: 2}) == []
    assert member.node.transfer_target is None
    lead_for(group, member, 1000, {N1: 10, N2: 9})
    assert member.node.transfer_target == N2


def test_a_preferred_member_that_lacks_what_is_forgotten_is_left_alone() -> None:
    """A leader keeps only so much for who lags; what that one was sent before may still be under way."""
    group, member = make_leader(N2)
    lead_for(group, member, 900, {N1: 1, N2: 1})
    member.step(Propose((b"x" * 600,) * 9, token=1))
    member.sync()
    lead_for(group, member, 50, {N1: 10, N2: 2})
    member.node.forget_before(Index(7))
    assert lead_for(group, member, 1000, {N1: 10, N2: 2}) == []
    assert member.node.transfer_target is None
    member.step(TransferRequested(None, token=2))
    assert member.node.transfer_target == N1


def test_after_a_failed_hand_over_the_leader_waits_before_the_next() -> None:
    group, member = make_leader(N2)
    words = lead_for(group, member, 40_000, {N1: 1, N2: 1})
    first_tries = [at_ms for at_ms, _ in words if at_ms <= 2100]
    later = [at_ms for at_ms, _ in words if at_ms > 2100]
    assert first_tries
    assert later
    assert 31_000 <= min(later) <= 33_000
