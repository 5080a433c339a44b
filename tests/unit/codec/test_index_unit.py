"""Index units: golden bytes, columns, and the seal that verifies a whole index."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from crc32c import crc32c

from dledger.codec.index_unit import (
    EntryColumns,
    IndexFormatError,
    IndexUnit,
    decode_columns,
    decode_sealed,
    decode_unit,
    encode_columns,
    encode_seal,
    encode_unit,
)
from dledger.raft.ids import Index, Position, Term

UNIT = bytes.fromhex(
    "0000000000000007"  # index
    "0000000000000003"  # term
    "0000000000000100"  # position
    "00000035"  # size_bytes: 48 + 5
    "deadbeef"  # chain_crc
)


def columns(*sizes: int, first_index: int = 5, first_position: int = 1000) -> EntryColumns:
    found = EntryColumns(Index(first_index), Position(first_position))
    for number, size in enumerate(sizes):
        term, chain_crc = Term(3 + number // 2), 0xFFFFFFFF - number
        found.append(IndexUnit(found.end_index, term, found.end_position, size, chain_crc))
    return found


def units(found: EntryColumns) -> list[IndexUnit]:
    return [found.unit(place) for place in range(len(found))]


def sealed(found: EntryColumns) -> bytes:
    encoded = encode_columns(found)
    closing = encode_seal(
        found.end_position,
        count=len(found),
        last_term=Term(found.terms[-1]),
        units_crc=crc32c(encoded),
    )
    return encoded + closing


def test_golden_bytes_both_ways() -> None:
    unit = IndexUnit(7, 3, 256, 53, 0xDEADBEEF)
    assert encode_unit(unit).hex() == UNIT.hex()
    assert decode_unit(UNIT) == unit
    assert decode_unit(b"?" + UNIT + b"?", 1) == unit


def test_an_empty_place_is_no_unit() -> None:
    assert decode_unit(bytes(32)) is None


def test_every_truncation_is_detected() -> None:
    for size in range(32):
        with pytest.raises(IndexFormatError):
            decode_unit(UNIT[:size])


def test_columns_are_the_units_back_to_back() -> None:
    found = columns(48, 100, 2**31 - 1)
    data = encode_columns(found)
    assert data == b"".join(encode_unit(found.unit(place)) for place in range(3))
    again = decode_columns(data, first_index=5)
    assert again == found
    assert again.end_position == found.end_position


def test_columns_are_cut_and_joined_as_the_list_of_their_units_is() -> None:
    whole = columns(48, 100, 60, 70)
    listed = units(whole)
    for cut in range(5):
        head, tail = columns(48, 100, 60, 70), columns(48, 100, 60, 70)
        head.cut(Index(5 + cut))
        dropped = [tail.drop_first() for _ in range(cut)]
        assert (units(head), units(tail)) == (listed[:cut], listed[cut:])
        assert dropped == listed[:cut]
        assert (tail.first_index, tail.first_position) == (head.end_index, head.end_position)
        head.extend(tail)
        assert head == whole
    assert whole.unit(-1) == listed[-1]


def test_columns_take_only_what_follows_them() -> None:
    found = columns(48, 100)
    unit = IndexUnit(Index(7), Term(4), Position(1148), 48, 1)
    for wrong in (replace(unit, index=Index(8)), replace(unit, position=Position(1149))):
        with pytest.raises(AssertionError, match="does not follow entry 6"):
            found.append(wrong)
    with pytest.raises(AssertionError, match="entry 8 after entry 6"):
        found.extend(columns(48, first_index=8, first_position=1148))
    with pytest.raises(AssertionError, match="position 1149 after an end at 1148"):
        found.extend(columns(48, first_index=7, first_position=1149))
    with pytest.raises(AssertionError, match="cut at 8"):
        found.cut(Index(8))
    assert found == columns(48, 100)


def test_no_entries_are_no_bytes() -> None:
    assert encode_columns(EntryColumns(1, 0)) == b""
    assert len(decode_columns(b"", first_index=1)) == 0


def test_an_index_that_skips_is_named() -> None:
    data = encode_columns(columns(48, 48, 48))
    with pytest.raises(IndexFormatError, match="index 7, expected 6") as caught:
        decode_columns(data[:32] + data[64:], first_index=5)
    assert caught.value.byte_offset == 32
    with pytest.raises(IndexFormatError, match="31 bytes left"):
        decode_columns(data[:-1], first_index=5)


def test_a_sealed_index_is_read_whole() -> None:
    found = columns(48, 100, 60)
    assert decode_sealed(sealed(found), first_index=5, first_position=1000) == found


def test_every_flipped_bit_of_a_sealed_index_is_detected() -> None:
    data = sealed(columns(48, 100))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexFormatError):
            decode_sealed(bytes(damaged), first_index=5, first_position=1000)


def test_every_truncation_of_a_sealed_index_is_detected() -> None:
    data = sealed(columns(48, 100))
    for size in range(len(data)):
        with pytest.raises(IndexFormatError):
            decode_sealed(data[:size], first_index=5, first_position=1000)


def test_a_seal_of_another_segment_is_refused() -> None:
    data = sealed(columns(48, 100))
    for first_index, first_position in ((6, 1000), (5, 1001)):
        with pytest.raises(IndexFormatError):
            decode_sealed(data, first_index=first_index, first_position=first_position)


def test_a_seal_with_right_crc_and_wrong_content_is_refused() -> None:
    gap = columns(48, 100)
    gap.positions = array("q", (1000, 1049))
    with pytest.raises(IndexFormatError, match="do not follow each other"):
        decode_sealed(sealed(gap), first_index=5, first_position=1000)
    encoded = encode_columns(columns(48))
    closing = encode_seal(1048, count=1, last_term=9, units_crc=crc32c(encoded))
    with pytest.raises(IndexFormatError, match="term 9"):
        decode_sealed(encoded + closing, first_index=5, first_position=1000)
