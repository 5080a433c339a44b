"""The write queue of a log: pending entries, gathered into batches, and the durable index.

The order of the steps within a batch is `write_batch`'s; here is decided which entries a batch gets and
what it has to cut or to begin. Nothing here does I/O but `flush_index`, at an orderly end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dledger.codec.entry import index_unit_of
from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.codec.log_start import LogStart
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, Index
from dledger.storage.api import Disk
from dledger.storage.log_index import LogIndex
from dledger.storage.log_start import Renewal
from dledger.storage.scan import ChainEnd
from dledger.storage.segment import Segment, StorePaths
from dledger.storage.segment_list import SegmentList
from dledger.storage.stale_pages import StalePages
from dledger.storage.write_batch import (
    WRITE_BATCH_BYTES_MAX,
    Cut,
    FailureLatch,
    Roll,
    WriteBatch,
)


class LogWriter:
    """The entries that wait for the disk, and the batch that is out. It shares row and index with the log.

    Invariants: entries up to `_handed_index` were given to a batch, those after it wait in `_pending`;
    `_unit_index <= durable_index <= _handed_index`.

    Attributes:
        durable_index: everything up to this entry survives a crash. To be read only.
        has_writes: `take` would give a batch once the present one is done. To be read only.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        row: SegmentList,
        index: LogIndex,
        *,
        segment_size_bytes: int,
        stale: StalePages,
        syncs: bool,
    ) -> None:
        """Start from an opened log, whose entries are all durable.

        Args:
            disk: where the files are.
            paths: of the log.
            row: the segments.
            index: the entries.
            segment_size_bytes: a segment is finished before it would exceed this.
            stale: knows what is to be given up of the page cache as the log grows.
            syncs: False: entries count as durable once they are written (LogConfig.fsync).
        """
        self.durable_index = index.layout.last_index
        self.latch = FailureLatch()
        self._disk = disk
        self._paths = paths
        self._row = row
        self._index = index
        self._segment_size_bytes = segment_size_bytes
        self._stale = stale
        self._syncs = syncs
        self._pending: deque[Entry] = deque()
        self._cut_index: Index | None = None
        self._renewal: Renewal | None = None
        self._handed_index = self._unit_index = self.durable_index
        self._batch: WriteBatch | None = None
        # An attribute, since the engine asks several times in each of its steps.
        self.has_writes = False

    def add(self, entries: Sequence[Entry]) -> None:
        """Queue entries, which are the last ones in the index already, for writing."""
        if entries:
            waiting_from = self._pending[0].index if self._pending else entries[0].index
            assert waiting_from == self._handed_index + 1, (
                f"entry {waiting_from} waits, entries up to {self._handed_index} were taken"
            )
            self._pending.extend(entries)
            self.has_writes = True

    def truncate_from(self, first: Index) -> None:
        """Forget `first` and everything after it; what is on disk of it is cut with the next batch.

        To be called before the index forgets them.
        """
        while self._pending and self._pending[-1].index >= first:
            self._pending.pop()
        if first <= self._handed_index:
            self._cut_index = first if self._cut_index is None else min(first, self._cut_index)
            self._handed_index = Index(first - 1)
        is_renewed = self._renewal is not None
        self.has_writes = bool(self._pending) or is_renewed or self._cut_index is not None
        self.durable_index = min(self.durable_index, Index(first - 1))
        self._unit_index = min(self._unit_index, Index(first - 1))
        self._check()

    def begin_after(self, before: ChainEnd) -> None:
        """Drop all entries and segments; the next entry follows one that is not kept.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        self.latch.check()
        assert self._batch is None, "a batch is out"
        start = LogStart(before.index, before.term, before.position, before.chain_crc, is_anew=True)
        self._renewal = Renewal(self._paths, start)
        self._row.take_all()
        self._stale.begin(before.position)
        self._pending.clear()
        self._cut_index = None
        self._handed_index = before.index
        self.durable_index = self._unit_index = NO_INDEX
        self.has_writes = True
        self._check()

    def _check(self) -> None:
        assert self._unit_index <= self.durable_index <= self._handed_index, (
            f"index units to {self._unit_index}, durable to {self.durable_index}, "
            f"taken to {self._handed_index}"
        )

    def take(self) -> WriteBatch | None:
        """Return the next writes to carry out, as `SegmentedLog.take_writes` does.

        Raises:
            DiskFailedError: the log takes no more writes.
        """
        self.latch.check()
        assert self._batch is None, "a batch is out already"
        if not self.has_writes:
            return None
        batch = WriteBatch(self._disk, self.latch, self._handed_index, syncs=self._syncs)
        batch.renewal, self._renewal = self._renewal, None
        if self._cut_index is not None:
            batch.cut = self._plan_cut(self._cut_index)
            self._cut_index = None
        if self._pending:
            self._plan_entries(batch)
        self.has_writes = bool(self._pending)
        self._batch = batch
        return batch

    def written(self, batch: WriteBatch) -> Segment | None:
        """Note that the batch that is out has run; what was truncated meanwhile does not count.

        Returns:
            The segment that it finished; None if there is none, or it loses entries with the next batch.
        """
        assert batch is self._batch, "this batch is not out"
        assert batch.is_done, "the batch has not run"
        self._batch = None
        if batch.finished is not None:
            self._row.note_finished(batch.finished)
        durable_index = min(batch.last_index, self._handed_index)
        assert durable_index >= self.durable_index, f"{durable_index} after {self.durable_index}"
        self.durable_index = durable_index
        # A log that was begun anew has no units to lack before its first entry.
        first_unit = Index(self._index.layout.first_index - 1)
        self._unit_index = durable_index if batch.units else max(self._unit_index, first_unit)
        if batch.finished is None or batch.segment is None:
            return None
        is_cut = self._cut_index is not None and self._cut_index < batch.segment.first_index
        return None if is_cut else batch.finished

    def flush_index(self) -> None:
        """Make data and index durable, as `SegmentedLog.flush_index` does.

        Raises:
            DiskFullError, DiskFailedError: as there.
        """
        self.latch.check()
        assert self._batch is None, "a batch is out"
        segment = self._row.last
        if segment is None:
            return
        try:
            data, index = segment.open_data(self._disk), segment.open_index(self._disk)
            data.sync()
            units = self._units_lacking(self.durable_index)
            if units:
                segment.reserve(unit_count=len(units) // INDEX_UNIT_BYTES)
                segment.write_units(units)
                self._unit_index = self.durable_index
            index.sync()
        except OSError as error:
            raise self.latch.fail(error) from error

    # Planning.

    def _plan_cut(self, first: Index) -> Cut:
        """Plan the removal of entries: segments leave the row at once, their files with the batch."""
        position = self._index.layout.position_of(first)
        segment, removed = self._row.cut(position)
        try:
            # Here and not in the batch: the owner may open the same file to read meanwhile.
            self._row.open_data(segment, to_write=True)
        except OSError as error:
            raise self.latch.fail(error) from error
        return Cut(
            segment=segment,
            keep_bytes=position - segment.first_position,
            kept_units=self._index.encode_units(segment.first_index, first),
            removed=removed,
        )

    def _plan_entries(self, batch: WriteBatch) -> None:
        """Add as many pending entries to the batch as fit its size bound and one segment."""
        first = self._pending[0]
        segment = self._row.last
        if segment is None or self._needs_roll(segment, first):
            batch.roll = self._plan_roll(segment, first)
            batch.finished = batch.roll.finished
            segment = batch.roll.segment
        position, end_position, pending = first.position, first.end_position, self._pending
        limit = max(segment.first_position + self._segment_size_bytes, end_position)
        limit = min(limit, max(position + WRITE_BATCH_BYTES_MAX, end_position))
        parts: list[bytes] = []
        units: list[bytes] = []
        last = first
        while pending and (end := pending[0].end_position) <= limit:
            last, end_position = pending.popleft(), end
            parts += (last.header, last.body)
            units.append(index_unit_of(last.header))
        self._handed_index = last.index
        assert parts, f"entry {first.id} does not fit the segment that was made for it"
        batch.last_index = last.index
        batch.entry_count = last.index - first.index + 1
        batch.size_bytes = end_position - position
        batch.segment = segment
        batch.position = position
        batch.parts = parts
        batch.data_bytes = max(self._segment_size_bytes, end_position - segment.first_position)
        batch.stale = self._stale.take(self._row, end_position)
        if self._syncs:
            batch.units = b"".join(units)

    def _needs_roll(self, segment: Segment, first: Entry) -> bool:
        if first.position == segment.first_position:
            return False
        return first.end_position - segment.first_position > self._segment_size_bytes

    def _plan_roll(self, finished: Segment | None, first: Entry) -> Roll:
        """Plan a new segment: it joins the row at once, but its files are made only when the batch runs."""
        segment = Segment(self._paths, first.position, first.index)
        last_term = self._index.layout.term_of(Index(first.index - 1))
        assert last_term is not None, f"entry {first.index} has none before it"
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
        """Return the units that were withheld because their entries were not synced; empty with syncs."""
        if self._unit_index >= last:
            return b""
        return self._index.encode_units(Index(self._unit_index + 1), Index(last + 1))
