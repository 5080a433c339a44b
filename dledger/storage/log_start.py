"""Where a log begins that has lost its beginning: the file `log_start`, and the files before that place.

A log loses its beginning in two ways. Whole segments are *dropped* from its front, because nobody needs them any
more; or it is *begun anew* behind a snapshot, because the group has forgotten what would have to come before. Both
first make the new start durable and then remove files, so a crash leaves files too many and never a log with a gap:
opening removes what stands before the start, and after a log was begun anew everything that was there.

It does not know why a log loses its beginning, nor when it may.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Final

from dledger.codec.log_start import (
    LOG_START_BYTES,
    LogStart,
    LogStartFormatError,
    decode_log_start,
    encode_log_start,
)
from dledger.errors import CorruptionError
from dledger.raft.ids import Position
from dledger.storage.api import Disk
from dledger.storage.segment import StorePaths, segment_positions
from dledger.storage.whole_file import path_in, replace_whole, settle_whole

LOG_START_NAME: Final = "log_start"

START_EMPTY: Final = (
    "stop this member, put its store aside and start it with an empty folder: it gets the others' snapshot "
    "(docs/repair.md)"
)
"""The way out of damage that no other member can mend, since the group has forgotten what was damaged."""


def read_log_start(disk: Disk, paths: StorePaths) -> LogStart | None:
    """Read where a log begins; None: with the first entry of all.

    Raises:
        CorruptionError: the file is damaged.
        OSError: the disk failed.
    """
    path = path_in(paths.folder, LOG_START_NAME)
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return decode_log_start(file.read_at(0, LOG_START_BYTES + 1))
    except LogStartFormatError as error:
        raise CorruptionError(path, error.byte_offset, error.problem) from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptionError(path, 0, f"the device does not give it: {error}") from error
    finally:
        file.close()


def settle_log_start(disk: Disk, paths: StorePaths) -> LogStart | None:
    """Finish what a crash left half done, and return where the log begins; None: with the first entry of all.

    Raises:
        CorruptionError: the file is damaged, or the segment at the start is missing.
        OSError: the disk failed.
    """
    settle_whole(disk, paths.folder, LOG_START_NAME)
    start = read_log_start(disk, paths)
    if start is None:
        return None
    if start.is_anew:
        _clear(disk, paths, start)
    names = segment_positions(disk, paths.data_folder)
    if names and start.position not in names:
        raise CorruptionError(
            paths.data_path(start.position), 0, f"missing; the first segment is {names[0]}"
        )
    if names:
        _remove_before(disk, paths, start.position)
    return start


def remove_log_start(disk: Disk, paths: StorePaths) -> None:
    """Let the log begin with the first entry of all again, durably; harmless when it does.

    Raises:
        OSError: the disk failed.
    """
    path = path_in(paths.folder, LOG_START_NAME)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_folder(paths.folder)


@dataclass(frozen=True, slots=True)
class FrontDrop:
    """The removal of segments from the front of a log. I/O only; may run in any thread, and again if it failed.

    Attributes:
        start: where the log begins without them.
    """

    disk: Disk
    paths: StorePaths
    start: LogStart

    def run(self) -> None:
        """Carry it out, durably: the new start first, so a crash in between leaves files too many at most.

        Raises:
            DiskFullError: there was no room to write the start down; nothing was removed.
            OSError: it failed; what is left is removed by another run, or when the log is opened.
        """
        replace_whole(self.disk, self.paths.folder, LOG_START_NAME, encode_log_start(self.start))
        _remove_before(self.disk, self.paths, self.start.position)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A log that is begun anew: everything that stands in it is void.

    Attributes:
        start: the place, with `is_anew` set.
    """

    paths: StorePaths
    start: LogStart

    def run(self, disk: Disk) -> None:
        """Carry it out, durably. From the moment that the start is durable the log is empty behind it.

        Raises:
            DiskFullError: there was no room to write the start down; the old log stands.
            OSError: it failed; opening the log finishes it.
        """
        assert self.start.is_anew, f"a log that goes on after entry {self.start.index}"
        replace_whole(disk, self.paths.folder, LOG_START_NAME, encode_log_start(self.start))
        _clear(disk, self.paths, self.start)


def _clear(disk: Disk, paths: StorePaths, start: LogStart) -> None:
    """Remove all segments of the log before, then note that what will stand there is the log's own."""
    _remove_before(disk, paths, None)
    if disk.exists(paths.begun_path):
        disk.remove(paths.begun_path)
        disk.sync_folder(paths.folder)
    data = encode_log_start(replace(start, is_anew=False))
    replace_whole(disk, paths.folder, LOG_START_NAME, data)


def _remove_before(disk: Disk, paths: StorePaths, position: Position | None) -> None:
    """Remove the segments before a position, None: all. Indexes first: one without data is never left by a crash."""
    for folder, path_of in (
        (paths.index_folder, paths.index_path),
        (paths.data_folder, paths.data_path),
    ):
        for name in segment_positions(disk, folder):
            if position is None or name < position:
                disk.remove(path_of(name))
        disk.sync_folder(folder)
