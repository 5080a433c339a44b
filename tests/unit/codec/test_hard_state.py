"""Term and vote as bytes: golden bytes, and nothing wrong gets through."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from dledger.codec.hard_state import HardStateFormatError, decode_hard_state, encode_hard_state
from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Term

VOTED = bytes.fromhex(
    "444c4853"  # DLHS
    "0001"  # version
    "0000000000000007"  # term
    "0002"  # bytes of the vote
    "6e31"  # n1
    "fb9a7f1e"  # crc32c of everything before
)
NO_VOTE = bytes.fromhex(
    "444c4853"  # DLHS
    "0001"  # version
    "0000000000000003"  # term
    "ffff"  # no vote
    "29de3fcd"  # crc32c of everything before
)


NOTED = bytes.fromhex(
    "444c4853"  # DLHS
    "0003"  # version
    "0000000000000007"  # term
    "0002"  # bytes of the vote
    "6e31"  # n1
    "92"  # two notes:
    "940501c3c405"
    "9191a26e30"  # of entry 5@1, settled, 5 bytes: the voter n0
    "940907c2c421"
    "9491a26e3091a26e3191a26e31"  # of entry 9@7, 33 bytes: voter n0, learner n1, which joins,
    "81a26e31af3132372e302e302e313a3230393131"  # and listens on 127.0.0.1:20911
    "b4ba0909"  # crc32c of everything before
)
NOTES = (
    ConfigurationNote(EntryId(Term(1), Index(5)), Configuration((NodeId("n0"),)), is_settled=True),
    ConfigurationNote(
        EntryId(Term(7), Index(9)),
        Configuration(
            (NodeId("n0"),),
            (NodeId("n1"),),
            frozenset({NodeId("n1")}),
            {NodeId("n1"): "127.0.0.1:20911"},
        ),
    ),
)


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (VOTED, HardState(Term(7), NodeId("n1"))),
        (NO_VOTE, HardState(Term(3), None)),
        (NOTED, HardState(Term(7), NodeId("n1"), notes=NOTES)),
    ],
)
def test_golden_bytes_both_ways(data: bytes, state: HardState) -> None:
    assert encode_hard_state(state).hex() == data.hex()
    assert decode_hard_state(data) == state


def test_an_empty_vote_is_not_no_vote() -> None:
    state = HardState(Term(1), NodeId(""))
    assert decode_hard_state(encode_hard_state(state)) == state


def test_every_truncation_and_every_addition_is_detected() -> None:
    for size in range(len(VOTED)):
        with pytest.raises(HardStateFormatError):
            decode_hard_state(VOTED[:size])
    for more in (b"\0", b"\0" * 100):
        with pytest.raises(HardStateFormatError):
            decode_hard_state(VOTED + more)


def test_every_flipped_bit_is_detected() -> None:
    for data in (VOTED, NO_VOTE, NOTED):
        for bit in range(len(data) * 8):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(HardStateFormatError):
                decode_hard_state(bytes(damaged))


def with_crc(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (4, "0000", "version 0 is unknown"),
        (4, "0005", "version 5 is unknown"),
        (4, "0003", "the notes"),
        (6, "ffffffffffffffff", "term -1 is negative"),
        (14, "0003", "a vote of 3 bytes, 2 are there"),
        (14, "ffff", "a vote of -1 bytes, 2 are there"),
        (16, "ffff", "not UTF-8"),
    ],
)
def test_right_checksum_and_wrong_content(at: int, value: str, problem: str) -> None:
    raw = bytes.fromhex(value)
    body = VOTED[:-4]
    with pytest.raises(HardStateFormatError, match=problem):
        decode_hard_state(with_crc(body[:at] + raw + body[at + len(raw) :]))
