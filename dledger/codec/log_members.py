"""Who belongs to the log, as one node knows it: an attribute of its status, which older versions pass over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from dledger.codec.wire_types import UNDECODABLE, Name, Number

LOG_MEMBERS_ATTRIBUTE: Final = "log_members"


class LogMember(msgspec.Struct, frozen=True):
    """A member of the configuration in force.

    Attributes:
        id: of the member.
        address: where members reach it; empty: not known.
        kind: `joining` is a learner that becomes a voter by itself.
        is_heard: it has a connection on which it speaks to the node that says this; true of that node itself.
    """

    id: Name
    address: str
    kind: Literal["voter", "learner", "joining"]
    is_heard: bool


class LogMembers(msgspec.Struct, frozen=True):
    """The members, voters first, and the entry that put them in force; 0: the group began with them."""

    index: Number
    members: list[LogMember]


_DECODER: Final = msgspec.json.Decoder(LogMembers)


def encode_log_members(known: LogMembers) -> dict[str, str]:
    """Encode what a node knows as attributes of its status; none of who knows no members yet."""
    if not known.members:
        return {}
    return {LOG_MEMBERS_ATTRIBUTE: msgspec.json.encode(known).decode()}


def decode_log_members(attributes: Mapping[str, str]) -> LogMembers:
    """Decode what a node knows; no members where it does not say, or says what is not to be understood."""
    try:
        return _DECODER.decode(attributes.get(LOG_MEMBERS_ATTRIBUTE, ""))
    except UNDECODABLE:
        return LogMembers(0, [])
