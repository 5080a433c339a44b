"""The check that another member's store belongs to this group: its members and lease, and no other history.

Both sides send in every handshake the members' ids and the entry that has made them so, the last entry that they know
to be committed, and their lease. The members of the one must be the other's, or have been before, as far as that one
remembers it; who is none of them is turned away (docs/adr/0185). Members that have committed different entries refuse
each other by name: the group never mixes with a store that was run apart from it (docs/adr/0155). The lease must be
equal, since a leader counts on the promise that a follower gives for the length of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from dledger.codec.members_attribute import (
    MEMBERS_AT_ATTRIBUTE,
    MEMBERS_ATTRIBUTE,
    StatedMembers,
    decode_members,
    encode_members,
)
from dledger.codec.wire_types import Number
from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.membership import names_of
from dledger.runtime.events_log import log_event
from dledger.runtime.roster import Roster

COMMITTED_ATTRIBUTE: Final = "dledger.committed"
"""The last entry that is known to be committed, as JSON: index, term, chain CRC."""

LEASE_ATTRIBUTE: Final = "dledger.lease_ms"
"""The lease of this member, in milliseconds, as a number."""

LEASE_MS_BEFORE: Final = 300
"""The lease of all versions that do not send it."""

OWN_ATTRIBUTES: Final = frozenset(
    {MEMBERS_ATTRIBUTE, MEMBERS_AT_ATTRIBUTE, COMMITTED_ATTRIBUTE, LEASE_ATTRIBUTE}
)

_LEASE: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Number)
_PLACE: Final[msgspec.json.Decoder[tuple[int, int, int]]] = msgspec.json.Decoder(
    tuple[Number, Number, Number]
)

Decoded = TypeVar("Decoded")

_WHAT_TO_DO: Final = (
    "One of the two stores was run apart from its group (with other --peers, or as a copy). The group's log "
    "is the one that most members share: stop the other node, put its store aside, and start it with an empty "
    "folder (docs/repair.md)"
)


class EntryFingerprint(NamedTuple):
    """The unique name of an entry, and with it of the whole log up to there.

    Attributes:
        term: of the entry.
        chain_crc: over all entries up to this one.
    """

    term: Term
    chain_crc: int


class GroupCheck:
    """The facts that members compare in each handshake, and the verdict on them.

    Attributes:
        note_claim: called with what a node states of the members, before it has proved anything.
    """

    def __init__(
        self,
        roster: Roster,
        commit_index: Callable[[], Index],
        committed_fingerprint: Callable[[Index], EntryFingerprint | None],
        *,
        lease_ms: int,
    ) -> None:
        """Start with no member known to have another history.

        Args:
            roster: the members as this node knows them.
            commit_index: how far the log is known to be committed.
            committed_fingerprint: of an entry; None: it is not known to be committed, or not kept any more.
            lease_ms: of this member; it must be every member's.
        """
        self._lease_ms = lease_ms
        self._commit_index = commit_index
        self._committed_fingerprint = committed_fingerprint
        self._node_id = roster.node_id
        self._roster = roster
        self._forked: dict[NodeId, tuple[int, str]] = {}
        self.note_claim: Callable[[str, StatedMembers], None] = lambda _node_id, _stated: None

    def own_attributes(self) -> Mapping[str, str]:
        """Return the attributes for a handshake with a member."""
        attributes = encode_members(self._roster.stated())
        attributes[LEASE_ATTRIBUTE] = str(self._lease_ms)
        index = self._commit_index()
        name = self._committed_fingerprint(index)
        if name is not None:
            place = (int(index), int(name.term), name.chain_crc)
            attributes[COMMITTED_ATTRIBUTE] = msgspec.json.encode(place).decode()
        return attributes

    def why_not(self, node_id: str, process: int, attributes: Mapping[str, str]) -> str | None:
        """Return why this node must not talk to a member; None if it may.

        Args:
            node_id: the other one.
            process: the number of its process.
            attributes: of its handshake.

        Raises:
            PeerProtocolError: they are not to be understood.
        """
        return (
            self._why_other_members(node_id, attributes)
            or self._why_other_lease(node_id, attributes)
            or self._why_other_history(node_id, attributes)
            or self._why_known(node_id, process)
        )

    def note_forked(self, node_id: NodeId, process: int, error: ForkedError) -> None:
        """Refuse a member that leads with another history until it is started again."""
        reason = f"{error}. {_WHAT_TO_DO}"
        self._forked[node_id] = (process, reason)
        log_event(logging.ERROR, "forked", node=self._node_id, peer=node_id, reason=reason)

    def why_stranger(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        """Return why a node is none of the members, for people; None if it may be one.

        Raises:
            PeerProtocolError: what it says of the members is not to be understood.
        """
        roster = self._roster
        stated = decode_members(attributes)
        if roster.accepts(NodeId(node_id), stated):
            return None
        now = f"the members are ({names_of(roster.committed.members)})"
        if roster.committed_index:
            now += f" by entry {roster.committed_index}"
        if stated.is_joining:
            return f"{node_id!r} has not been added yet (`dledger members add`, `dledger-admin members add`): {now}"
        return f"{node_id!r} is no member any more: {now}"

    def may_say_stranger(self, attributes: Mapping[str, str]) -> bool:
        """Return whether the other side's version surely knows that refusal."""
        return self._roster.is_changed or MEMBERS_AT_ATTRIBUTE in attributes

    def learn(self, node_id: NodeId, attributes: Mapping[str, str]) -> None:
        """Take in what a member states that has shown that it belongs to the group.

        Raises:
            PeerProtocolError: it is not to be understood.
        """
        self._roster.meet(node_id, decode_members(attributes))

    def _why_other_members(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        """Return why the members that the other side states cannot be this group's, nor have been."""
        roster = self._roster
        stated = decode_members(attributes)
        self.note_claim(node_id, stated)
        if stated.members is None or not roster.knows_members or not stated.is_committed:
            return None
        own = roster.members_at(stated.index)
        if own is None or own == stated.members:
            return None
        if not stated.index and not roster.is_changed:
            return _differently_started(node_id, stated, self._node_id, own)
        return (
            f"{node_id} knows the members ({names_of(stated.members)}), by entry {stated.index}, which on "
            f"{self._node_id} made them ({names_of(own)}); they are ({names_of(roster.in_force.members)}) now. "
            f"{_WHAT_TO_DO}"
        )

    def _why_other_lease(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        """Return why the leases do not fit: the leader's must not outlast the promise of who answers it."""
        text = attributes.get(LEASE_ATTRIBUTE, str(LEASE_MS_BEFORE))
        lease_ms = _decoded(_LEASE, what=LEASE_ATTRIBUTE, text=text)
        if lease_ms == self._lease_ms:
            return None
        return (
            f"{node_id} has a lease of {lease_ms} ms, {self._node_id} one of {self._lease_ms} ms: a leader with the "
            "longer one could answer reads after another one is elected; give all members the same (raftLeaseMs)"
        )

    def _why_other_history(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        text = attributes.get(COMMITTED_ATTRIBUTE)
        if text is None:
            return None
        index, term, chain_crc = _decoded(_PLACE, what=COMMITTED_ATTRIBUTE, text=text)
        own = self._committed_fingerprint(Index(index))
        if own is None or own == (term, chain_crc):
            return None
        return (
            f"{node_id} and {self._node_id} have committed different entries: up to entry {index}, which is of "
            f"term {term} on {node_id} and of term {own.term} on {self._node_id}. {_WHAT_TO_DO}"
        )

    def _why_known(self, node_id: str, process: int) -> str | None:
        found = self._forked.get(NodeId(node_id))
        return found[1] if found is not None and found[0] == process else None


def _differently_started(
    node_id: str, stated: StatedMembers, own_id: NodeId, own: frozenset[NodeId]
) -> str:
    """Return the text for two nodes that were started with other members, and know of no change."""
    return (
        f"{node_id} is configured with the members ({names_of(stated.members or ())}), {own_id} with "
        f"({names_of(own)}): start both with the same --peers (dLegerPeers), those of the group's stores. Members are "
        "changed by `dledger members` or `dledger-admin members`, and a node that is to be added starts with --join "
        "(docs/members.md)"
    )


def _decoded(decoder: msgspec.json.Decoder[Decoded], *, what: str, text: str) -> Decoded:
    """Decode a value of the handshake.

    Raises:
        PeerProtocolError: it is something else.
    """
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PeerProtocolError(f"{what}: {error}") from error
