"""Every term begins with an entry that names its members, and nobody takes entries of other members."""

from __future__ import annotations

import msgspec
import pytest

from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.follower import check_writers
from dledger.raft.ids import Index, NodeId, Position, Term
from dledger.raft.membership import (
    MembershipFormatError,
    configuration_in,
    decode_membership,
    encode_membership,
)

N0, N1, N2, N3 = NodeId("n0"), NodeId("n1"), NodeId("n2"), NodeId("n3")
THREE = Configuration((N0, N1, N2))
GOLDEN = bytes.fromhex("9193a26e30a26e31a26e32")
GROWING = Configuration((N0, N1), (N2, N3), frozenset({N3}), {N3: "h:1"})
GROWING_BYTES = bytes.fromhex("9492a26e30a26e3192a26e32a26e3391a26e3381a26e33a3683a31")


def entry(body: bytes, kind: EntryKind = EntryKind.CONFIGURATION, term: int = 3) -> Entry:
    return Entry(Index(6), Term(term), Position(300), kind, body)


def check(
    *named: Configuration, before: Configuration | None, prev_term: int = 3, term: int = 3
) -> None:
    entries = tuple(entry(encode_membership(each), term=term) for each in named)
    check_writers(N1, entries, before, Term(prev_term))


def test_golden_bytes_both_ways_in_any_order() -> None:
    assert encode_membership(Configuration((N2, N0, N1))) == GOLDEN
    assert decode_membership(GOLDEN) == THREE
    assert decode_membership(bytes.fromhex("9291a26e3090")) == Configuration((N0,))
    assert encode_membership(GROWING) == GROWING_BYTES
    assert decode_membership(GROWING_BYTES) == GROWING
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(GROWING_BYTES), "more"])
    assert decode_membership(later) == GROWING


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes.fromhex("9190"),
        bytes.fromhex("9191a0"),
        GOLDEN[:-1],
        GOLDEN + b"\0",
        msgspec.msgpack.encode([["n0"], ["n0"]]),
        msgspec.msgpack.encode([["n0"], ["n1"], ["n2"]]),
        msgspec.msgpack.encode([["n0"], [], [], {"n1": "h:1"}]),
    ],
)
def test_nothing_else_names_members(body: bytes) -> None:
    with pytest.raises(MembershipFormatError):
        decode_membership(body)
    with pytest.raises(PeerProtocolError, match="entry 6@3 of n1"):
        check_writers(N1, (entry(body),), THREE, Term(3))


def test_only_entries_that_say_it_were_written_by_somebody() -> None:
    assert configuration_in(entry(GOLDEN)) == THREE
    assert configuration_in(entry(GOLDEN, EntryKind.NORMAL)) is None
    assert configuration_in(entry(b"", EntryKind.NOOP)) is None


def test_the_first_entry_of_a_term_repeats_the_members_and_others_are_refused_by_name() -> None:
    check(THREE, before=THREE, prev_term=2)
    with pytest.raises(
        ForkedError, match="of n1 was written by a group of n0, n1, this one is of n0, n1, n2"
    ):
        check(Configuration((N0, N1)), before=THREE, prev_term=2)


def test_within_a_term_each_entry_may_change_one_member() -> None:
    four = Configuration((N0, N1, N2), (N3,))
    check(four, Configuration((N0, N1, N2, N3)), before=THREE)
    with pytest.raises(ForkedError, match="of n0, this one is of n0, n1, n2"):
        check(Configuration((N0,)), before=THREE)
    with pytest.raises(ForkedError, match="of n0, n1, n3, this one is"):
        check(Configuration((N0, N1, N3)), before=THREE)


def test_a_store_that_knows_no_members_takes_them_from_the_first_entry_that_names_them() -> None:
    with pytest.raises(ForkedError, match="of n2, this one is of n0, n1"):
        check(Configuration((N0,)), Configuration((N0, N1)), Configuration((N2,)), before=None)
