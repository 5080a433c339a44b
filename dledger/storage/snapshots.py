"""Snapshots of derived state on disk: `snapshots/<20 digits of the index>`, the newest two are kept.

A snapshot is written aside, synced, renamed, and the folder synced; so a name stands for a whole
file, and what a crash leaves aside is removed at the next start. It is an aid and no truth: a damaged
one is refused by name and place, and the older one or the whole log is used. Hence a failure to write
one costs nothing but the snapshot: the half file is given up, never synced again.

What never changes of the state stands in parts (snapshot_parts.py), which are durable before a snapshot that names them
has its name, and are removed after the last one that does. What a snapshot names cannot be known where it cannot be
read; then no part is removed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dledger.codec.snapshot import (
    FRAME_BYTES_MAX,
    FRAME_HEAD_BYTES,
    HEAD_BYTES,
    NAMED_PART_BYTES,
    PART_HEAD_BYTES,
    VERSION,
    VERSION_WITH_PARTS,
    FrameChain,
    SnapshotFormatError,
    SnapshotMeta,
    decode_head,
    encode_head,
)
from dledger.errors import CorruptionError
from dledger.raft.ids import NO_INDEX, Index
from dledger.state_machine import SealedPart, StoredPart
from dledger.storage.api import Disk, File
from dledger.storage.parts_in_use import PartOnDisk, PartsInUse
from dledger.storage.segment import SEGMENT_NAME_DIGITS
from dledger.storage.snapshot_parts import (
    PartWriter,
    damage_of,
    number_of,
    part_names,
    read_frames,
    read_part,
)
from dledger.storage.whole_snapshot import PlacedBytes, WholeSnapshot

SNAPSHOTS_FOLDER = "snapshots"
KEPT_COUNT = 2
ASIDE_SUFFIX = ".aside"
COPY_ASIDE_SUFFIX = ".copy" + ASIDE_SUFFIX
"""Of another member's snapshot: the own one of the same entry may be being written, too."""
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


class EndOfPart:
    """Stands behind the bytes of a part that is to be written."""


END_OF_PART = EndOfPart()

Written = bytes | SealedPart | StoredPart | EndOfPart
"""Items for a writer: bytes; a part, whose bytes follow up to its end; or one that is kept already."""


class SnapshotWriter:
    """A snapshot that is being written. I/O only; may run in another thread, one call at a time.

    Attributes:
        size_bytes: written so far, without parts.
        part_bytes: written so far in new parts, in both files of each.
    """

    def __init__(
        self, store: SnapshotStore, disk: Disk, path: str, meta: SnapshotMeta, *, version: int
    ) -> None:
        self.meta = meta
        self.size_bytes = 0
        self.part_bytes = 0
        self._store = store
        self._disk = disk
        self._path = path
        self._unsynced_bytes = 0
        self._is_open = True
        self._named: set[int] = set()
        self._new: list[tuple[SealedPart, StoredPart]] = []
        self._part: tuple[SealedPart, PartWriter] | None = None
        head = encode_head(meta, version)
        self._chain = FrameChain(head)
        self._file: File | None = None
        try:
            self._file = disk.open(path + ASIDE_SUFFIX, create=True)
            self._file.truncate(0)
            self._write([head])
        except OSError:
            with contextlib.suppress(OSError):
                self.abandon()
            raise

    def add(self, items: Sequence[Written]) -> None:
        """Write chunks of the state's bytes, and parts; see `with_parts`.

        Raises:
            OSError: it failed; call `abandon`.
        """
        frames: list[bytes] = []
        for item in items:
            if isinstance(item, SealedPart):
                self._part = item, self._store.begin_part()
            elif isinstance(item, EndOfPart):
                frames.append(self._end_part())
            elif isinstance(item, StoredPart):
                frames.append(self._name(item))
            elif self._part is not None:
                self._store.check_room(2 * len(item))
                self._part[1].add(item)
            else:
                for start in range(0, len(item), FRAME_BYTES_MAX):
                    data = item[start : start + FRAME_BYTES_MAX]
                    frames += (self._chain.encode(data), data)
        self._write(frames)

    def _end_part(self) -> bytes:
        """Make a part durable, and return the frame that names it."""
        assert self._part is not None, "no part has begun"
        sealed, writer = self._part
        stored = writer.finish()
        self._new.append((sealed, stored))
        self._part = None
        self.part_bytes += len(part_names(stored.number)) * stored.size_bytes
        return self._name(stored)

    def _name(self, part: StoredPart) -> bytes:
        self._named.add(part.number)
        return self._chain.name(part)

    def finish(self) -> SnapshotFile:
        """Make the snapshot durable under its name, and remove all but the newest ones.

        Raises:
            OSError: it failed; call `abandon`.
        """
        assert self._part is None, "a part has no end"
        self._write([self._chain.end()])
        assert self._file is not None, "the snapshot was given up"
        self._file.sync()
        self._file.close()
        self._file = None
        self._store.sync_parts()  # their names, before one that names them
        self._disk.rename(self._path + ASIDE_SUFFIX, self._path)
        new, self._new = self._new, []  # they are no longer this writer's to remove
        self._is_open = False
        self._store.finished(self._path, frozenset(self._named))
        for sealed, stored in new:
            sealed.stored = stored
        return SnapshotFile(self._path, self.meta, self.size_bytes)

    def abandon(self) -> None:
        """Abandon the snapshot; its temporary files are removed now if possible, else at the next start."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._is_open:
            self._is_open = False
            self._store.abandoned()
        if self._part is not None:
            self._part[1].abandon()
            self._part = None
        aside = self._path + ASIDE_SUFFIX
        if self._disk.exists(aside):
            self._disk.remove(aside)
        for _, stored in self._new:
            self._store.remove_part(stored.number)
        self._new.clear()

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
        self._aside = path + COPY_ASIDE_SUFFIX
        self._file: File | None = disk.open(self._aside, create=True)
        self._is_aside = True
        try:
            self._file.truncate(0)
        except OSError:
            self.abandon()
            raise

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
            self._disk.rename(self._aside, self._path)
            self._is_aside = False
        except OSError:
            self.abandon()
            raise
        self._store.copied(self._path)
        return SnapshotFile(self._path, meta, self.size_bytes)

    def _verified_head(self, file: File) -> SnapshotMeta:
        """Read everything; return what the head says."""
        try:
            meta = _decode_head_of(file, self.index)
            frames = read_frames(file, FrameChain(file.read_at(0, HEAD_BYTES)), HEAD_BYTES)
            _check_names_none(frames)
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
                self._disk.remove(self._aside)
                self._is_aside = False


class SnapshotStore:
    """The snapshots in a store's folder.

    Attributes:
        kept_index: that of a snapshot which is not removed, however old: the newest that is known to be of this log.
            One of another member may be ahead of the log, and does not do for a start until the log is, too.
        lent_indexes: those of snapshots that other members fetch, which are not removed, either.
        in_use: the parts from which a state is served.
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
        self.lent_indexes: frozenset[Index] = frozenset()
        self._begun_count = self._ended_count = 0
        self._next_part = 1
        self._named: dict[str, frozenset[int]] = {}
        self._refused: set[str] = set()
        self._parts: frozenset[int] = frozenset()
        self._damaged: set[int] = set()
        self._disk = disk
        self._spare_bytes = spare_bytes
        self._folder = f"{folder}/{SNAPSHOTS_FOLDER}" if folder else SNAPSHOTS_FOLDER
        self.in_use = PartsInUse(disk, self._folder, self._damaged)
        disk.make_folder(self._folder)
        for name in disk.list(self._folder):
            if name.endswith(ASIDE_SUFFIX):
                disk.remove(f"{self._folder}/{name}")
            number = number_of(name)
            if number is not None:
                self._next_part = max(self._next_part, number + 1)
        self._remove_unnamed_parts()
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
            try:
                with contextlib.closing(self._disk.open(path)) as file:
                    meta = _decode_head_of(file, Index(int(name)))
                    good.append(SnapshotFile(path, meta, file.size()))
            except (SnapshotFormatError, OSError) as error:
                bad.append(damage_of(path, error))
        return good, bad

    def chunks(self, snapshot: SnapshotFile) -> Iterator[bytes]:
        """Yield the state's bytes, each frame verified before it is given out, those of parts at their place.

        Raises:
            CorruptionError: names file and byte.
            OSError: the disk failed.
        """
        for data in self._frames(snapshot.path):
            if isinstance(data, bytes):
                yield data
            else:
                yield from read_part(self._disk.open, self._folder, data, self._damaged)

    def sealed_chunks(self, snapshot: SnapshotFile) -> Iterator[bytes | PartOnDisk]:
        """Yield the same, and instead of the bytes of each part the part, of which only the names are looked at.

        But for one that was set aside as lost: its files are read, and taken if they are whole after all.

        Raises:
            CorruptionError: names file and byte.
            OSError: the disk failed.
        """
        names = frozenset(self._disk.list(self._folder))
        for data in self._frames(snapshot.path):
            if isinstance(data, bytes):
                yield data
                continue
            missing = [name for name in part_names(data.number) if name not in names]
            if missing:
                self._damaged.add(data.number)
            are_missing = len(missing) == len(part_names(data.number))
            if are_missing and not self.in_use.bring_back(data):
                raise CorruptionError(f"{self._folder}/{missing[-1]}", 0, "there is no such file")
            yield self.in_use.hold(data)

    def _frames(self, path: str) -> Iterator[bytes | StoredPart]:
        try:
            with contextlib.closing(self._disk.open(path)) as file:
                yield from read_frames(file, FrameChain(file.read_at(0, HEAD_BYTES)), HEAD_BYTES)
        except (SnapshotFormatError, OSError) as error:
            raise damage_of(path, error) from error

    def verify(self, snapshot: SnapshotFile) -> None:
        """Read a snapshot whole.

        Raises:
            CorruptionError: names file and byte.
            OSError: the disk failed.
        """
        for _ in self.chunks(snapshot):
            pass

    def begin(self, meta: SnapshotMeta, *, has_parts: bool = False) -> SnapshotWriter:
        """Start to write a snapshot; until it is finished or abandoned, no part is removed.

        Raises:
            OSError: the disk failed.
        """
        path = f"{self._folder}/{meta.index:0{SEGMENT_NAME_DIGITS}d}"
        version = VERSION_WITH_PARTS if has_parts else VERSION
        self._begun_count += 1
        return SnapshotWriter(self, self._disk, path, meta, version=version)

    def begin_part(self) -> PartWriter:
        """Start to write a part, under a number that none has had before as far as this store remembers.

        Raises:
            OSError: the disk failed.
        """
        number, self._next_part = self._next_part, self._next_part + 1
        return PartWriter(self._disk, self._folder, number)

    def has_part(self, part: StoredPart) -> bool:
        """Return whether a part is kept, and undamaged as far as is known."""
        return part.number in self._parts and part.number not in self._damaged

    def with_parts(self, chunks: Iterator[bytes | SealedPart]) -> Iterator[Written]:
        """Yield what a writer is to take of a state: parts that are kept are only named, the others written.

        While this is read there must be a writer, so that no part is removed.
        """
        for chunk in chunks:
            if isinstance(chunk, bytes):
                yield chunk
            elif chunk.stored is not None and self.has_part(chunk.stored):
                yield chunk.stored
            else:
                yield chunk
                yield from chunk.chunks()
                yield END_OF_PART

    def sync_parts(self) -> None:
        """Make the names of new parts durable.

        Raises:
            OSError: the disk failed.
        """
        self._disk.sync_folder(self._folder)

    def finished(self, path: str, named: frozenset[int]) -> None:
        """Note a snapshot that has its name now, with the parts that it names; remove what is no longer needed.

        Raises:
            OSError: the disk failed.
        """
        self._named[path] = named
        self._refused.discard(path)
        self._ended_count += 1
        self.sync_and_prune()

    def copied(self, path: str) -> None:
        """Note another member's snapshot that has its name now; remove what is no longer needed.

        Raises:
            OSError: the disk failed.
        """
        self._named.pop(path, None)  # of one that had this name before
        self._refused.discard(path)
        self.sync_and_prune()

    def refuse(self, path: str) -> None:
        """Note a snapshot from which no start goes on: it is removed before any other, though it may end later."""
        self._refused.add(path)

    def abandoned(self) -> None:
        """Note that a writer has given its snapshot up."""
        self._ended_count += 1

    def remove_part(self, number: int) -> None:
        """Remove a part that no snapshot names; now if possible, else at the next start."""
        for name in part_names(number):
            with contextlib.suppress(OSError):
                if self._disk.exists(f"{self._folder}/{name}"):
                    self._disk.remove(f"{self._folder}/{name}")

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

    def whole(self, snapshot: SnapshotFile) -> WholeSnapshot:
        """Return a snapshot as one file without parts, for other members; it is read whole.

        Raises:
            CorruptionError: it is damaged; names file and byte.
            OSError: the disk failed.
        """
        return WholeSnapshot(self._disk, snapshot.meta, self._placed(snapshot.path))

    def _placed(self, path: str) -> Iterator[PlacedBytes]:
        """Yield the state's bytes with where they are kept."""
        offset = HEAD_BYTES
        for data in self._frames(path):
            offset += FRAME_HEAD_BYTES
            if isinstance(data, bytes):
                yield (path,), offset, data
                offset += len(data)
                continue
            offset += NAMED_PART_BYTES
            paths = tuple(f"{self._folder}/{name}" for name in part_names(data.number))
            in_part = PART_HEAD_BYTES
            for piece in read_part(self._disk.open, self._folder, data, self._damaged):
                in_part += FRAME_HEAD_BYTES
                yield paths, in_part, piece
                in_part += len(piece)

    def sync_and_prune(self) -> None:
        """Make the newest name durable, then remove what is older than the newest two, and neither kept nor lent.

        What was refused counts as older than all others: else what a member fetches after it has lost its state, or
        takes while it folds its log again, would be gone as soon as it is there.

        Raises:
            OSError: the disk failed.
        """
        self._disk.sync_folder(self._folder)
        names = sorted(self._names(), key=lambda name: (not self._is_refused(name), name))
        for name in names[:-KEPT_COUNT]:
            if int(name) != self.kept_index and int(name) not in self.lent_indexes:
                self._remove(name)
                self._named.pop(f"{self._folder}/{name}", None)
                self._refused.discard(f"{self._folder}/{name}")
        self._disk.sync_folder(self._folder)  # before the parts that only those named
        self._remove_unnamed_parts()
        self._disk.sync_folder(self._folder)

    def _is_refused(self, name: str) -> bool:
        return f"{self._folder}/{name}" in self._refused

    def _remove(self, name: str) -> None:
        """Remove a file, which a copy that is finished in another thread may have removed just now."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(f"{self._folder}/{name}")

    def _remove_unnamed_parts(self) -> None:
        """Remove the parts that no snapshot names, unless one cannot be read, may be being written, or is in use.

        Another thread may begin or finish one meanwhile. Who begins before the last look at the counts stops this; who
        begins after it finds in `_parts` only what stays, and writes new parts under numbers from `end` on.
        """
        end, begun = self._next_part, self._begun_count
        is_idle = begun == self._ended_count
        named: set[int] = set()
        for name in self._names():
            try:
                named |= self._parts_named_in(f"{self._folder}/{name}")
            except CorruptionError:
                is_idle = False
        self._parts = frozenset(named)
        if not is_idle or begun != self._begun_count:
            return
        for name in self._disk.list(self._folder):
            number = number_of(name)
            if number is None or number >= end or number in named or self.in_use.is_held(number):
                continue
            self.in_use.close(number)
            self._remove(name)

    def _parts_named_in(self, path: str) -> frozenset[int]:
        """Return the numbers of the parts that a snapshot names.

        Raises:
            CorruptionError: it cannot be read.
        """
        named = self._named.get(path)
        if named is None:
            named = self._named[path] = frozenset(
                data.number for data in self._frames(path) if isinstance(data, StoredPart)
            )
        return named

    def _names(self) -> list[str]:
        return [
            name
            for name in self._disk.list(self._folder)
            if len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()
        ]


def _check_names_none(frames: Iterator[bytes | StoredPart]) -> None:
    """Refuse a snapshot that names parts, which would be another member's.

    Raises:
        SnapshotFormatError: it is one, or damaged.
    """
    for data in frames:
        if isinstance(data, StoredPart):
            raise SnapshotFormatError(HEAD_BYTES, f"it names {data}, which another member has")


def _decode_head_of(file: File, index: Index) -> SnapshotMeta:
    meta = decode_head(file.read_at(0, HEAD_BYTES))
    if meta.index != index:
        raise SnapshotFormatError(8, f"index {meta.index} in a file named {index}")
    return meta
