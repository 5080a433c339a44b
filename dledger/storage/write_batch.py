"""One batch of a log's writes, which may be run on another thread.

A batch owns everything that it touches: bytes, file handles, the writer's fields of its segments.
It shares nothing with `SegmentedLog.append` and `.entries`, which may go on meanwhile. The order of
its steps is what recovery relies on (docs/formats/segment.md):

0. renewal: a log that is begun anew gets its new start, and loses all files.
1. cut: the index units of removed entries, then later data files from the last one, then the data.
2. roll: the next segment is made durable, then the old one is sealed.
3. room is reserved; only from here on is anything written that was not there before.
4. entries are written and synced, then their index units are written, and synced now and then.
5. the page cache is told what it need not keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.errors import DiskFailedError
from dledger.raft.ids import Index, Position, Term
from dledger.storage.api import Disk
from dledger.storage.log_start import Renewal
from dledger.storage.segment import Segment, mark_begun
from dledger.storage.stale_pages import StaleRange

WRITE_BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of a batch; a larger entry is a batch of its own. Part of the format: a torn batch may
leave whole entries after a broken one, but never further away than this."""

UNIT_WRITES_UNSYNCED_MAX = 256
"""The index is synced after so many batches: a power cut takes no more of its units away. A sync for each
would double the time of a send for the sake of a case that needs a power cut and damage on one node."""


class FailureLatch:
    """Remembers the first failed write or sync of a log: after it nothing may be written again.

    A failed sync leaves pages that the kernel takes for clean; a second sync would prove nothing.
    """

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def check(self) -> None:
        """Refuse to go on after a failure.

        Raises:
            DiskFailedError: an earlier write or sync failed.
        """
        if self.reason is not None:
            raise DiskFailedError(self.reason)

    def fail(self, error: OSError | DiskFailedError) -> DiskFailedError:
        """Latch a failure and return the error to raise."""
        if self.reason is None:
            self.reason = f"the disk failed, the node must be restarted: {error}"
        return DiskFailedError(self.reason)


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove everything from a byte of a segment on.

    Attributes:
        segment: where the first removed entry stands.
        keep_bytes: bytes of its data file that stay.
        kept_units: the units of its index that stay, as they ought to be.
        removed: the segments after it, from the last one.
    """

    segment: Segment
    keep_bytes: int
    kept_units: bytes
    removed: tuple[Segment, ...]

    def run(self, disk: Disk) -> None:
        """Carry it out, durably, in an order in which every crash leaves a legal log.

        The indexes come first, all of them: a unit without its entry, or a seal without a
        successor, would be taken for corruption. Then the data goes, from the end, so that the row
        has no gap. A crash in between brings the old tail back, which is a log that this member
        may have.
        """
        assert all(each.first_position > self.segment.first_position for each in self.removed), (
            f"segments before the cut in {self.segment.first_position} would be removed"
        )
        self.segment.cut_index(disk, self.kept_units)
        for segment in self.removed:
            segment.remove_index(disk)
        for segment in self.removed:
            segment.remove_data(disk)
        self.segment.cut_data(disk, self.keep_bytes)


@dataclass(frozen=True, slots=True)
class Roll:
    """Start a new segment.

    Attributes:
        segment: the new one.
        data_bytes: room to reserve in it.
        finished: the one before; None for a log's first segment.
        finished_units: units that the finished one still lacks (only without syncs).
        end_position: where the finished one ends.
        last_term: term of its last entry.
    """

    segment: Segment
    data_bytes: int
    finished: Segment | None
    finished_units: bytes
    end_position: Position
    last_term: Term

    def run(self, disk: Disk) -> None:
        """Carry it out.

        Raises:
            DiskFullError: there is no room; nothing has changed.
        """
        assert self.finished is None or self.end_position == self.segment.first_position, (
            f"a segment at {self.segment.first_position} after an end at {self.end_position}"
        )
        if self.finished is not None:
            if self.finished_units:
                self.finished.sync_data()
            # For these units and for the seal.
            self.finished.reserve(unit_count=len(self.finished_units) // INDEX_UNIT_BYTES)
        self.segment.create(disk, self.data_bytes)
        if self.finished is None:
            mark_begun(disk, self.segment.paths)
        else:
            if self.finished_units:
                self.finished.write_units(self.finished_units)
            self.finished.seal(self.end_position, self.last_term)


@dataclass(slots=True)
class WriteBatch:
    """One batch of writes: a renewal, a cut, a new segment, entries; any of them may be missing.

    Attributes:
        last_index: the last entry that is durable once the batch has run.
        entry_count, size_bytes: what it writes.
        renewal, cut, roll: None when there is nothing to do, or it is done.
        finished: the segment that the roll finishes.
        segment: where the entries go; None when there are none.
        data_bytes: size up to which the segment's data file is reserved.
        position: of the first entry.
        parts: headers and bodies.
        units: their index units; empty without syncs.
        stale: what stands far before these entries.
        syncs: whether the entries are synced (LogConfig.fsync).
    """

    disk: Disk
    latch: FailureLatch
    last_index: Index
    entry_count: int = 0
    size_bytes: int = 0
    renewal: Renewal | None = None
    cut: Cut | None = None
    roll: Roll | None = None
    finished: Segment | None = None
    segment: Segment | None = None
    data_bytes: int = 0
    position: Position = Position(0)
    parts: list[bytes] | None = None
    units: bytes = b""
    stale: Sequence[StaleRange] = ()
    syncs: bool = True
    is_done: bool = False

    def run(self) -> None:
        """Do the I/O. On return the entries are durable and the removed ones gone for good.

        Raises:
            DiskFullError: there was no room; no entry was written. The batch may be run again later.
            DiskFailedError: a write or sync failed, now or earlier; the log takes no more writes.
        """
        assert not self.is_done, "a batch runs once"
        self.latch.check()
        try:
            self._run()
        except OSError as error:
            raise self.latch.fail(error) from error
        self.is_done = True

    def _run(self) -> None:
        """Write in an order that survives every crash: renewal, cut, new segment, entries, sync, then index units."""
        if self.renewal is not None:
            self.renewal.run(self.disk)
            self.renewal = None
        if self.cut is not None:
            self.cut.run(self.disk)
            self.cut = None
        if self.roll is not None:
            self.roll.run(self.disk)
            self.roll = None
        if self.segment is not None and self.parts:
            end_offset = self.position + self.size_bytes - self.segment.first_position
            assert end_offset <= self.data_bytes, (
                f"{end_offset} bytes in room for {self.data_bytes}"
            )
            assert not self.units or len(self.units) == self.entry_count * INDEX_UNIT_BYTES, (
                f"{len(self.units)} bytes of units for {self.entry_count} entries"
            )
            self.segment.reserve(data_bytes=self.data_bytes, unit_count=self.entry_count)
            if self.segment.unsynced_bytes + self.size_bytes > WRITE_BATCH_BYTES_MAX:
                # Only without syncs: what a crash may tear stays within the reach of one batch.
                self.segment.sync_data()
            self.segment.write_entries(self.position, self.parts)
            if self.syncs:
                self.segment.sync_data()
                # The error may have been reported to a sync by which the log's owner wrote an entry back.
                self.latch.check()
            if self.units:
                self.segment.write_units(self.units)
                if self.segment.unsynced_unit_writes >= UNIT_WRITES_UNSYNCED_MAX:
                    self.segment.sync_index()
            for each in self.stale:
                each.give_up(self.disk)
