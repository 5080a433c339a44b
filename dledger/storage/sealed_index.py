"""The entries of a finished segment, looked up in its sealed index file (docs/adr/0189).

Nothing is kept in memory of each entry. Before the first look-up the whole index is read and must be what its seal
says; from then on a checksum is kept for each page of 8 KiB, and a page that is needed is read and must have it. So no
unit is ever believed that could be another one than was written. An index that is damaged is made again from the
entries, which prove themselves by their own checksums. If these are damaged, too, nothing can tell any more where the
entries stand: the index loses its seal, so that the next start reads the segment whole, and the node stops. A file that
cannot be read now, for want of descriptors or memory, says nothing of its bytes: the look-up fails and changes nothing.

Look-ups are the log's owner's. They read the file, unless the owner has said that they must not wait: then what is not
in memory is told (`PageNotLoadedError`), and a `PageLoad` (`page_loads`) reads it in a thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from dledger.codec.index_unit import INDEX_UNIT_BYTES, EntryColumns, IndexFormatError
from dledger.errors import DiskFailedError
from dledger.raft.ids import Index, Position
from dledger.storage.api import File
from dledger.storage.examination import (
    PAGE_UNITS,
    Examination,
    Finding,
    LostIndex,
    PageTable,
)
from dledger.storage.read_errors import is_damage, read_again

PAGES_MAX: Final = 1024
"""Decoded pages in memory, of all segments: about 4 MB, 256 Ki entries."""

WRITTEN_MAX: Final = 4
"""Segments whose entries stay in memory when they are finished, until their indexes were read."""

FILES_MAX: Final = 16
"""Index files that are kept open for look-ups."""


@dataclass(frozen=True, slots=True)
class WrittenEntries:
    """The entries of a segment as this process has written them: nothing has to be read before they are used."""

    first_index: Index
    positions: array[int]
    chain_crcs: array[int]

    @property
    def end_index(self) -> Index:
        """One after the last entry."""
        return Index(self.first_index + len(self.positions))


class PageNotLoadedError(Exception):
    """Raised by a look-up that must not wait, and would have to read the disk.

    Attributes:
        part: the segment's entries.
        number: of the page; None: the whole index has to be verified first.
    """

    def __init__(self, part: SealedIndex, number: int | None) -> None:
        super().__init__(f"page {number} of {part.examination.path} is not in memory")
        self.part = part
        self.number = number


@dataclass(slots=True)
class PageCache:
    """The pages and open files that were used last, of all sealed indexes of a log; and who hears of damaged ones.

    Attributes:
        on_rebuilt: called with path and problem when an index was found damaged and made again.
        on_lost: called with the error when it could not be.
        on_refused: called with path and error when it could not be read now.
        may_wait: whether look-ups may wait for the disk.
    """

    on_rebuilt: Callable[[str, str], None] = lambda path, problem: None
    on_lost: Callable[[DiskFailedError], object] = lambda error: None
    on_refused: Callable[[str, OSError], None] = lambda path, error: None
    may_wait: bool = True
    _pages: OrderedDict[tuple[SealedIndex, int], EntryColumns] = field(default_factory=OrderedDict)
    _files: OrderedDict[SealedIndex, File] = field(default_factory=OrderedDict)
    _written: deque[SealedIndex] = field(default_factory=deque)

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

    def keep_written(self, part: SealedIndex) -> None:
        """Note that a segment's entries are in memory; those of the oldest one make room."""
        self._written.append(part)
        if len(self._written) > WRITTEN_MAX:
            self._written.popleft().forget_written()

    def file(self, part: SealedIndex) -> File:
        """Return a segment's index file, open.

        What was not used for longest is closed for it, and where the system gives no more descriptors all others are.

        Raises:
            OSError: it cannot be opened.
        """
        file = self._files.get(part)
        while file is None:
            if len(self._files) >= FILES_MAX:
                self._close_oldest()
            try:
                file = self._files[part] = part.examination.open()
            except OSError as error:
                if is_damage(error) or not self._files:
                    raise
                self._close_oldest()
        self._files.move_to_end(part)
        return file

    def _close_oldest(self) -> None:
        _, file = self._files.popitem(last=False)
        file.close()

    def close_others(self, kept: Sequence[SealedIndex]) -> None:
        """Close the files of segments that left the log: a file that was removed takes room while it is open."""
        for part in self._files.keys() - set(kept):
            self._files.pop(part).close()


class SealedIndex:
    """The entries of one finished segment, as `FinishedEntries`. Where others stood before, another one is.

    Attributes:
        examination: reads it.
    """

    __slots__ = ("_cache", "_known", "examination")

    def __init__(
        self, examination: Examination, cache: PageCache, written: WrittenEntries | None = None
    ) -> None:
        """Set up the look-ups of a segment.

        Args:
            examination: reads it.
            cache: of all segments of the log.
            written: its entries, if this process has just finished it.
        """
        self.examination = examination
        self._cache = cache
        self._known: PageTable | EntryColumns | WrittenEntries | DiskFailedError | None = written
        if written is not None:
            cache.keep_written(self)

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

    def forget_written(self) -> None:
        """Forget the entries as they were written: from now on they are looked up, if they were not before."""
        if isinstance(self._known, WrittenEntries):
            self._known = None

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

    def _table(self) -> PageTable | EntryColumns | WrittenEntries:
        """Return what is known of the segment; its whole index is read first if nothing is.

        Raises:
            DiskFailedError: nothing can tell any more.
            OSError: it cannot be read now.
            PageNotLoadedError: it must not wait for that.
        """
        if self._known is None:
            if not self._cache.may_wait:
                raise PageNotLoadedError(self, None)
            try:
                found = self.examination.run()
            except OSError as error:
                self._cache.on_refused(self.examination.path, error)
                raise
            self.take(found)
        known = self._known
        if isinstance(known, DiskFailedError):
            raise known
        assert known is not None, "an examination finds the entries or raises"
        return known

    def _page(self, number: int) -> EntryColumns | WrittenEntries:
        """Return the columns with this page's entries in it: the page, or the whole segment."""
        known = self._table()
        if not isinstance(known, PageTable):
            return known
        if not self._cache.may_wait:
            page = self._page_in_memory(number, known.crcs[number])
            if page is None:
                raise PageNotLoadedError(self, number)
            return page
        page = self._cache.get(self, number)
        if page is not None:
            return page
        try:
            page = read_again(lambda: self._read_page(number, known.crcs[number]))
        except IndexFormatError as error:
            problem = str(error)
        except OSError as error:
            if not is_damage(error):
                self._cache.on_refused(self.examination.path, error)
                raise
            problem = str(error)
        else:
            self._cache.put(self, number, page)
            return page
        self.take(self.examination.rebuild(problem))
        return self._page(number)

    def _read_page(self, number: int, crc: int) -> EntryColumns:
        return self.examination.read_page(self._cache.file(self), number, crc)

    def _page_in_memory(self, number: int, crc: int) -> EntryColumns | None:
        """Return a page that this process or the system has in memory; None if not, or it is damaged."""
        page = self._cache.get(self, number)
        if page is None:
            try:
                file = self._cache.file(self)
            except OSError:
                return None  # whoever reads it otherwise meets the same, and tells
            page = self.examination.resident_page(file, number, crc)
            if page is not None:
                self._cache.put(self, number, page)
        return page

    def missing_pages(self, start: Position, end: Position) -> list[int] | None:
        """Return which pages that cover bytes start..end-1 a look-up would wait for; None: for the whole index."""
        known = self._known
        if known is None:
            return None
        if not isinstance(known, PageTable):
            return []
        first = max(0, bisect_right(known.positions, start) - 1)
        return [
            number
            for number in range(first, bisect_left(known.positions, end))
            if self._page_in_memory(number, known.crcs[number]) is None
        ]

    def checksum(self, number: int) -> int | None:
        """Return what a page has to be; None if that is not known, or no longer of use."""
        return self._known.crcs[number] if isinstance(self._known, PageTable) else None

    def put(self, number: int, page: EntryColumns, crc: int) -> None:
        """Keep a page that was read and verified elsewhere, unless the index was found damaged meanwhile."""
        if self.checksum(number) == crc:
            self._cache.put(self, number, page)

    def index_at(self, position: Position) -> Index:
        """Return the entry whose header or body covers this byte of the segment.

        Raises:
            DiskFailedError: nothing can tell any more.
            OSError: it cannot be looked up now.
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
            OSError: it cannot be looked up now.
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
            OSError: it cannot be looked up now.
        """
        found = array("I")
        for page, start, stop in self._pieces(first, end):
            found.extend(page.chain_crcs[start:stop])
        return found

    def _pieces(
        self, first: Index, end: Index
    ) -> list[tuple[EntryColumns | WrittenEntries, int, int]]:
        """Return the columns that have these entries, each with the places in it."""
        assert self.first_index <= first <= end <= self.end_index, (
            f"entries {first} to {end - 1} of {self.first_index} to {self.end_index - 1}"
        )
        pieces: list[tuple[EntryColumns | WrittenEntries, int, int]] = []
        while first < end:
            page = self._page((first - self.first_index) // PAGE_UNITS)
            stop = min(end, page.end_index)
            pieces.append((page, first - page.first_index, stop - page.first_index))
            first = stop
        return pieces
