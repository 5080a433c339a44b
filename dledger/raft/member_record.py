"""The owner of a store and the count of its starts, which distinguishes the store from an older copy of it.

Every start of a process counts itself in its store before it does anything. Members send each other the
count when they connect, and each remembers the highest that it has heard of every other. A member that hears
of a start of its own store that the store does not know of runs on an older copy of it (docs/adr/0103).
Pure: reading, writing and sending stand elsewhere, and nothing here knows terms or entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dledger.raft.configuration import Configuration
from dledger.raft.ids import NO_INDEX, Index, NodeId

SEEN_COUNT_MAX: Final = 256
"""Members whose starts are remembered: a group that changes them daily would outgrow the record's file in years."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a process with its store.

    Attributes:
        count: starts of the store so far, this one included; 0: not counted.
        process: drawn by the process; distinguishes one that reconnects from a second one of the same count.
    """

    count: int = 0
    process: int = 0

    def lacks(self, heard: Start) -> bool:
        """Return whether a store at this start has missed `heard`, a later start of the same store."""
        if not self.count:
            return False
        is_other = heard.count == self.count and heard.process != self.process
        return heard.count > self.count or is_other


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The facts that a store keeps of itself and of the other members' stores.

    Attributes:
        group, node_id: whose it is; empty in a store that was never started by a version that writes it.
        restoration: what the operator called the restoring of all members from backups, the last time;
            empty: never. None: a new store, which takes over what the others say.
        start: the latest.
        seen: the latest start that was heard of, by member; also of those who were removed, who may come back with an
            older copy: the last ones of them, `SEEN_COUNT_MAX` with the members.
        members: that this store was first started with, this one included; empty: not known (a store of an older
            version). Unless it `has_joined`, the group began with them.
        missed: a later start of this very store that it has heard of and not overtaken: it is an older copy, which
            has to give up its vote, also after a crash that came before it had. Count 0: there is none.
        has_joined: it was started to join a group that existed.
        configuration: the last change of the members that is known to be committed; None: they never changed.
        configuration_index: of its entry.
    """

    group: str = ""
    node_id: str = ""
    restoration: str | None = None
    start: Start = Start()
    seen: Mapping[NodeId, Start] = field(default_factory=dict)
    members: frozenset[NodeId] = frozenset()
    missed: Start = Start()
    has_joined: bool = False
    configuration: Configuration | None = None
    configuration_index: Index = NO_INDEX

    @property
    def founders(self) -> frozenset[NodeId] | None:
        """The members that the group began with; None: not known here."""
        return None if self.has_joined or not self.members else self.members

    def started(self, process: int) -> MemberRecord:
        """Count one more start."""
        return replace(self, start=Start(self.start.count + 1, process))

    def overtaking(self) -> MemberRecord:
        """Renumber this start to come after the one that the store had missed; the vote is durably given up."""
        count = max(self.start.count, self.missed.count + 1)
        return replace(self, start=Start(count, self.start.process), missed=Start())

    def is_foreign(self, other: MemberRecord) -> bool:
        """Return whether the two stores come from different restorings of the group."""
        return None not in {self.restoration, other.restoration} and (
            self.restoration != other.restoration
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """The conclusions from what another member said.

    Attributes:
        record: what is known from now on.
        missed: a start of this very store that it does not know of; None: there is none.
        missed_by_source: the same for the other member's store.
    """

    record: MemberRecord
    missed: Start | None
    missed_by_source: Start | None


def learn(record: MemberRecord, said: MemberRecord, members: Collection[NodeId]) -> Learned:
    """Update the record with what another member reports of its own store and of others.

    Args:
        record: of this member.
        said: the other's; it need not name all that it has seen.
        members: of the group; nobody else is remembered.
    """
    seen = dict(record.seen)
    source = NodeId(said.node_id)
    for node_id, start in (*said.seen.items(), (source, said.start)):
        is_news = start.count > seen.get(node_id, Start()).count
        if is_news and node_id in members and node_id != record.node_id:
            seen[node_id] = start
    gone = [node_id for node_id in seen if node_id not in members]
    for node_id in gone[: max(0, len(seen) - SEEN_COUNT_MAX)]:
        del seen[node_id]
    own = said.seen.get(NodeId(record.node_id))
    known = record.seen.get(source)
    restoration = said.restoration if record.restoration is None else record.restoration
    missed = own if own is not None and record.start.lacks(own) else None
    if missed is not None and missed.count < record.missed.count:
        missed = record.missed
    return Learned(
        replace(record, seen=seen, restoration=restoration, missed=missed or record.missed),
        missed=missed,
        missed_by_source=known if known is not None and said.start.lacks(known) else None,
    )
