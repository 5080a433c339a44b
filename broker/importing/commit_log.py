"""RocketMQ's CommitLog files, read from the first record to the last whole one.

A file is named by the place of its first byte, and is filled with zeros when it is made. A record that has no room in
it begins the next file, behind an end record of 8 bytes. The end of the log is therefore where zeros begin. Anything
else behind the last whole record is told with its place: a torn write, damage, or what RocketMQ left when it cut the
log's end itself. Nothing here knows what becomes of a record.

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


def list_log_files(folders: Sequence[Path]) -> list[LogFile]:
    """Return the files of a commit log, in order; they may lie in several folders.

    Raises:
        SourceError: there are none, one is missing, or they cannot be read.
    """
    files: list[LogFile] = []
    try:
        for folder in folders:
            for path in folder.iterdir():
                if len(path.name) == NAME_DIGITS and path.name.isdigit():
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
    """

    def __init__(self, files: Sequence[LogFile], until: PhysicalOffset | None = None) -> None:
        """Set up a reading.

        Args:
            files: as listed.
            until: the place at which the reading ends, whatever follows; None: at the log's end.
        """
        assert files, "a commit log has at least one file"
        self._files = files
        self._until = until
        self.end: LogEnd | None = None

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
                if len(data) - at < _HEAD.size:
                    break
                size, magic = _HEAD.unpack_from(data, at)
                if magic == END_MAGIC:
                    return None
                problem = _head_problem(size, magic, file.size_bytes - place - at)
                if problem is not None:
                    return offset, problem
                if size > len(data) - at:
                    break
                try:
                    message = decode_record(data, at)
                except RecordError as error:
                    return offset, error.reason
                if message.physical_offset != offset:
                    return offset, f"a record that says physical offset {message.physical_offset}"
                yield SourceRecord(message, data[at : at + size])
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
        if self._until is not None:
            return offset
        last = offset
        for file in self._files[place:]:
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


def _head_problem(size: int, magic: int, left: int) -> str | None:
    """Return what is wrong with the first 8 bytes of a record; empty for zeros, which are the log's end."""
    if magic == 0 and size == 0:
        return ""
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"no record (magic 0x{magic & 0xFFFF_FFFF:08X})"
    if not RECORD_BYTES_MIN <= size <= left:
        return f"a record of {size} bytes where {left} are left in the file"
    return None
