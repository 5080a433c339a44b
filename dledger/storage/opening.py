"""Opening a log: gather facts, ask the tables of `recovery`, carry out what they say.

Everything before the last segment was durable before the last segment was created; only the last
one may end in a torn write. Finished segments are checked by their edges (`sealed_edges`); where these do not fit, the
sealed index is read whole, and without it the data. The last one is read whole and every checksum verified. What is
found there is made durable again before anybody hears of it: after a failed sync the kernel may hold pages that look
written and are not on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crc32c import crc32c

from dledger.codec.entry import EntryScan
from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexFormatError,
    decode_sealed,
    encode_columns,
)
from dledger.errors import CorruptionError
from dledger.raft.ids import Index, Position, Term
from dledger.storage.api import Disk, File
from dledger.storage.examination import Examination
from dledger.storage.log_index import LogIndex
from dledger.storage.log_start import settle_log_start
from dledger.storage.recovery import (
    EARLIER_SEGMENT,
    LAST_SEGMENT,
    Action,
    Entries,
    Length,
    Seal,
    Tail,
    Units,
    decide,
)
from dledger.storage.scan import (
    ChainEnd,
    classify_tail,
    compare_index,
    end_before,
    scan_data,
)
from dledger.storage.sealed_edges import EdgeReader, SealedEdges, continues, holds, runs_of
from dledger.storage.sealed_index import PageCache, SealedIndex
from dledger.storage.segment import Segment, StorePaths, mark_begun, segment_positions

_REWRITE_BYTES = 1024 * 1024


@dataclass(slots=True)
class OpenedLog:
    """A log as it was found and, where needed, mended.

    Attributes:
        pages: the units of finished segments that were looked up.
        segments: in order; the last one is open for writing.
        index: the entries.
        notes: a sentence per thing that was not as an orderly close leaves it.
    """

    pages: PageCache
    segments: list[Segment] = field(default_factory=list)
    index: LogIndex = field(default_factory=LogIndex)
    notes: list[str] = field(default_factory=list)


def open_log(disk: Disk, paths: StorePaths, pages: PageCache) -> OpenedLog:
    """Open the log in a folder; the folders are created when missing.

    Args:
        disk: where the store is.
        paths: of the log.
        pages: where finished segments keep what is looked up in them.

    Raises:
        CorruptionError: durable bytes were lost or changed; names file and byte.
        OSError: the disk failed.
    """
    disk.make_folder(paths.data_folder)
    disk.make_folder(paths.index_folder)
    # What is listed may not be durable yet: a process that was killed in between does not sync.
    disk.sync_folder(paths.data_folder)
    disk.sync_folder(paths.index_folder)
    before = end_before(settle_log_start(disk, paths))
    positions = segment_positions(disk, paths.data_folder)
    _check_row_of_names(disk, paths, positions, first=before.position)
    log = OpenedLog(pages, index=LogIndex(before))
    try:
        _open_segments(disk, paths, positions, log)
    except BaseException:
        for segment in log.segments:
            segment.close()
        raise
    return log


def _open_segments(
    disk: Disk, paths: StorePaths, positions: list[Position], log: OpenedLog
) -> None:
    """Open the segments in log order: each one's first index is known only once those before it are open."""
    for place, position in enumerate(positions):
        segment = Segment(paths, position, Index(log.index.layout.last_index + 1))
        log.segments.append(segment)
        if place + 1 < len(positions):
            before = log.index.end()
            edges = _open_earlier(disk, segment, positions[place + 1], log)
            segment.close()
            examination = Examination(disk, paths, before, edges.end)
            log.index.extend_sealed(SealedIndex(examination, log.pages), edges.runs)
            count = examination.count
        else:
            columns = _open_last(disk, segment, log)
            log.index.extend(columns)
            count = len(columns)
        assert segment.unit_count == count, (
            f"segment {position} has {segment.unit_count} units of {count} entries"
        )


def _check_row_of_names(
    disk: Disk, paths: StorePaths, positions: list[Position], *, first: Position
) -> None:
    """Make sure that the row starts where the log does, and that no index file is without its data file.

    A data file is durable before its index file is created, and removed after it. So an index with
    units and without data is a lost data file; an empty one is swept away.

    Raises:
        CorruptionError: a data file is missing.
    """
    if positions:
        mark_begun(disk, paths)
    elif disk.exists(paths.begun_path) and not segment_positions(disk, paths.index_folder):
        raise CorruptionError(paths.data_path(first), 0, "missing, as are all segments of this log")
    if positions and positions[0] != first:
        raise CorruptionError(
            paths.data_path(first), 0, f"missing; the first segment is {positions[0]}"
        )
    known = set(positions)
    for position in segment_positions(disk, paths.index_folder):
        if position in known:
            continue
        path = paths.index_path(position)
        file = disk.open(path)
        is_used = bool(file.read_at(0, file.size()).strip(b"\0"))
        file.close()
        if is_used:
            raise CorruptionError(
                paths.data_path(position), 0, f"missing, but its index {path} has units"
            )
        disk.remove(path)
        disk.sync_folder(paths.index_folder)


def _open_earlier(
    disk: Disk, segment: Segment, next_position: Position, log: OpenedLog
) -> SealedEdges:
    """Open a finished segment, whose entries must reach exactly to the next one."""
    data, index = segment.open_data(disk), segment.open_index(disk)
    wanted_bytes = next_position - segment.first_position
    length = _compare_length(found_bytes=data.size(), wanted_bytes=wanted_bytes)
    edges = EdgeReader(index, data, log.index.end(), next_position).read()
    if edges is None:
        return _open_read_whole(segment, next_position, log, length)
    row = decide(EARLIER_SEGMENT, length, Entries.NOT_SCANNED, Units.AGREE)
    if row.action is Action.REFUSE:
        problem_at = min(data.size(), wanted_bytes)
        raise CorruptionError(data.path, problem_at, f"{row.problem} (recovery row {row.label})")
    segment.unit_count = edges.end.index - log.index.end().index
    if row.action is Action.TRIM:
        log.notes.append(f"row {row.label}: {data.path}: {row.action.value}")
        data.truncate(wanted_bytes)
    return edges


def _open_read_whole(
    segment: Segment, next_position: Position, log: OpenedLog, length: Length
) -> SealedEdges:
    """Open a finished segment whose edges do not fit: read its whole index, and its data where that is not sealed."""
    data, index = segment.data, segment.index
    assert data is not None, f"the segment from {segment.first_position} on is not open"
    assert index is not None, f"the segment from {segment.first_position} on has no open index"
    index_bytes = index.read_at(0, index.size())
    wanted_bytes = next_position - segment.first_position
    after = log.index.end()
    scan: EntryScan | None = None
    units, problem_at = Units.AGREE, min(data.size(), wanted_bytes)
    columns = _sealed_columns(index_bytes, segment, next_position)
    if columns is not None:
        first, last = columns.unit(0), columns.unit(-1)
        follows = continues(data, first, after) and all(
            holds(data, segment.first_position, unit) for unit in (first, last)
        )
        entries = Entries.NOT_SCANNED if follows else Entries.FIRST_DIFFERS
        problem_at = 0 if entries is Entries.FIRST_DIFFERS else problem_at
    else:
        scan = scan_data(data, after, min(wanted_bytes, data.size()))
        columns = scan.columns
        findings = compare_index(index_bytes, columns, scan.last_term)
        units = findings.units
        is_whole = columns.end_position == next_position
        entries = Entries.WHOLE if is_whole else Entries.BROKEN
        if length is not Length.SHORT:
            problem_at = columns.end_position - segment.first_position
        if is_whole and units is Units.FOREIGN:
            problem_at = columns.positions[findings.problem_place] - segment.first_position
    row = decide(EARLIER_SEGMENT, length, entries, units)
    if row.action is Action.REFUSE:
        detail = f"; {scan.problem}" if scan is not None and scan.problem else ""
        raise CorruptionError(
            data.path, problem_at, f"{row.problem}{detail} (recovery row {row.label})"
        )
    segment.unit_count = len(columns)
    if row.action is Action.REBUILD_AND_SEAL:
        log.notes.append(f"row {row.label}: {data.path}: {row.action.value}")
        _rewrite(data, first_offset=0, end_offset=wanted_bytes)
        _write_index(segment, columns)
        segment.seal(next_position, Term(columns.terms[-1]))
    elif row.action is Action.TRIM:
        log.notes.append(f"row {row.label}: {data.path}: {row.action.value}")
        data.truncate(wanted_bytes)
    last = columns.unit(-1)
    return SealedEdges(
        ChainEnd(last.index, last.term, next_position, last.chain_crc), runs_of(columns)
    )


def _compare_length(*, found_bytes: int, wanted_bytes: int) -> Length:
    if found_bytes < wanted_bytes:
        return Length.SHORT
    return Length.EXACT if found_bytes == wanted_bytes else Length.LONG


def _sealed_columns(
    index_bytes: bytes, segment: Segment, end_position: Position | None
) -> EntryColumns | None:
    """Return the index's entries if it is sealed and right; None when the data has to be scanned."""
    try:
        columns = decode_sealed(
            index_bytes, first_index=segment.first_index, first_position=segment.first_position
        )
    except IndexFormatError:
        return None
    if end_position is not None and columns.end_position != end_position:
        return None
    return columns


def _open_last(disk: Disk, segment: Segment, log: OpenedLog) -> EntryColumns:
    """Open the segment that is written to: it is read whole, and a torn tail is cut."""
    data, index = segment.open_data(disk), segment.open_index(disk)
    index_bytes = index.read_at(0, index.size())
    # What a killed process left of the index may be in memory only. A power cut would take the proofs of
    # all its entries away, and damage in one of them, now or later, would pass for a torn tail.
    _rewrite(index, first_offset=0, end_offset=len(index_bytes))
    scan = scan_data(data, log.index.end())
    columns = scan.columns
    findings = compare_index(index_bytes, columns, scan.last_term)
    is_sealed = _sealed_columns(index_bytes, segment, None) is not None
    tail = classify_tail(data, scan)
    row = decide(
        LAST_SEGMENT,
        Seal.SEALED if is_sealed else Seal.OPEN,
        tail,
        findings.beyond,
        findings.units,
    )
    end = columns.end_position - segment.first_position
    if row.action is Action.REFUSE:
        at = end
        if not is_sealed and findings.units is Units.FOREIGN:
            at = columns.positions[findings.problem_place] - segment.first_position
        detail = f"; {scan.problem}" if scan.problem and tail is not Tail.CLEAN else ""
        raise CorruptionError(data.path, at, f"{row.problem}{detail} (recovery row {row.label})")
    if row.action is not Action.KEEP:
        log.notes.append(
            f"row {row.label}: {data.path}, byte {end} of {data.size()}: {row.action.value}"
        )
    # Whatever the row: beyond the end nothing stays, not even zeros that an earlier failed sync may
    # have left in memory only. The first write reserves room again.
    data.truncate(end)
    proven_end = _place(columns, findings.proven_count) - segment.first_position
    _rewrite(data, first_offset=proven_end, end_offset=end)
    segment.data_reserved_bytes = end
    if row.action in {Action.REBUILD_INDEX, Action.CUT_AND_REBUILD}:
        _write_index(segment, columns)
    else:
        segment.unit_count = len(columns)
        segment.units_crc = crc32c(index_bytes[: len(columns) * INDEX_UNIT_BYTES])
    return columns


def _place(columns: EntryColumns, place: int) -> Position:
    return columns.unit(place).position if place < len(columns) else columns.end_position


def _rewrite(file: File, *, first_offset: int, end_offset: int) -> None:
    """Make bytes of a file durable that only the page cache may have.

    After a failed sync the kernel may take pages for written that never reached the disk, and a
    second sync would do nothing for them (ATC 2020, "Can applications recover from fsync
    failures?"). Writing the bytes again makes the pages dirty again. Entries whose index unit is
    there are known to have been synced and need it not.
    """
    for offset in range(first_offset, end_offset, _REWRITE_BYTES):
        part = file.read_at(offset, min(_REWRITE_BYTES, end_offset - offset))
        file.write_at(offset, (part,))
    file.sync()


def _write_index(segment: Segment, columns: EntryColumns) -> None:
    """Write the whole index of a segment from its entries, which are durable; so it is on return.

    In place: the units that are right stay proofs, also when the disk is full or fails meanwhile.
    """
    index = segment.index
    assert index is not None, f"the segment from {segment.first_position} on has no index to write"
    segment.unit_count = 0
    segment.units_crc = 0
    segment.write_units(encode_columns(columns))
    index.truncate(len(columns) * INDEX_UNIT_BYTES)
    index.sync()
    segment.index_reserved_bytes = index.size()
