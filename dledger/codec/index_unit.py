"""Index units: where each entry of a segment stands, 32 bytes each (docs/formats/index_unit.md).

A unit is written only after its entry is durable. So a unit on disk proves that the entry once was
whole, which lets recovery distinguish a torn tail from damage. Many entries are handled as columns
(`array`), never as objects: opening a log of a million entries must not build a million of them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.raft.ids import Index, Position, Term

INDEX_UNIT_BYTES = 32
"""Size of a unit; it divides a 512-byte sector, so a torn write never splits a unit."""


class UnitField(NamedTuple):
    """One number of a unit: its name, its place in bytes, and its type as `struct` writes it, big-endian."""

    name: str
    offset: int
    code: str


UNIT_FIELDS: Final = (
    UnitField("index", 0, "q"),
    UnitField("term", 8, "q"),
    UnitField("position", 16, "q"),
    UnitField("size_bytes", 24, "i"),
    UnitField("chain_crc", 28, "I"),
)
"""A unit's fields, in the order of `IndexUnit`; programs that map units in another way build their type from them."""

_UNIT = struct.Struct(">" + "".join(each.code for each in UNIT_FIELDS))
assert _UNIT.size == INDEX_UNIT_BYTES, f"the fields of a unit take {_UNIT.size} bytes"
_INDEX_BYTES = 8
_CHAIN_CRC_AT = 28
_SEAL_INDEX = -1
_ZERO_UNIT = bytes(INDEX_UNIT_BYTES)
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


def _every(offset: int, width: int) -> slice:
    """Return the slice that selects one field of every unit, where units are read as numbers of `width` bytes."""
    assert offset % width == 0 == INDEX_UNIT_BYTES % width, f"{width} bytes at {offset}"
    return slice(offset // width, None, INDEX_UNIT_BYTES // width)


_INDEXES, _TERMS, _POSITIONS = _every(0, 8), _every(8, 8), _every(16, 8)
_SIZES, _CHAIN_CRCS = _every(24, 4), _every(_CHAIN_CRC_AT, 4)
"""The places of each column in the units' bytes, read as 64-bit and as 32-bit numbers."""


class IndexFormatError(FormatError):
    """The bytes of an index are malformed."""


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """The index's record of one entry: its place, its size, its term and its chain CRC.

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

    A further field of the index is a further column here; who handles many entries at once asks for
    `append`, `extend`, `cut` and `drop_first`, and so does not name the columns.

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
    def end_index(self) -> Index:
        """The index of the next entry."""
        return Index(self.first_index + len(self.positions))

    @property
    def end_position(self) -> Position:
        """The place at which the next entry would stand."""
        if not self.positions:
            return self.first_position
        return Position(self.positions[-1] + self.sizes[-1])

    def unit(self, place: int) -> IndexUnit:
        """Return the unit of the entry at `place` (0 for the first, -1 for the last)."""
        count = len(self.positions)
        assert -count <= place < count, f"place {place} of {count}"
        return IndexUnit(
            Index(self.first_index + (place if place >= 0 else count + place)),
            Term(self.terms[place]),
            Position(self.positions[place]),
            self.sizes[place],
            self.chain_crcs[place],
        )

    def append(self, unit: IndexUnit) -> None:
        """Add the entry that follows the last one."""
        assert (unit.index, unit.position) == (self.end_index, self.end_position), (
            f"{unit} does not follow entry {self.end_index - 1}, which ends at {self.end_position}"
        )
        self.terms.append(unit.term)
        self.positions.append(unit.position)
        self.sizes.append(unit.size_bytes)
        self.chain_crcs.append(unit.chain_crc)

    def extend(self, following: EntryColumns) -> None:
        """Add the entries that follow the last one."""
        assert following.first_index == self.end_index, (
            f"entry {following.first_index} after entry {self.end_index - 1}"
        )
        assert following.first_position == self.end_position, (
            f"position {following.first_position} after an end at {self.end_position}"
        )
        for own, added in zip(self.arrays(), following.arrays(), strict=True):
            own.extend(added)

    def cut(self, first: Index) -> None:
        """Remove the entry `first` and everything after it."""
        assert self.first_index <= first <= self.end_index, (
            f"cut at {first} of entries {self.first_index} to {self.end_index - 1}"
        )
        for column in self.arrays():
            del column[first - self.first_index :]

    def drop_first(self) -> IndexUnit:
        """Remove the first entry and return its unit."""
        dropped = self.unit(0)
        for column in self.arrays():
            del column[:1]
        self.first_index = Index(dropped.index + 1)
        self.first_position = Position(dropped.position + dropped.size_bytes)
        return dropped

    def arrays(self) -> tuple[array[int], ...]:
        """Return the columns in the order of the unit's fields; indexes need none."""
        return self.terms, self.positions, self.sizes, self.chain_crcs


def encode_columns(columns: EntryColumns) -> bytes:
    """Encode the units of many entries back to back."""
    count = len(columns)
    assert all(len(column) == count for column in columns.arrays()), "columns of unequal length"
    words = array("q", bytes(INDEX_UNIT_BYTES * count))
    words[_INDEXES] = array("q", range(columns.first_index, columns.end_index))
    words[_TERMS] = columns.terms
    words[_POSITIONS] = columns.positions
    sizes, chain_crcs = array("I", columns.sizes), columns.chain_crcs[:]
    if _IS_LITTLE_ENDIAN:
        for column in (words, sizes, chain_crcs):
            column.byteswap()
    halves = array("I", words.tobytes())
    halves[_SIZES] = sizes
    halves[_CHAIN_CRCS] = chain_crcs
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
    assert count > 0, "a seal after no units"
    head = _UNIT.pack(_SEAL_INDEX, last_term, columns_end, count, 0)[:_CHAIN_CRC_AT]
    return head + crc32c(head, units_crc).to_bytes(4, "big")


def has_seal_mark(data: bytes, offset: int) -> bool:
    """Return whether a seal (whole or not) starts at `offset`: no entry's unit has index -1."""
    return data[offset : offset + _INDEX_BYTES] == b"\xff" * _INDEX_BYTES


class SealFields(NamedTuple):
    """The fields of a seal, its checksum apart."""

    last_term: Term
    end_position: Position
    unit_count: int


def decode_seal_fields(data: bytes) -> SealFields | None:
    """Decode a closing unit; None when it is none. Whether its checksum is that of the units is not known here."""
    if len(data) != INDEX_UNIT_BYTES or not has_seal_mark(data, 0):
        return None
    _, last_term, end_position, count, _ = _UNIT.unpack(data)
    return SealFields(Term(last_term), Position(end_position), count)


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
    units_crc = crc32c(memoryview(data)[: seal_offset + _CHAIN_CRC_AT])
    if units_crc != found_crc:
        raise IndexFormatError(
            seal_offset + _CHAIN_CRC_AT, f"crc {units_crc:#010x}, the seal says {found_crc:#010x}"
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
    found = words[_INDEXES]
    if found != indexes:
        place = next(k for k in range(count) if found[k] != indexes[k])
        raise IndexFormatError(
            place * INDEX_UNIT_BYTES, f"index {found[place]}, expected {indexes[place]}"
        )
    positions = words[_POSITIONS]
    return EntryColumns(
        first_index=first_index,
        first_position=Position(positions[0] if count else 0),
        terms=words[_TERMS],
        positions=positions,
        sizes=halves[_SIZES],
        chain_crcs=array("I", halves[_CHAIN_CRCS].tobytes()),
    )
