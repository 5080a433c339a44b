"""RocketMQ's CommitLog files, plain or DLedger's, read from the first record to the last whole one.

A file is named by the place of its first byte, and is filled with zeros when it is made. A record that has no room in
it begins the next file, behind an end record of 8 bytes. The end of the log is therefore where zeros begin. Anything
else behind the last whole record is told with its place: a torn write, damage, or what RocketMQ left when it cut the
log's end itself. Nothing here knows what becomes of a record.

DLedger's files have the same form, but each record stands in an entry behind 48 bytes, from which only place, size and
index are used; an entry without a record (a no-op) is passed over.

Source: RocketMQ store/CommitLog.java checkMessageAndReturnSize; stores of its releases in tests/golden/rocketmq_stores.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from broker.importing.errors import SourceError
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    StoredMessage,
    decode_record,
)

END_MAGIC: Final = -875_286_124
"""Of the record that ends a file."""

READ_BYTES: Final = 4 * 1024 * 1024
NAME_DIGITS: Final = 20

_HEAD: Final = struct.Struct(">ii")
_ENTRY: Final = struct.Struct(">iiqqqiiii")
_RECORD_ENTRY: Final = 1
_OTHER_ENTRIES: Final = (2, 3)
_END_ENTRY: Final = -1
_ZEROS: Final = bytes(READ_BYTES)


class LogFile(NamedTuple):
    """One file of the commit log."""

    path: Path
    first_offset: PhysicalOffset
    size_bytes: int

    @property
    def end_offset(self) -> PhysicalOffset:
        """The place at which the next file begins."""
        return PhysicalOffset(self.first_offset + self.size_bytes)


class SourceRecord(NamedTuple):
    """A message, and its record's bytes as they stand in the file."""

    message: StoredMessage
    data: bytes


class _Frame(NamedTuple):
    """A record with what stands before it; `record_at` is equal to `size` where there is none."""

    record_at: int
    size: int
    entry_index: int = 0


_END_OF_FILE: Final = _Frame(0, 0)


class LogEnd(NamedTuple):
    """The end of a commit log.

    Attributes:
        physical_offset: the end of the last whole record.
        path: the file with that place.
        problem: what is there that is no record; empty: nothing but zeros follows.
        last_byte: the place after the last byte that is not zero, if there is a problem.
    """

    physical_offset: PhysicalOffset
    path: Path
    problem: str
    last_byte: PhysicalOffset

    def __str__(self) -> str:
        return (
            f"{self.problem} at physical offset {self.physical_offset} ({self.path}); "
            f"up to {self.last_byte - self.physical_offset} bytes follow that may have been messages"
        )


def is_file_name(name: str) -> bool:
    """Return whether a file is one of a log or a queue by its name."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def list_log_files(folders: Sequence[Path]) -> list[LogFile]:
    """Return the files of a commit log, in order; they may lie in several folders.

    Raises:
        SourceError: there are none, one is missing, or they cannot be read.
    """
    files: list[LogFile] = []
    try:
        for folder in folders:
            for path in folder.iterdir():
                if is_file_name(path.name):
                    size_bytes = path.stat().st_size
                    files.append(LogFile(path, PhysicalOffset(int(path.name)), size_bytes))
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from error
    files.sort(key=lambda file: file.first_offset)
    if files and not files[-1].size_bytes:
        files.pop()  # RocketMQ removes it at its next start
    if not files:
        names = ", ".join(str(folder) for folder in folders)
        raise SourceError(f"{names}: no file of a commit log is there (20 digits)")
    for before, after in pairwise(files):
        if before.end_offset != after.first_offset:
            raise SourceError(
                f"{after.path} follows {before.path}, which has {before.size_bytes} bytes: what stood from physical "
                f"offset {before.end_offset} on is missing"
            )
    return files


class SourceLogReader:
    """Reads the records of a commit log, once from the beginning to the end.

    Attributes:
        end: where the log ends, once all records were read.
        last_index: of the last entry that was read, in DLedger's files.
    """

    def __init__(
        self,
        files: Sequence[LogFile],
        until: PhysicalOffset | None = None,
        *,
        in_entries: bool = False,
    ) -> None:
        """Set up a reading.

        Args:
            files: as listed.
            until: the place at which the reading ends, whatever follows; None: at the log's end.
            in_entries: the files are DLedger's.
        """
        assert files, "a commit log has at least one file"
        self._files = files
        self._until = until
        self._in_entries = in_entries
        self.end: LogEnd | None = None
        self.last_index = -1

    def records(self) -> Iterator[SourceRecord]:
        """Yield the records, each verified with its checksum.

        Raises:
            SourceError: a file cannot be read.
        """
        assert self.end is None, f"the log was read, to {self.end}"
        for place, file in enumerate(self._files):
            try:
                with file.path.open("rb", buffering=0) as opened:
                    stopped = yield from self._records_of(file, opened.fileno())
            except OSError as error:
                raise SourceError(f"{file.path}: {error.strerror}") from error
            if stopped is not None:
                offset, problem = stopped
                last = self._last_byte(place, offset)
                if last == offset:
                    problem = ""
                elif not problem:
                    problem = "what is no record follows zeros"
                self.end = LogEnd(offset, file.path, problem, last)
                return
        last_file = self._files[-1]
        self.end = LogEnd(last_file.end_offset, last_file.path, "", last_file.end_offset)

    def _records_of(
        self, file: LogFile, descriptor: int
    ) -> Generator[SourceRecord, None, tuple[PhysicalOffset, str] | None]:
        """Yield a file's records; return None behind its end record, else where they end, and why."""
        place, wanted = 0, READ_BYTES
        while True:
            data = os.pread(descriptor, wanted, place)
            at = 0
            while True:
                offset = PhysicalOffset(file.first_offset + place + at)
                if self._until is not None and offset >= self._until:
                    return offset, ""
                left = file.size_bytes - place - at
                frame = (_entry_frame if self._in_entries else _plain_frame)(data, at, offset, left)
                if isinstance(frame, str):
                    return offset, frame
                if frame is _END_OF_FILE:
                    return None
                if frame is None or frame.size > len(data) - at:
                    break
                record_at, size, self.last_index = frame
                if record_at < size:
                    found = _record(data[at + record_at : at + size], offset + record_at)
                    if isinstance(found, str):
                        return offset, found
                    yield found
                at += size
            if place + len(data) >= file.size_bytes:
                return None if place + at == file.size_bytes else (offset, "a record that is cut")
            if not data:
                return offset, f"the file ends, {file.size_bytes} bytes were listed"
            place += at
            wanted = READ_BYTES if at else 2 * wanted

    def _last_byte(self, place: int, offset: PhysicalOffset) -> PhysicalOffset:
        """Return the place behind the last byte after `offset` that is not zero; `offset` if all are.

        Raises:
            SourceError: a file cannot be read.
        """
        return offset if self._until is not None else last_byte(self._files[place:], offset)


def last_byte(files: Sequence[LogFile], offset: PhysicalOffset) -> PhysicalOffset:
    """Return the place behind the last byte from `offset` on that is not zero; `offset` if all are.

    Args:
        files: with that place, and all that follow it; those before it are passed over.
        offset: where the log ends.

    Raises:
        SourceError: a file cannot be read.
    """
    last = offset
    for file in files:
        start = max(0, offset - file.first_offset)
        try:
            with file.path.open("rb", buffering=0) as opened:
                for at in range(start, file.size_bytes, READ_BYTES):
                    data = os.pread(opened.fileno(), READ_BYTES, at)
                    if data != _ZEROS[: len(data)]:
                        length = len(data.rstrip(b"\0"))
                        last = PhysicalOffset(file.first_offset + at + length)
        except OSError as error:
            raise SourceError(f"{file.path}: {error.strerror}") from error
    return last


def _record(data: bytes, offset: int) -> SourceRecord | str:
    """Return the one record in these bytes, or what is wrong with it."""
    try:
        message = decode_record(data)
    except RecordError as error:
        return error.reason
    if message.size_bytes != len(data):
        return f"a record of {message.size_bytes} bytes in an entry for {len(data)}"
    if message.physical_offset != offset:
        return f"a record that says physical offset {message.physical_offset}"
    return SourceRecord(message, data)


def _plain_frame(data: bytes, at: int, _offset: int, left: int) -> _Frame | str | None:
    """Return the next record's frame, or what is wrong there, empty for zeros; None: more bytes are needed."""
    if len(data) - at < _HEAD.size:
        return None
    size, magic = _HEAD.unpack_from(data, at)
    if magic == 0 and size == 0:
        return ""
    if magic == END_MAGIC:
        return _end_frame(size, left)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"no record (magic 0x{magic & 0xFFFF_FFFF:08X})"
    if not RECORD_BYTES_MIN <= size <= left:
        return f"a record of {size} bytes where {left} are left in the file"
    return _Frame(0, size)


def _end_frame(size: int, left: int) -> _Frame | str:
    """Return the frame of a file's end record, which says how much it leaves empty: all that is left."""
    return (
        _END_OF_FILE
        if size == left
        else f"an end record for {size} bytes where {left} are left in the file"
    )


def _entry_frame(data: bytes, at: int, offset: int, left: int) -> _Frame | str | None:
    """Return the next entry's frame likewise (DLedger DLedgerEntryCoder)."""
    if len(data) - at < _HEAD.size:
        return None
    magic, size = _HEAD.unpack_from(data, at)
    if magic == 0 and size == 0:
        return ""
    if magic == _END_ENTRY:
        return _end_frame(size, left)
    if magic not in (_RECORD_ENTRY, *_OTHER_ENTRIES):
        return f"no entry (magic {magic})"
    if not _ENTRY.size <= size <= left:
        return f"an entry of {size} bytes where {left} are left in the file"
    if len(data) - at < _ENTRY.size:
        return None
    _, _, index, _, position, _, _, _, body_bytes = _ENTRY.unpack_from(data, at)
    if position != offset or body_bytes != size - _ENTRY.size:
        return f"an entry that says position {position} and {body_bytes} bytes of {size}"
    return _Frame(_ENTRY.size if magic == _RECORD_ENTRY else size, size, index)
