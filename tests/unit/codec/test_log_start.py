"""Where a log begins, as bytes: golden bytes, and nothing wrong gets through."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from dledger.codec.log_start import (
    LOG_START_BYTES,
    LogStart,
    LogStartFormatError,
    decode_log_start,
    encode_log_start,
)
from dledger.raft.ids import Index, Position, Term

DROPPED = bytes.fromhex(
    "444c4c53"  # DLLS
    "0001"  # version
    "0000"  # the segments are the log's
    "0000000000000fa0"  # index
    "0000000000000007"  # term
    "0000000010000000"  # position
    "deadbeef"  # chain CRC
    "fd737b23"  # crc32c of everything before
)
START = LogStart(Index(4000), Term(7), Position(1 << 28), 0xDEADBEEF)


def changed(at: int, value: bytes) -> bytes:
    """The golden bytes with others at a place, and the checksum that fits them."""
    data = DROPPED[:at] + value + DROPPED[at + len(value) : -4]
    return data + crc32c(data).to_bytes(4, "big")


def test_golden_bytes_both_ways() -> None:
    assert encode_log_start(START).hex() == DROPPED.hex()
    assert decode_log_start(DROPPED) == START
    assert len(DROPPED) == LOG_START_BYTES


def test_a_log_that_is_begun_anew_says_so() -> None:
    anew = LogStart(Index(9), Term(3), Position(700), 5, is_anew=True)
    assert decode_log_start(encode_log_start(anew)) == anew


def test_every_truncation_and_every_addition_is_detected() -> None:
    for size in range(len(DROPPED)):
        with pytest.raises(LogStartFormatError):
            decode_log_start(DROPPED[:size])
    with pytest.raises(LogStartFormatError, match="41 bytes"):
        decode_log_start(DROPPED + b"\0")


def test_every_flipped_bit_is_detected() -> None:
    for bit in range(len(DROPPED) * 8):
        damaged = bytearray(DROPPED)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LogStartFormatError):
            decode_log_start(bytes(damaged))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (changed(4, b"\0\2"), "byte 4: version 2 is unknown; this program knows 1"),
        (changed(6, b"\0\2"), "byte 6: 2 is neither 0 nor 1"),
        (changed(8, bytes(8)), "byte 8: entry 0 of term 7"),
        (changed(16, b"\xff" * 8), "byte 8: entry 4000 of term -1"),
        (changed(24, b"\xff" * 8), "byte 8: entry 4000 of term 7 ends at -1"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(data: bytes, problem: str) -> None:
    with pytest.raises(LogStartFormatError, match=problem):
        decode_log_start(data)
