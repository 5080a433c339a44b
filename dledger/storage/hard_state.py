"""Term and vote on disk. Saved before any message that reflects them; a failed save stops the node.

A member that forgets its vote may vote twice in one term, and then two leaders may be elected. So a
damaged file is never replaced by a guess. In a group of several its member keeps its log and becomes a
non-voter until a leader has admitted it (docs/adr/0061, 0100); alone it refuses to start.
"""

from __future__ import annotations

import errno

from dledger.codec.hard_state import HardStateFormatError, decode_hard_state, encode_hard_state
from dledger.errors import CorruptionError
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_TERM, EntryId
from dledger.storage.api import Disk
from dledger.storage.whole_file import path_in, replace_whole, settle_whole
from dledger.storage.write_batch import FailureLatch

HARD_STATE_NAME = "hard_state"
_FILE_BYTES_MAX = 64 * 1024


class HardStateStore:
    """Keeps one hard state. `save` does I/O only and may run in another thread, one at a time.

    Attributes:
        is_new: there was none when it was opened, and no log either.
        lost: what was wrong with the one that should have been there; None: nothing.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        state: HardState,
        *,
        is_new: bool = False,
        lost: CorruptionError | None = None,
    ) -> None:
        """Use `HardStateStore.open`."""
        self.is_new = is_new
        self.lost = lost
        self._disk = disk
        self._folder = folder
        self._state = state
        self._latch = FailureLatch()

    @classmethod
    def open(
        cls, disk: Disk, folder: str = "", *, last_id: EntryId, may_forget: bool = False
    ) -> HardStateStore:
        """Read the hard state of the log in the same folder.

        Args:
            disk: where the file is.
            folder: the log's folder.
            last_id: the log's last entry; term 0 and index 0 for an empty log.
            may_forget: a lost state is no error: the member may not vote until it is admitted.

        Raises:
            CorruptionError: the file is damaged, or missing beside a log with entries, or older
                than the log: it was durable before any entry of its term.
            OSError: the disk failed.
        """
        path = path_in(folder, HARD_STATE_NAME)
        if folder:
            disk.make_folder(folder)
        settle_whole(disk, folder, HARD_STATE_NAME)
        if not disk.exists(path) and last_id.index == 0:
            return cls(disk, folder, HardState(NO_TERM, None), is_new=True)
        try:
            return cls(disk, folder, _read(disk, path, last_id))
        except CorruptionError as error:
            if not may_forget:
                raise
            return cls(disk, folder, HardState(last_id.term, None, is_voter=False), lost=error)

    @property
    def state(self) -> HardState:
        """The hard state that was saved last."""
        return self._state

    def save(self, state: HardState) -> None:
        """Make a hard state durable.

        Raises:
            DiskFullError: there was no room; the old state stands and nothing else has changed.
            DiskFailedError: it failed, now or earlier; which state the disk holds is unknown, so the
                node must stop.
        """
        self._latch.check()
        assert state.may_follow(self._state), f"{state} after {self._state}"
        try:
            replace_whole(self._disk, self._folder, HARD_STATE_NAME, encode_hard_state(state))
        except OSError as error:
            raise self._latch.fail(error) from error
        self._state = state


def _read(disk: Disk, path: str, last_id: EntryId) -> HardState:
    """Read the file of a log that ends with `last_id`.

    Raises:
        CorruptionError: it is not to be believed.
        OSError: the disk failed.
    """
    if not disk.exists(path):
        raise CorruptionError(
            path, 0, f"missing, but the log has entries up to {last_id}; the vote is lost"
        )
    file = disk.open(path)
    try:
        state = decode_hard_state(file.read_at(0, _FILE_BYTES_MAX))
    except HardStateFormatError as error:
        raise CorruptionError(file.path, error.byte_offset, error.problem) from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptionError(file.path, 0, f"the device does not give it: {error}") from error
    finally:
        file.close()
    if state.term < last_id.term:
        raise CorruptionError(
            path, 6, f"term {state.term} is older than the log's last entry {last_id}"
        )
    return state
