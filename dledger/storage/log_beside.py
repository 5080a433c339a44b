"""A log in a folder that is another process's, or nobody's: read from beside, every checksum verified.

A member may write to it meanwhile. So the log ends at the last entry that is whole when its place is read; what stands
behind that may be half an entry that is being written, or nothing yet. How much of it is committed is not known here.

Nothing here writes, and nothing is remembered but the last entry that was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger.codec.chain import preceding_chain_crc
from dledger.codec.entry import EntryFormatError, EntryScan, ScanEnd, decode_header, decode_known
from dledger.codec.index_unit import EntryColumns
from dledger.errors import CorruptionError, UsageError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import NO_TERM, Index, Position
from dledger.storage.api import Disk, File
from dledger.storage.log_start import read_log_start
from dledger.storage.scan import ChainEnd, end_before
from dledger.storage.segment import StorePaths, segment_positions

_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes read at once (one entry may exceed it)."""


class LogBeside:
    """The log of a store.

    Attributes:
        before: the entry before the first one that is kept.
        problem: after `entries` has come to its end: what stands behind the last whole entry; empty: nothing.
    """

    def __init__(self, disk: Disk, folder: str = "") -> None:
        """Look where the log begins.

        Raises:
            UsageError: there is no log, or none that can be read.
            CorruptionError: its first segment is missing, or where it begins cannot be read.
            OSError: the disk failed.
        """
        self._disk, self._paths = disk, StorePaths(folder)
        self.problem = ""
        start = read_log_start(disk, self._paths)
        self.before = end_before(start)
        if start is not None and start.is_anew:
            raise UsageError(
                "the log is being begun anew, and what is there is void: start its member"
            )
        names = self._names()
        if not names:
            raise UsageError("this is no store: it has no folder data/ with segments in it")
        if names[0] != self.before.position:
            path = self._paths.data_path(self.before.position)
            raise CorruptionError(path, 0, f"missing; the first segment is {names[0]}")

    def _names(self) -> list[Position]:
        found = segment_positions(self._disk, self._paths.data_folder)
        return [each for each in found if each >= self.before.position]

    def end_position_max(self) -> Position:
        """Return a position that the log's end does not exceed now: the end of the last file, room kept in it included.

        Raises:
            OSError: the disk failed.
        """
        name = self._names()[-1]
        file = self._open(name)
        try:
            return Position(name + file.size())
        finally:
            file.close()

    def reaches(self, end: ChainEnd) -> bool:
        """Return whether the log may go on after an entry: it does, or nothing stands behind that entry yet.

        Raises:
            OSError: the disk failed.
        """
        if end.position < self.before.position:
            return False
        if end == self.before:
            return True
        header = self._header_at(end.position)
        if header is None:
            return False
        try:
            decoded = decode_header(header)
        except EntryFormatError:
            return True  # whoever reads on finds that it ends here
        return decoded.index == end.index + 1 and preceding_chain_crc(header) == end.chain_crc

    def segment_before(self, position: Position) -> ChainEnd | None:
        """Return the entry before the segment that holds a position; None: the log does not have that place.

        Raises:
            CorruptionError: the segment does not begin with an entry.
            OSError: the disk failed.
        """
        name = max((each for each in self._names() if each <= position), default=None)
        if name is None or name == self.before.position:
            return self.before if name is not None else None
        header = self._header_at(name)
        try:
            first = decode_header(header or b"")
        except EntryFormatError as error:
            path = self._paths.data_path(name)
            raise CorruptionError(path, error.byte_offset, error.problem) from error
        crc = preceding_chain_crc(header or b"")
        return ChainEnd(Index(first.index - 1), NO_TERM, name, crc)

    def entries(self, after: ChainEnd | None = None) -> Iterator[list[Entry]]:
        """Yield the entries after one, some at a time, up to the last that is whole.

        Args:
            after: an entry of this log; None: the one before the first that is kept.

        Raises:
            CorruptionError: a finished segment is damaged, or missing, or was removed meanwhile.
            OSError: the disk failed.
        """
        end = self.before if after is None else after
        while True:
            name = max((each for each in self._names() if each <= end.position), default=None)
            if name is None:
                path = self._paths.data_path(end.position)
                raise CorruptionError(path, 0, "the segment is gone: its member has deleted it")
            file = self._open(name)
            try:
                for some, last in self._read(file, name, end):
                    end = last
                    yield some
            finally:
                file.close()
            following = min((each for each in self._names() if each > name), default=None)
            if following is None:
                return  # what is wrong behind the last entry stands in `problem`
            if following != end.position:
                problem = self.problem or f"the next segment begins at {following}"
                raise CorruptionError(
                    self._paths.data_path(name),
                    end.position - name,
                    f"no whole entry {end.index + 1} at position {end.position}: {problem}",
                )

    def _read(
        self, file: File, name: Position, end: ChainEnd
    ) -> Iterator[tuple[list[Entry], ChainEnd]]:
        """Yield the entries of a segment after one, and the last of them each time."""
        wanted = ENTRY_HEADER_BYTES
        self.problem = ""
        while True:
            offset = end.position - name
            data = file.read_at(offset, max(_READ_BYTES, wanted))
            columns = EntryColumns(Index(end.index + 1), end.position)
            scan = EntryScan(columns, end.chain_crc, end.term)
            taken, why = scan.feed(data)
            if taken:
                some = decode_known(data[:taken], columns.chain_crcs, end.chain_crc)
                last = some[-1]
                end = ChainEnd(last.index, last.term, last.end_position, scan.chain_crc)
                wanted = scan.wanted_bytes
                yield some, end
            elif why is ScanEnd.NEEDS_MORE and scan.wanted_bytes > wanted and data:
                wanted = scan.wanted_bytes
                if wanted > len(data) and len(data) < _READ_BYTES:
                    self.problem = f"entry {end.index + 1} is not whole"
                    return
            else:
                rest = data[:ENTRY_HEADER_BYTES].strip(b"\0")
                self.problem = (scan.problem or "an entry is not whole") if rest else ""
                return

    def _header_at(self, position: Position) -> bytes | None:
        """Return the bytes of a header; fewer at the end of the file, None behind it."""
        name = max((each for each in self._names() if each <= position), default=None)
        if name is None:
            return None
        file = self._open(name)
        try:
            if file.size() < position - name:
                return None
            return file.read_at(position - name, ENTRY_HEADER_BYTES)
        finally:
            file.close()

    def _open(self, name: Position) -> File:
        path = self._paths.data_path(name)
        try:
            return self._disk.open(path)
        except FileNotFoundError as error:
            raise CorruptionError(
                path, 0, "the segment is gone: its member has deleted it"
            ) from error
