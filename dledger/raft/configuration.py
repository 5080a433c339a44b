"""The members of a group as a value, the single change that leads from one to the next, and the names of changes.

A configuration names the voters, whose majority decides, and the learners, which receive everything and are counted
for nothing. Two that follow each other differ by at most one voter, so that any majority of the one shares a voter
with any majority of the other (thesis 4.1). Pure; what is in force at which entry is `configuration_log.py`'s, who
may change it and when `member_changes.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from dledger.raft.ids import NodeId

VOTERS_MAX: Final = 7
"""A change makes no larger group: more voters confirm no faster."""

MEMBERS_MAX: Final = 9
"""Voters and learners together."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group at one entry of its log.

    Invariants: nobody is a voter and a learner; `joining` are learners; addresses are of members.

    Attributes:
        voters: in the order in which they are asked.
        learners: the same of those that only follow.
        joining: the learners that become voters as soon as they have caught up.
        addresses: host:port of members, where a change has named it; the others are known from elsewhere.
    """

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    joining: frozenset[NodeId] = frozenset()
    addresses: Mapping[NodeId, str] = field(default_factory=dict)

    @property
    def members(self) -> tuple[NodeId, ...]:
        """All members, voters first."""
        return self.voters + self.learners

    def names_same_members(self, other: Configuration) -> bool:
        """Return whether both have the same voters and the same learners, in any order."""
        return set(self.voters) == set(other.voters) and set(self.learners) == set(other.learners)

    def says_same(self, other: Configuration) -> bool:
        """Return whether nothing would change if the other one took the place of this."""
        return (
            self.names_same_members(other)
            and self.joining == other.joining
            and dict(self.addresses) == dict(other.addresses)
        )

    def may_precede(self, other: Configuration) -> bool:
        """Return whether one change leads from this one to the other: of one voter, one learner, or both of one id."""
        voters = set(self.voters) ^ set(other.voters)
        learners = set(self.learners) ^ set(other.learners)
        return len(voters) <= 1 and len(learners) <= 1 and len(voters | learners) <= 1

    def with_learner(
        self, node_id: NodeId, *, is_joining: bool, addresses: Mapping[NodeId, str]
    ) -> Configuration:
        """Add a learner, or change what a learner is to become."""
        learners = self.learners if node_id in self.learners else (*self.learners, node_id)
        joining = self.joining | {node_id} if is_joining else self.joining - {node_id}
        known = {**self.addresses, **addresses}
        kept = {member: known[member] for member in (*self.voters, *learners) if member in known}
        return replace(self, learners=_sorted(learners), joining=joining, addresses=kept)

    def with_voter(self, node_id: NodeId) -> Configuration:
        """Make a voter of a learner."""
        assert node_id in self.learners, f"{node_id} is no learner"
        return replace(
            self,
            voters=_sorted((*self.voters, node_id)),
            learners=_without(self.learners, node_id),
            joining=self.joining - {node_id},
        )

    def without(self, node_id: NodeId) -> Configuration:
        """Remove a member."""
        assert node_id in self.members, f"{node_id} is no member"
        return Configuration(
            voters=_without(self.voters, node_id),
            learners=_without(self.learners, node_id),
            joining=self.joining - {node_id},
            addresses={name: at for name, at in self.addresses.items() if name != node_id},
        )

    def __str__(self) -> str:
        """Word it for people: `n0, n1, n2; learners n3 (joining)`."""
        voters = ", ".join(sorted(self.voters))
        if not self.learners:
            return voters
        learners = (
            f"{name} (joining)" if name in self.joining else name for name in sorted(self.learners)
        )
        return f"{voters}; learners {', '.join(learners)}"


class ChangeKind(Enum):
    """The kinds of change; the value is the word of the command."""

    ADD = "add"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One change that somebody asks for.

    Attributes:
        node_id: the member that it is about.
        is_joining: of ADD: whether the learner becomes a voter as soon as it has caught up.
        addresses: of ADD: where members listen, the new one among them; may be left out.
    """

    kind: ChangeKind
    node_id: NodeId
    is_joining: bool = False
    addresses: Mapping[NodeId, str] = field(default_factory=dict)

    def apply(self, before: Configuration) -> Configuration | str:
        """Return the configuration after the change, or why there is none."""
        node_id = self.node_id
        match self.kind:
            case ChangeKind.ADD:
                return self._added(before)
            case ChangeKind.PROMOTE:
                if node_id in before.voters:
                    return before
                if node_id not in before.learners:
                    return f"{node_id} is no learner of the group ({before}): add it first"
                if len(before.voters) >= VOTERS_MAX:
                    return f"the group has {len(before.voters)} voters, at most {VOTERS_MAX} may be"
                return before.with_voter(node_id)
            case ChangeKind.REMOVE:
                if before.voters == (node_id,):
                    return f"{node_id} is the group's last voter"
                return before.without(node_id) if node_id in before.members else before

    def _added(self, before: Configuration) -> Configuration | str:
        if self.node_id in before.voters:
            return before
        if self.node_id not in before.learners and len(before.members) >= MEMBERS_MAX:
            return f"the group has {len(before.members)} members, at most {MEMBERS_MAX} may be"
        return before.with_learner(
            self.node_id, is_joining=self.is_joining, addresses=self.addresses
        )


def _sorted(names: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(sorted(names))


def _without(names: tuple[NodeId, ...], gone: NodeId) -> tuple[NodeId, ...]:
    return tuple(name for name in names if name != gone)
