"""The parts of snapshots on disk: bytes of the state that never change, in files that several snapshots name.

    snapshots/<number, 20 digits>.part    and a second one, `.twin`, with the same bytes

A part is written and synced before a snapshot that names it gets its own name, and removed after the last one that
named it. So what a crash leaves are files that nobody names, which are removed at the next start. There are two of
each, since the newest two snapshots name the same parts: one damaged file must not cost both (docs/adr/0188).

Nothing here knows which snapshots there are.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Protocol

from dledger.codec.snapshot import (
    FRAME_BYTES_MAX,
    FRAME_HEAD_BYTES,
    PART_HEAD_BYTES,
    FrameChain,
    SnapshotFormatError,
    check_part_head,
    encode_part_head,
    named_part,
)
from dledger.errors import CorruptionError
from dledger.state_machine import StoredPart
from dledger.storage.api import Disk, File, ReadableFile
from dledger.storage.read_errors import is_damage
from dledger.storage.segment import SEGMENT_NAME_DIGITS

SUFFIXES = (".part", ".twin")
LOST_SUFFIX = ".lost"
"""Behind the names of both files of a part, where both are damaged."""


def part_names(number: int) -> tuple[str, ...]:
    """Return the names of a part's files."""
    return tuple(f"{number:0{SEGMENT_NAME_DIGITS}d}{suffix}" for suffix in SUFFIXES)


def number_of(name: str) -> int | None:
    """Return the number of the part that a file of this name holds, or has held; None: it holds none."""
    name = name.removesuffix(LOST_SUFFIX)
    stem, _, _ = name.partition(".")
    if not name.endswith(SUFFIXES) or len(stem) != SEGMENT_NAME_DIGITS or not stem.isdigit():
        return None
    return int(stem)


class PartFile(ReadableFile, Protocol):
    """A file that can be read and closed."""

    def close(self) -> None:
        """Close it."""
        ...


def read_frames(
    file: ReadableFile, chain: FrameChain, offset: int, end: StoredPart | None = None
) -> Iterator[bytes | StoredPart]:
    """Yield what each frame carries, verified.

    Args:
        file: a snapshot's, or a part's.
        chain: begun with the file's head.
        offset: where the head ends.
        end: the part that this must be.

    Raises:
        SnapshotFormatError: it is damaged, another one, or anything stands beyond the end.
        OSError: the disk failed.
    """
    while True:
        head = file.read_at(offset, FRAME_HEAD_BYTES)
        length = chain.length(head, offset)
        data = file.read_at(offset + FRAME_HEAD_BYTES, length) if length else b""
        chain.check(head, data, offset)
        offset += FRAME_HEAD_BYTES + length
        if not length:
            if file.size() != offset:
                raise SnapshotFormatError(offset, "there are bytes beyond the end")
            if end is not None and (end.size_bytes, end.crc) != (offset, chain.crc):
                raise SnapshotFormatError(offset, f"it is another part than {end}")
            return
        yield named_part(head, data) or data


def damage_of(path: str, error: SnapshotFormatError | OSError) -> CorruptionError:
    """Describe damage by its place. What the device does not give, or has not, is as damaged as what is wrong.

    Raises:
        OSError: it is none; the disk failed in another way.
    """
    if isinstance(error, SnapshotFormatError):
        return CorruptionError(path, error.byte_offset, error.problem)
    if error.errno == errno.ENOENT:
        return CorruptionError(path, 0, "there is no such file")
    if not is_damage(error):
        raise error
    return CorruptionError(path, 0, f"the device does not give it: {error}")


def read_part(
    open_file: Callable[[str], PartFile], folder: str, part: StoredPart, damaged: set[int]
) -> Iterator[bytes]:
    """Yield the state's bytes in a part, each frame verified; from the second file where the first is damaged.

    Args:
        open_file: opens a file for reading.
        folder: of the files.
        part: to read.
        damaged: its number is added, if a file of it is damaged.

    Raises:
        CorruptionError: both are damaged.
        OSError: the disk failed.
    """
    given_count = 0
    damage: CorruptionError | None = None
    for name in part_names(part.number):
        path = f"{folder}/{name}"
        try:
            for place, data in enumerate(read_part_file(open_file, path, part)):
                if place == given_count:
                    given_count += 1
                    yield data
        except (SnapshotFormatError, OSError) as error:
            damage = damage_of(path, error)
            damaged.add(part.number)
        else:
            return
    assert damage is not None, f"{part} has no files"
    raise damage


def read_part_file(
    open_file: Callable[[str], PartFile], path: str, part: StoredPart
) -> Iterator[bytes]:
    """Yield the state's bytes in one file of a part, those of a frame at a time, each verified.

    Raises:
        SnapshotFormatError: it is not what was written.
        OSError: the disk failed.
    """
    file = open_file(path)
    try:
        head = file.read_at(0, PART_HEAD_BYTES)
        check_part_head(head)
        for data in read_frames(file, FrameChain(head), PART_HEAD_BYTES, part):
            if not isinstance(data, bytes):
                raise SnapshotFormatError(0, "a part names a part")
            yield data
    finally:
        file.close()


class PartWriter:
    """A part that is being written. I/O only; one call at a time."""

    def __init__(self, disk: Disk, folder: str, number: int) -> None:
        """Create the files.

        Raises:
            OSError: it failed; nothing is left, unless the disk does not remove it either.
        """
        self.number = number
        self._disk = disk
        self._paths = [f"{folder}/{name}" for name in part_names(number)]
        self._files: list[File] = []
        self._size_bytes = self._state_bytes = 0
        head = encode_part_head()
        self._chain = FrameChain(head)
        try:
            for path in self._paths:
                file = disk.open(path, create=True)
                self._files.append(file)
                file.truncate(0)
            self._write([head])
        except OSError:
            self.abandon()
            raise

    def add(self, chunk: bytes) -> None:
        """Write bytes of the state.

        Raises:
            OSError: it failed; call `abandon`.
        """
        frames: list[bytes] = []
        for start in range(0, len(chunk), FRAME_BYTES_MAX):
            data = chunk[start : start + FRAME_BYTES_MAX]
            frames += (self._chain.encode(data), data)
        self._state_bytes += len(chunk)
        self._write(frames)

    def finish(self) -> StoredPart:
        """Make the bytes durable; the names are so once the folder is synced.

        Raises:
            OSError: it failed; call `abandon`.
        """
        self._write([self._chain.end()])
        for file in self._files:
            file.sync()
        self._close()
        return StoredPart(self.number, self._size_bytes, self._state_bytes, self._chain.crc)

    def abandon(self) -> None:
        """Remove the files, now if possible, else at the next start."""
        self._close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _write(self, parts: list[bytes]) -> None:
        for file in self._files:
            file.write_at(self._size_bytes, parts)
        self._size_bytes += sum(map(len, parts))

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
