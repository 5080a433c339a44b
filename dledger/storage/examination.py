"""A finished segment is looked at: is its index what was sealed, and if not, what do its entries say (docs/adr/0189).

An `Examination` only reads, and may run in any thread. What becomes of its finding is `sealed_index`'s business.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.codec.entry import EntryScan
from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexFormatError,
    decode_columns,
    decode_unit,
    encode_seal,
)
from dledger.raft.ids import Index
from dledger.storage.api import Disk, File
from dledger.storage.read_errors import is_damage, read_again
from dledger.storage.scan import ChainEnd, scan_data
from dledger.storage.segment import StorePaths

PAGE_UNITS: Final = 256
PAGE_BYTES: Final = PAGE_UNITS * INDEX_UNIT_BYTES
"""A page takes some 40 us to read and to decode, and 12 bytes of memory once its index was verified."""

_READ_BYTES: Final = 128 * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class PageTable:
    """The memory of a verified index: of each page its checksum, and the place of its first entry."""

    crcs: array[int]
    positions: array[int]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The entries of a segment whose index is damaged, from its data.

    Attributes:
        problem: the damage of the index.
    """

    columns: EntryColumns
    problem: str


@dataclass(frozen=True, slots=True)
class LostIndex:
    """The index and the data of a segment are both damaged.

    Attributes:
        problem: the damage of both, naming files and bytes.
    """

    problem: str


Finding = PageTable | Rebuilt | LostIndex
"""The findings of an examination: the index is whole, or only the data is, or neither."""


@dataclass(frozen=True, slots=True)
class Examination:
    """A finished segment to be looked at. Only reads, and knows all that it needs.

    Attributes:
        before: the entry that the segment's first one follows.
        end: its last entry.
    """

    disk: Disk
    paths: StorePaths
    before: ChainEnd
    end: ChainEnd

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.end.index - self.before.index

    @property
    def path(self) -> str:
        """The index file."""
        return self.paths.index_path(self.before.position)

    def open(self) -> File:
        """Open the index file.

        Raises:
            OSError: it cannot be opened.
        """
        return self.disk.open(self.path)

    def run(self) -> Finding:
        """Verify the index; if it is damaged, read the data instead.

        Raises:
            OSError: they cannot be read now, which says nothing of them.
        """
        try:
            return read_again(self.verify)
        except IndexFormatError as error:
            problem = str(error)
        except OSError as error:
            if not is_damage(error):
                raise
            problem = str(error)
        return self.rebuild(problem)

    def verify(self) -> PageTable:
        """Read the whole index and compare it with its seal.

        Raises:
            IndexFormatError: it is not what was sealed.
            OSError: it cannot be read.
        """
        table = PageTable(array("I"), array("q"))
        file = self.open()
        try:
            units_crc = self._read_pages(file, table)
            end_offset = self.count * INDEX_UNIT_BYTES
            found = file.read_at(end_offset, 2 * INDEX_UNIT_BYTES)
        finally:
            file.close()
        closing = encode_seal(
            self.end.position, count=self.count, last_term=self.end.term, units_crc=units_crc
        )
        if found != closing:
            raise IndexFormatError(end_offset, "the units are not those that were sealed")
        return table

    def _read_pages(self, file: File, table: PageTable) -> int:
        """Add all pages to the table; return the checksum of all units."""
        units_crc, end_offset = 0, self.count * INDEX_UNIT_BYTES
        for offset in range(0, end_offset, _READ_BYTES):
            wanted = min(_READ_BYTES, end_offset - offset)
            data = file.read_at(offset, wanted)
            if len(data) < wanted:
                raise IndexFormatError(offset + len(data), "the index ends before its last unit")
            units_crc = crc32c(data, units_crc)
            view = memoryview(data)
            for at in range(0, wanted, PAGE_BYTES):
                unit = decode_unit(data, at)
                if unit is None:
                    raise IndexFormatError(offset + at, "no unit stands here")
                table.crcs.append(crc32c(view[at : at + PAGE_BYTES]))
                table.positions.append(unit.position)
        return units_crc

    def read_page(self, file: File, number: int, crc: int) -> EntryColumns:
        """Read a page of a verified index, which is open.

        Raises:
            IndexFormatError: it is another one than was verified.
            OSError: it cannot be read.
        """
        offset, wanted = self._place(number)
        data = file.read_at(offset, wanted)
        if len(data) != wanted or crc32c(data) != crc:
            raise IndexFormatError(offset, "these units are not those that were verified")
        return self._decoded(number, data)

    def resident_page(self, file: File, number: int, crc: int) -> EntryColumns | None:
        """Read a page as `read_page` does if the system has it in memory; None if not, or it is another one."""
        data = file.read_resident(*self._place(number))
        return None if data is None or crc32c(data) != crc else self._decoded(number, bytes(data))

    def _place(self, number: int) -> tuple[int, int]:
        """Return where a page begins in the file, and its size in bytes."""
        offset = number * PAGE_BYTES
        return offset, min(PAGE_BYTES, self.count * INDEX_UNIT_BYTES - offset)

    def _decoded(self, number: int, data: bytes) -> EntryColumns:
        first = self.before.index + 1 + number * PAGE_UNITS
        return decode_columns(data, first_index=Index(first))

    def rebuild(self, problem: str) -> Rebuilt | LostIndex:
        """Find the entries in the data file, by their own checksums.

        Raises:
            OSError: it cannot be read now, which says nothing of it.
        """
        before, end = self.before, self.end
        path = self.paths.data_path(before.position)
        try:
            scan = read_again(self._scan)
        except OSError as error:
            if not is_damage(error):
                raise
            return LostIndex(f"{self.path}: {problem}; {path}: {error}")
        columns = scan.columns
        if columns.end_position != end.position or scan.chain_crc != end.chain_crc:
            at = columns.end_position - before.position
            reason = scan.problem or "other entries than were written"
            return LostIndex(f"{self.path}: {problem}; {path}, byte {at}: {reason}")
        return Rebuilt(columns, problem)

    def _scan(self) -> EntryScan:
        before = self.before
        file = self.disk.open(self.paths.data_path(before.position))
        try:
            size_bytes = min(file.size(), self.end.position - before.position)
            return scan_data(file, before, size_bytes)
        finally:
            file.close()
