"""A store's folder, read while its node may be running: segments, where entries stand, what is committed.

Nothing here is written to and nothing is mapped into memory: files are read, so that one that is cut or
removed meanwhile is an error with a name and not the end of the process. The index files (32 bytes per entry,
docs/formats/index_unit.md) say where a scan may begin and with which chain CRC; each is believed only as
far as the entries agree, which the scan of the range in front of it verifies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dledger.codec.entry import index_unit_of
from dledger.codec.index_unit import INDEX_UNIT_BYTES, UNIT_FIELDS, IndexFormatError, decode_sealed
from dledger.codec.log_start import LogStartFormatError, decode_log_start
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, Position, Term
from dledger.storage.log_start import LOG_START_NAME
from dledger.storage.segment import SEGMENT_NAME_DIGITS, StorePaths
from pipeline.scan.entries import LOG_START, Chain
from pipeline.scan.errors import DamagedLogError, NotAStoreError

Units: TypeAlias = NDArray[np.void]
"""Index units, big-endian, with the names of `UNIT`."""

UNIT: Final = np.dtype(
    {
        "names": [each.name for each in UNIT_FIELDS],
        "formats": [f">{each.code}" for each in UNIT_FIELDS],
        "offsets": [each.offset for each in UNIT_FIELDS],
        "itemsize": INDEX_UNIT_BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One data file of the log.

    Attributes:
        path: the data file.
        index_path: its index file, which may be missing.
        first_position: position of its first entry, as its name says.
    """

    path: str
    index_path: str
    first_position: Position

    @property
    def name(self) -> str:
        """The file's name: twenty digits."""
        return f"{self.first_position:0{SEGMENT_NAME_DIGITS}d}"

    def size_bytes(self) -> int:
        """Return the bytes in the file now, preallocated ones included.

        Raises:
            DamagedLogError: it is gone.
        """
        try:
            return Path(self.path).stat().st_size
        except FileNotFoundError:
            raise DamagedLogError(self.path, 0, "the segment is gone") from None


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The content of a segment's index file.

    Attributes:
        units: of entries that follow each other from the segment's start.
        is_sealed: whether the index is finished, and right in every byte.
    """

    units: Units
    is_sealed: bool


def chain_of(unit: np.void) -> Chain:
    """Return the end of an entry, as its index unit says."""
    end = int(unit["position"]) + int(unit["size_bytes"])
    return Chain(
        Index(int(unit["index"])), Term(int(unit["term"])), Position(end), int(unit["chain_crc"])
    )


class Store:
    """The log in one folder, as it was when this was made.

    Attributes:
        path: the folder.
        start: the entry before the first one that is kept; before a whole log it is number 0.
        segments: its data files in order; each begins where the one before ends.
    """

    def __init__(self, path: str | Path) -> None:
        """List the segments.

        Raises:
            NotAStoreError: there are none.
            DamagedLogError: the first one is missing, or where the log begins cannot be read.
        """
        self.path = str(path)
        paths = StorePaths(self.path)
        folder = Path(paths.data_folder)
        if not folder.is_dir():
            raise NotAStoreError(
                f"{self.path} is no store: it has no folder data/ with segments in it"
            )
        positions = sorted(
            Position(int(each.name))
            for each in folder.iterdir()
            if len(each.name) == SEGMENT_NAME_DIGITS and each.name.isascii() and each.name.isdigit()
        )
        if not positions:
            raise NotAStoreError(f"{self.path} is no store: {folder} has no segments")
        # Read behind the list: a node notes where its log begins before it removes anything.
        self.start = _read_start(folder.parent / LOG_START_NAME)
        positions = [each for each in positions if each >= self.start.position]
        first = self.start.position
        if not positions or positions[0] != first:
            found = f"the first segment is {positions[0]}" if positions else "there is none behind"
            raise DamagedLogError(paths.data_path(first), 0, f"missing; {found}")
        self.segments = [
            SegmentFile(paths.data_path(each), paths.index_path(each), each) for each in positions
        ]


def _read_start(path: Path) -> Chain:
    """Return the entry before the first one that a store keeps.

    Raises:
        DamagedLogError: the file that names it is damaged.
    """
    try:
        start = decode_log_start(path.read_bytes())
    except FileNotFoundError:
        return LOG_START
    except LogStartFormatError as error:
        raise DamagedLogError(str(path), error.byte_offset, error.problem) from error
    return Chain(start.index, start.term, start.position, start.chain_crc)


def read_index(segment: SegmentFile, before: Chain) -> SegmentIndex:
    """Read a segment's index file as far as its units follow each other.

    Args:
        segment: whose.
        before: what its first entry follows.
    """
    try:
        data = Path(segment.index_path).read_bytes()
    except FileNotFoundError:
        return SegmentIndex(np.empty(0, UNIT), is_sealed=False)
    units = np.frombuffer(data[: len(data) - len(data) % INDEX_UNIT_BYTES], UNIT)
    first_index = before.index + 1
    if before.crc is None and len(units):
        first_index = int(units["index"][0])
    try:
        columns = decode_sealed(
            data, first_index=Index(first_index), first_position=Position(segment.first_position)
        )
    except IndexFormatError:
        return SegmentIndex(
            units[: _count_following(units, segment, Index(first_index))], is_sealed=False
        )
    return SegmentIndex(units[: len(columns)], is_sealed=True)


def _count_following(units: Units, segment: SegmentFile, first_index: Index) -> int:
    """Count the units that follow each other from the start: zeros and a torn seal do not."""
    if not len(units):
        return 0
    size = units["size_bytes"].astype(np.int64)
    expected = segment.first_position + np.concatenate(([0], np.cumsum(size)[:-1]))
    right = units["index"] == first_index + np.arange(len(units))
    right &= (units["position"] == expected) & (size >= ENTRY_HEADER_BYTES)
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(units)


def agrees(segment: SegmentFile, unit: np.void) -> bool:
    """Return whether the header at a unit's place is the one that the unit remembers, and its body is there."""
    with Path(segment.path).open("rb") as file:
        if file.seek(0, os.SEEK_END) < chain_of(unit).position - segment.first_position:
            return False
        file.seek(int(unit["position"]) - segment.first_position)
        octets = file.read(ENTRY_HEADER_BYTES)
    return bool(index_unit_of(octets) == unit.tobytes())  # numpy is not typed here
