"""Files for what the derived state does not keep in memory: consume queue units and index segments.

The only part of the store that touches files. They are written without sync and wiped at start,
because the fold writes them again from the log (docs/adr/0021). Layout as RocketMQ's:

    consumequeue/<topic>/<queue id>/<20 digits>   units, 6,000,000 bytes a file, named by its first byte
    keyindex/<20 digits>                          segments of the key index, named by their number

A topic may be any text, so what could mean something in a path is escaped, and two topics never share
a folder. The work on files runs on the caller's thread: a spill writes a megabyte now and then.

Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self

from broker.store.errors import NoRoomError
from broker.store.file_places import FolderPlace, OpenFiles, folder_beside
from broker.store.key_index import ReadPart
from broker.store.unit_stores import UNIT_BYTES, QueueKey
from dledger.errors import EntryDamagedError
from dledger.storage.read_errors import is_shortage
from dledger_mq.message.numbers import QueueOffset

DERIVED: Final = "derived"
"""The folder of these files in a broker's store, with all else that follows from its log; every start makes it anew."""

QUEUE_FILE_BYTES: Final = 6_000_000
"""300,000 units, as in RocketMQ."""

OPEN_FILES_MAX: Final = 128
PATHS_MAX: Final = 1024
"""Paths that are remembered, in less than a megabyte: to make one takes five times as long as the read itself."""

NAME_BYTES_MAX: Final = 255

_UNSAFE = re.compile(rb"[^%|a-zA-Z0-9_-]")


def folder_name(topic: bytes) -> str:
    """Return a topic as the name of a folder: valid topics as they are, others escaped with `=`.

    `=` is no character of valid topics, so no two topics have the same name; a name that would be too
    long becomes a hash.
    """
    name = _UNSAFE.sub(lambda match: b"=%02X" % match[0][0], topic)
    if not name or len(name) > NAME_BYTES_MAX:
        name = b"=#" + blake2b(topic, digest_size=24).hexdigest().encode()
    return name.decode()


@contextmanager
def _reporting_no_room() -> Iterator[None]:
    """Raise `NoRoomError` for a full disk, and where descriptors or memory are short.

    The bytes that were written do no harm: they are written again at the same place, or never read.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT} and not is_shortage(error):
            raise
        raise NoRoomError(str(error)) from error


@contextmanager
def _reporting_shortage() -> Iterator[None]:
    """Raise `EntryDamagedError` where descriptors or memory are short: whoever asks is to ask again."""
    try:
        yield
    except OSError as error:
        if not is_shortage(error):
            raise
        raise EntryDamagedError(
            f"what the log is looked up by cannot be read now: {error}"
        ) from error


def _write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _read_all(descriptor: int, size: int, offset: int, path: Path) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise OSError(f"{path}: {len(data)} bytes at {offset}, {size} were written")
    return data


def _read_resident(files: OpenFiles, path: Path, size: int, offset: int) -> bytes | None:
    """Return bytes that the system has in memory; None if not, if it cannot tell, or if no descriptor is left."""
    data = bytearray(size)
    try:
        got = os.preadv(files.get(path), (data,), offset, os.RWF_NOWAIT)
    except OSError:
        return None
    return bytes(data) if got == size else None


class UnitFiles(FolderPlace):
    """A `UnitStore` in files: `consumequeue/` under a folder, which is wiped when this is made."""

    def __init__(
        self, folder: Path, file_bytes: int = QUEUE_FILE_BYTES, name: str = "consumequeue"
    ) -> None:
        assert file_bytes % UNIT_BYTES == 0, f"a unit would lie in two files of {file_bytes} bytes"
        super().__init__(folder / name)
        self._file_bytes = file_bytes
        self._firsts: dict[QueueKey, int] = {}
        self._paths: dict[tuple[QueueKey, int], Path] = {}

    def beside(self) -> UnitFiles:
        """Return an empty one; see `PartPlace`."""
        root = folder_beside(self._root)
        return UnitFiles(root.parent, self._file_bytes, root.name)

    def take_place_of(self, other: Self) -> None:
        """Change names with another one; see `PartPlace`."""
        super().take_place_of(other)
        self._paths, other._paths = {}, {}  # a thread may be about to put one in those of before

    def append(self, key: QueueKey, first: QueueOffset, units: bytes) -> None:
        """Keep units; see `UnitStore`."""
        assert len(units) % UNIT_BYTES == 0, f"{key}: {len(units)} bytes are no whole units"
        start, view = first * UNIT_BYTES, memoryview(units)
        self._firsts.setdefault(key, start - start % self._file_bytes)
        while view:
            path, offset = self._place(key, start)
            piece = view[: self._file_bytes - offset]
            with _reporting_no_room():
                _write_all(self._files.get(path, create=True), piece, offset)
            view, start = view[len(piece) :], start + len(piece)

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units; see `UnitStore`."""
        pieces = []
        for path, offset, size in self._stretches(key, first, count):
            with _reporting_shortage():
                pieces.append(_read_all(self._files.get(path), size, offset, path))
        return b"".join(pieces)

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        """Return units; see `UnitStore`."""
        pieces = []
        for path, offset, size in self._stretches(key, first, count):
            data = _read_resident(self._files, path, size, offset)
            if data is None:
                return None
            pieces.append(data)
        return b"".join(pieces)

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        """Return a read of these bytes with descriptors of its own; see `UnitStore`."""
        stretches = list(self._stretches(key, first, count))

        def warm() -> None:
            with suppress(
                OSError
            ):  # whoever reads it then meets the same, and tells; or the file was removed
                for path, offset, size in stretches:
                    with path.open("rb", buffering=0) as file:
                        os.pread(file.fileno(), size, offset)

        return warm

    def read_beside(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        """Return units, with descriptors of its own; see `UnitStore`."""
        pieces = []
        for path, offset, size in self._stretches(key, first, count):
            with path.open("rb", buffering=0) as file:
                pieces.append(_read_all(file.fileno(), size, offset, path))
        return b"".join(pieces)

    def trim(self, key: QueueKey, first: QueueOffset) -> None:
        """Remove the files that hold nothing but units before `first`; see `UnitStore`."""
        begin = first * UNIT_BYTES // self._file_bytes * self._file_bytes
        for byte in range(self._firsts[key], begin, self._file_bytes):
            path, _ = self._place(key, byte)
            self._files.close_under(path)
            path.unlink(missing_ok=True)
        self._firsts[key] = begin

    def drop(self, key: QueueKey) -> None:
        """Forget a queue; see `UnitStore`."""
        self._firsts.pop(key, None)
        folder = self._folder(key)
        self._files.close_under(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, key: QueueKey) -> Path:
        return self._root / folder_name(key[0]) / str(key[1])

    def _stretches(
        self, key: QueueKey, first: QueueOffset, count: int
    ) -> Iterator[tuple[Path, int, int]]:
        """Yield where units stand: file, first byte, and how many bytes."""
        start, left = first * UNIT_BYTES, count * UNIT_BYTES
        while left:
            path, offset = self._place(key, start)
            size = min(left, self._file_bytes - offset)
            yield path, offset, size
            start, left = start + size, left - size

    def _place(self, key: QueueKey, byte: int) -> tuple[Path, int]:
        offset = byte % self._file_bytes
        first, paths = byte - offset, self._paths
        path = paths.get((key, first))
        if path is None:
            if len(paths) >= PATHS_MAX:
                paths.clear()
            path = paths[key, first] = self._folder(key) / f"{first:020}"
        return path, offset


class SegmentFiles(FolderPlace):
    """A `SegmentStore` in files: `keyindex/` under a folder, which is wiped when this is made."""

    def __init__(self, folder: Path, name: str = "keyindex") -> None:
        super().__init__(folder / name)

    def beside(self) -> SegmentFiles:
        """Return an empty one; see `PartPlace`."""
        root = folder_beside(self._root)
        return SegmentFiles(root.parent, root.name)

    def write(self, number: int, segment: bytes) -> None:
        """Keep a segment; see `SegmentStore`."""
        with _reporting_no_room():
            _write_all(self._files.get(self._path(number), create=True), segment, 0)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Return a part; see `SegmentStore`."""
        path = self._path(number)
        with _reporting_shortage():
            return _read_all(self._files.get(path), size, offset, path)

    def read_resident(self, number: int, offset: int, size: int) -> bytes | None:
        """Return a part; see `SegmentStore`."""
        return _read_resident(self._files, self._path(number), size, offset)

    def read_beside(self, number: int, work: Callable[[ReadPart], None]) -> None:
        """Run work with a descriptor of its own; see `SegmentStore`."""
        path = self._path(number)
        with path.open("rb", buffering=0) as file:
            work(lambda offset, size: _read_all(file.fileno(), size, offset, path))

    def drop(self, number: int) -> None:
        """Forget a segment; see `SegmentStore`."""
        path = self._path(number)
        self._files.close_under(path)
        path.unlink()

    def _path(self, number: int) -> Path:
        return self._root / f"{number:020}"
