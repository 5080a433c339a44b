"""The entries of a finished segment, looked up in its sealed index file (docs/adr/0189).

Nothing is kept in memory of each entry. Before the first look-up the whole index is read and must be what its seal
says; from then on a checksum is kept for each page of 8 KiB, and a page that is needed is read and must have it. So no
unit is ever believed that could be another one than was written. An index that is damaged is made again from the
entries, which prove themselves by their own checksums. If these are damaged, too, nothing can tell any more where the
entries stand: the index loses its seal, so that the next start reads the segment whole, and the node stops.

Look-ups are the log's owner's; an `Examination` only reads, and may run in any thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexFormatError,
    decode_columns,
    decode_unit,
    encode_seal,
)
from dledger.errors import DiskFailedError
from dledger.raft.ids import Index, Position
from dledger.storage.api import Disk, File
from dledger.storage.scan import ChainEnd, scan_data
from dledger.storage.segment import StorePaths

PAGE_UNITS: Final = 256
PAGE_BYTES: Final = PAGE_UNITS * INDEX_UNIT_BYTES
"""A page takes some 40 us to read and to decode, and 12 bytes of memory once its index was verified."""

PAGES_MAX: Final = 1024
"""Decoded pages in memory, of all segments: about 4 MB, 256 Ki entries."""

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

    def run(self) -> Finding:
        """Verify the index; if it is damaged, read the data instead."""
        try:
            return self.verify()
        except (OSError, IndexFormatError) as error:
            return self.rebuild(str(error))

    def verify(self) -> PageTable:
        """Read the whole index and compare it with its seal.

        Raises:
            IndexFormatError: it is not what was sealed.
            OSError: it cannot be read.
        """
        table = PageTable(array("I"), array("q"))
        file = self.disk.open(self.path)
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

    def read_page(self, number: int, crc: int) -> EntryColumns:
        """Read a page of a verified index.

        Raises:
            IndexFormatError: it is another one than was verified.
            OSError: it cannot be read.
        """
        offset = number * PAGE_BYTES
        wanted = min(PAGE_BYTES, self.count * INDEX_UNIT_BYTES - offset)
        file = self.disk.open(self.path)
        try:
            data = file.read_at(offset, wanted)
        finally:
            file.close()
        if len(data) != wanted or crc32c(data) != crc:
            raise IndexFormatError(offset, "these units are not those that were verified")
        first = self.before.index + 1 + number * PAGE_UNITS
        return decode_columns(data, first_index=Index(first))

    def rebuild(self, problem: str) -> Rebuilt | LostIndex:
        """Find the entries in the data file, by their own checksums."""
        before, end = self.before, self.end
        path = self.paths.data_path(before.position)
        size_bytes = end.position - before.position
        try:
            file = self.disk.open(path)
            try:
                scan = scan_data(file, before, min(file.size(), size_bytes))
            finally:
                file.close()
        except OSError as error:
            return LostIndex(f"{self.path}: {problem}; {path}: {error}")
        columns = scan.columns
        if columns.end_position != end.position or scan.chain_crc != end.chain_crc:
            at = columns.end_position - before.position
            reason = scan.problem or "other entries than were written"
            return LostIndex(f"{self.path}: {problem}; {path}, byte {at}: {reason}")
        return Rebuilt(columns, problem)


@dataclass(slots=True)
class PageCache:
    """The pages that were used last, of all sealed indexes of a log; and who hears of damaged ones.

    Attributes:
        on_rebuilt: called with path and problem when an index was found damaged and made again.
        on_lost: called with the error when it could not be.
    """

    on_rebuilt: Callable[[str, str], None] = lambda path, problem: None
    on_lost: Callable[[DiskFailedError], object] = lambda error: None
    _pages: OrderedDict[tuple[SealedIndex, int], EntryColumns] = field(default_factory=OrderedDict)

    def get(self, part: SealedIndex, number: int) -> EntryColumns | None:
        """Return a page of a segment; None if it is not here."""
        page = self._pages.get((part, number))
        if page is not None:
            self._pages.move_to_end((part, number))
        return page

    def put(self, part: SealedIndex, number: int, page: EntryColumns) -> None:
        """Take in a page; the one that was not used for longest makes room."""
        self._pages[part, number] = page
        if len(self._pages) > PAGES_MAX:
            self._pages.popitem(last=False)


class SealedIndex:
    """The entries of one finished segment, as `FinishedEntries`. Where others stood before, another one is.

    Attributes:
        examination: reads it.
    """

    __slots__ = ("_cache", "_known", "examination")

    def __init__(self, examination: Examination, cache: PageCache) -> None:
        self.examination = examination
        self._cache = cache
        self._known: PageTable | EntryColumns | DiskFailedError | None = None

    @property
    def first_index(self) -> Index:
        """The segment's first entry."""
        return Index(self.examination.before.index + 1)

    @property
    def end_index(self) -> Index:
        """One after the segment's last entry."""
        return Index(self.examination.end.index + 1)

    @property
    def first_position(self) -> Position:
        """The place of the first entry."""
        return self.examination.before.position

    @property
    def end_position(self) -> Position:
        """The place where the last entry ends."""
        return self.examination.end.position

    @property
    def is_verified(self) -> bool:
        """True once the whole index was read, and the entries are known."""
        return isinstance(self._known, PageTable | EntryColumns)

    def take(self, found: Finding) -> None:
        """Take what an examination has found. The segment must still be a finished one of the log.

        Raises:
            DiskFailedError: nothing can tell where the entries stand; the node must stop.
        """
        if isinstance(found, PageTable):
            self._known = found
            return
        self._break_seal()
        if isinstance(found, LostIndex):
            self._known = error = DiskFailedError(
                f"a finished segment and its index are both damaged; the next start reads it whole: {found.problem}"
            )
            self._cache.on_lost(error)
            raise error
        self._known = found.columns
        self._cache.on_rebuilt(self.examination.path, found.problem)

    def _break_seal(self) -> None:
        """Take the seal away, so that the next start reads the data. If that fails, it does what this start did."""
        examination = self.examination
        with suppress(OSError):
            file = examination.disk.open(examination.path)
            try:
                units_bytes = examination.count * INDEX_UNIT_BYTES
                if file.size() > units_bytes:
                    file.truncate(units_bytes)
                file.sync()
            finally:
                file.close()

    def _table(self) -> PageTable | EntryColumns:
        if self._known is None:
            self.take(self.examination.run())
        known = self._known
        if isinstance(known, DiskFailedError):
            raise known
        assert known is not None, "an examination finds the entries or raises"
        return known

    def _page(self, number: int) -> EntryColumns:
        """Return the columns with this page's entries in it: the page, or the whole segment."""
        known = self._table()
        if isinstance(known, EntryColumns):
            return known
        page = self._cache.get(self, number)
        if page is not None:
            return page
        try:
            page = self.examination.read_page(number, known.crcs[number])
        except (OSError, IndexFormatError) as error:
            self.take(self.examination.rebuild(str(error)))
            return self._page(number)
        self._cache.put(self, number, page)
        return page

    def index_at(self, position: Position) -> Index:
        """Return the entry whose header or body covers this byte of the segment.

        Raises:
            DiskFailedError: nothing can tell any more.
        """
        known = self._table()
        number = 0
        if isinstance(known, PageTable):
            number = bisect_right(known.positions, position) - 1
        page = self._page(number)
        return Index(page.first_index - 1 + bisect_right(page.positions, position))

    def positions(self, first: Index, end: Index) -> array[int]:
        """Return the places of the entries first..end-1 of the segment.

        Raises:
            DiskFailedError: nothing can tell any more.
        """
        if first == self.first_index and end == first + 1:
            return array("q", (self.first_position,))  # asked for whenever a log loses its front
        found = array("q")
        for page, start, stop in self._pieces(first, end):
            found.extend(page.positions[start:stop])
        return found

    def chain_crcs(self, first: Index, end: Index) -> array[int]:
        """Return the chain CRCs of the entries first..end-1 of the segment.

        Raises:
            DiskFailedError: nothing can tell any more.
        """
        found = array("I")
        for page, start, stop in self._pieces(first, end):
            found.extend(page.chain_crcs[start:stop])
        return found

    def _pieces(self, first: Index, end: Index) -> list[tuple[EntryColumns, int, int]]:
        """Return the columns that have these entries, each with the places in it."""
        assert self.first_index <= first <= end <= self.end_index, (
            f"entries {first} to {end - 1} of {self.first_index} to {self.end_index - 1}"
        )
        pieces: list[tuple[EntryColumns, int, int]] = []
        while first < end:
            page = self._page((first - self.first_index) // PAGE_UNITS)
            stop = min(end, page.end_index)
            pieces.append((page, first - page.first_index, stop - page.first_index))
            first = stop
        return pieces
