"""The members of a group, as its log names them: the entry with which every term begins.

A leader begins its term with an entry that names the members whose majority it needs. So the log itself
says which group wrote it: a store that was continued by other members (edited --peers) is known by its
last term's first entry, whatever else was lost (docs/adr/0155). Pure; the body is made here, because the
core appends the entry by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NodeId

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class MembershipFormatError(ValueError):
    """The body of a membership entry is malformed."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """The elements of the body; those that a later version adds at the end are ignored."""

    voters: Annotated[list[_Name], msgspec.Meta(min_length=1)]


_DECODER = msgspec.msgpack.Decoder(_Body)


def encode_membership(voters: Iterable[NodeId]) -> bytes:
    """Encode a membership entry's body: msgpack `[[node id, ...]]`, ids in order.

    Source: bytes in tests/unit/raft/test_membership.py; docs/formats/entry.md.
    """
    return msgspec.msgpack.encode(_Body(sorted(voters)))


def decode_membership(body: bytes) -> frozenset[NodeId]:
    """Decode the voters that a membership entry names.

    Raises:
        MembershipFormatError: it is something else.
    """
    try:
        voters = _DECODER.decode(body).voters
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MembershipFormatError(f"no members are named: {error}") from error
    return frozenset(map(NodeId, voters))


def voters_in(entry: Entry) -> frozenset[NodeId] | None:
    """Return the voters that an entry names, if it is a membership entry; None of all others.

    Raises:
        MembershipFormatError: it should, and does not.
    """
    return decode_membership(entry.body) if entry.kind is EntryKind.CONFIGURATION else None


def names_of(members: Collection[str]) -> str:
    """Join the members' names for people, in order."""
    return ", ".join(sorted(members)) or "nobody"
