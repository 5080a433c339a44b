"""A store's log and snapshots, read from beside, and the fold that begins with one of them.

Nothing is written to the store, whose node may be running. What leaves the memory of the fold goes to a folder of ours.

It must not know what is looked for in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from broker.store.errors import MisplacedRecordError, NewerVersionError
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.unit_files import SegmentFiles, UnitFiles
from broker.story.errors import StoryError
from dledger.errors import CorruptionError, UsageError
from dledger.raft.entry import Entry
from dledger.state_machine import SnapshotRefusedError
from dledger.storage.log_beside import LogBeside
from dledger.storage.posix import ReadOnlyDisk
from dledger.storage.snapshots import SnapshotFile
from dledger.storage.snapshots_beside import end_of, snapshots_newest_first, state_chunks
from dledger_mq.message.errors import RecordError


class StorePlaces:
    """The folder of a node's store, or a copy of it.

    Attributes:
        path: the folder.
        log: its log.
        snapshots: those that the log may go on after, newest first.
    """

    def __init__(self, path: Path) -> None:
        """Look at a folder.

        Raises:
            UsageError: it is no store.
            CorruptionError: its beginning is damaged.
            OSError: the disk failed.
        """
        self.path = path
        self._disk = ReadOnlyDisk(path)
        try:
            self.log = LogBeside(self._disk)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        self.snapshots = [
            each
            for each in snapshots_newest_first(self._disk)
            if self.log.reaches(end_of(each)) or end_of(each).index == self.log.before.index
        ]

    def restore(self, snapshot: SnapshotFile, state: BrokerState) -> bool:
        """Bring an empty state to a snapshot; return False if that is damaged or gone, and the state is empty."""
        try:
            state.restore(state_chunks(self._disk, snapshot))
        except (CorruptionError, SnapshotRefusedError):
            return False
        return True

    @property
    def is_whole(self) -> bool:
        """True if the log has its first entry."""
        return self.log.before.index == 0


@contextmanager
def scratch_state() -> Iterator[BrokerState]:
    """Make an empty state whose units go to a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="dledger-story-") as name:
        folder = Path(name)
        state = BrokerState(UnitFiles(folder), SegmentFiles(folder), far_timers=TimerFiles(folder))
        try:
            yield state
        finally:
            state.close()


def fold(state: BrokerState, entries: list[Entry]) -> None:
    """Fold entries.

    Raises:
        StoryError: they cannot be folded.
    """
    try:
        state.apply(entries)
    except (RecordError, MisplacedRecordError, NewerVersionError) as error:
        raise StoryError(f"entry {state.applied_index + 1} cannot be folded: {error}") from error
