"""Records and messages by their place in the log, whose bytes come through `EntrySource`.

An entry that the disk does not give now (`EntryDamagedError`) is never taken for one that is gone: whoever
reads must ask again later. Nothing here knows the derived state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from broker.store.not_in_memory import NotLoadedError
from dledger.errors import CompactedError, OutOfRangeError
from dledger.raft.entry import BodySpan, Entry
from dledger.raft.ids import Position
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs
from dledger_mq.message.record import (
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    StoredMessage,
    decode_record,
)
from dledger_mq.message.sys_flags import BORN_HOST_V6

_SIZE: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_BORN_HOST_AT: Final = 48


class EntrySource(Protocol):
    """The log, as far as readers need it. Of its errors the one not to be taken for another is `EntryDamagedError`."""

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        """Return the committed bytes at a position, with whatever of the entry's body stands around them.

        They end with the body, if that ends before. None if `only_memory` and they would have to be read from
        the disk.

        Raises:
            CompactedError, OutOfRangeError, EntryDamagedError: as `entry_at`.
        """
        ...

    def entry_at(self, position: Position) -> Entry:
        """Return the committed entry that covers a byte of the log.

        Raises:
            CompactedError: the log no longer holds it.
            OutOfRangeError: the log ends before it.
            EntryDamagedError: it has yet to come back from another node.
        """
        ...


class PulledLog(EntrySource, Protocol):
    """The log, as far as pulls need it."""

    def views(self, runs: Sequence[tuple[int, int]], end: Position) -> Sequence[memoryview] | None:
        """Return the bytes of some runs in order, verified, without waiting for the disk; None if that cannot be.

        Args:
            runs: first position and that after the last one, ascending; each a record, or several back to back.
            end: of the committed log.
        """
        ...

    def stretches(
        self, starts: Sequence[int], sizes: Sequence[int], end: Position
    ) -> tuple[list[int], list[bytes | memoryview]]:
        """Return verified bytes around some records, without waiting for the disk, up to the first that is not there.

        Args:
            starts: positions of the records, ascending.
            sizes: of the records in bytes.
            end: of the committed log.

        Returns:
            Where each stretch of bytes begins, ascending, and these stretches. A record stands in the last one that
            begins at it or before; one that does not stand there whole is not in memory.
        """
        ...


class MessageGoneError(LookupError):
    """No record starts at that physical offset, or the log no longer holds it."""


class RecordReader:
    """Cuts records out of the log, and keeps the last bytes that it gave because neighbours usually share them."""

    def __init__(self, log: EntrySource, *, only_memory: bool = False) -> None:
        """Read from a log; `only_memory` holds for all reads."""
        self._log = log
        self._only_memory = only_memory
        self._start = 0
        self._data: bytes | memoryview = b""

    def read(
        self, physical_offset: PhysicalOffset, size_bytes: int, *, only_memory: bool = False
    ) -> memoryview:
        """Return the record's bytes, without copying them.

        Raises:
            MessageGoneError: the log no longer holds them.
            NotLoadedError: they are not in memory, and nothing else was wanted.
        """
        start = physical_offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            start = self._fetch(physical_offset, size_bytes, only_memory=only_memory)
        return memoryview(self._data)[start : start + size_bytes]

    def read_at(self, physical_offset: PhysicalOffset) -> memoryview:
        """Return the record that starts at a physical offset which somebody claims (T1, but checked).

        Raises:
            MessageGoneError: no record starts there.
            NotLoadedError: it is not in memory, and nothing else was wanted.
        """
        size_bytes: int = _SIZE.unpack(self.read(physical_offset, _SIZE.size))[0]
        if size_bytes < RECORD_BYTES_MIN:
            raise MessageGoneError(f"no record starts at physical offset {physical_offset}")
        record = self.read(physical_offset, size_bytes)
        if _LONG.unpack_from(record, PHYSICAL_OFFSET_AT)[0] != physical_offset:
            raise MessageGoneError(f"no record starts at physical offset {physical_offset}")
        return record

    def message_at(self, physical_offset: PhysicalOffset) -> StoredMessage:
        """Return the message that starts at a physical offset.

        Raises:
            MessageGoneError: no record starts there.
        """
        record = self.read_at(physical_offset)
        try:
            return decode_record(bytes(record))
        except RecordError as error:
            raise MessageGoneError(
                f"no record at physical offset {physical_offset}: {error}"
            ) from error

    def store_time(self, physical_offset: PhysicalOffset, size_bytes: int) -> StoreTimeMs:
        """Read the store time of a record from its bytes (docs/formats/message.md)."""
        record = self.read(physical_offset, size_bytes)
        is_v6 = record[SYS_FLAG_AT + 3] & BORN_HOST_V6
        store_ms: StoreTimeMs = _LONG.unpack_from(record, _BORN_HOST_AT + (20 if is_v6 else 8))[0]
        return store_ms

    def _fetch(self, physical_offset: PhysicalOffset, size_bytes: int, *, only_memory: bool) -> int:
        """Get the bytes around a record; return where it begins in them.

        Raises:
            MessageGoneError: the log does not hold it.
            NotLoadedError: they are not in memory, and nothing else was wanted.
        """
        if physical_offset < 0:
            raise MessageGoneError(f"physical offset {physical_offset} is negative")
        try:
            span = self._log.span_at(
                Position(physical_offset), size_bytes, only_memory=only_memory or self._only_memory
            )
        except (CompactedError, OutOfRangeError) as error:
            raise MessageGoneError(
                f"the log does not hold physical offset {physical_offset}: {error}"
            ) from error
        if span is None:
            raise NotLoadedError([(physical_offset, size_bytes)])
        self._start, self._data = span
        start = physical_offset - self._start
        if start < 0 or start + size_bytes > len(self._data):
            raise MessageGoneError(
                f"no record of {size_bytes} bytes at physical offset {physical_offset}"
            )
        return start


def read_message(log: EntrySource, physical_offset: PhysicalOffset) -> StoredMessage:
    """Return the message that starts at a physical offset (request 33, send-back, delivery of delayed ones).

    Raises:
        MessageGoneError: no record starts there.
    """
    return RecordReader(log).message_at(physical_offset)
