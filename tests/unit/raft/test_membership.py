"""Every term begins with an entry that names its members, and nobody takes entries of other members."""

from __future__ import annotations

import pytest

from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.follower import check_writers
from dledger.raft.ids import Index, NodeId, Position, Term
from dledger.raft.membership import (
    MembershipFormatError,
    decode_membership,
    encode_membership,
    voters_in,
)

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
GOLDEN = bytes.fromhex("9193a26e30a26e31a26e32")


def entry(body: bytes, kind: EntryKind = EntryKind.CONFIGURATION) -> Entry:
    return Entry(Index(6), Term(3), Position(300), kind, body)


def test_golden_bytes_both_ways_in_any_order() -> None:
    assert encode_membership([N2, N0, N1]) == GOLDEN
    assert decode_membership(GOLDEN) == {N0, N1, N2}
    assert decode_membership(bytes.fromhex("9291a26e30a46d6f7265")) == {N0}


@pytest.mark.parametrize(
    "body", [b"", b"x", bytes.fromhex("9190"), bytes.fromhex("9191a0"), GOLDEN[:-1], GOLDEN + b"\0"]
)
def test_nothing_else_names_members(body: bytes) -> None:
    with pytest.raises(MembershipFormatError):
        decode_membership(body)
    with pytest.raises(PeerProtocolError, match="entry 6@3 of n1"):
        check_writers(N1, (entry(body),), frozenset({N0, N1, N2}))


def test_only_entries_that_say_it_were_written_by_somebody() -> None:
    assert voters_in(entry(GOLDEN)) == {N0, N1, N2}
    assert voters_in(entry(GOLDEN, EntryKind.NORMAL)) is None
    assert voters_in(entry(b"", EntryKind.NOOP)) is None


def test_entries_of_other_members_are_refused_by_name() -> None:
    members = frozenset({N0, N1, N2})
    own = entry(encode_membership(members))
    check_writers(N0, (own, entry(b"x", EntryKind.NORMAL)), members)
    with pytest.raises(
        ForkedError, match="of n0 was written by a group of n0, this one is of n0, n1, n2"
    ):
        check_writers(N0, (own, entry(encode_membership([N0]))), members)
