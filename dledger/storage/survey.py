"""The survey of a damaged log: which entries are whole, and which are missing (docs/adr/0100).

`opening` refuses a log in which durable bytes were lost. This module then reads all of it, believes
nothing but checksums, and returns what is whole as a `Survey`. It only reads. What contradicts itself is
settled by `histories`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from dledger.codec.chain import preceding_chain_crc
from dledger.codec.entry import EntryFormatError, EntryHeader, decode_header, find_headers
from dledger.errors import CorruptionError
from dledger.raft.entry import ENTRY_HEADER_BYTES, EntryKind
from dledger.raft.ids import NO_TERM, Index, Position
from dledger.storage.api import Disk
from dledger.storage.damage import Run, Survey
from dledger.storage.histories import cut_other_history, remember_tail, settle_conflicts
from dledger.storage.index_view import IndexView, read_index_view
from dledger.storage.log_start import read_log_start
from dledger.storage.scan import ChainEnd, end_before, scan_data
from dledger.storage.sealed_edges import holds
from dledger.storage.segment import StorePaths, segment_positions
from dledger.storage.tolerant_file import TolerantFile
from dledger.storage.write_batch import WRITE_BATCH_BYTES_MAX

_SEARCH_BYTES_MIN = 64 * 1024
_SEARCH_BYTES_MAX = 1024 * 1024
"""The next whole entry is usually near; if it is not, larger parts are read."""

_KIND_BYTES = 4
"""A header begins with its magic, which is the kind."""

_ZEROS = bytes(_SEARCH_BYTES_MAX)


def survey(disk: Disk, paths: StorePaths) -> Survey:
    """Read a damaged log from start to end, and return its whole entries as runs.

    Raises:
        OSError: the disk failed in another way than by not giving some bytes.
    """
    found = _survey_start(disk, paths)
    first = found.before.position
    data_names = {name for name in segment_positions(disk, paths.data_folder) if name >= first}
    views: dict[Position, IndexView] = {}
    for name in segment_positions(disk, paths.index_folder):
        if name < first:
            continue  # what a crash left of a drop
        view = read_index_view(disk, paths, name)
        if view.units or name in data_names:
            views[name] = view
    found.names = sorted({first, *data_names, *views})
    ends: list[Position | None] = [*found.names[1:], None]
    for name, end in zip(found.names, ends, strict=True):
        view = views.get(name, IndexView({}, None))
        if view.has_failed:
            found.doubtful.add(name)
        if name in data_names:
            file = disk.open(paths.data_path(name))
            try:
                _survey_segment(_SegmentData(TolerantFile(file), name, end, view), found)
            finally:
                file.close()
        else:
            found.doubtful.add(name)
    settle_conflicts(found, views)
    if not data_names and not views and disk.exists(paths.begun_path):
        found.is_tail_cut = True
    if found.names[-1] not in views or not cut_other_history(found, views[found.names[-1]]):
        remember_tail(found, views)
    found.check()
    return found


def _survey_start(disk: Disk, paths: StorePaths) -> Survey:
    """Return an empty survey of the log from its start on; of a log from 1 on where its start is damaged."""
    try:
        return Survey(before=end_before(read_log_start(disk, paths)))
    except CorruptionError:
        return Survey(is_start_lost=True)


@dataclass(frozen=True, slots=True)
class _SegmentData:
    """The data file of one segment.

    Attributes:
        name: position of its first byte.
        end: position at which the next segment begins; None for the last one.
        view: what its index claims.
    """

    file: TolerantFile
    name: Position
    end: Position | None
    view: IndexView

    @property
    def size_bytes(self) -> int:
        """The bytes of the file that are the segment's."""
        size_bytes = self.file.size()
        return size_bytes if self.end is None else min(size_bytes, self.end - self.name)


def _survey_segment(data: _SegmentData, found: Survey) -> None:
    """Add the whole entries of one data file."""
    is_last = data.end is None
    believed = _believed(data, found.last_end())
    if believed is not None:
        _add(found, believed, data.view)
        return
    if not is_last:
        found.doubtful.add(data.name)
    for run in _whole_runs(data, found):
        if len(run.columns) > 1 or _is_credible(run, data.view, found.last_end()):
            _add(found, run, data.view)
    if data.file.has_failed:
        found.doubtful.add(data.name)
        found.is_end_unreadable = is_last


def _believed(data: _SegmentData, last: ChainEnd) -> Run | None:
    """Return the entries of a sealed segment, unread, as a start believes them: seal, length, first header.

    The first header names the entry that stands before the segment, and two of its fields stand in no index:
    what the body is and its checksum. Damage there would name an entry that never was, and let what stands before
    be taken for another history. So the first entry is read; where it is not whole, everything is.
    """
    columns = data.view.sealed
    if columns is None or columns.end_position - data.name > data.size_bytes:
        return None
    if data.end is not None and columns.end_position != data.end:
        return None
    header = data.file.read_at(0, ENTRY_HEADER_BYTES)
    try:
        first = decode_header(header)
    except EntryFormatError:
        return None
    if first.index < 1 or first.index_unit() != columns.unit(0):
        return None
    if not holds(data.file, data.name, columns.unit(-1)):
        return None
    body = data.file.read_at(ENTRY_HEADER_BYTES, first.body_bytes)
    if crc32c(body) != first.body_crc or _is_kind_wrong(header, first, last):
        return None
    return Run(columns, preceding_chain_crc(header))


def _is_kind_wrong(header: bytes, decoded: EntryHeader, last: ChainEnd) -> bool:
    """Return whether a header right after `last` does not follow it, and would if it were of another kind."""
    if (decoded.index, decoded.position) != (last.index + 1, last.position):
        return False
    return preceding_chain_crc(header) != last.chain_crc and any(
        preceding_chain_crc(kind.to_bytes(_KIND_BYTES, "big") + header[_KIND_BYTES:])
        == last.chain_crc
        for kind in EntryKind
    )


def _whole_runs(data: _SegmentData, found: Survey) -> Iterator[Run]:
    """Yield the rows of whole entries of one data file."""
    offset: int | None = 0
    while offset is not None and offset < data.size_bytes:
        run = _run_at(data, offset, found.last_end())
        if run is not None:
            yield run
            offset = run.columns.end_position - data.name
            continue
        # Beyond the end of a torn tail nothing counts (recovery, rows C and D).
        if data.end is None and not data.view.remembers(Position(data.name + offset)):
            reach = offset + WRITE_BATCH_BYTES_MAX
            if next(_headers_after(data, offset, ends_after=reach), None) is None:
                return
        offset = next(_headers_after(data, offset, ends_after=0), None)


def _run_at(data: _SegmentData, offset: int, last: ChainEnd) -> Run | None:
    """Return the whole entries that begin at a byte of the file; None where there are none."""
    header = data.file.read_at(offset, ENTRY_HEADER_BYTES)
    try:
        first = decode_header(header)
    except EntryFormatError:
        return None
    if first.position != data.name + offset or first.index < 1:
        return None
    if _is_kind_wrong(header, first, last):
        return None
    before = preceding_chain_crc(header)
    after = ChainEnd(Index(first.index - 1), NO_TERM, first.position, before)
    columns = scan_data(data.file, after, data.size_bytes, offset=offset).columns
    return Run(columns, before) if len(columns) else None


def _headers_after(data: _SegmentData, offset: int, *, ends_after: int) -> Iterator[int]:
    """Yield the offsets after `offset` at which a whole entry starts that ends after another offset."""
    file, name, size = data.file, data.name, data.size_bytes
    at, window = offset + 1, _SEARCH_BYTES_MIN
    while at < size:
        part = file.read_at(at, min(window, size - at))
        window = _SEARCH_BYTES_MAX
        # Room that was reserved and never written is zeros: not worth a look, but for a header's end.
        is_unused = part == _ZEROS[: len(part)]
        used = b"" if is_unused else part[: len(part.rstrip(b"\0")) + ENTRY_HEADER_BYTES]
        for place, header in find_headers(used, base_position=name + at, index_min=1):
            end = at + place + header.size_bytes
            if end > size or end <= ends_after:
                continue
            body = file.read_at(at + place + ENTRY_HEADER_BYTES, header.body_bytes)
            if crc32c(body) == header.body_crc:
                yield at + place
        # Overlap, so that a header across the border is seen whole.
        is_end = at + len(part) >= size
        at += max(len(part) if is_end else len(part) - ENTRY_HEADER_BYTES, 1)


def _is_credible(run: Run, view: IndexView, last: ChainEnd) -> bool:
    """Return whether to believe a lone entry, whose own header no other one vouches for.

    A flipped bit in its index or term leaves all its checksums right. To take a whole entry for a lost
    one costs nothing: it comes back.
    """
    own = run.columns.unit(0)
    known = [unit for unit in view.units.values() if unit.position == own.position]
    if known:
        # Its size needs no witness: with another one its body would not have the checksum.
        return any(
            (unit.index, unit.term, unit.chain_crc) == (own.index, own.term, own.chain_crc)
            for unit in known
        )
    gap_entries, gap_bytes = own.index - last.index - 1, own.position - last.position
    if gap_entries == 0:
        return gap_bytes == 0 and run.before_chain_crc == last.chain_crc
    return gap_entries > 0 and gap_bytes >= gap_entries * ENTRY_HEADER_BYTES


def _add(found: Survey, run: Run, view: IndexView) -> None:
    """Put entries after the last run, or begin a new one."""
    last, columns = found.last_end(), run.columns
    joins = (run.first_index, columns.first_position, run.before_chain_crc) == (
        last.index + 1,
        last.position,
        last.chain_crc,
    )
    if joins and found.runs:
        found.runs[-1].columns.extend(columns)
        return
    run.is_proven = joins
    unit = view.units.get(Index(run.first_index - 1))
    if not joins and unit is not None and unit.position < columns.first_position:
        # The index knows the lost entry that the header names: one of the two is damaged, or both right.
        run.is_proven = unit.chain_crc == run.before_chain_crc
        if not run.is_proven:
            if len(columns) == 1:
                return
            run.drop_first()
    found.runs.append(run)
