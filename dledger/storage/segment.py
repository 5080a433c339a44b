"""One segment: a data file with whole entries, and its index file (docs/formats/segment.md).

A segment is named by the position of its first entry. While it is the last one it is open for
writing: the data file is preallocated (zeros after the entries), the index file grows in steps.
A finished segment is *sealed*: its index ends with a seal, its data file with its last entry.

Two threads may use a segment at once: the one that runs `WriteBatch` writes, the owner of the log
reads. Fields named under "writer" are touched by the first only.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from dledger.codec.index_unit import INDEX_UNIT_BYTES, encode_seal
from dledger.errors import DiskFullError
from dledger.raft.ids import Index, Position, Term
from dledger.storage.api import Disk, File

SEGMENT_NAME_DIGITS = 20
BEGUN_NAME = "begun"
INDEX_STEP_BYTES = 64 * 1024
"""Index files are preallocated in steps of 2048 units, so that a full disk shows before an entry is
written, not after."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The paths of a log's files."""

    folder: str

    @property
    def data_folder(self) -> str:
        """Folder of the data files."""
        return f"{self.folder}/data" if self.folder else "data"

    @property
    def index_folder(self) -> str:
        """Folder of the index files."""
        return f"{self.folder}/index" if self.folder else "index"

    @property
    def begun_path(self) -> str:
        """An empty file that stands from the first segment on: a log without segments has lost them."""
        return f"{self.folder}/{BEGUN_NAME}" if self.folder else BEGUN_NAME

    def data_path(self, first_position: Position) -> str:
        """Return the path of the data file of the segment that starts at a position."""
        return f"{self.data_folder}/{first_position:0{SEGMENT_NAME_DIGITS}d}"

    def index_path(self, first_position: Position) -> str:
        """Return the path of the index file of the segment that starts at a position."""
        return f"{self.index_folder}/{first_position:0{SEGMENT_NAME_DIGITS}d}"


def reserve(file: File, size: int) -> None:
    """Preallocate `size` bytes.

    Raises:
        DiskFullError: there is no room; the file holds what it held, and takes no more room than before.
        OSError: anything else.
    """
    size_before = file.size()
    try:
        file.preallocate(size)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # Some file systems (ext4) keep what they found before the room ran out, and leave none for the vote.
        file.truncate(size_before)
        raise DiskFullError(f"{file.path}: no room for {size} bytes") from error


def open_new(disk: Disk, path: str) -> File:
    """Make a file.

    Raises:
        DiskFullError: there is no room for its name; nothing has changed.
        OSError: anything else.
    """
    try:
        return disk.open(path, create=True)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFullError(f"{path}: no room for another file") from error


def segment_positions(disk: Disk, folder: str) -> list[Position]:
    """Return the first positions of the segment files in a folder, ascending. Other names are not ours."""
    return [
        Position(int(name))
        for name in disk.list(folder)
        if len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()
    ]


def mark_begun(disk: Disk, paths: StorePaths) -> None:
    """Note, durably, that the log has a segment.

    Raises:
        OSError: it failed.
    """
    if not disk.exists(paths.begun_path):
        disk.open(paths.begun_path, create=True).close()
        disk.sync_folder(paths.folder)


class Segment:
    """The files of one segment and what is known of them.

    Invariants: offsets in the data file are positions minus `first_position`; unit number k of the
    index belongs to entry `first_index + k`.
    """

    __slots__ = (
        "data",
        "data_reserved_bytes",
        "first_index",
        "first_position",
        "index",
        "index_reserved_bytes",
        "paths",
        "unit_count",
        "units_crc",
        "unsynced_bytes",
        "unsynced_unit_writes",
    )

    def __init__(self, paths: StorePaths, first_position: Position, first_index: Index) -> None:
        self.paths = paths
        self.first_position = first_position
        self.first_index = first_index
        self.data: File | None = None
        # Writer:
        self.index: File | None = None
        self.data_reserved_bytes = 0
        self.index_reserved_bytes = 0
        self.unit_count = 0
        self.units_crc = 0
        self.unsynced_bytes = 0
        self.unsynced_unit_writes = 0

    def open_data(self, disk: Disk) -> File:
        """Return the data file, opened when needed."""
        if self.data is None:
            self.data = disk.open(self.paths.data_path(self.first_position))
        return self.data

    def close_data(self) -> None:
        """Close the data file; it is opened again when needed."""
        if self.data is not None:
            self.data.close()
            self.data = None

    def close(self) -> None:
        """Close both files without syncing."""
        self.close_data()
        if self.index is not None:
            self.index.close()
            self.index = None

    def create(self, disk: Disk, data_bytes: int) -> None:
        """Make both files, empty and durable.

        The data file is durable before the index file exists: an index without data is never left
        by a crash (recovery refuses it).

        Raises:
            DiskFullError: there is no room; both files are gone again.
            OSError: anything else.
        """
        assert self.data is None, f"segment {self.first_position} is there already"
        try:
            self.data = open_new(disk, self.paths.data_path(self.first_position))
            reserve(self.data, data_bytes)
            self.data.sync()
            disk.sync_folder(self.paths.data_folder)
            self.index = open_new(disk, self.paths.index_path(self.first_position))
            self._reserve_index(0)
            self.index.sync()
            disk.sync_folder(self.paths.index_folder)
        except DiskFullError:
            self.remove_index(disk)
            self.remove_data(disk)
            raise
        self.data_reserved_bytes = data_bytes

    def open_index(self, disk: Disk) -> File:
        """Return the index file, created when missing."""
        if self.index is None:
            self.index = disk.open(self.paths.index_path(self.first_position), create=True)
            self.index_reserved_bytes = self.index.size()
        return self.index

    def reserve(self, *, data_bytes: int = 0, unit_count: int) -> None:
        """Make sure that the next writes find room: in the data file up to a size, in the index for more units.

        Raises:
            DiskFullError: there is none; nothing was written.
        """
        assert self.data is not None, "reserve on a segment that is not open"
        if self.data_reserved_bytes < data_bytes:
            reserve(self.data, data_bytes)
            self.data_reserved_bytes = data_bytes
        self._reserve_index(unit_count)

    def _reserve_index(self, more: int) -> None:
        """Make room for that many more units, and the seal."""
        assert self.index is not None, "reserve on an index that is not open"
        wanted = (self.unit_count + more + 1) * INDEX_UNIT_BYTES
        if self.index_reserved_bytes < wanted:
            size = -(-wanted // INDEX_STEP_BYTES) * INDEX_STEP_BYTES
            reserve(self.index, size)
            self.index_reserved_bytes = size

    def write_entries(self, position: Position, parts: Sequence[bytes]) -> None:
        """Write headers and bodies back to back; not yet durable."""
        assert self.data is not None, "write to a segment that is not open"
        assert position >= self.first_position, f"{position} lies before {self.first_position}"
        self.data.write_at(position - self.first_position, parts)
        self.unsynced_bytes += sum(map(len, parts))

    def sync_data(self) -> None:
        """Make the written entries durable."""
        assert self.data is not None, "sync of a segment that is not open"
        self.data.sync()
        self.unsynced_bytes = 0

    def write_units(self, units: bytes) -> None:
        """Write index units after the last one. Only for entries that are durable; not synced."""
        assert self.index is not None, "write to an index that is not open"
        assert len(units) % INDEX_UNIT_BYTES == 0, "a part of a unit"
        self.index.write_at(self.unit_count * INDEX_UNIT_BYTES, (units,))
        self.units_crc = crc32c(units, self.units_crc)
        self.unit_count += len(units) // INDEX_UNIT_BYTES
        self.unsynced_unit_writes += 1

    def sync_index(self) -> None:
        """Make the written units durable."""
        assert self.index is not None, "sync of an index that is not open"
        self.index.sync()
        self.unsynced_unit_writes = 0

    def seal(self, end_position: Position, last_term: Term) -> None:
        """Finish the segment: the index gets its seal and is made durable, the data file is trimmed.

        Done only once the next segment is durable, so a sealed last segment is a sign that its
        successor was lost. The trim needs no sync: recovery does it again.
        """
        assert self.index is not None, "seal of a segment that is not open"
        assert self.data is not None, "seal of a segment that is not open"
        assert self.unit_count > 0, "seal of a segment without entries"
        assert end_position > self.first_position, "seal of a segment without bytes"
        closing = encode_seal(
            end_position, count=self.unit_count, last_term=last_term, units_crc=self.units_crc
        )
        size = (self.unit_count + 1) * INDEX_UNIT_BYTES
        self.index.write_at(size - INDEX_UNIT_BYTES, (closing,))
        self.index.truncate(size)
        self.index.sync()
        self.index.close()
        self.index = None
        self.data.truncate(end_position - self.first_position)

    def cut_index(self, disk: Disk, kept_units: bytes) -> None:
        """Remove all units but these first ones, and the seal; durable on return.

        Their checksum is that of what they ought to be: one that was damaged in the file meanwhile
        must not be sealed as if it were right.
        """
        assert len(kept_units) % INDEX_UNIT_BYTES == 0, f"{len(kept_units)} bytes are no units"
        index = self.open_index(disk)
        self.unit_count = min(len(kept_units) // INDEX_UNIT_BYTES, self.unit_count)
        kept_bytes = self.unit_count * INDEX_UNIT_BYTES
        index.truncate(kept_bytes)
        index.sync()
        self.units_crc = crc32c(kept_units[:kept_bytes])
        self.index_reserved_bytes = kept_bytes

    def cut_data(self, disk: Disk, keep_bytes: int) -> None:
        """Remove all bytes from `keep_bytes` on; durable on return.

        The file is cut and later grown again with zeros, so bytes of removed entries are not only
        unreachable but gone.
        """
        assert keep_bytes >= 0, f"{keep_bytes} bytes of segment {self.first_position}"
        data = self.open_data(disk)
        if data.size() > keep_bytes:
            data.truncate(keep_bytes)
        data.sync()
        self.unsynced_bytes = 0
        self.data_reserved_bytes = keep_bytes

    def remove_index(self, disk: Disk) -> None:
        """Delete the index file, durably; harmless when it is gone."""
        if self.index is not None:
            self.index.close()
            self.index = None
        _remove(disk, self.paths.index_folder, self.paths.index_path(self.first_position))

    def remove_data(self, disk: Disk) -> None:
        """Delete the data file, durably; harmless when it is gone.

        Only after the index: an index without data is never left by a crash.
        """
        self.close()
        _remove(disk, self.paths.data_folder, self.paths.data_path(self.first_position))


def _remove(disk: Disk, folder: str, path: str) -> None:
    if disk.exists(path):
        disk.remove(path)
        disk.sync_folder(folder)
