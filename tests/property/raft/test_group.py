"""Random events in random order never break a promise; a healed group makes progress.

Hypothesis draws a list of moves: time, delivery in any order, loss, repetition, partial syncs,
crashes, proposals. `CoreGroup` checks figure 3 of the Raft paper after every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger.config import RaftConfig
from dledger.raft.effects import Role
from dledger.raft.events import (
    PeerUnreachable,
    Propose,
    ReadRequested,
    StepDown,
    Tick,
    TransferRequested,
)
from dledger.raft.ids import Index, NodeId
from dledger.raft.quorum import CommitRule, commit_by_count
from dledger.testing.core_group import CoreGroup, SafetyViolationError

COMMON = {"deliver": 24, "sync": 10, "time": 8, "propose": 3, "restart": 2}
RARE = [
    "read",
    "lose",
    "repeat",
    "crash",
    "unreachable",
    "transfer",
    "step-down",
    "partial-sync",
    "pause",
]
MOVES = [what for what, weight in COMMON.items() for _ in range(weight)] + RARE


class Soup:
    """A group and the moves that may happen to it."""

    def __init__(
        self, voter_count: int, seed: int, *, commit_rule: CommitRule = commit_by_count
    ) -> None:
        names = tuple(NodeId(f"n{i}") for i in range(voter_count))
        # Small windows, so that their bounds are met.
        configs = [
            RaftConfig(
                name,
                names,
                entries_count_max=2,
                inflight_requests_max=2,
                preferred_leaders=(names[0],),
            )
            for name in names
        ]
        source = random.Random(seed)
        self.names = names
        self.group = CoreGroup(configs, lambda _: source.randint, commit_rule=commit_rule)
        self.tokens: set[int] = set()
        self.next_token = 0

    def move(self, what: str, a: int, b: int) -> None:
        group = self.group
        member = group.members[self.names[a % len(self.names)]]
        moves: dict[str, Callable[[], object]] = {
            "deliver": lambda: group.deliver(b % len(group.mail)) if group.mail else None,
            "repeat": lambda: (
                group.deliver(b % len(group.mail), is_kept=True) if group.mail else None
            ),
            "lose": lambda: group.mail.pop(b % len(group.mail)) if group.mail else None,
            "time": lambda: self.pass_time(b % 40),
            "pause": lambda: self.pass_time(b),
            "restart": lambda: None if member.is_up else member.restart(),
            "crash": member.crash,
        }
        if what in moves:
            moves[what]()
        elif member.is_up:
            self.local(what, a, b)

    def local(self, what: str, a: int, b: int) -> None:
        member = self.group.members[self.names[a % len(self.names)]]
        other = self.names[b % len(self.names)]
        match what:
            case "sync":
                member.sync()
            case "partial-sync":
                member.sync(1)
            case "propose":
                bodies = tuple(b"x" * i for i in range(1 + b % 3))
                member.step(Propose(bodies, self.token()))
            case "read":
                member.step(ReadRequested(self.token()))
            case "transfer":
                member.step(TransferRequested(other, self.token()))
            case "unreachable":
                member.step(PeerUnreachable(other))
            case "step-down":
                member.step(StepDown("disk full"))

    def token(self) -> int:
        self.next_token += 1
        return self.next_token

    def pass_time(self, duration_ms: int) -> None:
        self.group.now_ms += duration_ms
        for member in self.group.members.values():
            if member.is_up and member.node.next_deadline_ms() <= self.group.now_ms:
                member.step(Tick())

    def heal(self) -> None:
        """Everybody up, all mail delivered, all saves done, for some seconds."""
        for member in self.group.members.values():
            if not member.is_up:
                member.restart()
        for _ in range(800):
            self.pass_time(20)
            for _ in range(3):
                for member in self.group.members.values():
                    member.sync()
                for _ in range(len(self.group.mail)):
                    self.group.deliver(0)

    def check_agreement(self) -> None:
        """One leader, and the same committed log everywhere."""
        (leader,) = self.group.leaders()
        count = len(leader.entries)
        for member in self.group.members.values():
            assert member.entries == leader.entries
            assert member.node.commit_index == count
            assert member.node.leader_id == leader.name
            assert member.node.pending_count == 0


def soup_moves(size: int) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    move = st.tuples(st.sampled_from(MOVES), st.integers(0, 9), st.integers(0, 999))
    return st.lists(move, min_size=size // 4, max_size=size)


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.sampled_from([1, 2, 3, 5]), st.integers(0, 2**16), soup_moves(200))
def test_no_order_of_events_breaks_a_promise(
    voter_count: int, seed: int, moves: list[tuple[str, int, int]]
) -> None:
    soup = Soup(voter_count, seed)
    for what, a, b in moves:
        soup.move(what, a, b)


def random_soup(seed: int, *, move_count: int, commit_rule: CommitRule = commit_by_count) -> Soup:
    """A long soup from one seed: hypothesis draws short lists, elections need long ones."""
    source = random.Random(seed)
    soup = Soup(source.choice([1, 2, 3, 3, 3, 5]), seed, commit_rule=commit_rule)
    # Some faults are off altogether in some runs, so that others get the room.
    weights = [*COMMON.values(), *(source.choice([0, 0.02, 0.1, 0.5]) for _ in RARE)]
    whats = source.choices([*COMMON, *RARE], weights, k=move_count)
    for what in whats:
        soup.move(what, source.randrange(10), source.randrange(1000))
    return soup


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_after_any_soup_a_healed_group_agrees_and_goes_on(seed: int) -> None:
    soup = random_soup(seed, move_count=4000)
    soup.heal()
    soup.check_agreement()
    (leader,) = soup.group.leaders()
    before = leader.node.commit_index
    leader.step(Propose((b"after",), soup.token()))
    soup.heal()
    soup.check_agreement()
    (leader,) = soup.group.leaders()
    assert leader.node.role is Role.LEADER
    assert leader.node.commit_index > before


def commit_what_anybody_holds(
    matches: Sequence[int], *, commit_index: Index, term_start: Index
) -> Index:
    """A planted bug: no majority is asked."""
    held = max(matches)
    return Index(held) if held >= term_start and held > commit_index else commit_index


@pytest.mark.slow
def test_the_checker_finds_a_planted_bug() -> None:
    """A soup that can find nothing proves nothing. (Figure 8 is a script: no soup is that lucky.)"""

    def breaks(seed: int) -> bool:
        try:
            random_soup(seed, move_count=4000, commit_rule=commit_what_anybody_holds)
        except SafetyViolationError:
            return True
        return False

    assert any(breaks(seed) for seed in range(30))
