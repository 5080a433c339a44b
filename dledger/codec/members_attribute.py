"""What a member says in a handshake of the group's members: two attributes, which older versions ignore.

A group whose members never changed says what versions before said, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from dledger.codec.wire_types import UNDECODABLE, Name, Number
from dledger.errors import PeerProtocolError
from dledger.raft.ids import NO_INDEX, Index, NodeId

MEMBERS_ATTRIBUTE: Final = "dledger.members"
"""Ids of all members, as JSON."""

MEMBERS_AT_ATTRIBUTE: Final = "dledger.members_at"
"""The entry that has changed them, as JSON: its index, that of the last one that is known to be committed, and the
sender's own address. Not there: never. There without the ids: the sender joins, and knows none yet."""

_IDS: Final[msgspec.json.Decoder[list[str]]] = msgspec.json.Decoder(
    Annotated[list[Name], msgspec.Meta(min_length=1)]
)
_PLACE: Final[msgspec.json.Decoder[tuple[int, int, str]]] = msgspec.json.Decoder(
    tuple[Number, Number, Annotated[str, msgspec.Meta(max_length=300)]]
)


@dataclass(frozen=True, slots=True)
class StatedMembers:
    """The members of the group, as one member states them.

    Attributes:
        members: voters and learners of the configuration in force there; None: it joins and knows none yet, or its
            version states nothing.
        index: of the entry that put it in force; 0: the group's first one.
        committed_index: of the last configuration that it knows to be committed.
        address: `host:port` of the sender; empty: not stated.
        is_joining: it was started to join a group, and has not been added as far as it knows.
    """

    members: frozenset[NodeId] | None
    index: Index = NO_INDEX
    committed_index: Index = NO_INDEX
    address: str = ""
    is_joining: bool = False

    @property
    def is_committed(self) -> bool:
        """True if the members that are stated are known there to be committed."""
        return self.index <= self.committed_index


def encode_members(stated: StatedMembers) -> dict[str, str]:
    """Encode what this side states as attributes of its handshake."""
    attributes: dict[str, str] = {}
    if stated.members is not None:
        attributes[MEMBERS_ATTRIBUTE] = msgspec.json.encode(sorted(stated.members)).decode()
    if stated.members is None or stated.index or stated.committed_index:
        place = (int(stated.index), int(stated.committed_index), stated.address)
        attributes[MEMBERS_AT_ATTRIBUTE] = msgspec.json.encode(place).decode()
    return attributes


def decode_members(attributes: Mapping[str, str]) -> StatedMembers:
    """Decode what the other side states.

    Raises:
        PeerProtocolError: it is not to be understood.
    """
    ids, place = attributes.get(MEMBERS_ATTRIBUTE), attributes.get(MEMBERS_AT_ATTRIBUTE)
    try:
        members = None if ids is None else frozenset(map(NodeId, _IDS.decode(ids)))
    except UNDECODABLE as error:
        raise PeerProtocolError(f"{MEMBERS_ATTRIBUTE}: {error}") from error
    if place is None:
        return StatedMembers(members)
    try:
        index, committed_index, address = _PLACE.decode(place)
    except UNDECODABLE as error:
        raise PeerProtocolError(f"{MEMBERS_AT_ATTRIBUTE}: {error}") from error
    return StatedMembers(
        members, Index(index), Index(committed_index), address, is_joining=members is None
    )
