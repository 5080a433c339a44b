"""The verdict on members of a new version, before they vote: have they folded what the others have, to the same state?

A state that was taken over from another member, or from an older version's snapshot, proves nothing. So the digests of
a judged member count only at a mark behind the state with which its process began: what lies between it has folded by
itself. What it may write that others do not carry out is found by the names of the control records that each knows.

Pure: answers in, a verdict out. It must not know how nodes are asked, nor how a verdict is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from broker.admin.ask import NodeAnswer
from broker.admin.facts import read_object_in, whole_number
from broker.admin.verify import Comparison, compare
from dledger import Index

UNTOLD = "?"
"""Stands for what a version from before this check does not say of itself."""


@dataclass(frozen=True, slots=True)
class MemberVersion:
    """The facts that a member tells of the program that it runs.

    Attributes:
        name: of the node.
        role: as it sees itself.
        program, wire: version of the program, and of what it says to members.
        formats: newest version of each format that it writes.
        commands: control records that it carries out; None: it does not say.
        began_at: the entry of the state with which its process began; None: it does not say.
        is_judged: it is to show that it may vote.
    """

    name: str
    role: str
    program: str
    wire: str
    formats: Mapping[str, int]
    commands: frozenset[str] | None
    began_at: Index | None
    is_judged: bool


@dataclass(frozen=True, slots=True)
class UpgradeVerdict:
    """The result of a check.

    Attributes:
        members: of the group, as far as they answered.
        comparison: of their digests.
        refusals: why the judged ones must not vote.
        doubts: why it cannot be said yet.
        notes: what to know besides.
    """

    members: tuple[MemberVersion, ...]
    comparison: Comparison
    refusals: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def may_vote(self) -> bool:
        """True if nothing speaks against it, and nothing is unknown."""
        return not self.refusals and not self.doubts


def judge(
    answers: Sequence[NodeAnswer], names: Collection[str], entries_min: int
) -> UpgradeVerdict:
    """Judge members by what all nodes of the group say.

    Args:
        answers: of all nodes.
        names: the members to judge; none: those whose program is another one than most members run.
        entries_min: how many entries a judged member must have folded by itself.
    """
    present = [answer for answer in answers if answer.table]
    judged = frozenset(names) or _of_another_program(present)
    members = tuple(_version_of(answer, judged) for answer in present)
    comparison = compare(answers)
    doubts = list(comparison.problems)
    doubts += [
        f"{name} is not among the nodes that answered"
        for name in sorted(judged - {m.name for m in members})
    ]
    if present and not judged:
        doubts.append(
            "all members that answered run the same program: name with --node the one that is to be judged"
        )
    if comparison.index:
        doubts += [
            doubt
            for member in members
            if member.is_judged
            and (doubt := _too_little(member, comparison.index, entries_min)) is not None
        ]
    refusals = [
        f"{component} differs at entry {comparison.index}: not like the majority: {', '.join(comparison.odd)}"
        for component in comparison.differing
    ]
    refusals += [
        f"{name} has found itself different at: {text}" for name, text in comparison.alarms.items()
    ]
    refusals += _version_refusals(members)
    return UpgradeVerdict(
        members, comparison, tuple(refusals), tuple(doubts), _notes(members, comparison)
    )


def _of_another_program(present: Sequence[NodeAnswer]) -> frozenset[str]:
    """Return the members whose program is another one than most members run."""
    programs = {each.name: each.table.get("raftVersion", UNTOLD) for each in present}
    if len(set(programs.values())) < 2:
        return frozenset()
    usual, _ = Counter(programs.values()).most_common(1)[0]
    return frozenset(name for name, program in programs.items() if program != usual)


def _version_of(answer: NodeAnswer, judged: Collection[str]) -> MemberVersion:
    """Read what a node says of its program."""
    table = answer.table
    commands = table.get("raftControlCommands")
    began_at = whole_number(table.get("digestBeganAt", ""))
    return MemberVersion(
        name=answer.name,
        role=table.get("raftRole", UNTOLD),
        program=table.get("raftVersion", UNTOLD),
        wire=table.get("raftWireVersion", UNTOLD),
        formats=_formats(table),
        commands=None if commands is None else frozenset(commands.split(",")),
        began_at=None if began_at is None else Index(began_at),
        is_judged=answer.name in judged,
    )


def _formats(table: Mapping[str, str]) -> dict[str, int]:
    """Read the versions of formats, those that are numbers."""
    return {
        name: version
        for name, told in read_object_in(table, "raftFormats").items()
        if (version := whole_number(str(told))) is not None
    }


def _too_little(member: MemberVersion, mark: Index, entries_min: int) -> str | None:
    """Return why a mark proves nothing of a member; None if it does."""
    if member.began_at is None:
        return f"{member.name} does not say with which state it began: its version cannot be judged"
    folded = max(0, mark - member.began_at)
    if folded < entries_min:
        return (
            f"{member.name} began with the state of entry {member.began_at}, and has folded {folded} entries up to the "
            f"mark at {mark} by itself; {entries_min} are wanted (marks come with new records)"
        )
    return None


def _version_refusals(members: Sequence[MemberVersion]) -> list[str]:
    """Return why the versions of the members do not go together."""
    refusals = []
    wires = {member.wire for member in members} - {UNTOLD}
    if len(wires) > 1:
        refusals.append(
            f"they speak different versions with each other: {', '.join(sorted(wires))}"
        )
    controls = {member.formats["control"] for member in members if "control" in member.formats}
    if len(controls) > 1:
        refusals.append(
            f"control records have the versions {', '.join(map(str, sorted(controls)))}: a member that leads writes "
            "what others stop at"
        )
    known = [member for member in members if member.commands is not None]
    for member in known:
        for other in known:
            unknown = (member.commands or frozenset()) - (other.commands or frozenset())
            if unknown:
                refusals.append(
                    f"{member.name} may write control records that {other.name} does not carry out: "
                    f"{', '.join(sorted(unknown))}"
                )
    return refusals


def _notes(members: Sequence[MemberVersion], comparison: Comparison) -> tuple[str, ...]:
    """Return what is no reason, and good to know."""
    notes = [
        f"only some members have {component}: it was not compared"
        for component, values in comparison.digests.items()
        if "" in values
    ]
    notes += [
        f"{member.name} does not say which control records it carries out: it is older than this check"
        for member in members
        if member.commands is None
    ]
    states = {member.formats["state"] for member in members if "state" in member.formats}
    if len(states) > 1:
        notes.append(
            "states in snapshots have different versions: a member that needs a snapshot takes it from one of its own"
        )
    return tuple(notes)
