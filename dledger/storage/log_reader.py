"""Reading a log's entries from its segments: every byte is verified by what memory knows of the entry.

It knows no entries in memory (`entry_cache`) and writes nothing. The owner of the log uses it; a
`CheckPlan` may run in any thread.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from dledger.codec.entry import EntryFormatError, decode_known
from dledger.errors import CorruptionError
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, Position
from dledger.storage.api import Disk
from dledger.storage.log_index import LogIndex
from dledger.storage.read_errors import is_shortage
from dledger.storage.segment import StorePaths
from dledger.storage.segment_list import SegmentList

READ_BYTES_MAX = 4 * 1024 * 1024
"""Bytes read from disk at once (one entry may exceed it)."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A byte of a segment's data file, to be read from in any thread."""

    disk: Disk
    path: str
    offset: int

    def read(self, size_bytes: int) -> bytes:
        """Read what stands there.

        Raises:
            OSError: the disk failed, or the file was removed meanwhile.
        """
        file = self.disk.open(self.path)
        try:
            return file.read_at(self.offset, size_bytes)
        finally:
            file.close()


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Some durable entries, to be read and verified in any thread.

    Attributes:
        place: where the first of them stands.
        chain_crcs: of each of them.
        prev_chain_crc: of the entry before the first.
        end_index: one after the last of them.
    """

    place: FilePlace
    size_bytes: int
    chain_crcs: array[int]
    prev_chain_crc: int
    end_index: Index

    def read(self) -> list[Entry]:
        """Read and verify them.

        Raises:
            OSError: the disk failed, or the file was removed meanwhile.
            EntryFormatError: the disk gave other bytes than were written.
        """
        data = self.place.read(self.size_bytes)
        return decode_known(data, self.chain_crcs, self.prev_chain_crc)

    def is_whole(self) -> bool:
        """Return whether the disk gives them as they were written; False also if they were removed meanwhile.

        Raises:
            OSError: a shortage; that says nothing of them.
        """
        try:
            self.read()
        except (OSError, EntryFormatError) as error:
            if is_shortage(error):
                raise
            return False
        return True


class SegmentReader:
    """Reads what the index names. It shares row and index with the log."""

    def __init__(self, disk: Disk, paths: StorePaths, row: SegmentList, index: LogIndex) -> None:
        self._disk = disk
        self._paths = paths
        self._row = row
        self._index = index

    def read(self, first: Index, end: Index) -> list[Entry]:
        """Return as many of the entries first..end-1 as one read of one segment gives, at least one.

        Raises:
            CorruptionError: the disk gave other bytes than were written.
            OSError: the disk failed.
        """
        layout = self._index.layout
        position = layout.position_of(first)
        segment, end_index = self._row.find(position)
        end = layout.end_within(first, bytes_max=READ_BYTES_MAX, count_max=end - first)
        if end_index is not None:
            end = min(end, end_index)
        data = self._row.open_data(segment)
        base = position - segment.first_position
        read = data.read_at(base, layout.position_of(end) - position)
        known = self._index.chain_crcs_of(first, end)
        try:
            found = decode_known(read, known, self._index.chain_crc_before(first))
        except EntryFormatError as error:
            raise CorruptionError(data.path, base + error.byte_offset, error.problem) from error
        assert found, f"nothing was read of the entries {first} to {end - 1}"
        assert found[0].index == first, f"entry {found[0].index} stands where {first} was written"
        return found

    def damaged(self, first: Index, end: Index) -> list[Index]:
        """Return which of the durable entries first..end-1 the disk does not give as they were written.

        Raises:
            OSError: a shortage; nothing is known of those that were not read.
        """
        found: list[Index] = []
        index = first
        while index < end:
            try:
                index = Index(self.read(index, end)[-1].index + 1)
            except (CorruptionError, OSError) as error:
                if is_shortage(error):
                    raise
                if not self._is_whole(index):
                    found.append(index)
                    index = Index(index + 1)
                    continue
                # The damage lies further on: entry by entry until there.
                while index < end and self._is_whole(index):
                    index = Index(index + 1)
        return found

    def _is_whole(self, index: Index) -> bool:
        try:
            self.read(index, Index(index + 1))
        except (CorruptionError, OSError) as error:
            if is_shortage(error):
                raise
            return False
        return True

    def plan_check(self, first: Index, last: Index, *, bytes_max: int) -> CheckPlan:
        """Plan the reading of entries from `first` on, at least one and none beyond `last`, of one segment."""
        layout = self._index.layout
        assert layout.has(first), f"entry {first} is not in the log"
        assert first <= last, f"a check of the entries {first} to {last}"
        end = layout.end_within(first, bytes_max=bytes_max, count_max=last - first + 1)
        position = layout.position_of(first)
        _, end_index = self._row.find(position)
        end = end if end_index is None else min(end, end_index)
        return CheckPlan(
            place=self.file_place(position),
            size_bytes=layout.position_of(end) - position,
            chain_crcs=self._index.chain_crcs_of(first, end),
            prev_chain_crc=self._index.chain_crc_before(first),
            end_index=end,
        )

    def file_place(self, position: Position) -> FilePlace:
        """Return where a byte of the log stands on the disk."""
        segment, _ = self._row.find(position)
        path = self._paths.data_path(segment.first_position)
        return FilePlace(self._disk, path, position - segment.first_position)
