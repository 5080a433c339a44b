"""Entries on disk and on the wire: golden bytes, and every way in which bytes can be wrong."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec.chain import preceding_chain_crc
from dledger.codec.entry import (
    EntryFormatError,
    EntryScan,
    ScanEnd,
    chain_crc,
    check_entry,
    decode_entries,
    decode_entry,
    decode_header,
    decode_known,
    decode_lone,
    find_headers,
    index_unit_of,
    is_right_after,
    seal,
)
from dledger.codec.index_unit import EntryColumns, decode_unit
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term

HELLO = bytes.fromhex(
    "00000001"  # magic: normal
    "00000035"  # size: 48 + 5
    "0000000000000001"  # index
    "0000000000000002"  # term
    "0000000000000000"  # pos
    "00000000"  # channel
    "8dbf3fc4"  # chainCrc: crc32c of bytes 0..36 and 40..48
    "9a71bb4c"  # bodyCrc: crc32c("hello")
    "00000005"  # bodyLength
    "68656c6c6f"  # hello
)
DLEDGER_HEADER = bytes.fromhex(  # entry 0, term 1, position 0, a body of 115 bytes
    "00000001000000A300000000000000000000000000000001"
    "000000000000000000000000000000000000000000000073"
)


def entry(index: int, body: bytes, *, term: int = 2, position: int = 0) -> Entry:
    return Entry(Index(index), Term(term), Position(position), EntryKind.NORMAL, body)


def row(*bodies: bytes) -> list[Entry]:
    """Sealed entries from index 1."""
    found: list[Entry] = []
    chain, position = 0, 0
    for index, body in enumerate(bodies, 1):
        found.append(seal(entry(index, body, position=position), chain))
        chain, position = chain_crc(found[-1]), found[-1].end_position
    return found


def blob(entries: list[Entry]) -> bytes:
    return b"".join(each.header + each.body for each in entries)


def test_golden_bytes_both_ways() -> None:
    sealed = seal(entry(1, b"hello"), 0)
    assert (sealed.header + sealed.body).hex() == HELLO.hex()
    assert decode_entry(HELLO, 0, 0) == sealed


def test_checksums_are_what_the_page_says() -> None:
    sealed = seal(entry(1, b"hello"), 0)
    header = sealed.header
    assert int.from_bytes(header[40:44], "big") == crc32c(b"hello")
    assert chain_crc(sealed) == crc32c(header[:36] + header[40:48])
    second = seal(entry(2, b"", position=53), chain_crc(sealed))
    covered = header[:36] + header[40:48] + second.header[:36] + second.header[40:48]
    assert chain_crc(second) == crc32c(covered), "the chain is one CRC over all headers so far"


def test_layout_is_that_of_dledger_but_for_the_checksums() -> None:
    sealed = seal(entry(0, bytes(115), term=1), 0)
    without_crcs = sealed.header[:36] + bytes(8) + sealed.header[44:]
    assert without_crcs == DLEDGER_HEADER
    header = decode_header(DLEDGER_HEADER)
    assert (header.index, header.term, header.size_bytes, header.body_bytes) == (0, 1, 163, 115)


def test_other_kinds_have_their_magic() -> None:
    for kind in EntryKind:
        sealed = seal(Entry(Index(1), Term(1), Position(0), kind, b""), 0)
        assert sealed.header[:4] == bytes((0, 0, 0, kind.value))
        assert decode_entry(sealed.header).kind is kind


def test_every_truncation_is_detected() -> None:
    for size in range(len(HELLO)):
        with pytest.raises(EntryFormatError):
            decode_entry(HELLO[:size], 0, 0)


def test_every_flipped_bit_is_detected() -> None:
    for bit in range(len(HELLO) * 8):
        damaged = bytearray(HELLO)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EntryFormatError):
            decode_entry(bytes(damaged), 0, 0)


def test_bytes_after_the_entry_are_not_touched() -> None:
    assert decode_entry(b"xyz" + HELLO + b"\xff" * 60, 3, 0).body == b"hello"


def test_a_decoded_entry_can_come_from_a_memoryview() -> None:
    assert decode_entry(memoryview(HELLO), 0, 0) == decode_entry(HELLO, 0, 0)
    assert isinstance(decode_entry(memoryview(HELLO)).body, bytes)


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, "00000004", "magic 4"),
        (0, "ffffffff", "magic -1"),
        (4, "00000036", "size 54"),
        (44, "ffffffff", "size 53 with a body of -1"),
        (8, "8000000000000000", "index"),
        (16, "ffffffffffffffff", "term -1 is negative"),
        (24, "8000000000000000", "pos"),
        (32, "00000001", "channel 1"),
    ],
)
def test_impossible_headers_are_named(at: int, value: str, problem: str) -> None:
    raw = bytes.fromhex(value)
    damaged = HELLO[:at] + raw + HELLO[at + len(raw) :]
    with pytest.raises(EntryFormatError, match=problem):
        decode_header(damaged)


def test_the_place_of_a_wrong_checksum_is_named() -> None:
    with pytest.raises(EntryFormatError, match="body crc") as caught:
        decode_entry(b"\0" * 10 + HELLO[:-1] + b"O", 10)
    assert caught.value.byte_offset == 10 + 40
    with pytest.raises(EntryFormatError, match="chain crc") as caught:
        decode_entry(HELLO, 0, prev_chain_crc=1)
    assert caught.value.byte_offset == 36


def test_check_entry_finds_a_header_of_another_entry() -> None:
    first, second = row(b"one", b"two")
    check_entry(first, 0)
    check_entry(second, chain_crc(first))
    swapped = Entry(
        second.index, second.term, second.position, second.kind, second.body, first.header
    )
    with pytest.raises(EntryFormatError, match="belongs to another entry"):
        check_entry(swapped)
    with pytest.raises(EntryFormatError, match="chain crc"):
        check_entry(second, 0)


@given(st.binary(max_size=40), st.integers(0, 100), st.integers(0, 8), st.integers(-60, 20))
def test_a_lone_entry_is_decoded_as_any_other(
    body: bytes, at: int, bit: int, more_bytes: int
) -> None:
    data = bytearray(seal(entry(3, body), 7).header + body)
    data = data[:more_bytes] if more_bytes < 0 else data + bytes(more_bytes)
    if at < len(data) and bit < 8:
        data[at] ^= 1 << bit
    try:
        found = decode_entries(bytes(data))
    except EntryFormatError:
        found = ()
    assert decode_lone(memoryview(data)) == (found[0] if len(found) == 1 else None)


@given(st.binary(max_size=40), st.integers(0, 100), st.integers(0, 8), st.integers(0, 4))
def test_an_entry_is_right_where_nothing_is_wrong_with_it(
    body: bytes, at: int, bit: int, other: int
) -> None:
    sealed = seal(entry(3, body), 7)
    header = bytearray(sealed.header)
    if at < len(header) and bit < 8:
        header[at] ^= 1 << bit
    changed = msgspec.structs.replace(
        sealed,
        header=bytes(header),
        body=body + b"x" * (other == 1),
        position=Position(other == 2),
        term=Term(3) if other == 3 else sealed.term,
    )
    prev_chain_crc = 8 if other == 4 else 7
    try:
        check_entry(changed, prev_chain_crc)
    except EntryFormatError:
        assert not is_right_after(changed, prev_chain_crc)
    else:
        assert is_right_after(changed, prev_chain_crc)


def test_many_entries_back_to_back() -> None:
    entries = row(b"a", b"", b"c" * 1000)
    assert decode_entries(blob(entries)) == tuple(entries)
    assert decode_entries(b"??" + blob(entries), 2, 0) == tuple(entries)
    assert decode_entries(b"") == ()


def test_entries_that_do_not_follow_each_other_are_refused() -> None:
    entries = row(b"a", b"b", b"c")
    for wrong in ([entries[0], entries[2]], [entries[1], entries[0]], [entries[0], entries[0]]):
        with pytest.raises(EntryFormatError):
            decode_entries(blob(wrong))
    # A term that falls, though the chain is right.
    low = seal(entry(2, b"", term=1, position=entries[0].end_position), chain_crc(entries[0]))
    with pytest.raises(EntryFormatError, match="term 1 after term 2"):
        decode_entries(blob([entries[0], low]))


def test_known_entries_are_decoded_only_if_they_are_the_known_ones() -> None:
    entries = row(b"a", b"bb", b"ccc")
    chains = [chain_crc(each) for each in entries]
    assert decode_known(blob(entries), chains, 0) == entries
    assert decode_known(blob(entries[1:]), chains[1:], chains[0]) == entries[1:]
    data = blob(entries)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EntryFormatError):
            decode_known(bytes(damaged), chains, 0)
    with pytest.raises(EntryFormatError):
        decode_known(data[:-1], chains, 0)
    others = row(b"a", b"BB")
    with pytest.raises(EntryFormatError, match="another one was written here"):
        decode_known(blob(others), chains[:2], 0)


def scan_in_pieces(data: bytes, piece: int) -> tuple[EntryScan, int, ScanEnd]:
    """Feed a scan with at most `piece` bytes, or what it wants."""
    scan = EntryScan(EntryColumns(1, 0), 0, 0)
    offset, end = 0, ScanEnd.NEEDS_MORE
    while offset < len(data):
        wanted = max(piece, scan.wanted_bytes)
        taken, end = scan.feed(data[offset : offset + wanted])
        offset += taken
        if end is ScanEnd.BROKEN or (not taken and offset + wanted >= len(data)):
            break
    return scan, offset, end


@pytest.mark.parametrize("piece", [1, 48, 50, 4096])
def test_a_scan_finds_the_same_in_pieces_of_any_size(piece: int) -> None:
    entries = row(b"a", b"", b"c" * 200, b"d")
    scan, offset, end = scan_in_pieces(blob(entries), piece)
    assert (len(scan.columns), end) == (4, ScanEnd.NEEDS_MORE)
    assert offset == scan.columns.end_position == entries[-1].end_position
    assert scan.chain_crc == chain_crc(entries[-1])
    for place, each in enumerate(entries):
        assert decode_unit(index_unit_of(each.header)) == scan.columns.unit(place)


def test_a_scan_stops_at_every_flipped_bit() -> None:
    entries = row(b"a", b"bbb")
    data = blob(entries)
    first_bytes = entries[0].size_bytes
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        scan, _, end = scan_in_pieces(bytes(damaged), 4096)
        assert len(scan.columns) == (0 if bit // 8 < first_bytes else 1)
        assert end is ScanEnd.BROKEN
        assert scan.problem


def test_headers_are_found_after_damage_only_at_their_own_place() -> None:
    entries = row(b"a", b"\0\0\0\1" * 20, b"c")
    data = b"\xff" * 7 + blob(entries)
    found = list(find_headers(data, base_position=-7, index_min=2))
    assert [header.index for _, header in found] == [2, 3]
    assert found[0][0] == 7 + entries[1].position
    assert not list(find_headers(data, base_position=0, index_min=1))


@given(st.integers(0, 2**32 - 1), st.binary(max_size=60))
def test_a_header_names_the_only_entry_that_can_stand_before_it(before: int, body: bytes) -> None:
    entry = seal(Entry(Index(7), Term(2), Position(99), EntryKind.NORMAL, body), before)
    assert preceding_chain_crc(entry.header) == before
