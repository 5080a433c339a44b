"""Small files that are replaced as a whole: after a crash there is the old content or the new.

A content is written under another name, synced, and gets its name in one step; then the folder is synced. A process
that is killed before that last sync leaves a name that can be read, but that a power cut may still take back. So
nothing that is read is believed before `settle_whole`: whoever acted on it would have acted on what is gone then.

The content is bytes to this module; those who keep something in such a file (term and vote, the member's record, the
values of a name server, what a query settled at its start, what an archive holds) have codecs of their own.
"""

from __future__ import annotations

import errno

from dledger.errors import DiskFullError
from dledger.storage.api import Disk

ASIDE_SUFFIX = ".aside"


def path_in(folder: str, name: str) -> str:
    """Return a file's path on its disk."""
    return f"{folder}/{name}" if folder else name


def settle_whole(disk: Disk, folder: str, name: str) -> None:
    """Make what is found durable, and clear what a crash left; comes before the first reading.

    Raises:
        OSError: the disk failed.
    """
    aside = path_in(folder, name) + ASIDE_SUFFIX
    if disk.exists(aside):
        # A crash came before the rename: nobody has heard of it.
        disk.remove(aside)
    # A process that was killed between rename and sync left a name that a power cut may undo.
    disk.sync_folder(folder)


def replace_whole(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Make a file's new content durable: write aside, sync, rename, sync the folder.

    Raises:
        DiskFullError: there was no room; the old content stands and nothing else has changed.
        OSError: it failed; which content the disk holds is unknown.
    """
    path = path_in(folder, name)
    aside = path + ASIDE_SUFFIX
    write_aside(disk, aside, data)
    disk.rename(aside, path)
    disk.sync_folder(folder)


def write_aside(disk: Disk, aside: str, data: bytes) -> None:
    """Write and sync a file that gets its real name later; its own name is not durable.

    Raises:
        DiskFullError: there was no room, and nothing is left of it.
        OSError: it failed; what the file holds is unknown.
    """
    try:
        file = disk.open(aside, create=True)
        try:
            file.truncate(0)
            file.write_at(0, (data,))
            file.sync()
        finally:
            file.close()
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        if disk.exists(aside):
            disk.remove(aside)
        raise DiskFullError(f"{aside}: no room for {len(data)} bytes") from error
