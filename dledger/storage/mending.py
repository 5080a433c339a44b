"""Writes of recovered entries back to their places, until the log can be opened again (docs/adr/0100).

Nothing whole is touched. As long as entries are missing, the index files stay as they are: their units
are the only memory of entries at the log's end. Only when everything is back and synced are the
indexes of the mended segments removed; opening makes them again from the data. So a crash at any
moment leaves a log that is damaged in the same or in fewer places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Position, Term
from dledger.storage.api import Disk, File
from dledger.storage.damage import Survey
from dledger.storage.hard_state import HardStateStore
from dledger.storage.log_start import remove_log_start
from dledger.storage.segment import StorePaths, segment_positions

SYNC_BYTES = 16 * 1024 * 1024
"""Written entries are synced at the latest after so many bytes."""


class LogMender:
    """Writes into the segments that a survey has found.

    Invariant: `_files` holds open files with bytes that may not be synced yet.
    """

    def __init__(self, disk: Disk, paths: StorePaths, names: Sequence[Position]) -> None:
        self._disk = disk
        self._paths = paths
        self._names = list(names)
        self._files: dict[Position, File] = {}
        self._unsynced_bytes = 0
        self.mended: set[Position] = set()

    def write(self, entries: Sequence[Entry]) -> None:
        """Put verified entries where they belong.

        Raises:
            OSError: the disk failed; what it holds there is unknown, and as good as missing.
        """
        for entry in entries:
            place = bisect_right(self._names, entry.position) - 1
            assert place >= 0, f"no segment begins at or before byte {entry.position}"
            name = self._names[place]
            file = self._open(name)
            assert len(entry.header) == ENTRY_HEADER_BYTES, f"entry {entry.id} is not sealed"
            file.write_at(entry.position - name, (entry.header, entry.body))
            self._unsynced_bytes += entry.size_bytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make everything that was written durable.

        Raises:
            OSError: it failed; the node must stop.
        """
        for file in self._files.values():
            file.sync()
            file.close()
        self._files.clear()
        self._disk.sync_folder(self._paths.data_folder)
        self._unsynced_bytes = 0

    def finish(self, found: Survey, *, cut_position: Position | None) -> None:
        """Make the log openable, now that everything is back: the next opening makes the indexes again.

        Args:
            found: the survey.
            cut_position: the log ends there, what stood after it is given up; None: nothing is.

        Raises:
            OSError: the disk failed; a later survey finds what is left to do.
        """
        self.sync()
        if found.is_start_lost:
            remove_log_start(
                self._disk, self._paths
            )  # everything is back, from the first entry of all
        assert not self._files, "bytes are not synced, and the indexes are their only memory"
        doubtful = found.doubtful | self.mended
        if cut_position is not None:
            doubtful |= {name for name in self._names if name >= cut_position}
            doubtful.add(self._names[max(bisect_right(self._names, cut_position - 1) - 1, 0)])
        # Indexes first: an index without data is never left by a crash.
        for name in segment_positions(self._disk, self._paths.index_folder):
            if name in doubtful:
                self._disk.remove(self._paths.index_path(name))
        self._disk.sync_folder(self._paths.index_folder)
        if cut_position is not None:
            self._cut(cut_position)

    def _cut(self, position: Position) -> None:
        """Remove all bytes from a position on, from the end, so that the row has no gap."""
        first = self._names[0]
        if position == first and self._disk.exists(self._paths.begun_path):
            self._disk.remove(self._paths.begun_path)
            self._disk.sync_folder(self._paths.folder)
        for name in reversed(segment_positions(self._disk, self._paths.data_folder)):
            if name >= position and name > first:
                self._disk.remove(self._paths.data_path(name))
                self._disk.sync_folder(self._paths.data_folder)
                continue
            file = self._disk.open(self._paths.data_path(name))
            try:
                if file.size() > position - name:
                    file.truncate(position - name)
                file.sync()
            finally:
                file.close()
            return

    def _open(self, name: Position) -> File:
        file = self._files.get(name)
        if file is None:
            file = self._disk.open(self._paths.data_path(name), create=True)
            self._files[name] = file
            self.mended.add(name)
        return file


def give_up_vote(disk: Disk, folder: str, last_id: EntryId) -> None:
    """Save that this member must not vote until a leader admits it: its log loses entries (adr/0061).

    Raises:
        OSError, DLedgerError: it could not be saved; nothing may be cut then.
    """
    store = HardStateStore.open(disk, folder, last_id=last_id, may_forget=True)
    state = store.state
    term = Term(max(state.term, last_id.term))
    store.save(HardState(term, state.vote if term == state.term else None, is_voter=False))
