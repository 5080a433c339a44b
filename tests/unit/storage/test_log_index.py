"""What a log remembers of its entries: whole segments join it, and what is cut is gone from all of it."""

from __future__ import annotations

import pytest

from dledger.codec.entry import chain_crc, index_unit_of, seal
from dledger.codec.index_unit import EntryColumns, IndexUnit, decode_columns
from dledger.errors import OutOfRangeError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage.log_index import LogIndex
from dledger.storage.scan import ChainEnd


def columns(first: int, count: int) -> EntryColumns:
    """Make entries of 100 bytes; the term and the chain CRC of each are told by its index."""
    found = EntryColumns(Index(first), Position(100 * (first - 1)))
    for index in range(first, first + count):
        unit = IndexUnit(Index(index), Term(1 + index // 3), found.end_position, 100, 7 * index)
        found.append(unit)
    return found


@pytest.fixture
def index() -> LogIndex:
    made = LogIndex()
    made.extend(columns(1, 4))
    made.extend(columns(5, 3))
    return made


def test_segments_join_and_their_units_are_encoded_again(index: LogIndex) -> None:
    assert decode_columns(index.encode_units(Index(1), Index(8)), first_index=Index(1)) == columns(
        1, 7
    )
    assert decode_columns(index.encode_units(Index(4), Index(6)), first_index=Index(4)) == columns(
        4, 2
    )
    assert index.end().index == 7
    assert index.end().position == 700
    assert index.end().chain_crc == 49


def test_a_segment_that_does_not_follow_is_not_taken(index: LogIndex) -> None:
    with pytest.raises(AssertionError, match="entry 9 after entry 7"):
        index.extend(columns(9, 1))
    assert index.last_id.index == 7


def test_what_is_cut_is_gone_with_its_chain(index: LogIndex) -> None:
    index.truncate_from(Index(3))
    assert index.chain_crc_before(Index(3)) == 14
    assert index.chain_crcs_of(Index(1), Index(3)).tolist() == [7, 14]
    with pytest.raises(AssertionError, match="entries 2 to 3"):
        index.chain_crcs_of(Index(2), Index(4))
    with pytest.raises(OutOfRangeError):
        index.check_has(Index(3))
    index.extend(columns(3, 2))
    assert index.chain_crc_of(Index(4)) == 28


def test_a_byte_belongs_to_the_entry_that_covers_it(index: LogIndex) -> None:
    assert [index.index_at(Position(byte)) for byte in (0, 99, 100, 699)] == [1, 1, 2, 7]
    with pytest.raises(OutOfRangeError):
        index.index_at(Position(700))


def test_sealed_entries_follow_with_the_chain_crcs_of_their_headers(index: LogIndex) -> None:
    sealed: list[Entry] = []
    crcs: list[int] = []
    for number in (8, 9):
        at = Position(700 + (number - 8) * 53)
        chain = crcs[-1] if crcs else index.end().chain_crc
        sealed.append(seal(Entry(Index(number), Term(4), at, EntryKind.NORMAL, b"12345"), chain))
        crcs.append(chain_crc(sealed[-1]))
    index.append(sealed, crcs)
    assert index.end() == ChainEnd(Index(9), Term(4), Position(806), crcs[-1])
    units = index.encode_units(Index(8), Index(10))
    assert units == b"".join(index_unit_of(each.header) for each in sealed)


def test_an_entry_without_a_chain_crc_is_not_taken_for_another(index: LogIndex) -> None:
    entry = seal(Entry(Index(8), Term(4), Position(700), EntryKind.NORMAL, b""), 49)
    with pytest.raises(ValueError, match="shorter"):
        index.append([entry], [])
