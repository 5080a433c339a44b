"""A store that is written before there is a group: a log that begins at a chosen place, and the states that go with it.

For data that comes from elsewhere. Entries are written as if a leader of the first term had committed them, after one
that stands for all that came before; the caller's state machine folds them meanwhile, and its states are written down
as snapshots. Copies of the finished store begin a group, on each member one (docs/adr/0190).

A folder in which `finish` was not reached is no store: it lacks the vote, without which no member starts.

Nothing here knows what entries hold. It does not check who else uses the folder.
"""

from __future__ import annotations

from typing import Final

from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, Position, Term
from dledger.state_machine import SnapshotMachine
from dledger.storage.api import Disk
from dledger.storage.hard_state import HardStateStore
from dledger.storage.scan import ChainEnd
from dledger.storage.segmented_log import SEGMENT_SIZE_BYTES, SegmentedLog
from dledger.storage.snapshots import SnapshotStore

FOUNDING_TERM: Final = Term(1)
BEFORE_FIRST: Final = Index(1)
"""The entry that stands for everything before the log's first one."""

_WRITE_BYTES: Final = 4 * 1024 * 1024


class FoundingStore:
    """A store that is being written. Blocks; for one thread.

    Invariant: what is not written yet has fewer than `_WRITE_BYTES` bytes, but for one entry.
    """

    def __init__(
        self,
        disk: Disk,
        position: Position,
        chain_crc: int,
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    ) -> None:
        """Begin a log in an empty folder.

        Args:
            disk: the folder.
            position: where the first entry will stand; from 1 on.
            chain_crc: that of all that came before, by which stores of different origins are told apart.
            segment_size_bytes: a segment is finished before it would exceed this.

        Raises:
            OSError, DiskFailedError: the disk failed.
        """
        self._disk = disk
        self._log = SegmentedLog.open(disk, segment_size_bytes=segment_size_bytes)
        assert not self._log.layout.last_index, f"the folder has {self._log.last_id}"
        self._snapshots = SnapshotStore(disk)
        self._log.begin_after(ChainEnd(BEFORE_FIRST, FOUNDING_TERM, position, chain_crc))
        self._unwritten_bytes = 0
        self._write()

    @property
    def end_position(self) -> Position:
        """The place at which the next entry's header will stand."""
        return self._log.end_position

    def append(self, body: bytes) -> Entry:
        """Add an entry after the last one; it is durable once `save_state` or `finish` has returned.

        Raises:
            OSError, DiskFailedError: the disk failed.
        """
        layout = self._log.layout
        index = Index(layout.last_index + 1)
        entry = Entry(index, FOUNDING_TERM, layout.end_position, EntryKind.NORMAL, body)
        (stored,) = self._log.append((entry,))
        self._unwritten_bytes += ENTRY_HEADER_BYTES + len(body)
        if self._unwritten_bytes >= _WRITE_BYTES:
            self._write()
        return stored

    def save_state(self, machine: SnapshotMachine) -> None:
        """Write down the state after the last entry, or after what came before the first one.

        Raises:
            OSError, DiskFailedError: the disk failed.
        """
        self._write()
        index = self._log.layout.last_index
        assert machine.applied_index == index, f"the state is at {machine.applied_index}, {index=}"
        writer = self._snapshots.begin(
            SnapshotMeta(
                index,
                FOUNDING_TERM,
                self._log.end_position,
                self._log.chain_crc_of(index),
                machine.digest(),
            )
        )
        for chunk in machine.snapshot():
            writer.add([chunk])
        writer.finish()

    def finish(self) -> None:
        """Make everything durable, and the folder a store.

        Raises:
            OSError, DiskFailedError: the disk failed.
        """
        self._write()
        self._log.flush_index()
        self._log.close()
        nothing = EntryId(NO_TERM, NO_INDEX)
        HardStateStore.open(self._disk, last_id=nothing).save(HardState(FOUNDING_TERM, None))

    def _write(self) -> None:
        while (batch := self._log.take_writes()) is not None:
            batch.run()
            self._log.written(batch)
        self._unwritten_bytes = 0
