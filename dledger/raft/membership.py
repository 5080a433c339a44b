"""The members of a group, as its log names them: the entry with which every term begins, and each change.

A leader begins its term with an entry that names the members whose majority it needs. So the log itself
says which group wrote it: a store that was continued by other members (edited --peers) is known by its
last term's first entry, whatever else was lost (docs/adr/0155). Within a term such an entry changes the
members (docs/adr/0182). Pure; the body is made here, because the core appends the entry by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import msgspec

from dledger.raft.configuration import Configuration
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NodeId

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Address = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class MembershipFormatError(ValueError):
    """The body of a membership entry is malformed."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """The elements of the body; those that a later version adds at the end are ignored.

    The group whose members were never changed writes the first one only, as versions that know no more.
    """

    voters: Annotated[list[_Name], msgspec.Meta(min_length=1)]
    learners: list[_Name] = []
    joining: list[_Name] = []
    addresses: dict[_Name, _Address] = {}


_DECODER = msgspec.msgpack.Decoder(_Body)


def encode_membership(configuration: Configuration) -> bytes:
    """Encode a membership entry's body: msgpack `[[voter, ...], [learner, ...], [joining, ...], {id: host:port}]`.

    Ids are in order; only the voters are written where there is nothing else to say.

    Source: bytes in tests/unit/raft/test_membership.py; docs/formats/entry.md.
    """
    voters = sorted(configuration.voters)
    if not configuration.learners and not configuration.addresses:
        return msgspec.msgpack.encode([voters])
    addresses = {name: configuration.addresses[name] for name in sorted(configuration.addresses)}
    return msgspec.msgpack.encode(
        [voters, sorted(configuration.learners), sorted(configuration.joining), addresses]
    )


def decode_membership(body: bytes) -> Configuration:
    """Decode the configuration that a membership entry names.

    Raises:
        MembershipFormatError: it is something else.
    """
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MembershipFormatError(f"no members are named: {error}") from error
    voters = tuple(sorted(set(map(NodeId, found.voters))))
    learners = tuple(sorted(set(map(NodeId, found.learners))))
    joining = frozenset(map(NodeId, found.joining))
    addresses = {NodeId(name): address for name, address in found.addresses.items()}
    if not set(voters).isdisjoint(learners):
        raise MembershipFormatError(f"a member is voter and learner: {names_of(voters)}")
    if not joining.issubset(learners) or not addresses.keys() <= {*voters, *learners}:
        raise MembershipFormatError("more is said of members than members are named")
    return Configuration(voters, learners, joining, addresses)


def configuration_in(entry: Entry) -> Configuration | None:
    """Return the configuration that an entry names, if it is a membership entry; None of all others.

    Raises:
        MembershipFormatError: it should, and does not.
    """
    return decode_membership(entry.body) if entry.kind is EntryKind.CONFIGURATION else None


def names_of(members: Collection[str]) -> str:
    """Join the members' names for people, in order."""
    return ", ".join(sorted(members)) or "nobody"
