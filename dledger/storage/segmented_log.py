"""The log on disk: a row of segments, the log's layout in memory, and writes gathered into batches.

The owner (one task) calls everything but `WriteBatch.run`, which may run in another thread while
the owner goes on appending and reading:

    log.append(entries)            readable at once, not yet durable
    batch = log.take_writes()      at most one batch is out at a time
    batch.run()                    I/O only, anywhere
    log.written(batch)             now durable; ask take_writes() again until it answers None

An entry that is not durable stays in memory, so reads never meet a half-written place.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dledger.codec.entry import (
    EntryFormatError,
    chain_crc,
    check_entry,
    decode_known,
    index_unit_of,
    seal,
)
from dledger.codec.index_unit import INDEX_UNIT_BYTES, EntryColumns, encode_columns
from dledger.errors import (
    CompactedError,
    CorruptionError,
    OutOfRangeError,
    PeerProtocolError,
    UsageError,
)
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, Position
from dledger.raft.log_layout import LogLayout
from dledger.storage.api import Disk
from dledger.storage.entry_cache import EntryCache
from dledger.storage.opening import OpenedLog, open_log
from dledger.storage.segment import Segment, StorePaths
from dledger.storage.segment_row import SegmentRow
from dledger.storage.write_batch import (
    WRITE_BATCH_BYTES_MAX,
    Cut,
    FailureLatch,
    Roll,
    WriteBatch,
)

SEGMENT_SIZE_BYTES = 256 * 1024 * 1024
CACHE_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES_MAX = 4 * 1024 * 1024
"""Bytes read from disk at once (one entry may exceed it)."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Some durable entries, to be read and verified in any thread.

    Attributes:
        end_index: one behind the last of them.
    """

    disk: Disk
    path: str
    offset: int
    size_bytes: int
    chain_crcs: array[int]
    prev_chain_crc: int
    end_index: Index

    def is_whole(self) -> bool:
        """Whether the disk gives them as they were written. False also if they were removed meanwhile."""
        try:
            file = self.disk.open(self.path)
            try:
                data = file.read_at(self.offset, self.size_bytes)
            finally:
                file.close()
            decode_known(data, self.chain_crcs, self.prev_chain_crc)
        except (OSError, EntryFormatError):
            return False
        return True


class SegmentedLog:
    """See the module.

    Invariants: `_layout`, `_chain_crcs` and the cache's end agree; entries up to `_handed_index` were
    given to a batch, those behind wait in `_pending`; `_durable_index <= _handed_index`.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        opened: OpenedLog,
        *,
        segment_size_bytes: int,
        cache_bytes_max: int,
        syncs: bool,
    ) -> None:
        """Use `SegmentedLog.open`."""
        self._disk = disk
        self._paths = paths
        self._segment_size_bytes = segment_size_bytes
        self._syncs = syncs
        self._row = SegmentRow(disk, opened.segments)
        self._layout = opened.layout
        self._chain_crcs = opened.chain_crcs
        self._cache = EntryCache(cache_bytes_max)
        self._latch = FailureLatch()
        self._pending: deque[Entry] = deque()
        self._cut_index: Index | None = None
        self._handed_index = self._durable_index = opened.layout.last_index
        self._unit_index = opened.layout.last_index
        self._batch: WriteBatch | None = None
        self.recovery_notes: tuple[str, ...] = tuple(opened.notes)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str = "",
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        syncs: bool = True,
    ) -> SegmentedLog:
        """Open or create the log in a folder of the disk.

        Args:
            disk: where the files are.
            folder: the log's own folder; `data/` and `index/` are made in it.
            segment_size_bytes: a segment is finished before it would exceed this.
            cache_bytes_max: recent entries kept in memory, besides those not yet durable.
            syncs: False: entries count as durable once they are written (LogConfig.fsync).

        Raises:
            CorruptionError: durable bytes were lost or changed; names file and byte.
            OSError: the disk failed.
        """
        if segment_size_bytes < 1:
            raise UsageError(f"segment_size_bytes={segment_size_bytes} must be at least 1")
        paths = StorePaths(folder)
        return cls(
            disk,
            paths,
            open_log(disk, paths),
            segment_size_bytes=segment_size_bytes,
            cache_bytes_max=cache_bytes_max,
            syncs=syncs,
        )

    @property
    def layout(self) -> LogLayout:
        """The entries without their bodies. The log's own: copy it to keep it."""
        return self._layout

    @property
    def last_id(self) -> EntryId:
        """Term and index of the last entry, durable or not."""
        return self._layout.last_id

    @property
    def end_position(self) -> Position:
        """Where the next entry's header will stand."""
        return self._layout.end_position

    @property
    def durable_index(self) -> Index:
        """Everything up to this entry survives a crash."""
        return self._durable_index

    @property
    def durable_id(self) -> EntryId:
        """Term and index of the last durable entry."""
        term = self._layout.term_of(self._durable_index)
        assert term is not None, "the durable entry left the log"
        return EntryId(term, self._durable_index)

    @property
    def has_writes(self) -> bool:
        """Whether `take_writes` would give a batch once the present one is done."""
        return bool(self._pending) or self._cut_index is not None

    @property
    def failure(self) -> str | None:
        """Why the log takes no more writes; None while it is well."""
        return self._latch.reason

    def append(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Put entries behind the end, sealing those without a header; all or none.

        Args:
            entries: contiguous from last_index + 1 and `end_position`. A leader's new entries have
                no header yet; entries that came from a leader have one, which is verified against
                this log's own chain.

        Returns:
            The entries as stored.

        Raises:
            PeerProtocolError: a sealed entry does not follow this log; nothing was appended.
            UsageError: an unsealed entry does not follow this log; nothing was appended.
            DiskFailedError: the log takes no more writes.
        """
        self._latch.check()
        chain = self._chain_before(Index(self._layout.last_index + 1))
        index, position = self._layout.last_index + 1, self._layout.end_position
        term = self._layout.last_term
        sealed: list[Entry] = []
        for entry in entries:
            if entry.index != index or entry.position != position or entry.term < term:
                kind = PeerProtocolError if entry.header else UsageError
                raise kind(
                    f"entry {entry.id} at position {entry.position} does not follow entry "
                    f"{index - 1}@{term}, which ends at {position}"
                )
            stored = entry if entry.header else seal(entry, chain)
            if entry.header:
                _check_from_peer(entry, chain)
            chain = chain_crc(stored)
            sealed.append(stored)
            index, position, term = index + 1, stored.end_position, stored.term
        for stored in sealed:
            self._layout.append(stored.term, stored.size_bytes)
            self._chain_crcs.append(chain_crc(stored))
            self._cache.add(stored)
        self._pending.extend(sealed)
        self._cache.shrink(self._durable_index)
        return tuple(sealed)

    def truncate_from(self, first: Index) -> None:
        """Remove `first` and everything behind it; on disk with the next batch.

        Raises:
            OutOfRangeError: there is no such entry.
            DiskFailedError: the log takes no more writes.
        """
        self._latch.check()
        self._check_has(first)
        while self._pending and self._pending[-1].index >= first:
            self._pending.pop()
        if first <= self._handed_index:
            self._cut_index = first if self._cut_index is None else min(first, self._cut_index)
            self._handed_index = Index(first - 1)
        self._durable_index = min(self._durable_index, Index(first - 1))
        self._unit_index = min(self._unit_index, Index(first - 1))
        self._layout.truncate_from(first)
        del self._chain_crcs[first - self._layout.first_index :]
        assert len(self._chain_crcs) == self._layout.last_index + 1 - self._layout.first_index
        self._cache.truncate_from(first)

    def entries(self, first: Index, end: Index, bytes_max: int | None = None) -> list[Entry]:
        """The entries first..end-1, from memory or, with every checksum verified, from disk.

        Args:
            first: first entry.
            end: one behind the last entry.
            bytes_max: fewer entries when these would have more bytes, headers included; at least one.

        Raises:
            OutOfRangeError, CompactedError: not all of them are in the log.
            CorruptionError: the disk gave other bytes than were written.
            OSError: the disk failed.
        """
        if first >= end:
            return []
        self._check_has(first)
        self._check_has(Index(end - 1))
        if bytes_max is not None:
            end = self._layout.end_within(first, bytes_max=bytes_max, count_max=end - first)
        found: list[Entry] = []
        index = first
        while index < end:
            entry = self._cache.get(index)
            if entry is not None:
                found.append(entry)
                index = Index(index + 1)
                continue
            stop = min(end, self._cache.first_index) if len(self._cache) else end
            found.extend(self._read(index, Index(stop)))
            index = Index(found[-1].index + 1)
        return found

    def entry_at(self, position: Position) -> Entry:
        """The entry whose header or body covers a byte of the log.

        Raises:
            OutOfRangeError: the log ends before.
            CompactedError: the log starts behind.
            CorruptionError, OSError: as `entries`.
        """
        index = self._layout.index_at(position)
        if index is None:
            if position < self._layout.first_position:
                raise CompactedError(self._layout.first_index - 1, self._layout.first_index)
            raise OutOfRangeError(
                self._layout.last_index + 1, self._layout.first_index, self._layout.last_index
            )
        return self.entries(index, Index(index + 1))[0]

    def damaged(self, first: Index, end: Index) -> list[Index]:
        """Which of the durable entries first..end-1 the disk does not give as they were written."""
        found: list[Index] = []
        index = Index(max(first, self._layout.first_index))
        end = Index(min(end, self._durable_index + 1))
        while index < end:
            try:
                index = Index(self._read(index, end)[-1].index + 1)
            except (CorruptionError, OSError):
                if not self._is_whole_on_disk(index):
                    found.append(index)
                    index = Index(index + 1)
                    continue
                # The damage lies further behind: entry by entry until there.
                while index < end and self._is_whole_on_disk(index):
                    index = Index(index + 1)
        return found

    def plan_check(self, first: Index, bytes_max: int) -> CheckPlan:
        """The reading of durable entries from `first` on, at least one, within one segment."""
        layout = self._layout
        end = layout.end_within(
            first, bytes_max=bytes_max, count_max=self._durable_index - first + 1
        )
        position = layout.position_of(first)
        segment, end_index = self._row.find(position)
        end = end if end_index is None else min(end, Index(end_index))
        start = first - layout.first_index
        return CheckPlan(
            self._disk,
            self._paths.data_path(segment.first_position),
            position - segment.first_position,
            layout.position_of(end) - position,
            self._chain_crcs[start : start + end - first],
            self._chain_before(first),
            end,
        )

    def _is_whole_on_disk(self, index: Index) -> bool:
        try:
            self._read(index, Index(index + 1))
        except (CorruptionError, OSError):
            return False
        return True

    def cached(self, index: Index) -> Entry | None:
        """The entry, if it is in memory."""
        return self._cache.get(index)

    def chain_crc_before(self, index: Index) -> int:
        """Chain CRC of the entry before a kept one; 0 before the first."""
        self._check_has(index)
        return self._chain_before(index)

    def mend(self, entry: Entry) -> None:
        """Write a durable entry back to where it stands, and sync; its place is verified again.

        Raises:
            PeerProtocolError: it is not the entry that this log has.
            CorruptionError: the disk took it, and does not give it: as damaged as before.
            DiskFailedError: the write or the sync failed.
        """
        self._latch.check()
        self._check_has(entry.index)
        _check_from_peer(entry, self._chain_before(entry.index))
        if chain_crc(entry) != self.chain_crc_of(entry.index):
            raise PeerProtocolError(f"entry {entry.id} is not the one that this log has")
        segment, _ = self._row.find(entry.position)
        try:
            data = self._row.open_data(segment)
            data.write_at(entry.position - segment.first_position, (entry.header, entry.body))
            data.sync()
        except OSError as error:
            raise self._latch.fail(error) from error
        try:
            self._read(entry.index, Index(entry.index + 1))
        except OSError as error:
            path = self._paths.data_path(segment.first_position)
            byte = entry.position - segment.first_position
            raise CorruptionError(
                path, byte, f"unreadable after it was written: {error}"
            ) from error

    def chain_crc_of(self, index: Index) -> int:
        """Chain CRC of a kept entry: it identifies the log up to there."""
        self._check_has(index)
        return self._chain_crcs[index - self._layout.first_index]

    def take_writes(self) -> WriteBatch | None:
        """The next writes to carry out; None when there are none.

        A batch stays within one segment and `WRITE_BATCH_BYTES_MAX`, so there may be more to take
        after it. The batch before must have been reported with `written`. After DiskFullError the
        same batch may be run again.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        self._latch.check()
        assert self._batch is None, "a batch is out already"
        if not self.has_writes:
            return None
        batch = WriteBatch(self._disk, self._latch, self._handed_index, syncs=self._syncs)
        if self._cut_index is not None:
            batch.cut = self._plan_cut(self._cut_index)
            self._cut_index = None
        if self._pending:
            self._plan_entries(batch)
        self._batch = batch
        return batch

    def written(self, batch: WriteBatch) -> EntryId:
        """Note that a batch has run; returns the last durable entry.

        Entries of the batch that were truncated meanwhile do not count.
        """
        assert batch is self._batch, "this batch is not out"
        assert batch.is_done, "the batch has not run"
        self._batch = None
        if batch.finished is not None:
            self._row.note_finished(batch.finished)
        durable_index = min(batch.last_index, self._handed_index)
        assert durable_index >= self._durable_index, f"{durable_index} after {self._durable_index}"
        self._durable_index = durable_index
        if batch.units:
            self._unit_index = self._durable_index
        self._cache.shrink(self._durable_index)
        return self.durable_id

    def flush_index(self) -> None:
        """At an orderly end: make data and index durable. No batch may be out.

        Raises:
            DiskFullError: no room for the index; it is made again from the data on opening.
            DiskFailedError: it failed, now or earlier.
        """
        self._latch.check()
        assert self._batch is None, "a batch is out"
        segment = self._row.last
        if segment is None:
            return
        try:
            data, index = segment.open_data(self._disk), segment.open_index(self._disk)
            data.sync()
            units = self._units_lacking(self._durable_index)
            if units:
                segment.reserve(0, len(units) // INDEX_UNIT_BYTES)
                segment.write_units(units)
                self._unit_index = self._durable_index
            index.sync()
        except OSError as error:
            raise self._latch.fail(error) from error

    def close(self) -> None:
        """Close all files. What was not written by a batch is lost, as nobody was told of it."""
        self._row.close()

    # --- planning of writes -------------------------------------------------------------------

    def _plan_cut(self, first: Index) -> Cut:
        """The segments behind the cut leave the row at once, their files with the batch."""
        position = self._layout.position_of(first)
        segment, removed = self._row.cut(position)
        try:
            # Here and not in the batch: the owner may open the same file to read meanwhile.
            self._row.open_data(segment)
        except OSError as error:
            raise self._latch.fail(error) from error
        return Cut(
            segment=segment,
            keep_bytes=position - segment.first_position,
            kept_units=self._encode_units(Index(segment.first_index), Index(first - 1)),
            removed=removed,
        )

    def _plan_entries(self, batch: WriteBatch) -> None:
        """Put into the batch what fits its bound and one segment."""
        first = self._pending[0]
        segment = self._row.last
        if segment is None or self._needs_roll(segment, first):
            batch.roll = self._plan_roll(segment, first)
            batch.finished = batch.roll.finished
            segment = batch.roll.segment
        limit = max(segment.first_position + self._segment_size_bytes, first.end_position)
        limit = min(limit, max(first.position + WRITE_BATCH_BYTES_MAX, first.end_position))
        parts: list[bytes] = []
        units: list[bytes] = []
        last = first
        while self._pending and self._pending[0].end_position <= limit:
            last = self._pending.popleft()
            parts += (last.header, last.body)
            units.append(index_unit_of(last))
        self._handed_index = last.index
        assert parts, f"entry {first.id} does not fit the segment that was made for it"
        batch.last_index = last.index
        batch.entry_count = last.index - first.index + 1
        batch.size_bytes = last.end_position - first.position
        batch.segment = segment
        batch.position = first.position
        batch.parts = parts
        batch.data_bytes = max(self._segment_size_bytes, last.end_position - segment.first_position)
        if self._syncs:
            batch.units = b"".join(units)

    def _needs_roll(self, segment: Segment, first: Entry) -> bool:
        if first.position == segment.first_position:
            return False
        return first.end_position - segment.first_position > self._segment_size_bytes

    def _plan_roll(self, finished: Segment | None, first: Entry) -> Roll:
        segment = Segment(self._paths, first.position, first.index)
        last_term = self._layout.term_of(Index(first.index - 1))
        assert last_term is not None
        lacking = b"" if finished is None else self._units_lacking(Index(first.index - 1))
        self._row.add(segment)
        if lacking:
            self._unit_index = Index(first.index - 1)
        return Roll(
            segment=segment,
            data_bytes=max(self._segment_size_bytes, first.size_bytes),
            finished=finished,
            finished_units=lacking,
            end_position=first.position,
            last_term=last_term,
        )

    def _units_lacking(self, last: Index) -> bytes:
        """Units that were withheld because their entries were not synced; empty with syncs."""
        if self._unit_index >= last:
            return b""
        return self._encode_units(Index(self._unit_index + 1), last)

    def _encode_units(self, first: Index, last: Index) -> bytes:
        """Units of the entries first..last."""
        layout = self._layout
        terms, positions, sizes = layout.columns(first, Index(last + 1))
        start = first - layout.first_index
        chain_crcs = self._chain_crcs[start : start + len(positions)]
        return encode_columns(
            EntryColumns(first, layout.position_of(first), terms, positions, sizes, chain_crcs)
        )

    # --- reading ------------------------------------------------------------------------------

    def _check_has(self, index: Index) -> None:
        layout = self._layout
        if not layout.has(index):
            if index < layout.first_index:
                raise CompactedError(index, layout.first_index)
            raise OutOfRangeError(index, layout.first_index, layout.last_index)

    def _chain_before(self, index: Index) -> int:
        """Chain CRC of the entry before; 0 before the first."""
        place = index - self._layout.first_index
        return self._chain_crcs[place - 1] if place else 0

    def _read(self, first: Index, end: Index) -> list[Entry]:
        """Entries from disk: as many of first..end-1 as one read of one segment gives, at least one."""
        layout = self._layout
        position = layout.position_of(first)
        segment, end_index = self._row.find(position)
        end = layout.end_within(first, bytes_max=READ_BYTES_MAX, count_max=end - first)
        if end_index is not None:
            end = min(end, Index(end_index))
        data = self._row.open_data(segment)
        base = position - segment.first_position
        read = data.read_at(base, layout.position_of(end) - position)
        start = first - layout.first_index
        known = self._chain_crcs[start : start + end - first]
        try:
            return decode_known(read, known, self._chain_before(first))
        except EntryFormatError as error:
            raise CorruptionError(data.path, base + error.byte_offset, error.problem) from error


def _check_from_peer(entry: Entry, prev_chain_crc: int) -> None:
    try:
        check_entry(entry, prev_chain_crc)
    except EntryFormatError as error:
        raise PeerProtocolError(
            f"entry {entry.id} from a peer does not fit this log: {error}"
        ) from error
