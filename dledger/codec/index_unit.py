"""Index units: where each entry of a segment stands, 32 bytes each (docs/formats/index_unit.md).

A unit is written only after its entry is durable. So a unit on disk proves that the entry once was
whole, which lets recovery tell a torn tail from damage. Many entries are handled as columns
(`array`), never as objects: opening a log of a million entries must not build a million of them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from itertools import accumulate

from crc32c import crc32c

from dledger.raft.ids import Index, Position, Term

INDEX_UNIT_BYTES = 32
"""Size of a unit; it divides a 512-byte sector, so a torn write never splits a unit."""

_UNIT = struct.Struct(
    ">"
    "q"  # 0   index
    "q"  # 8   term
    "q"  # 16  position
    "i"  # 24  size_bytes
    "I"  # 28  chain_crc
)
_SEAL_INDEX = -1
_ZERO_UNIT = bytes(INDEX_UNIT_BYTES)
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


class IndexFormatError(ValueError):
    """Bytes that are not the index they should be.

    Attributes:
        byte_offset: where, counted from the start of the given bytes.
        problem: what is wrong there.
    """

    def __init__(self, byte_offset: int, problem: str) -> None:
        self.byte_offset = byte_offset
        self.problem = problem
        super().__init__(f"byte {byte_offset}: {problem}")


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """What the index remembers of one entry.

    Attributes:
        size_bytes: the whole entry, header included.
        chain_crc: the entry's chain CRC, which identifies the whole log up to it.
    """

    index: Index
    term: Term
    position: Position
    size_bytes: int
    chain_crc: int


def encode_unit(unit: IndexUnit) -> bytes:
    """Encode one unit.

    Layout, big-endian, 32 bytes (docs/formats/index_unit.md):
         0  int64   index
         8  int64   term
        16  int64   position    of the entry's header
        24  int32   size_bytes  48 + body
        28  uint32  chain_crc   as in the entry's header

    Source: bytes in tests/unit/codec/test_index_unit.py. DLedger's own unit (magic, pos, size,
    index, term) has no checksum to identify an entry by; see docs/divergence.md.
    """
    return _UNIT.pack(unit.index, unit.term, unit.position, unit.size_bytes, unit.chain_crc)


def decode_unit(data: bytes, offset: int = 0) -> IndexUnit | None:
    """Decode the unit at `offset`; None for an empty place (zeros).

    Raises:
        IndexFormatError: fewer than 32 bytes are left.
    """
    if len(data) - offset < INDEX_UNIT_BYTES:
        raise IndexFormatError(offset, f"{len(data) - offset} bytes left, a unit has 32")
    if data[offset : offset + INDEX_UNIT_BYTES] == _ZERO_UNIT:
        return None
    return IndexUnit(*_UNIT.unpack_from(data, offset))


@dataclass(slots=True)
class EntryColumns:
    """Consecutive entries as columns: what the index keeps of each.

    Invariants: all columns are equally long; indexes run from `first_index` without gaps; an entry
    starts where the one before ends.
    """

    first_index: Index
    first_position: Position
    terms: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))
    chain_crcs: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def end_position(self) -> Position:
        """Where the next entry would stand."""
        if not self.positions:
            return self.first_position
        return Position(self.positions[-1] + self.sizes[-1])

    def unit(self, place: int) -> IndexUnit:
        """The unit of the entry at `place` (0 for the first)."""
        return IndexUnit(
            Index(self.first_index + place),
            Term(self.terms[place]),
            Position(self.positions[place]),
            self.sizes[place],
            self.chain_crcs[place],
        )


def encode_columns(columns: EntryColumns) -> bytes:
    """Encode the units of many entries back to back."""
    count = len(columns)
    words = array("q", bytes(INDEX_UNIT_BYTES * count))
    words[0::4] = array("q", range(columns.first_index, columns.first_index + count))
    words[1::4] = columns.terms
    words[2::4] = columns.positions
    sizes, chain_crcs = array("I", columns.sizes), columns.chain_crcs[:]
    if _IS_LITTLE_ENDIAN:
        for column in (words, sizes, chain_crcs):
            column.byteswap()
    halves = array("I", words.tobytes())
    halves[6::8] = sizes
    halves[7::8] = chain_crcs
    return halves.tobytes()


def encode_seal(columns_end: Position, *, count: int, last_term: Term, units_crc: int) -> bytes:
    """Encode the closing unit of a finished segment's index.

    Layout as a unit: index -1, the last entry's term, the segment's end position, the number of
    units, and as `chain_crc` the CRC32C of all units before and of these first 28 bytes.

    Args:
        columns_end: end position of the segment's last entry.
        count: units before the seal.
        last_term: term of the last entry.
        units_crc: CRC32C over all units before the seal.
    """
    head = _UNIT.pack(_SEAL_INDEX, last_term, columns_end, count, 0)[:28]
    return head + crc32c(head, units_crc).to_bytes(4, "big")


def has_seal_mark(data: bytes, offset: int) -> bool:
    """Whether a seal (whole or not) starts at `offset`: no entry's unit has index -1."""
    return data[offset : offset + 8] == b"\xff" * 8


def decode_sealed(data: bytes, *, first_index: Index, first_position: Position) -> EntryColumns:
    """Decode a finished segment's index and verify it whole.

    Args:
        data: the whole index file: units, then the seal.
        first_index: the index that the first unit must have.
        first_position: the position that the first unit must have.

    Raises:
        IndexFormatError: there is no seal, the CRC differs, or the units do not follow each other.
    """
    count, rest = divmod(len(data), INDEX_UNIT_BYTES)
    count -= 1
    seal_offset = count * INDEX_UNIT_BYTES
    if rest or count < 1 or not has_seal_mark(data, seal_offset):
        raise IndexFormatError(max(seal_offset, 0), "no seal at the end")
    _, last_term, end_position, sealed_count, found_crc = _UNIT.unpack_from(data, seal_offset)
    units_crc = crc32c(memoryview(data)[: seal_offset + 28])
    if units_crc != found_crc:
        raise IndexFormatError(
            seal_offset + 28, f"crc {units_crc:#010x}, the seal says {found_crc:#010x}"
        )
    columns = decode_columns(data[:seal_offset], first_index=first_index)
    expected = array("q", accumulate(columns.sizes, initial=first_position))
    if columns.positions != expected[:-1] or expected[-1] != end_position or sealed_count != count:
        raise IndexFormatError(0, "the units' positions do not follow each other")
    if columns.terms[-1] != last_term:
        raise IndexFormatError(seal_offset + 8, f"term {last_term} after {columns.terms[-1]}")
    return columns


def decode_columns(data: bytes, *, first_index: Index) -> EntryColumns:
    """Decode whole units back to back; indexes must run from `first_index` without gaps.

    Raises:
        IndexFormatError: names the first unit that does not fit.
    """
    count, rest = divmod(len(data), INDEX_UNIT_BYTES)
    if rest:
        raise IndexFormatError(count * INDEX_UNIT_BYTES, f"{rest} bytes left, a unit has 32")
    words = array("q", data)
    halves = array("i", data)
    if _IS_LITTLE_ENDIAN:
        words.byteswap()
        halves.byteswap()
    indexes = array("q", range(first_index, first_index + count))
    if words[0::4] != indexes:
        place = next(k for k in range(count) if words[k * 4] != first_index + k)
        raise IndexFormatError(
            place * INDEX_UNIT_BYTES,
            f"index {words[place * 4]}, expected {first_index + place}",
        )
    positions = words[2::4]
    return EntryColumns(
        first_index=first_index,
        first_position=Position(positions[0] if count else 0),
        terms=words[1::4],
        positions=positions,
        sizes=halves[6::8],
        chain_crcs=array("I", halves[7::8].tobytes()),
    )
