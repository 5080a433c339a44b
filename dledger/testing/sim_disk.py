"""A disk in memory that fails and loses data as real disks do, decided by a seed.

It keeps two versions of everything: what a reader sees now, and what is durable. Between them stand
the writes that were not synced. `crash` decides, 512-byte sector by sector and in any combination,
which of those the disk had got; `fail_sync` makes a sync fail and forgets what it should have
written, as Linux does. Folder entries (creations, renames, removals) are unsynced until
`sync_folder`.

Nothing here takes time: slow disks are the simulator's business.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random

SECTOR_BYTES = 512


@dataclass(slots=True)
class _Write:
    """An unsynced change of a file: data at an offset, or (data None) a new size."""

    offset: int
    data: bytes | None


@dataclass(slots=True)
class _Inode:
    """A file's content, now and after a power cut."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write] = field(default_factory=list)


@dataclass(slots=True)
class _Change:
    """An unsynced change of a folder: `target` now names `inode` (None: nothing); `source` is gone."""

    target: str
    inode: _Inode | None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class SimDiskStatistics:
    """Counts since the disk was made."""

    write_count: int
    sync_count: int
    crash_count: int


class _Countdown:
    """A fault that strikes once, at the n-th operation after it was requested."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    def begin(self, nth: int) -> None:
        """Arm the fault for the n-th operation from now; 0: never."""
        assert nth >= 0, f"the {nth}-th time from now"
        self._left = nth

    def strikes(self) -> bool:
        """Count one operation, and return whether the fault strikes it."""
        if not self._left:
            return False
        self._left -= 1
        return not self._left


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class SimFile:
    """An open file of a `SimDisk`; dead after a crash."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._generation = disk.generation
        self._is_open = True

    @property
    def path(self) -> str:
        """The path, for error messages."""
        return self._path

    def _check(self) -> None:
        assert self._is_open, f"{self._path} is closed"
        if self._generation != self._disk.generation:
            raise OSError(errno.EIO, "the machine crashed since this file was opened", self._path)

    def size(self) -> int:
        """Return the size in bytes, preallocated ones included."""
        self._check()
        return len(self._inode.now)

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        self._check()
        self._disk.count_read(self._path)
        return bytes(self._inode.now[offset : offset + size])

    def read_resident(self, offset: int, size: int) -> bytes | None:
        """Read as `read_at` does: everything is in memory here. None if that fails, or the file ends before."""
        try:
            data = self.read_at(offset, size)
        except OSError:
            return None
        return data if len(data) == size else None

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts back to back from `offset`; whole or OSError."""
        self._check()
        data = b"".join(parts)
        self._disk.count_write(self._path, offset + len(data) - len(self._inode.now))
        offset = self._disk.place_of(offset, len(data), len(self._inode.now))
        _apply(self._inode.now, offset, data)
        self._inode.unsynced.append(_Write(offset, data))

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        self._check()
        self._disk.count_write(self._path, 0)
        _resize(self._inode.now, size)
        self._inode.unsynced.append(_Write(size, None))

    def preallocate(self, size: int) -> None:
        """Reserve room up to `size`, reading as zeros; OSError (ENOSPC) when there is none."""
        self._check()
        grown_bytes = size - len(self._inode.now)
        try:
            self._disk.count_write(self._path, grown_bytes)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                # What was found before the room ran out is kept, as ext4 does.
                self._grow(len(self._inode.now) + max(0, self._disk.free_bytes()))
            raise
        self._grow(size)

    def _grow(self, size: int) -> None:
        if size > len(self._inode.now):
            _resize(self._inode.now, size)
            self._inode.unsynced.append(_Write(size, None))

    def sync(self) -> None:
        """Make data and size durable."""
        self._check()
        inode = self._inode
        self._disk.go_on(self._path)
        try:
            self._disk.count_sync(self._path)
        except OSError:
            # The kernel marks the pages clean: they are seen, and will never be written.
            inode.unsynced.clear()
            raise
        for write in inode.unsynced:
            if write.data is None:
                _resize(inode.durable, write.offset)
            else:
                _apply(inode.durable, write.offset, write.data)
        inode.unsynced.clear()

    def give_up_pages(self, offset: int, size: int) -> None:
        """Do nothing: what is written is there either way."""
        self._check()

    def close(self) -> None:
        """Close without syncing."""
        self._is_open = False


class _Look:
    """A block that only looks at a disk; a class, since there is one for each step of a member."""

    __slots__ = ("_before", "_disk")

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        self._before = self._disk.is_only_looked_at
        self._disk.is_only_looked_at = True

    def __exit__(self, *_: object) -> None:
        self._disk.is_only_looked_at = self._before


class SimDisk:
    """See the module.

    Args:
        random: source of every decision about what a crash keeps.
        capacity_bytes: size of the device; None: endless.

    Attributes:
        fired: how often each fault that was asked for really came, and how often a crash lost or tore something.
        is_only_looked_at: true while reads neither fail nor count, in `only_looked_at`.
    """

    def __init__(self, random: Random, *, capacity_bytes: int | None = None) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes
        self.generation = 0
        self.fired: Counter[str] = Counter()
        self._now: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._changes: list[_Change] = []
        self._folders: set[str] = {""}
        self._write_count = self._sync_count = 0
        self._failing_sync = _Countdown()
        self._failing_write = _Countdown()
        self._failing_read = _Countdown()
        self._misdirected_write = _Countdown()
        self._steps_left: int | None = None
        self.is_only_looked_at = False

    # The `Disk` interface.

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """Open for reading and writing; FileNotFoundError when missing and not `create`."""
        inode = self._now.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if _folder_of(path) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "the folder is missing", path)
            # A name takes room, too (XFS, btrfs), though it is not counted here.
            self.count_write(path, 0 if self.free_bytes() > 0 else 1)
            inode = _Inode()
            self._change(_Change(path, inode))
        return SimFile(self, path, inode)

    def list(self, folder: str) -> builtins.list[str]:
        """Sorted names in a folder; empty when the folder is missing."""
        folder = folder.strip("/")
        files = {path for path in self._now if _folder_of(path) == folder}
        folders = {path for path in self._folders if path and _folder_of(path) == folder}
        return sorted(path.rpartition("/")[2] for path in files | folders)

    def make_folder(self, folder: str) -> None:
        """Create a folder with its parents, durable."""
        parts = folder.strip("/").split("/")
        self._folders.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""
        return path in self._now

    def rename(self, source: str, target: str) -> None:
        """Replace `target` in one step."""
        if source not in self._now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        assert _folder_of(source) == _folder_of(target), "a rename between folders"
        self.count_write(target, 0)
        self._change(_Change(target, self._now[source], source))

    def remove(self, path: str) -> None:
        """Delete a file."""
        if path not in self._now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.count_write(path, 0)
        self._change(_Change(path, None))

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        folder = folder.strip("/")
        self.go_on(folder)
        self.count_sync(folder)
        later: builtins.list[_Change] = []
        for change in self._changes:
            if _folder_of(change.target) == folder:
                _apply_change(self._durable, change)
            else:
                later.append(change)
        self._changes = later

    def free_bytes(self) -> int:
        """Return the room left on the device, in bytes."""
        if self.capacity_bytes is None:
            return 1 << 62
        return self.capacity_bytes - self._used_bytes()

    def memory_bytes(self) -> int:
        """Return the memory of a small machine."""
        return 1 << 30

    # Faults.

    def crash(self, *, keep: float | None = None) -> None:
        """Simulate a power failure: open files are dead, and unsynced changes are kept, lost or torn.

        Args:
            keep: probability for each unsynced sector and folder change to have reached the disk;
                None: drawn (often nothing, sometimes everything, else something between).
        """
        if keep is None:
            keep = self.random.choice((0.0, 0.0, 1.0, 0.5, self.random.random()))
        kept_count = lost_count = 0
        for change in self._changes:
            if self.random.random() < keep:
                _apply_change(self._durable, change)
            else:
                lost_count += 1
        self._changes = []
        inodes = {id(inode): inode for inode in [*self._now.values(), *self._durable.values()]}
        for inode in inodes.values():
            kept, lost = self._tear(inode, keep)
            kept_count, lost_count = kept_count + kept, lost_count + lost
        self.fired["lost-unsynced"] += lost_count > 0
        self.fired["torn"] += lost_count > 0 < kept_count
        self._now = dict(self._durable)
        self.restart()

    def restart(self) -> None:
        """End the process and start it again: open files are dead, everything written is there."""
        self.generation += 1
        self.forget_faults()

    def forget_faults(self) -> None:
        """Disarm the faults that were requested and have not struck yet."""
        for countdown in (
            self._failing_sync,
            self._failing_write,
            self._failing_read,
            self._misdirected_write,
        ):
            countdown.begin(0)
        self._steps_left = None

    def _tear(self, inode: _Inode, keep: float) -> tuple[int, int]:
        """Keep a random part of the unsynced changes; return how many pieces were kept, and how many were lost."""
        kept_count = count = 0
        for write in inode.unsynced:
            if write.data is None:
                count += 1
                if self.random.random() < keep:
                    kept_count += 1
                    _resize(inode.durable, write.offset)
                continue
            at, end = write.offset, write.offset + len(write.data)
            while at < end:
                next_at = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
                count += 1
                if self.random.random() < keep:
                    kept_count += 1
                    _apply(
                        inode.durable, at, write.data[at - write.offset : next_at - write.offset]
                    )
                at = next_at
        inode.unsynced.clear()
        inode.now = bytearray(inode.durable)
        return kept_count, count - kept_count

    def flip_bit(self, path: str, byte_offset: int, bit: int = 0) -> None:
        """Flip one bit of a file, on the disk and for every reader."""
        inode = self._now[path]
        assert byte_offset < len(inode.now), f"{path} has {len(inode.now)} bytes"
        inode.now[byte_offset] ^= 1 << bit
        if byte_offset < len(inode.durable):
            inode.durable[byte_offset] ^= 1 << bit

    def overwrite(self, path: str, content: bytes) -> None:
        """Replace a file by other bytes (an older copy, a shorter file), durably."""
        inode = self._now[path]
        inode.now, inode.durable = bytearray(content), bytearray(content)
        inode.unsynced.clear()

    def lose(self, path: str) -> None:
        """Delete a file, durably."""
        self._now.pop(path)
        self._durable.pop(path, None)
        self._changes = [change for change in self._changes if change.target != path]

    def content(self, path: str) -> bytes:
        """Return a file's present content, as a reader would see it."""
        return bytes(self._now[path].now)

    def paths(self) -> builtins.list[str]:
        """Return the paths of all files, sorted."""
        return sorted(self._now)

    def fail_sync(self, nth: int = 1) -> None:
        """Make the n-th sync from now fail with EIO and lose the writes that it should have made durable."""
        self._failing_sync.begin(nth)

    def fail_write(self, nth: int = 1) -> None:
        """Make the n-th write (or creation, rename, removal) from now fail with EIO."""
        self._failing_write.begin(nth)

    def fail_read(self, nth: int = 1) -> None:
        """Make the n-th read from now fail with EIO."""
        self._failing_read.begin(nth)

    def stop_at(self, nth: int) -> None:
        """Make the n-th write or sync from now fail, and all later ones, as if the machine had stopped there.

        Unlike after `fail_sync` nothing is forgotten: a crash decides what of it the disk has.
        """
        self._steps_left = nth - 1

    def misdirect_write(self, nth: int = 1) -> None:
        """Let the n-th write from now land elsewhere in its file, whole sectors away, and report no error."""
        self._misdirected_write.begin(nth)

    def place_of(self, offset: int, size: int, file_bytes: int) -> int:
        """Return the offset at which a write really lands: another one for a misdirected write."""
        if not self._misdirected_write.strikes():
            return offset
        self.fired["misdirect-write"] += 1
        sectors = max(1, (file_bytes + size) // SECTOR_BYTES)
        return self.random.randrange(sectors) * SECTOR_BYTES + offset % SECTOR_BYTES

    def only_looked_at(self) -> AbstractContextManager[None]:
        """Exempt the reads in the block from faults and counts: a checker looks at the disk from outside."""
        return _Look(self)

    def statistics(self) -> SimDiskStatistics:
        """Return the counts so far."""
        return SimDiskStatistics(self._write_count, self._sync_count, self.generation)

    # Called by `SimFile`.

    def count_write(self, path: str, grown_bytes: int) -> None:
        """Note a write that makes a file larger by so much; it may fail."""
        self.go_on(path)
        self._write_count += 1
        if self._failing_write.strikes():
            self.fired["fail-write"] += 1
            raise OSError(errno.EIO, "simulated write failure", path)
        if (
            grown_bytes > 0
            and self.capacity_bytes is not None
            and self._used_bytes() + grown_bytes > self.capacity_bytes
        ):
            self.fired["full-disk"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def go_on(self, path: str) -> None:
        """Begin one more write or sync, unless the machine stands still."""
        if self._steps_left is None:
            return
        if not self._steps_left:
            raise OSError(errno.EIO, "the machine stands still", path)
        self._steps_left -= 1

    def count_sync(self, path: str) -> None:
        """Note a sync; it may fail."""
        self._sync_count += 1
        if self._failing_sync.strikes():
            self.fired["fail-sync"] += 1
            raise OSError(errno.EIO, "simulated sync failure", path)

    def count_read(self, path: str) -> None:
        """Note a read; it may fail."""
        if self.is_only_looked_at:
            return
        if self._failing_read.strikes():
            self.fired["fail-read"] += 1
            raise OSError(errno.EIO, "simulated read failure", path)

    def _used_bytes(self) -> int:
        return sum(len(inode.now) for inode in self._now.values())

    def _change(self, change: _Change) -> None:
        _apply_change(self._now, change)
        self._changes.append(change)


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _apply_change(names: dict[str, _Inode], change: _Change) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.inode is None:
        names.pop(change.target, None)
    else:
        names[change.target] = change.inode
