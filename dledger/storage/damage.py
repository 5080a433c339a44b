"""What of a damaged log is whole, and what exactly is missing (docs/adr/0100).

`opening` refuses a log in which durable bytes were lost. This module then looks at all of it, believes
nothing but checksums, and says which entries are whole (`Run`) and which are missing between and behind
them (`Missing`). It only reads. An entry that cannot be found is named without having it: the chain CRC
is invertible, so the header of the first whole entry behind a gap names the last entry in the gap; and at
the log's end the index remembers what stood there.

What is found behind a broken place is a claim until the repaired entries join it: they are verified
from the entry before the gap to the one behind, and a claim that no other member knows is given up
(`Survey.distrust`).
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from crc32c import crc32c

from dledger.codec.entry import (
    EntryFormatError,
    EntryHeader,
    chain_crc,
    decode_header,
    find_headers,
    preceding_chain_crc,
)
from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexFormatError,
    IndexUnit,
    decode_sealed,
    decode_unit,
)
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import NO_TERM, Index, Position, Term
from dledger.storage.api import Disk, File
from dledger.storage.opening import holds_last
from dledger.storage.scan import NOTHING_BEFORE, ChainEnd, scan_data
from dledger.storage.segment import StorePaths, segment_positions
from dledger.storage.write_batch import WRITE_BATCH_BYTES_MAX

_SEARCH_BYTES_MIN = 64 * 1024
_SEARCH_BYTES_MAX = 1024 * 1024
"""The next whole entry is usually near; if it is not, larger parts are read."""

_KIND_BYTES = 4
"""A header begins with its magic, which is the kind."""

_ZEROS = bytes(_SEARCH_BYTES_MAX)
_SECTOR_BYTES = 4096
_UNREADABLE = b"\x5a"
"""Stands in for bytes that the device does not give: neither zeros nor part of any header."""


@dataclass(slots=True)
class Run:
    """Whole entries in a row.

    Attributes:
        columns: the entries; each follows the one before.
        before_chain_crc: chain CRC of the entry before the first, as the first header demands it.
        is_proven: the first header is verified too, by what stands before it or by the index's unit of
            that; the others are verified by the chain.
    """

    columns: EntryColumns
    before_chain_crc: int
    is_proven: bool = False

    @property
    def first_index(self) -> Index:
        """Of its first entry."""
        return self.columns.first_index

    @property
    def last_index(self) -> Index:
        """Of its last entry."""
        return Index(self.columns.first_index + len(self.columns) - 1)

    def end(self) -> ChainEnd:
        """Its last entry."""
        columns = self.columns
        return ChainEnd(
            self.last_index, Term(columns.terms[-1]), columns.end_position, columns.chain_crcs[-1]
        )

    def cut(self, index: Index) -> None:
        """Give up `index` and everything behind it."""
        place = index - self.first_index
        columns = self.columns
        for column in (columns.terms, columns.positions, columns.sizes, columns.chain_crcs):
            del column[place:]

    def drop_first(self) -> None:
        """Give up the first entry; what follows it names it."""
        columns = self.columns
        self.before_chain_crc = columns.chain_crcs[0]
        self.is_proven = True  # what was dropped named it
        columns.first_position = Position(columns.first_position + columns.sizes[0])
        columns.first_index = Index(columns.first_index + 1)
        for column in (columns.terms, columns.positions, columns.sizes, columns.chain_crcs):
            del column[:1]


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries that were durable here and are not whole any more.

    Attributes:
        first_index, last_index: both included.
        position, end_position: where they stood.
        prev_chain_crc: of the entry before the first.
        last_chain_crc: of the last one: it identifies all of them.
        is_tail: no whole entry stands behind them.
    """

    first_index: Index
    last_index: Index
    position: Position
    end_position: Position
    prev_chain_crc: int
    last_chain_crc: int
    is_tail: bool = False

    def __str__(self) -> str:
        place = f"bytes {self.position} to {self.end_position} of the log"
        if self.first_index == self.last_index:
            return f"entry {self.first_index} ({place})"
        return f"entries {self.first_index} to {self.last_index} ({place})"


@dataclass(slots=True)
class Survey:
    """A damaged log as it was found.

    Attributes:
        names: first positions of the segments that are or were there, ascending, 0 included.
        runs: the whole entries, in order.
        tail: the last entry that the index remembers behind all runs.
        is_tail_cut: entries were lost behind the last run or `tail`, and nobody here knows which.
        is_end_unreadable: the device does not give some bytes of the last segment.
        doubtful: segments whose index is to be made again from the data.
    """

    names: list[Position] = field(default_factory=lambda: [Position(0)])
    runs: list[Run] = field(default_factory=list)
    tail: IndexUnit | None = None
    is_tail_cut: bool = False
    is_end_unreadable: bool = False
    doubtful: set[Position] = field(default_factory=set)

    def missing(self) -> list[Missing]:
        """The gaps, in order."""
        found: list[Missing] = []
        at = NOTHING_BEFORE
        for run in self.runs:
            columns = run.columns
            if run.first_index > at.index + 1:
                found.append(
                    Missing(
                        Index(at.index + 1),
                        Index(run.first_index - 1),
                        at.position,
                        columns.first_position,
                        at.chain_crc,
                        run.before_chain_crc,
                    )
                )
            at = run.end()
        if self.tail is not None and self.tail.index > at.index:
            unit = self.tail
            found.append(
                Missing(
                    Index(at.index + 1),
                    unit.index,
                    at.position,
                    Position(unit.position + unit.size_bytes),
                    at.chain_crc,
                    unit.chain_crc,
                    is_tail=True,
                )
            )
        return found

    def learn(self, entries: Sequence[Entry]) -> None:
        """Entries are back that end where a run begins, or the log does; they were verified."""
        first = entries[0]
        columns = EntryColumns(first.index, first.position)
        for entry in entries:
            columns.terms.append(entry.term)
            columns.positions.append(entry.position)
            columns.sizes.append(entry.size_bytes)
            columns.chain_crcs.append(chain_crc(entry))
        place = bisect_right(self.runs, int(first.index), key=lambda run: run.first_index)
        before = self.runs[place - 1].end() if place else NOTHING_BEFORE
        own_before = preceding_chain_crc(first.header)
        joins = (before.index + 1, before.chain_crc) == (first.index, own_before)
        if place < len(self.runs):
            self.runs[place].is_proven = True
        self.runs.insert(place, Run(columns, own_before, is_proven=joins))

    def distrust(self, missing: Missing) -> None:
        """Nobody knows the entry that would stand before the run behind a gap: doubt that run's first."""
        run = self.run_of(Index(missing.last_index + 1))
        if run is None:
            return
        if len(run.columns) > 1:
            run.drop_first()
            return
        lone = run.columns.unit(0)
        self.runs.remove(run)
        if lone.index > max(self.last_end().index, self.tail.index if self.tail else 0):
            self.tail = lone

    def last_end(self) -> ChainEnd:
        """The last whole entry, or what the first entry follows."""
        return self.runs[-1].end() if self.runs else NOTHING_BEFORE

    def run_of(self, index: Index) -> Run | None:
        """The run that holds an entry."""
        place = bisect_right(self.runs, index, key=lambda run: run.first_index) - 1
        if place < 0 or index > self.runs[place].last_index:
            return None
        return self.runs[place]


class TolerantFile:
    """Reads around what the device does not give (EIO): those bytes come back as no entry's bytes."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.has_failed = False

    def read_at(self, offset: int, size: int) -> bytes:
        """As `File.read_at`."""
        try:
            return self._file.read_at(offset, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        end = min(offset + size, self._file.size())
        pieces: list[bytes] = []
        while offset < end:
            step = min(_SECTOR_BYTES - offset % _SECTOR_BYTES, end - offset)
            try:
                pieces.append(self._file.read_at(offset, step))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.has_failed = True
                pieces.append(_UNREADABLE * step)
            offset += step
        return b"".join(pieces)

    def size(self) -> int:
        """As `File.size`."""
        return self._file.size()


@dataclass(frozen=True, slots=True)
class _IndexView:
    """What a segment's index claims; every unit by itself, since any may be damaged.

    Attributes:
        units: by index, those that fit the majority's numbering.
        sealed: all of them, when the seal is right in every byte.
    """

    units: dict[Index, IndexUnit]
    sealed: EntryColumns | None
    has_failed: bool = False


def survey(disk: Disk, paths: StorePaths) -> Survey:
    """Look at a whole log.

    Raises:
        OSError: the disk failed in another way than by not giving some bytes.
    """
    found = Survey()
    data_names = set(segment_positions(disk, paths.data_folder))
    views: dict[Position, _IndexView] = {}
    for name in segment_positions(disk, paths.index_folder):
        view = _read_index(disk, paths, name)
        if view.units or name in data_names:
            views[name] = view
    found.names = sorted({Position(0), *data_names, *views})
    for place, name in enumerate(found.names):
        is_last = place + 1 == len(found.names)
        end = None if is_last else found.names[place + 1]
        view = views.get(name, _IndexView({}, None))
        if view.has_failed:
            found.doubtful.add(name)
        if name in data_names:
            _survey_segment(disk, paths, found, name, end, view)
        else:
            found.doubtful.add(name)
    _settle_conflicts(found, views)
    if not data_names and not views and disk.exists(paths.begun_path):
        found.is_tail_cut = True
    if found.names[-1] not in views or not _is_other_history(found, views[found.names[-1]]):
        _remember_tail(found, views)
    return found


def _read_index(disk: Disk, paths: StorePaths, name: Position) -> _IndexView:
    file = disk.open(paths.index_path(name))
    try:
        tolerant = TolerantFile(file)
        data = tolerant.read_at(0, file.size())
    finally:
        file.close()
    sealed: EntryColumns | None = None
    if first := decode_unit(data) if len(data) >= INDEX_UNIT_BYTES else None:
        try:
            sealed = decode_sealed(data, first_index=first.index, first_position=name)
        except IndexFormatError:
            sealed = None
    used_bytes = min(len(data.rstrip(b"\0")) + INDEX_UNIT_BYTES, len(data))
    placed = [
        (place, unit)
        for place in range(used_bytes // INDEX_UNIT_BYTES)
        if (unit := decode_unit(data, place * INDEX_UNIT_BYTES)) is not None
        and unit.index > place
        and unit.position >= name
        and unit.size_bytes >= ENTRY_HEADER_BYTES
    ]
    bases = Counter(unit.index - place for place, unit in placed)
    if not bases:
        return _IndexView({}, None, tolerant.has_failed)
    base = bases.most_common(1)[0][0]
    units = {unit.index: unit for place, unit in placed if unit.index - place == base}
    return _IndexView(units, sealed, tolerant.has_failed)


def _survey_segment(
    disk: Disk,
    paths: StorePaths,
    found: Survey,
    name: Position,
    end: Position | None,
    view: _IndexView,
) -> None:
    """Add the whole entries of one data file."""
    file = disk.open(paths.data_path(name))
    try:
        tolerant = TolerantFile(file)
        size = file.size() if end is None else min(file.size(), end - name)
        sealed = _believed(tolerant, name, end, size, view, found.last_end())
        if sealed is not None:
            _add(found, sealed[0], sealed[1], view)
            return
        if end is not None:
            found.doubtful.add(name)
        for columns, before in _whole_entries(
            tolerant, found, name, size, view, is_last=end is None
        ):
            if len(columns) > 1 or _is_credible(columns, before, view, found.last_end()):
                _add(found, columns, before, view)
        if tolerant.has_failed:
            found.doubtful.add(name)
            found.is_end_unreadable = end is None
    finally:
        file.close()


def _believed(
    file: TolerantFile,
    name: Position,
    end: Position | None,
    size: int,
    view: _IndexView,
    last: ChainEnd,
) -> tuple[EntryColumns, int] | None:
    """The entries of a sealed segment, unread, as a start believes them: seal, length, first header.

    The first header names the entry that stands before the segment, and two of its fields stand in no index:
    what the body is and its checksum. Damage there would name an entry that never was, and let what stands before
    be taken for another history. So the first entry is read; where it is not whole, everything is.
    """
    columns = view.sealed
    if columns is None or columns.end_position - name > size:
        return None
    if end is not None and columns.end_position != end:
        return None
    header = file.read_at(0, ENTRY_HEADER_BYTES)
    try:
        first = decode_header(header)
    except EntryFormatError:
        return None
    told = IndexUnit(first.index, first.term, first.position, first.size_bytes, first.chain_crc)
    if told != columns.unit(0) or not holds_last(file, columns):
        return None
    body = file.read_at(ENTRY_HEADER_BYTES, first.body_bytes)
    if crc32c(body) != first.body_crc or _is_kind_wrong(header, first, last):
        return None
    return columns, preceding_chain_crc(header)


def _is_kind_wrong(header: bytes, decoded: EntryHeader, last: ChainEnd) -> bool:
    """Whether a header right behind `last` does not follow it, and would if it were of another kind."""
    if (decoded.index, decoded.position) != (last.index + 1, last.position):
        return False
    return preceding_chain_crc(header) != last.chain_crc and any(
        preceding_chain_crc(kind.to_bytes(_KIND_BYTES, "big") + header[_KIND_BYTES:])
        == last.chain_crc
        for kind in EntryKind
    )


def _whole_entries(
    file: TolerantFile, found: Survey, name: Position, size: int, view: _IndexView, *, is_last: bool
) -> Iterator[tuple[EntryColumns, int]]:
    """Rows of whole entries of one data file, each with the chain CRC that it follows."""
    offset: int | None = 0
    while offset is not None and offset < size:
        header = file.read_at(offset, ENTRY_HEADER_BYTES)
        try:
            first = decode_header(header)
        except EntryFormatError:
            first = None
        if first is not None and _is_kind_wrong(header, first, found.last_end()):
            first = None
        if first is not None and first.position == name + offset and first.index > 0:
            before = preceding_chain_crc(header)
            after = ChainEnd(Index(first.index - 1), NO_TERM, first.position, before)
            columns = scan_data(file, after, size, offset=offset).columns
            if len(columns):
                yield columns, before
                offset = columns.end_position - name
                continue
        # Behind the end of a torn tail nothing counts (recovery, rows C and D).
        reach = 0
        if is_last and not _remembers(view, Position(name + offset)):
            reach = offset + WRITE_BATCH_BYTES_MAX
            if next(_headers_behind(file, name, offset, size, reach), None) is None:
                return
        offset = next(_headers_behind(file, name, offset, size, 0), None)


def _remembers(view: _IndexView, position: Position) -> bool:
    """Whether the index has a unit of an entry that stands there or behind."""
    return any(unit.position >= position for unit in view.units.values())


def _headers_behind(
    file: TolerantFile, name: Position, offset: int, size: int, reach: int
) -> Iterator[int]:
    """Offsets behind `offset` at which a whole entry starts, if it ends behind `reach`."""
    at, window = offset + 1, _SEARCH_BYTES_MIN
    while at < size:
        data = file.read_at(at, min(window, size - at))
        window = _SEARCH_BYTES_MAX
        # Room that was reserved and never written is zeros: not worth a look, but for a header's end.
        told = (
            b""
            if data == _ZEROS[: len(data)]
            else data[: len(data.rstrip(b"\0")) + ENTRY_HEADER_BYTES]
        )
        for place, header in find_headers(told, base_position=name + at, index_min=1):
            end = at + place + header.size_bytes
            if end > size or end <= reach:
                continue
            body = file.read_at(at + place + ENTRY_HEADER_BYTES, header.body_bytes)
            if crc32c(body) == header.body_crc:
                yield at + place
        # Overlap, so that a header across the border is seen whole.
        is_end = at + len(data) >= size
        at += max(len(data) if is_end else len(data) - ENTRY_HEADER_BYTES, 1)


def _is_credible(columns: EntryColumns, before: int, view: _IndexView, last: ChainEnd) -> bool:
    """Whether to believe a lone entry, whose own header no other one vouches for.

    A flipped bit in its index or term leaves all its checksums right. To take a whole entry for a lost
    one costs nothing: it comes back.
    """
    own = columns.unit(0)
    known = [unit for unit in view.units.values() if unit.position == own.position]
    if known:
        # Its size needs no witness: with another one its body would not have the checksum.
        return any(
            (unit.index, unit.term, unit.chain_crc) == (own.index, own.term, own.chain_crc)
            for unit in known
        )
    gap_entries, gap_bytes = own.index - last.index - 1, own.position - last.position
    if gap_entries == 0:
        return gap_bytes == 0 and before == last.chain_crc
    return gap_entries > 0 and gap_bytes >= gap_entries * ENTRY_HEADER_BYTES


def _add(found: Survey, columns: EntryColumns, before: int, view: _IndexView) -> None:
    """Put entries behind the last run, or begin a new one."""
    last = found.last_end()
    joins = (columns.first_index, columns.first_position, before) == (
        last.index + 1,
        last.position,
        last.chain_crc,
    )
    if joins and found.runs:
        known = found.runs[-1].columns
        known.terms.extend(columns.terms)
        known.positions.extend(columns.positions)
        known.sizes.extend(columns.sizes)
        known.chain_crcs.extend(columns.chain_crcs)
        return
    run = Run(columns, before, is_proven=joins)
    unit = view.units.get(Index(columns.first_index - 1))
    if not joins and unit is not None and unit.position < columns.first_position:
        # The index knows the lost entry that the header names: one of the two is damaged, or both right.
        run.is_proven = unit.chain_crc == before
        if not run.is_proven:
            if len(columns) == 1:
                return
            run.drop_first()
    found.runs.append(run)


def _settle_conflicts(found: Survey, views: dict[Position, _IndexView]) -> None:
    """Of runs that contradict each other a lone entry gives way, else the earlier one.

    A lone entry may have a flipped bit in its own index. Longer ones contradict each other when a data
    file was replaced by an older copy, of another history: what stands behind follows what it lacks.
    """
    first = found.runs[0] if found.runs else None
    if first is not None and first.first_index == 1 and first.before_chain_crc:
        # The first entry of all follows nothing: its header is damaged, or the index that was believed.
        if len(first.columns) > 1:
            first.drop_first()
        else:
            found.runs.remove(first)
    while True:
        for one, other in pairwise(found.runs):
            end = one.end()
            gap_entries = other.first_index - end.index - 1
            gap_bytes = other.columns.first_position - end.position
            if gap_entries > 0 and gap_bytes >= gap_entries * ENTRY_HEADER_BYTES:
                continue
            if len(other.columns) == 1:
                found.runs.remove(other)
            elif len(one.columns) == 1:
                found.runs.remove(one)
            else:
                _cut_run(found, one, views)
            break
        else:
            return


def _cut_run(found: Survey, run: Run, views: dict[Position, _IndexView]) -> None:
    """Take back the entries of a run's last segment, from where its index tells of others."""
    columns = run.columns
    name = found.names[bisect_right(found.names, columns.positions[-1]) - 1]
    found.doubtful.add(name)
    first = Index(run.first_index + bisect_left(columns.positions, name))
    foreign = _first_foreign(run, first, views.get(name))
    run.cut(foreign if foreign is not None else first)
    if not len(columns):
        found.runs.remove(run)


def _first_foreign(run: Run, first: Index, view: _IndexView | None) -> Index | None:
    """The first entry from `first` on of which the index tells another history, to the run's end."""
    if view is None:
        return None
    foreign: Index | None = None
    for index in map(Index, range(first, run.last_index + 1)):
        unit, own = view.units.get(index), run.columns.unit(index - run.first_index)
        if unit is None:
            continue
        if unit.chain_crc == own.chain_crc:
            foreign = None  # the chain CRC vouches for everything before it
        elif unit.position == own.position and unit.term != own.term and foreign is None:
            foreign = index
    return foreign


def _is_other_history(found: Survey, view: _IndexView) -> bool:
    """Whether the last segment's index tells of another history than its data: then what it tells is cut off."""
    name = found.names[-1]
    if view.sealed is not None:
        found.is_tail_cut = True
        found.doubtful.add(name)
        return False
    if not found.runs or found.runs[-1].columns.end_position <= name:
        return False
    run = found.runs[-1]
    first = Index(run.first_index + bisect_left(run.columns.positions, name))
    foreign = _first_foreign(run, first, view)
    if foreign is None:
        return False
    run.cut(foreign)
    if not len(run.columns):
        found.runs.remove(run)
    found.is_tail_cut = True
    found.doubtful.add(name)
    return True


def _remember_tail(found: Survey, views: dict[Position, _IndexView]) -> None:
    """The last entry behind all runs that an index remembers.

    It may be that of a sealed segment: behind it another one was begun, and holds nothing yet.
    """
    last = found.last_end()
    behind = [
        (unit.index, name, unit)
        for name, view in views.items()
        for unit in view.units.values()
        if unit.index > last.index and unit.position >= last.position and unit.term >= last.term
    ]
    if behind:
        _, name, found.tail = max(behind, key=lambda each: each[:2])
        found.doubtful.add(name)
