"""Scans of a segment's files on opening: the facts for the tables of `recovery`.

Nothing is decided and nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.codec.entry import EntryScan, ScanEnd, find_headers
from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    decode_unit,
    encode_columns,
)
from dledger.codec.log_start import LogStart
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, Position, Term
from dledger.storage.api import File, ReadableFile
from dledger.storage.recovery import Beyond, Tail, Units
from dledger.storage.write_batch import WRITE_BATCH_BYTES_MAX

_SCAN_BYTES = 4 * 1024 * 1024
_SEARCH_BYTES = 1024 * 1024
_ZEROS = bytes(_SEARCH_BYTES)


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The entry before the one to come."""

    index: Index
    term: Term
    position: Position
    chain_crc: int


NOTHING_BEFORE: Final = ChainEnd(NO_INDEX, NO_TERM, Position(0), 0)
"""The end that the first entry of all follows."""


def end_before(start: LogStart | None) -> ChainEnd:
    """Return the end that a log's first kept entry follows."""
    if start is None:
        return NOTHING_BEFORE
    return ChainEnd(start.index, start.term, start.position, start.chain_crc)


def scan_data(
    file: ReadableFile, after: ChainEnd, end_offset: int | None = None, *, offset: int = 0
) -> EntryScan:
    """Verify all whole entries of a data file from a place on, every checksum.

    Args:
        file: the data file.
        after: what the first entry follows; its position is the end of the entry before.
        end_offset: stop there at the latest; None: at the end of the file.
        offset: where in the file the first entry stands.
    """
    columns = EntryColumns(first_index=Index(after.index + 1), first_position=after.position)
    scan = EntryScan(columns, after.chain_crc, after.term)
    size = file.size() if end_offset is None else end_offset
    while offset < size:
        wanted = min(max(_SCAN_BYTES, scan.wanted_bytes), size - offset)
        taken, end = scan.feed(file.read_at(offset, wanted))
        offset += taken
        if end is ScanEnd.BROKEN:
            break
        if scan.wanted_bytes > size - offset:
            scan.problem = f"the file ends within entry {columns.first_index + len(columns)}"
            break
    return scan


def classify_tail(file: File, scan: EntryScan) -> Tail:
    """Classify what stands after the last whole entry."""
    first_position = scan.columns.first_position
    stop = scan.columns.end_position - first_position
    size = file.size()
    is_clean = True
    offset = stop
    while offset < size:
        data = file.read_at(offset, min(_SEARCH_BYTES, size - offset))
        if data != _ZEROS[: len(data)]:
            is_clean = False
            # A header may end in zeros (an empty body); more zeros after it mean nothing.
            used = data[: len(data.rstrip(b"\0")) + ENTRY_HEADER_BYTES]
            if _has_entry_beyond(file, used, offset, scan):
                return Tail.WHOLE_BEHIND
        # Overlap, so that a header across the border is seen whole.
        step = len(data) if offset + len(data) == size else len(data) - ENTRY_HEADER_BYTES
        offset += max(step, 1)
    return Tail.CLEAN if is_clean else Tail.TORN


def _has_entry_beyond(file: File, data: bytes, offset: int, scan: EntryScan) -> bool:
    """Return whether a whole entry starts in `data` that no write batch with the broken entry contained."""
    columns = scan.columns
    first_position = columns.first_position
    reach = columns.end_position + WRITE_BATCH_BYTES_MAX
    size = file.size()
    for _, header in find_headers(
        data, base_position=first_position + offset, index_min=columns.end_index
    ):
        end = header.position + header.size_bytes
        if end <= reach or end - first_position > size:
            continue
        body_at = header.position + ENTRY_HEADER_BYTES - first_position
        if crc32c(file.read_at(body_at, header.body_bytes)) == header.body_crc:
            return True
    return False


@dataclass(frozen=True, slots=True)
class IndexFindings:
    """An index file compared with the entries.

    Attributes:
        units: how the units of the whole entries compare.
        beyond: whether there is a unit of an entry that is not there.
        proven_count: entries from the first that the index is known to have seen durable.
        problem_place: for FOREIGN: the entry, counted from the segment's first.
    """

    units: Units
    beyond: Beyond
    proven_count: int
    problem_place: int = 0


def compare_index(data: bytes, columns: EntryColumns, last_term: Term) -> IndexFindings:
    """Compare an index file with the whole entries of its segment.

    Args:
        data: the whole index file, zeros after the units included.
        columns: the whole entries.
        last_term: term of the last whole entry, of this segment or the one before.
    """
    expected = encode_columns(columns)
    rest = data[len(expected) :]
    beyond = _unit_beyond(rest, columns, last_term)
    if data.startswith(expected) and not rest.strip(b"\0"):
        return IndexFindings(Units.AGREE, beyond, len(columns))
    agrees_to, is_damaged = 0, bool(rest.strip(b"\0"))
    foreign: int | None = None
    for place in range(min(len(columns), len(data) // INDEX_UNIT_BYTES)):
        at = place * INDEX_UNIT_BYTES
        if data[at : at + INDEX_UNIT_BYTES] == expected[at : at + INDEX_UNIT_BYTES]:
            # The chain CRC identifies the whole log up to this entry, so whatever differed before
            # it was damage of the index.
            agrees_to, foreign = place + 1, None
            continue
        unit = decode_unit(data, at)
        if unit is None:
            continue
        is_damaged = True
        entry = columns.unit(place)
        is_same_place = (unit.index, unit.position) == (entry.index, entry.position)
        if is_same_place and unit.term != entry.term and unit.chain_crc != entry.chain_crc:
            foreign = place if foreign is None else foreign
    if foreign is not None:
        return IndexFindings(Units.FOREIGN, beyond, agrees_to, foreign)
    return IndexFindings(Units.DAMAGED if is_damaged else Units.LACKING, beyond, agrees_to)


def _unit_beyond(rest: bytes, columns: EntryColumns, last_term: Term) -> Beyond:
    """Return whether `rest`, the index after the whole entries' units, has a unit that fits the log's end."""
    if not rest.strip(b"\0"):
        return Beyond.NOTHING
    next_index, end_position = columns.first_index + len(columns), columns.end_position
    for place in range(len(rest) // INDEX_UNIT_BYTES):
        unit = decode_unit(rest, place * INDEX_UNIT_BYTES)
        if (
            unit is not None
            and unit.index == next_index + place
            and unit.position >= end_position
            and unit.size_bytes >= ENTRY_HEADER_BYTES
            and unit.term >= last_term
        ):
            return Beyond.UNIT
    return Beyond.NOTHING
