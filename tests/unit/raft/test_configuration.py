"""Configurations as values: which may follow which, and what a change makes of them."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from dledger.raft.configuration import (
    MEMBERS_MAX,
    VOTERS_MAX,
    ChangeKind,
    Configuration,
    MemberChange,
)
from dledger.raft.ids import NodeId
from dledger.raft.quorum import majority

N0, N1, N2, N3 = (NodeId(f"n{place}") for place in range(4))
NAMES = (N0, N1, N2, N3)
THREE = Configuration((N0, N1, N2))


def all_configurations() -> list[Configuration]:
    """Every group of some of four nodes, with at least one voter."""
    found = []
    for roles in product("-VL", repeat=len(NAMES)):
        voters = tuple(name for name, role in zip(NAMES, roles, strict=True) if role == "V")
        learners = tuple(name for name, role in zip(NAMES, roles, strict=True) if role == "L")
        if voters:
            found.append(Configuration(voters, learners))
    return found


def test_majorities_of_two_that_may_follow_each_other_share_a_voter() -> None:
    pairs = [
        (one, other)
        for one, other in product(all_configurations(), repeat=2)
        if one.may_precede(other)
    ]
    assert len(pairs) > len(all_configurations()), "each may follow itself, and others"
    for one, other in pairs:
        for left in combinations(one.voters, majority(len(one.voters))):
            for right in combinations(other.voters, majority(len(other.voters))):
                assert set(left) & set(right), f"{one} and {other}"


def test_every_change_makes_one_that_may_follow_or_a_reason() -> None:
    made = 0
    for before in all_configurations():
        for kind, name, joins in product(ChangeKind, NAMES, (False, True)):
            after = MemberChange(kind, name, joins, {name: "h:1"}).apply(before)
            if isinstance(after, str):
                assert str(name) in after
                continue
            made += not after.says_same(before)
            assert before.may_precede(after), f"{kind} {name}: {before} becomes {after}"
            assert after.voters, f"{kind} {name}: {before} loses its last voter"
            assert set(after.voters).isdisjoint(after.learners)
            assert after.joining <= set(after.learners)
            assert after.addresses.keys() <= set(after.members)
    assert made > 100


def test_more_than_one_member_at_a_time_may_not_change() -> None:
    assert not THREE.may_precede(Configuration((N0,)))
    assert not THREE.may_precede(Configuration((N0, N1, N3)))
    assert not THREE.may_precede(Configuration((N0, N1, N2), (N3, NodeId("n4"))))
    assert not THREE.may_precede(Configuration((N0, N1, N2, N3), (NodeId("n4"),)))


def test_a_learner_joins_stays_or_is_promoted() -> None:
    added = MemberChange(ChangeKind.ADD, N3, True, {N3: "h:3", N0: "h:0"}).apply(THREE)
    assert added == Configuration((N0, N1, N2), (N3,), frozenset({N3}), {N0: "h:0", N3: "h:3"})
    assert str(added) == "n0, n1, n2; learners n3 (joining)"
    assert isinstance(added, Configuration)
    stays = MemberChange(ChangeKind.ADD, N3).apply(added)
    assert isinstance(stays, Configuration)
    assert (stays.joining, stays.addresses) == (frozenset(), added.addresses)
    promoted = MemberChange(ChangeKind.PROMOTE, N3).apply(added)
    assert promoted == Configuration(NAMES, (), frozenset(), added.addresses)
    assert isinstance(promoted, Configuration)
    removed = MemberChange(ChangeKind.REMOVE, N3).apply(promoted)
    assert removed == Configuration((N0, N1, N2), addresses={N0: "h:0"})


def test_order_says_nothing() -> None:
    assert THREE.says_same(Configuration((N2, N1, N0)))
    assert not THREE.says_same(Configuration((N0, N1, N2), addresses={N0: "h:0"}))
    assert THREE.names_same_members(Configuration((N0, N1, N2), addresses={N0: "h:0"}))
    assert str(Configuration((N2, N1, N0))) == "n0, n1, n2"


@pytest.mark.parametrize(
    ("before", "change", "problem"),
    [
        (THREE, MemberChange(ChangeKind.PROMOTE, N3), "no learner"),
        (Configuration((N0,)), MemberChange(ChangeKind.REMOVE, N0), "last voter"),
        (
            Configuration(tuple(NodeId(f"v{place}") for place in range(VOTERS_MAX)), (N3,)),
            MemberChange(ChangeKind.PROMOTE, N3),
            "7 voters",
        ),
        (
            Configuration((N0,), tuple(NodeId(f"l{place}") for place in range(MEMBERS_MAX - 1))),
            MemberChange(ChangeKind.ADD, N3),
            "9 members",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(
    before: Configuration, change: MemberChange, problem: str
) -> None:
    reason = change.apply(before)
    assert isinstance(reason, str)
    assert problem in reason
