"""The check that another member's store belongs to this group: the same members and lease, and no other history.

Both sides send in every handshake the members' ids, the last entry that they know to be committed, and their lease.
Members that differ on the first, or have committed different entries, refuse each other by name: the group
never mixes with a store that was run apart from it (docs/adr/0155). The lease must be equal, since a leader counts on
the promise that a follower gives for the length of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from dledger.codec.wire_types import Name, Number
from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.membership import names_of
from dledger.runtime.events_log import log_event

MEMBERS_ATTRIBUTE: Final = "dledger.members"
"""Ids of all members, as JSON; older versions ignore it."""

COMMITTED_ATTRIBUTE: Final = "dledger.committed"
"""The last entry that is known to be committed, as JSON: index, term, chain CRC."""

LEASE_ATTRIBUTE: Final = "dledger.lease_ms"
"""The lease of this member, in milliseconds, as a number."""

LEASE_MS_BEFORE: Final = 300
"""The lease of all versions that do not send it."""

OWN_ATTRIBUTES: Final = frozenset({MEMBERS_ATTRIBUTE, COMMITTED_ATTRIBUTE, LEASE_ATTRIBUTE})

_MEMBERS: Final[msgspec.json.Decoder[list[str]]] = msgspec.json.Decoder(
    Annotated[list[Name], msgspec.Meta(min_length=1)]
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
    """The facts that members compare in each handshake, and the verdict on them."""

    def __init__(
        self,
        node_id: NodeId,
        members: frozenset[NodeId],
        commit_index: Callable[[], Index],
        committed_fingerprint: Callable[[Index], EntryFingerprint | None],
        *,
        lease_ms: int,
    ) -> None:
        """Start with no member known to have another history.

        Args:
            node_id: this member.
            members: all of them.
            commit_index: how far the log is known to be committed.
            committed_fingerprint: of an entry; None: it is not known to be committed, or not kept any more.
            lease_ms: of this member; it must be every member's.
        """
        self._lease_ms = lease_ms
        self._commit_index = commit_index
        self._committed_fingerprint = committed_fingerprint
        self._node_id = node_id
        self._members = members
        self._forked: dict[NodeId, tuple[int, str]] = {}

    def own_attributes(self) -> Mapping[str, str]:
        """Return the attributes for a handshake with a member."""
        attributes = {
            MEMBERS_ATTRIBUTE: msgspec.json.encode(sorted(self._members)).decode(),
            LEASE_ATTRIBUTE: str(self._lease_ms),
        }
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

    def _why_other_members(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        text = attributes.get(MEMBERS_ATTRIBUTE)
        if text is None:
            return None
        named = _decoded(_MEMBERS, what=MEMBERS_ATTRIBUTE, text=text)
        if set(named) == self._members:
            return None
        return (
            f"{node_id} is configured with the members ({names_of(named)}), {self._node_id} with "
            f"({names_of(self._members)}): "
            "start both with the same --peers (dLegerPeers), those of the group's stores (docs/operations-replicas.md)"
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


def _decoded(decoder: msgspec.json.Decoder[Decoded], *, what: str, text: str) -> Decoded:
    """Decode a value of the handshake.

    Raises:
        PeerProtocolError: it is something else.
    """
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PeerProtocolError(f"{what}: {error}") from error
