"""Messages between members: round trips, and every kind of lie in them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dledger.codec.entry import chain_crc, seal
from dledger.codec.rpc import decode_entries, decode_message, encode_entries, encode_message
from dledger.errors import PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    PeerMessage,
    PreVoteRequest,
    PreVoteResponse,
    RepairAnswer,
    RepairRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

N1 = NodeId("n1")


def entries_from(
    index: int, *bodies: bytes, term: int = 2, position: int = 100
) -> tuple[Entry, ...]:
    found: list[Entry] = []
    chain = 7
    for body in bodies:
        entry = seal(
            Entry(Index(index), Term(term), Position(position), EntryKind.NORMAL, body), chain
        )
        found.append(entry)
        chain = chain_crc(entry)
        index, position = index + 1, entry.end_position
    return tuple(found)


CHANGED = ConfigurationNote(
    EntryId(Term(2), Index(4)), Configuration((NodeId("n0"), N1)), is_settled=True
)


def request_with(*bodies: bytes) -> AppendRequest:
    return AppendRequest(Term(3), N1, Index(4), Term(2), entries_from(5, *bodies), Index(4), 9)


def through_the_wire(message: PeerMessage) -> PeerMessage:
    entries = message.entries if isinstance(message, AppendRequest | RepairAnswer) else ()
    return decode_message(encode_message(message), encode_entries(entries))


def test_members_of_before_read_requests_that_admit_nobody() -> None:
    """They refuse fields that they do not know; an append call had the tag and eight of them."""
    header = encode_message(request_with(b"a", b"bc"))
    assert len(msgspec.msgpack.decode(header)) == 9
    admitting = replace(request_with(b"a"), admits=7)
    assert len(msgspec.msgpack.decode(encode_message(admitting))) == 10
    assert through_the_wire(admitting) == admitting
    start = {"first_kept": 5, "first_position": 4096, "before_chain_crc": 7}
    for behind in (replace(request_with(), **start), replace(admitting, entries=(), **start)):
        assert len(msgspec.msgpack.decode(encode_message(behind))) == 13
        assert through_the_wire(behind) == behind
        told = replace(behind, members=CHANGED)
        assert len(msgspec.msgpack.decode(encode_message(told))) == 16
        assert through_the_wire(told) == told
    answer = encode_message(RepairAnswer(N1, 7, (), lacks=True))
    assert len(msgspec.msgpack.decode(answer)) == 5


@pytest.mark.parametrize(
    "strange",
    [
        {"first_kept": Index(6)},
        {"first_kept": Index(5), "before_chain_crc": 1 << 32},
        {"first_kept": Index(5), "entries": entries_from(5, b"a")},
    ],
)
def test_a_log_begins_where_the_request_stands_or_the_request_is_refused(
    strange: dict[str, Any],
) -> None:
    with pytest.raises(PeerProtocolError, match="a log that begins with entry"):
        through_the_wire(replace(request_with(), **strange))


def test_members_that_are_none_are_refused() -> None:
    call = msgspec.msgpack.decode(
        encode_message(replace(request_with(), first_kept=Index(5), members=CHANGED))
    )
    with pytest.raises(PeerProtocolError, match="no members are named"):
        decode_message(msgspec.msgpack.encode([*call[:-1], b"x"]), b"")


number = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize(
    "message",
    [
        PreVoteRequest(Term(1), N1, Index(2), Term(3)),
        PreVoteResponse(Term(1), N1, granted=True),
        VoteRequest(Term(1), N1, Index(2), Term(3), is_transfer=True),
        VoteResponse(Term(1), N1, granted=False),
        AppendResponse(Term(1), N1, 2, True, Index(3), Index(4), Term(5), Index(6)),
        AppendResponse(Term(1), N1, 2, True, Index(3), Index(4), Term(5), Index(6), may_lead=False),
        TimeoutNow(Term(1), N1),
        request_with(),
        request_with(b"one", b"", bytes(5000)),
        RepairRequest(N1, 7, Index(2), Index(3), 0xFFFF_FFFF),
        RepairAnswer(N1, 7, (), lacks=True),
        RepairAnswer(N1, 7, entries_from(5, b"one", b""), lacks=False),
        RepairAnswer(N1, 7, (), lacks=False, has_forgotten=True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_comes_back_as_it_was(message: PeerMessage) -> None:
    assert through_the_wire(message) == message


def test_members_of_older_versions_understand_the_answers_of_those_that_may_lead() -> None:
    answer = AppendResponse(Term(1), N1, 2, True, Index(3), Index(4), Term(5), Index(6))
    fields = msgspec.msgpack.decode(encode_message(answer))
    assert fields == ["append-answer", 1, "n1", 2, True, 3, 4, 5, 6, 0]


@pytest.mark.parametrize(
    ("first", "last", "crc"), [(0, 1, 0), (3, 2, 0), (1, 1, 1 << 32)], ids=["none", "order", "crc"]
)
def test_a_repair_must_ask_for_something(first: int, last: int, crc: int) -> None:
    with pytest.raises(PeerProtocolError, match="entries"):
        through_the_wire(RepairRequest(N1, 1, Index(first), Index(last), crc))


@given(number, number, number, number, st.booleans())
def test_all_numbers_travel(term: int, first: int, second: int, third: int, flag: bool) -> None:
    answer = AppendResponse(
        Term(term), N1, first, flag, Index(second), Index(third), Term(first), Index(second)
    )
    assert through_the_wire(answer) == answer


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (["vote", 1, "n1", 2, 3], "at least length"),
        (["vote", 1, "n1", 2, 3, False, 4, 5], "at most length"),
        (["vote", True, "n1", 2, 3, False], "got `bool`"),
        (["vote", -1, "n1", 2, 3, False], ">= 0"),
        (["vote", 2**63, "n1", 2, 3, False], "<= 9223372036854775807"),
        (["vote", 1.0, "n1", 2, 3, False], "got `float`"),
        (["vote", 1, "", 2, 3, False], "length >= 1"),
        (["vote", 1, "n" * 65, 2, 3, False], "length <= 64"),
        (["vote", 1, b"n1", 2, 3, False], "got `bytes`"),
        (["vote", 1, "n1", 2, 3, 0], "got `int`"),
        (["unheard-of", 1], "Invalid value"),
        ({"kind": "vote"}, "got `object`"),
        (5, "got `int`"),
        ([], "at least length"),
    ],
)
def test_wrong_fields_are_refused_with_the_reason(header: object, reason: str) -> None:
    with pytest.raises(PeerProtocolError, match=reason):
        decode_message(msgspec.msgpack.encode(header), b"")


@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\x92\xa4vote\xa1\xff"]
)
def test_bytes_that_are_no_msgpack_are_refused(header: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_message(header, b"")


def test_nothing_may_stand_after_a_header_or_a_message_without_blob() -> None:
    header = encode_message(TimeoutNow(Term(1), N1))
    with pytest.raises(PeerProtocolError, match="trailing"):
        decode_message(header + b"\x00", b"")
    with pytest.raises(PeerProtocolError, match="no blob"):
        decode_message(header, b"x")


def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    request = request_with(b"body of one", b"body of two")
    header, blob = encode_message(request), encode_entries(request.entries)
    # Nothing before the first entry is known here, so its chain CRC alone stays for the log to check.
    unchecked = range(36, 40)
    for bit in range(8 * len(blob)):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            decode_message(header, bytes(damaged))
        except PeerProtocolError:
            continue
        assert bit // 8 in unchecked or bit // 8 < 48, f"bit {bit} went unnoticed"


def test_every_truncation_of_a_blob_is_refused() -> None:
    request = request_with(b"one", b"two")
    header, blob = encode_message(request), encode_entries(request.entries)
    for end in range(len(blob)):
        with pytest.raises(PeerProtocolError):
            decode_message(header, blob[:end])


def test_count_must_be_what_came() -> None:
    blob = encode_entries(entries_from(1, b"a", b"b"))
    with pytest.raises(PeerProtocolError, match="2 entries came, 3 were announced"):
        decode_entries((blob,), 3)
    with pytest.raises(PeerProtocolError, match="2 entries came, 0 were announced"):
        decode_entries((blob,), 0)


def test_entries_must_follow_each_other_and_the_request() -> None:
    first, second = entries_from(5, b"a", b"b")
    gap = (first, entries_from(7, b"c", position=second.position)[0])
    with pytest.raises(PeerProtocolError):
        decode_entries((encode_entries(gap),), 2)
    for wrong in (
        replace(request_with(b"a"), prev_index=Index(3)),
        replace(request_with(b"a"), prev_term=Term(3)),
        replace(request_with(b"a"), term=Term(1), prev_term=Term(1)),
        replace(request_with(), term=Term(1)),
    ):
        with pytest.raises(PeerProtocolError):
            through_the_wire(wrong)


def test_view_of_a_buffer_is_read_without_being_kept() -> None:
    request = request_with(b"kept")
    buffer = bytearray(encode_entries(request.entries))
    found = decode_message(encode_message(request), memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert found == request
