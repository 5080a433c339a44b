"""The disk of the operating system. The only module that calls fsync and fdatasync.

All names are relative to one root folder and never lead out of it. An `OSError` goes up as it is:
the store decides what it means (docs/formats/segment.md, adr/0004).
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from dledger.errors import UsageError

_IOV_MAX = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
"""Most parts that one pwritev takes (Linux: 1024)."""

_NO_WAIT: Final = os.RWF_NOWAIT
"""Reads give what is in the page cache, and EAGAIN for the rest (Linux 4.14)."""

_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

SPARE_COUNT: Final = 8
"""Descriptors that a running store keeps for its writes: a new segment takes one more than it gives back."""


class PosixFile:
    """One open file. Reads and writes name their place, so threads need not take turns."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """The full path, for error messages."""
        return self._path

    def size(self) -> int:
        """Return the size in bytes, preallocated ones included."""
        return os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        assert offset >= 0 <= size, f"{size} bytes at {offset} of {self._path}"
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, offset + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def read_resident(self, offset: int, size: int) -> bytearray | None:
        """Read exactly `size` bytes if the page cache has all of them; None if not. Never waits for the device."""
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, (data,), offset, _NO_WAIT)
        except OSError:  # they are not there, or the file system cannot tell
            return None
        return data if count == size else None

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts back to back from `offset`; whole or OSError."""
        assert self._descriptor >= 0, f"{self._path} is closed"
        assert offset >= 0, f"a write at {offset} of {self._path}"
        for first in range(0, len(parts), _IOV_MAX):
            group = parts[first : first + _IOV_MAX]
            wanted = sum(map(len, group))
            written = os.pwritev(self._descriptor, group, offset)
            if written < wanted:
                self._write_rest(offset + written, b"".join(group)[written:])
            offset += wanted

    def _write_rest(self, offset: int, rest: bytes) -> None:
        """Go on from where a short write stopped, which is rare (a signal, a nearly full device)."""
        view = memoryview(rest)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            if written == 0:
                raise OSError(f"{self._path}: nothing written at byte {offset}")
            view = view[written:]
            offset += written

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        os.ftruncate(self._descriptor, size)

    def preallocate(self, size: int) -> None:
        """Reserve room up to `size`, reading as zeros; OSError (ENOSPC) when there is none."""
        if size > 0:
            os.posix_fallocate(self._descriptor, 0, size)

    def sync(self) -> None:
        """Make data and size durable.

        fdatasync also writes the size when that is needed to read the data back, so it is enough
        for a grown file too.
        """
        assert self._descriptor >= 0, f"{self._path} is closed"
        os.fdatasync(self._descriptor)

    def give_up_pages(self, offset: int, size: int) -> None:
        """Let the page cache lose these bytes, but for those that are not on the device yet."""
        os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close without syncing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class SpareDescriptors:
    """Descriptors that are held for nothing, until the process or the machine has no other one left.

    A vote, or a segment that cannot be begun, ends a node; a read waits. So what writes may take these, and reads
    may not, but for those of a fold, which cannot wait. Any thread may ask.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._held: list[int] = []
        self._refill()
        weakref.finalize(self, _close_all, self._held)

    def open(self, path: Path, flags: int) -> int:
        """Open a file or folder.

        Raises:
            OSError: as `os.open`; for want of descriptors only if none is held either.
        """
        while True:
            try:
                descriptor = os.open(path, flags, 0o640)
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                try:
                    spare = self._held.pop()
                except IndexError:  # found by taking one: another thread may be as far
                    raise error from None
                os.close(spare)
            else:
                self._refill()
                return descriptor

    def _refill(self) -> None:
        with suppress(OSError):  # there are none, as before
            while len(self._held) < self._count:
                self._held.append(os.open(self._folder, _FOLDER_FLAGS))


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


class PosixDisk:
    """A tree of folders below `root`, named by relative paths with `/`."""

    def __init__(self, root: str | Path, *, spare_count: int = 0) -> None:
        """Use `root`, which is created when missing, and keep so many descriptors for writes.

        Raises:
            OSError: the folder cannot be made.
        """
        self._root = Path(root).absolute()
        make_durable_folder(self._root)
        self._spare = SpareDescriptors(self._root, spare_count)

    @property
    def root(self) -> Path:
        """The folder that all names are relative to."""
        return self._root

    def _resolve(self, name: str) -> Path:
        parts = [part for part in name.split("/") if part]
        if name.startswith("/") or "\0" in name or any(part in {".", ".."} for part in parts):
            raise UsageError(f"{name!r} is not a plain relative path below {self._root}")
        return self._root.joinpath(*parts)

    def open(self, path: str, *, create: bool = False) -> PosixFile:
        """Open for reading and writing; FileNotFoundError when missing and not `create`."""
        full = self._resolve(path)
        if create:
            return PosixFile(str(full), self._spare.open(full, _FILE_FLAGS | os.O_CREAT))
        return PosixFile(str(full), os.open(full, _FILE_FLAGS, 0o640))

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when the folder is missing."""
        try:
            return sorted(each.name for each in self._resolve(folder).iterdir())
        except FileNotFoundError:
            return []

    def make_folder(self, folder: str) -> None:
        """Create a folder with its parents, durable; the name of one that is there is made durable, too."""
        make_durable_folder(self._resolve(folder))

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""
        return self._resolve(path).exists()

    def rename(self, source: str, target: str) -> None:
        """Replace `target` in one step."""
        self._resolve(source).replace(self._resolve(target))

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._resolve(path).unlink()

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        _sync(self._spare.open(self._resolve(folder), _FOLDER_FLAGS))

    def free_bytes(self) -> int:
        """Return the room left on the device, in bytes, for an ordinary user."""
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def memory_bytes(self) -> int:
        """Return how much memory the machine has."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class ReadOnlyDisk(PosixDisk):
    """A folder that is somebody else's: files are opened for reading, and nothing is made, changed or removed."""

    def __init__(self, root: str | Path) -> None:
        """Use `root`, whether it is there or not."""
        self._root = Path(root).absolute()

    def open(self, path: str, *, create: bool = False) -> PosixFile:
        """Open for reading; FileNotFoundError when missing.

        Raises:
            OSError: it was to be made, or cannot be opened.
        """
        if create:
            self._refuse(path)
        full = self._resolve(path)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        return PosixFile(str(full), os.open(full, flags))

    def make_folder(self, folder: str) -> None:
        """Refuse."""
        self._refuse(folder)

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        self._refuse(source)

    def remove(self, path: str) -> None:
        """Refuse."""
        self._refuse(path)

    def sync_folder(self, folder: str) -> None:
        """Refuse."""
        self._refuse(folder)

    def _refuse(self, name: str) -> NoReturn:
        raise PermissionError(errno.EROFS, "this folder is only read", str(self._resolve(name)))


def make_durable_folder(folder: Path) -> None:
    """Create a folder with its parents so that no power cut takes them back.

    The name of a folder that is there is synced, too: whoever made it may have been killed before that. A
    parent that may not be read is left to its owner.

    Raises:
        OSError: it cannot be made.
    """
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        with suppress(PermissionError):
            _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    _sync(os.open(folder, _FOLDER_FLAGS))


def _sync(descriptor: int) -> None:
    """Sync a folder, and close it."""
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
