"""Snapshots of derived state on disk: `snapshots/<20 digits of the index>`, the newest two are kept.

A snapshot is written aside, synced, renamed, and the folder synced; so a name stands for a whole
file, and what a crash leaves aside is removed at the next start. It is an aid and no truth: a damaged
one is refused by name and place, and the older one or the whole log is used. Hence a failure to write
one costs nothing but the snapshot: the half file is given up, never synced again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass

from dledger.codec.snapshot import (
    FRAME_BYTES_MAX,
    FRAME_HEAD_BYTES,
    HEAD_BYTES,
    FrameChain,
    SnapshotFormatError,
    SnapshotMeta,
    decode_head,
    encode_head,
)
from dledger.errors import CorruptionError
from dledger.raft.ids import NO_INDEX, Index
from dledger.storage.api import Disk, File
from dledger.storage.segment import SEGMENT_NAME_DIGITS

SNAPSHOTS_FOLDER = "snapshots"
KEPT_COUNT = 2
ASIDE_SUFFIX = ".aside"
PART_BYTES_MAX = 256 * 1024
"""Sent to another member at once."""

SYNC_BYTES = 16 * 1024 * 1024
"""A growing snapshot is synced so often: one large sync would hold up the log's small ones."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot on disk whose head is good.

    Attributes:
        path: on the disk.
        size_bytes: of the file.
    """

    path: str
    meta: SnapshotMeta
    size_bytes: int


class SnapshotWriter:
    """A snapshot that is being written. I/O only; may run in another thread, one call at a time."""

    def __init__(self, store: SnapshotStore, disk: Disk, path: str, meta: SnapshotMeta) -> None:
        self.meta = meta
        self.size_bytes = 0
        self._store = store
        self._disk = disk
        self._path = path
        self._unsynced_bytes = 0
        head = encode_head(meta)
        self._chain = FrameChain(head)
        self._file: File | None = disk.open(path + ASIDE_SUFFIX, create=True)
        self._file.truncate(0)
        self._write([head])

    def add(self, chunks: list[bytes]) -> None:
        """Write chunks of the state's bytes.

        Raises:
            OSError: it failed; call `abandon`.
        """
        parts: list[bytes] = []
        for chunk in chunks:
            for start in range(0, len(chunk), FRAME_BYTES_MAX):
                data = chunk[start : start + FRAME_BYTES_MAX]
                parts += (self._chain.encode(data), data)
        self._write(parts)

    def finish(self) -> SnapshotFile:
        """Make the snapshot durable under its name, and remove all but the newest ones.

        Raises:
            OSError: it failed; call `abandon`.
        """
        self._write([self._chain.end()])
        assert self._file is not None, "the snapshot was given up"
        self._file.sync()
        self._file.close()
        self._file = None
        self._disk.rename(self._path + ASIDE_SUFFIX, self._path)
        self._store.sync_and_prune()
        return SnapshotFile(self._path, self.meta, self.size_bytes)

    def abandon(self) -> None:
        """Abandon the snapshot; its temporary file is removed now if possible, else at the next start."""
        if self._file is not None:
            self._file.close()
            self._file = None
        aside = self._path + ASIDE_SUFFIX
        if self._disk.exists(aside):
            self._disk.remove(aside)

    def _write(self, parts: list[bytes]) -> None:
        assert self._file is not None, f"the snapshot of entry {self.meta.index} was given up"
        size = sum(map(len, parts))
        self._store.check_room(size)
        self._file.write_at(self.size_bytes, parts)
        self.size_bytes += size
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_BYTES:
            self._file.sync()
            self._unsynced_bytes = 0


class SnapshotCopy:
    """A snapshot of another member, as its bytes arrive. I/O only; one call at a time.

    Attributes:
        index: of the snapshot.
        size_bytes: what has arrived.
    """

    def __init__(self, store: SnapshotStore, disk: Disk, path: str, index: Index) -> None:
        self.index = index
        self.size_bytes = 0
        self._store = store
        self._disk = disk
        self._path = path
        self._file: File | None = disk.open(path + ASIDE_SUFFIX, create=True)
        self._is_aside = True
        self._file.truncate(0)

    @property
    def has_ended(self) -> bool:
        """True once it takes no more bytes: it was finished, abandoned, or a sync has failed."""
        return self._file is None

    def add(self, data: bytes) -> None:
        """Write the next bytes. After a failed write they may come again; after a failed sync it has ended.

        Raises:
            OSError: it failed.
        """
        assert self._file is not None, "the copy has ended"
        self._store.check_room(len(data))
        self._file.write_at(self.size_bytes, (data,))
        before, self.size_bytes = self.size_bytes, self.size_bytes + len(data)
        if before // SYNC_BYTES != self.size_bytes // SYNC_BYTES:
            self._sync()

    def finish(self) -> SnapshotFile:
        """Verify every checksum, then make it durable under its name. It has ended then, whatever happens.

        Raises:
            CorruptionError: it is no whole snapshot of this index; nothing of it is left.
            OSError: it failed; nothing of it is left, unless the disk does not remove it either.
        """
        assert self._file is not None, "the copy has ended"
        try:
            meta = self._verified_head(self._file)
            self._sync()
            self._close()
            self._disk.rename(self._path + ASIDE_SUFFIX, self._path)
            self._is_aside = False
        except OSError:
            self.abandon()
            raise
        self._store.sync_and_prune()
        return SnapshotFile(self._path, meta, self.size_bytes)

    def _verified_head(self, file: File) -> SnapshotMeta:
        """Read everything; return what the head says."""
        try:
            meta = _decode_head_of(file, self.index)
            for _ in _frames(file, FrameChain(file.read_at(0, HEAD_BYTES))):
                pass
        except SnapshotFormatError as error:
            self.abandon()
            raise CorruptionError(file.path, error.byte_offset, error.problem) from error
        return meta

    def _sync(self) -> None:
        """Sync; what a failed sync leaves on the disk is unknown, and is not built on (house rule 5)."""
        assert self._file is not None, "the copy has ended"
        try:
            self._file.sync()
        except OSError:
            self.abandon()
            raise

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def abandon(self) -> None:
        """Give it up, if it has not ended; its temporary file is removed now if possible, else at the next start."""
        self._close()
        with contextlib.suppress(OSError):
            if self._is_aside:
                self._disk.remove(self._path + ASIDE_SUFFIX)
                self._is_aside = False


class SnapshotStore:
    """The snapshots in a store's folder.

    Attributes:
        kept_index: that of a snapshot which is not removed, however old: the newest that is known to be of this log.
            One of another member may be ahead of the log, and does not do for a start until the log is, too.
    """

    def __init__(self, disk: Disk, folder: str = "", *, spare_bytes: int = 0) -> None:
        """Open, and sweep away what a crash left half written.

        Args:
            disk: where the snapshots are.
            folder: of the store.
            spare_bytes: room that a snapshot leaves free; it is the log's.

        Raises:
            OSError: the disk failed.
        """
        self.kept_index = NO_INDEX
        self._disk = disk
        self._spare_bytes = spare_bytes
        self._folder = f"{folder}/{SNAPSHOTS_FOLDER}" if folder else SNAPSHOTS_FOLDER
        disk.make_folder(self._folder)
        for name in disk.list(self._folder):
            if name.endswith(ASIDE_SUFFIX):
                disk.remove(f"{self._folder}/{name}")
        disk.sync_folder(self._folder)

    def newest_first(self) -> tuple[list[SnapshotFile], list[CorruptionError]]:
        """Return the snapshots whose heads are good, and what is wrong with the others.

        Raises:
            OSError: the disk failed.
        """
        good: list[SnapshotFile] = []
        bad: list[CorruptionError] = []
        for name in reversed(self._names()):
            path = f"{self._folder}/{name}"
            file = self._disk.open(path)
            try:
                meta = _decode_head_of(file, Index(int(name)))
                good.append(SnapshotFile(path, meta, file.size()))
            except (SnapshotFormatError, OSError) as error:
                bad.append(_damage(file, error))
            finally:
                file.close()
        return good, bad

    def chunks(self, snapshot: SnapshotFile) -> Iterator[bytes]:
        """Yield the state's bytes, each frame verified before it is given out.

        Raises:
            CorruptionError: names file and byte.
            OSError: the disk failed.
        """
        file = self._disk.open(snapshot.path)
        try:
            head = file.read_at(0, HEAD_BYTES)
            yield from _frames(file, FrameChain(head))
        except (SnapshotFormatError, OSError) as error:
            raise _damage(file, error) from error
        finally:
            file.close()

    def verify(self, snapshot: SnapshotFile) -> None:
        """Read a snapshot whole.

        Raises:
            CorruptionError: names file and byte.
            OSError: the disk failed.
        """
        for _ in self.chunks(snapshot):
            pass

    def begin(self, meta: SnapshotMeta) -> SnapshotWriter:
        """Start to write a snapshot.

        Raises:
            OSError: the disk failed.
        """
        path = f"{self._folder}/{meta.index:0{SEGMENT_NAME_DIGITS}d}"
        return SnapshotWriter(self, self._disk, path, meta)

    def begin_copy(self, index: Index) -> SnapshotCopy:
        """Start to take in another member's snapshot.

        Raises:
            OSError: the disk failed.
        """
        path = f"{self._folder}/{index:0{SEGMENT_NAME_DIGITS}d}"
        return SnapshotCopy(self, self._disk, path, index)

    def check_room(self, size_bytes: int) -> None:
        """Refuse a write of a snapshot that would take the log's room.

        Raises:
            OSError: ENOSPC.
        """
        if self._spare_bytes and self._disk.free_bytes() < size_bytes + self._spare_bytes:
            raise OSError(
                errno.ENOSPC, f"a snapshot must leave {self._spare_bytes} bytes of room for the log"
            )

    def part(self, snapshot: SnapshotFile, offset: int) -> bytes:
        """Return bytes of the file for another member; none beyond its end.

        Raises:
            OSError: it is gone, or the disk failed.
        """
        file = self._disk.open(snapshot.path)
        try:
            return file.read_at(offset, PART_BYTES_MAX)
        finally:
            file.close()

    def sync_and_prune(self) -> None:
        """Make the newest name durable, then remove what is older than the newest two and not `kept_index`.

        Raises:
            OSError: the disk failed.
        """
        self._disk.sync_folder(self._folder)
        for name in self._names()[:-KEPT_COUNT]:
            if int(name) == self.kept_index:
                continue
            self._disk.remove(f"{self._folder}/{name}")
        self._disk.sync_folder(self._folder)

    def _names(self) -> list[str]:
        return [
            name
            for name in self._disk.list(self._folder)
            if len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()
        ]


def _damage(file: File, error: SnapshotFormatError | OSError) -> CorruptionError:
    """Describe damage by its place. What the device does not give (EIO) is as damaged as what is wrong.

    Raises:
        OSError: it is none; the disk failed in another way.
    """
    if isinstance(error, SnapshotFormatError):
        return CorruptionError(file.path, error.byte_offset, error.problem)
    if error.errno != errno.EIO:
        raise error
    return CorruptionError(file.path, 0, f"the device does not give it: {error}")


def _decode_head_of(file: File, index: Index) -> SnapshotMeta:
    meta = decode_head(file.read_at(0, HEAD_BYTES))
    if meta.index != index:
        raise SnapshotFormatError(8, f"index {meta.index} in a file named {index}")
    return meta


def _frames(file: File, chain: FrameChain) -> Iterator[bytes]:
    """Yield the data of each frame, verified; raises SnapshotFormatError if anything stands beyond the end."""
    offset = HEAD_BYTES
    while True:
        head = file.read_at(offset, FRAME_HEAD_BYTES)
        length = chain.length(head, offset)
        data = file.read_at(offset + FRAME_HEAD_BYTES, length) if length else b""
        chain.check(head, data, offset)
        offset += FRAME_HEAD_BYTES + length
        if not length:
            if file.size() != offset:
                raise SnapshotFormatError(offset, "there are bytes beyond the end")
            return
        yield data
