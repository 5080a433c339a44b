"""The health of groups, from what name servers and brokers have answered. Pure: answers in, a judgement out.

It must not know how anybody is asked, nor how a judgement is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from broker.admin.ask import NodeAnswer
from broker.admin.facts import MemberFacts, read_facts

KnownMembers = Mapping[str, Mapping[str, str]]
"""Group -> member id -> its address for clients, empty where it is not known."""

UNKNOWN_GROUP = ""
"""Of nodes that were named by their addresses, and have not said to which group they belong."""


class MemberState(Enum):
    """The state of a member, as far as it concerns an operator."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CATCHING_UP = "catching up"
    LEARNER = "learner"
    CANDIDATE = "candidate"
    ELECTED = "elected"
    OLD_LEADER = "old leader"
    AWAY = "away"
    OTHER_KIND = "other kind"
    OTHER_GROUP = "other group"


@dataclass(frozen=True)
class Sight:
    """All answers of one look at a cluster.

    Attributes:
        name_servers: the problem of each that was asked; empty: it has answered.
        registered: the addresses of each group that name servers know.
        answers: of brokers, by address.
        later: of those that were asked a second time, because they seemed to be behind.
    """

    name_servers: Mapping[str, str]
    registered: Mapping[str, frozenset[str]]
    answers: Mapping[str, NodeAnswer]
    later: Mapping[str, NodeAnswer] = field(default_factory=dict)

    @cached_property
    def first_facts(self) -> Mapping[str, MemberFacts]:
        """The facts of the first answers, by address."""
        return _facts_of(self.answers.values())

    @cached_property
    def facts(self) -> Mapping[str, MemberFacts]:
        """The facts of the last answers, by address."""
        return _facts_of({**self.answers, **self.later}.values())

    def group_of(self, facts: MemberFacts) -> str:
        """Return the group that a broker names; for one that names none, the one under which it is registered."""
        names = (name for name, addresses in self.registered.items() if facts.address in addresses)
        return facts.group or min(names, default=UNKNOWN_GROUP)

    def problem(self, address: str) -> str:
        """Return why there is no answer from an address; empty: there is one, or nobody asked."""
        answer = self.later.get(address) or self.answers.get(address)
        return answer.problem if answer is not None else ""


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """One member, or one broker that is registered under its group's name.

    Attributes:
        node_id: empty: nobody knows which member it is.
        address: where clients reach it; empty: nobody knows.
        reason: what is to be said about the state; empty: nothing.
        lag_entries: committed entries that it has not applied, though it had time; None: not known.
        lag_bytes: of committed log that it has not received by then.
        facts: its answer; None without one.
    """

    node_id: str
    address: str
    state: MemberState
    reason: str = ""
    lag_entries: int | None = None
    lag_bytes: int | None = None
    facts: MemberFacts | None = None

    @property
    def is_well(self) -> bool:
        """True if there is nothing to look into."""
        facts = self.facts
        is_in_place = self.state in (MemberState.LEADER, MemberState.FOLLOWER) and not self.reason
        return is_in_place and facts is not None and not facts.troubles and not facts.stopping


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """One group. `members` are in the order of their ids, those without one last; none: it is missing."""

    name: str
    members: tuple[MemberHealth, ...]

    @property
    def leader(self) -> MemberHealth | None:
        """The member that leads."""
        return next((one for one in self.members if one.state is MemberState.LEADER), None)

    @property
    def is_led(self) -> bool:
        """True if somebody takes writes; in a group of another kind nobody knows, and no fault is found."""
        kinds = {one.state for one in self.members} - {MemberState.AWAY}
        return self.leader is not None or kinds == {MemberState.OTHER_KIND}

    @property
    def is_whole(self) -> bool:
        """True if it is led, and all of its members are well."""
        return self.is_led and all(
            one.is_well or one.state is MemberState.OTHER_KIND for one in self.members
        )


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """All groups, in the order of their names; `name_servers` as in `Sight`."""

    name_servers: Mapping[str, str]
    groups: tuple[GroupHealth, ...]

    @property
    def is_led(self) -> bool:
        """True if there are groups, and every one has a leader."""
        return bool(self.groups) and all(group.is_led for group in self.groups)

    @property
    def is_whole(self) -> bool:
        """True if nothing is to be looked into."""
        has_trouble = any(self.name_servers.values())
        return self.is_led and all(group.is_whole for group in self.groups) and not has_trouble

    @property
    def members(self) -> KnownMembers:
        """The members by group and id, for the next look: a group whose members are all away is a group still."""
        return {
            group.name: {one.node_id: one.address for one in group.members if one.node_id}
            for group in self.groups
        }


def judge(sight: Sight, known: KnownMembers, expected: Collection[str] = ()) -> ClusterHealth:
    """Judge every group that is registered, has answered, or was seen before.

    Args:
        sight: all answers.
        known: members that were seen before.
        expected: groups that are there; one of which nothing is seen has no members, and no leader.
    """
    names = {*sight.registered, *known, *map(sight.group_of, sight.facts.values()), *expected}
    groups = [_Judgement(sight, name, known.get(name, {})).group() for name in sorted(names)]
    shown = tuple(group for group in groups if group.members or group.name in expected)
    return ClusterHealth(sight.name_servers, shown)


def _facts_of(answers: Iterable[NodeAnswer]) -> dict[str, MemberFacts]:
    return {
        answer.address: facts for answer in answers if (facts := read_facts(answer)) is not None
    }


class _Judgement:
    """The judgement of one group."""

    def __init__(self, sight: Sight, name: str, known: Mapping[str, str]) -> None:
        """Take what concerns the group."""
        self._sight = sight
        self._name = name
        self._registered = sight.registered.get(name, frozenset())
        mine = [
            facts
            for _, facts in sorted(sight.facts.items())
            if facts.node_id and sight.group_of(facts) == name
        ]
        # A member may be reached at several addresses; the one that it announces itself comes first.
        mine.sort(key=lambda one: one.address != one.own_address)
        self._facts = {one.node_id: one for one in reversed(mine)}
        self._doubles = [one for one in mine if self._is_double(one)]
        self._leader = self._find_leader()
        self._addresses = self._find_addresses(known)

    def group(self) -> GroupHealth:
        """Return the judgement."""
        members = [self._member(node_id) for node_id in sorted(self._addresses)]
        return GroupHealth(self._name, (*members, *self._strangers()))

    def _is_double(self, one: MemberFacts) -> bool:
        """Return whether another process says that it is this member; one process may have several addresses."""
        chosen = self._facts[one.node_id]
        return one is not chosen and bool(one.own_address) and one.own_address != chosen.own_address

    def _find_leader(self) -> MemberFacts | None:
        """Return the member that leads in the highest term."""
        leaders = [
            one
            for one in self._facts.values()
            if one.role == "leader" and one.is_serving is not False
        ]
        return max(leaders, key=lambda one: one.term or 0, default=None)

    def _find_addresses(self, known: Mapping[str, str]) -> dict[str, str]:
        """Return all members and where they are: as they say themselves, else as the others say, the leader first."""
        addresses = dict(known)
        lists = [one.members for one in self._facts.values()]
        if self._leader is not None:
            lists.append(self._leader.members)
        for members in lists:
            for node_id, address in members.items():
                addresses[node_id] = address or addresses.get(node_id, "")
        return addresses | {node_id: one.address for node_id, one in self._facts.items()}

    def _member(self, node_id: str) -> MemberHealth:
        """Judge one member: away without an answer, else by its role, the leader and what it lacks."""
        facts, address = self._facts.get(node_id), self._addresses[node_id]
        if facts is None:
            return MemberHealth(node_id, address, MemberState.AWAY, self._why_away(node_id))
        state, lag_entries, lag_bytes = _state_of(facts), None, None
        if state is MemberState.LEADER and facts is not self._leader:
            state = MemberState.OLD_LEADER
        if facts is not self._leader:
            lag_entries, lag_bytes = self._lag(facts)
        if state is MemberState.FOLLOWER and lag_entries:
            state = MemberState.CATCHING_UP
        return MemberHealth(
            node_id,
            address,
            state,
            self._remark(facts, state),
            lag_entries=lag_entries,
            lag_bytes=lag_bytes,
            facts=facts,
        )

    def _lag(self, facts: MemberFacts) -> tuple[int | None, int | None]:
        """Return the entries and bytes that the leader had committed before this member answered, and it lacks."""
        leader = self._leader
        first = self._sight.first_facts.get(leader.address) if leader is not None else None
        if first is None:
            return None, None
        return (
            _missing(first.commit_index, facts.applied_index),
            _missing(first.end_position, facts.end_position),
        )

    def _remark(self, facts: MemberFacts, state: MemberState) -> str:
        """Return what does not fit together in what a member says."""
        remarks: list[str] = []
        leader = self._leader
        follows = state in (MemberState.FOLLOWER, MemberState.CATCHING_UP, MemberState.LEARNER)
        if follows and leader is not None and facts.leader_id != leader.node_id:
            remarks.append(f"follows {facts.leader_id or 'nobody'}")
        if follows and leader is None:
            named = facts.leader_id
            remarks.append(f"knows {named} as leader" if named else "knows no leader")
        remarks += [
            f"{one.address} says that it is {one.node_id}, too"
            for one in self._doubles
            if one.node_id == facts.node_id
        ]
        remarks += self._on_rules(facts)
        return "; ".join(remarks)

    def _on_rules(self, facts: MemberFacts) -> list[str]:
        """Return what is to be said of a member whose access rules are not those of the leader, or of the first."""
        told = [one for one in (self._leader, *self._facts.values()) if one is not None]
        first = next((one for one in told if one.access_rules is not None), None)
        if first is None or facts.access_rules is None or facts.access_rules == first.access_rules:
            return []
        if not facts.access_rules:
            return [f"lets everybody in, unlike {first.node_id}: it has no access rules"]
        if not first.access_rules:
            return [f"has access rules, unlike {first.node_id}, which lets everybody in"]
        if facts.access_rules & first.access_rules:
            return []
        return [f"its access rules differ from those of {first.node_id}"]

    def _why_away(self, node_id: str) -> str:
        """Return the reason why a member has not answered, and who has a connection with it nevertheless."""
        address = self._addresses[node_id]
        if not address:
            why = "nobody knows where its clients connect: it has not been there since the others started"
        elif (found := self._sight.facts.get(address)) is not None:
            who = (
                f"{found.node_id} of {found.group}" if found.node_id else "a broker of another kind"
            )
            why = f"{who} answers there"
        else:
            why = self._sight.problem(address) or "was not asked"
        friends = [one.node_id for one in self._facts.values() if node_id in one.connected]
        return (
            f"{why}, but has a connection with {' and '.join(sorted(friends))}" if friends else why
        )

    def _strangers(self) -> Iterator[MemberHealth]:
        """Yield the addresses that are registered under this name and belong to no known member."""
        places = {*self._addresses.values(), *(one.own_address for one in self._facts.values())}
        for address in sorted(self._registered - places):
            facts = self._sight.facts.get(address)
            if facts is None:
                why = self._sight.problem(address) or "was not asked"
                if self._name != UNKNOWN_GROUP or not self._is_member_elsewhere(address):
                    yield MemberHealth("", address, MemberState.AWAY, why)
            elif not facts.node_id:
                yield MemberHealth("", address, MemberState.OTHER_KIND, facts=facts)
            elif facts.group not in ("", self._name) and self._name != UNKNOWN_GROUP:
                why = f"is {facts.node_id} of {facts.group}"
                yield MemberHealth("", address, MemberState.OTHER_GROUP, why, facts=facts)

    def _is_member_elsewhere(self, address: str) -> bool:
        return any(address in facts.members.values() for facts in self._sight.facts.values())


def _state_of(facts: MemberFacts) -> MemberState:
    """Return the state that follows from the role alone."""
    match facts.role:
        case "leader":
            return MemberState.ELECTED if facts.is_serving is False else MemberState.LEADER
        case "follower":
            return MemberState.FOLLOWER
        case "learner":
            return MemberState.LEARNER
        case _:
            return MemberState.CANDIDATE


def _missing(end: int | None, have: int | None) -> int | None:
    return None if end is None or have is None else max(0, end - have)
