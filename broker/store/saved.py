"""The state's bytes in a snapshot (docs/formats/snapshot.md): a head with every table, then units.

    uint32   bytes of the head
    head     msgpack, `StateHead`: version, counters, the small tables, one row per queue and segment
    units    of each queue in the head's order, from its min offset to its max offset, 20 bytes each
    segments of the key index in the head's order, as they stand in their files
    units    of the key index's newest segment, 20 bytes each
    units    of the pending timers, 16 bytes each

The head is that of one moment. Units are only ever added after it, and full segments never change,
so they can be read later, while the fold goes on; what is forgotten meanwhile stays until they are read.
Only a deleted topic takes them away, and then the snapshot is given up.

Nothing here knows what the tables hold, or where snapshots are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, Final, NoReturn, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from broker.store.packing import STEP_ROWS, array_head, map_head, pack
from dledger.raft.ids import Index
from dledger.state_machine import KeptPart, SealedPart, SnapshotRefusedError
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs

VERSION: Final = 3
"""1 knew no beginning of the log: whoever wrote it may have passed over a record that moved it."""
VERSION_BEFORE: Final = 2
"""Read as well: it knew no settings of the group, so none are set."""
CHUNK_BYTES: Final = 256 * 1024
CHUNK_PARTS: Final = 256
"""Of so many parts a chunk is at most: each may be read from another file."""
HEAD_BYTES_MAX: Final = 1 << 30

LENGTH: Final = struct.Struct(">I")

NOT_NEGATIVE: Final = Meta(ge=0, le=2**63 - 1)
Count = Annotated[int, NOT_NEGATIVE]
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class SavedTable(Protocol):
    """A component small enough to be written whole, at one moment."""

    def dump(self) -> bytes:
        """Return msgpack of everything that counts."""
        ...

    def load(self, data: bytes) -> None:
        """Replace the content by a dumped one; msgspec.DecodeError when it is none."""
        ...


@runtime_checkable
class LargeTable(SavedTable, Protocol):
    """A component that is written at one moment, too, but in parts, so that no step of it is long."""

    def dump_parts(self) -> Iterator[bytes]:
        """Yield what `dump` returns, part by part; the component may not change between them."""
        ...

    def load_steps(self, data: bytes) -> Iterator[None]:
        """Do what `load` does, step by step; before the last one the component is neither empty nor whole."""
        ...


class QueueRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One consume queue."""

    topic: bytes
    queue_id: QueueId
    min_offset: Annotated[QueueOffset, NOT_NEGATIVE]
    max_offset: Annotated[QueueOffset, NOT_NEGATIVE]
    put_bytes: Count
    digest: Crc


class KeySegmentRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One full segment of the key index; `capacity` units."""

    capacity: Annotated[int, Meta(ge=1, le=1 << 24)]
    begin_ms: StoreTimeMs
    end_ms: StoreTimeMs
    last_physical_offset: Annotated[PhysicalOffset, NOT_NEGATIVE]


class KeyIndexRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The key index without its units."""

    segments: list[KeySegmentRow]
    active_count: Count
    digest: Crc
    last_store_ms: StoreTimeMs
    last_physical_offset: Annotated[PhysicalOffset, NOT_NEGATIVE]


class StateHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything but the units, so that whoever reads it can decode the parts one by one.

    Attributes:
        queues: the rows of all queues, for `split_rows`.
        tables: what each small component wrote of itself, by its name.
    """

    v: int
    applied_index: Annotated[Index, NOT_NEGATIVE]
    last_store_ms: StoreTimeMs
    put_count: Count
    put_bytes: Count
    queues: msgspec.Raw
    key_index: KeyIndexRow
    tables: dict[str, msgspec.Raw]


class _Version(msgspec.Struct):
    v: int


_decoder: Final = msgspec.msgpack.Decoder(StateHead)
_version_decoder: Final = msgspec.msgpack.Decoder(_Version)
split_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
"""Finds where each of the head's rows is; msgspec.DecodeError when they are none."""
decode_row: Final = msgspec.msgpack.Decoder(QueueRow).decode
"""Reads one of them; msgspec.DecodeError when it is none."""


def head_parts(
    head: StateHead, rows: Sequence[bytes], tables: Mapping[str, Sequence[bytes]]
) -> Iterator[bytes]:
    """Return the head in parts, with its length before it.

    Args:
        head: without queues and tables.
        rows: of the queues, each packed.
        tables: parts of what each component wrote of itself, by its name.
    """
    fields = msgspec.structs.asdict(head)
    del fields["queues"], fields["tables"]
    parts = [map_head(len(fields) + 2), *(pack(name, value) for name, value in fields.items())]
    parts += (pack("tables"), map_head(len(tables)))
    for name, table in tables.items():
        parts += (pack(name), *table)
    parts += (pack("queues"), array_head(len(rows)))
    size = sum(map(len, parts)) + sum(map(len, rows))
    joined_rows = (
        b"".join(rows[first : first + STEP_ROWS]) for first in range(0, len(rows), STEP_ROWS)
    )
    return chain([LENGTH.pack(size)], chain.from_iterable(map(pieces, parts)), joined_rows)


def decode_head(data: bytes) -> StateHead:
    """Read the head.

    Raises:
        SnapshotRefusedError: it is none, or of another version.
    """
    try:
        head = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _check_version(data)
        raise SnapshotRefusedError(f"the state's head: {error}") from error
    if head.v not in (VERSION_BEFORE, VERSION):
        _refuse_version(head.v)
    return head


def _check_version(data: bytes) -> None:
    """Refuse what is no head for the reason that it is of another version, if it says so.

    Raises:
        SnapshotRefusedError: it is.
    """
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        version = _version_decoder.decode(data).v
        if version not in (VERSION_BEFORE, VERSION):
            _refuse_version(version)


def _refuse_version(version: int) -> NoReturn:
    raise SnapshotRefusedError(
        f"the state has version {version}, known are {VERSION_BEFORE} and {VERSION}"
    )


def in_chunks(parts: Iterable[bytes | SealedPart]) -> Iterator[bytes | SealedPart]:
    """Yield the same bytes in chunks of about `CHUNK_BYTES`, or less; parts are not larger themselves."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        if isinstance(part, SealedPart):
            if size:
                yield b"".join(waiting)
                waiting, size = [], 0
            yield part
            continue
        waiting.append(part)
        size += len(part)
        if size >= CHUNK_BYTES or (size and len(waiting) >= CHUNK_PARTS):
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


def unsealed(parts: Iterable[bytes | SealedPart]) -> Iterator[bytes]:
    """Yield the same as nothing but bytes."""
    for part in parts:
        if isinstance(part, SealedPart):
            yield from part.chunks()
        else:
            yield part


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts of at most `CHUNK_BYTES`."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


class ByteSource:
    """Reads a known number of bytes from chunks of any size, and from parts that are kept."""

    def __init__(self, chunks: Iterator[bytes | KeptPart]) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._place = 0

    def kept_part(self, size: int) -> KeptPart | None:
        """Return the part that consists of exactly the next `size` bytes, and pass over it; None: there is none."""
        if self._place < len(self._chunk):
            return None
        chunk = next(self._chunks, b"")
        if not isinstance(chunk, bytes):
            if chunk.stored.state_bytes == size:
                return chunk
            self._chunks = chain(chunk.chunks(), self._chunks)
            chunk = b""
        self._chunk, self._place = chunk, 0
        return None

    def _next_bytes(self) -> bytes:
        """Return the next chunk of bytes; none at the end."""
        while (chunk := next(self._chunks, None)) is not None:
            if isinstance(chunk, bytes):
                return chunk
            self._chunks = chain(chunk.chunks(), self._chunks)
        return b""

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes.

        Raises:
            SnapshotRefusedError: there are fewer.
        """
        return b"".join(self.stream(size))

    def stream(self, size: int) -> Iterator[bytes]:
        """Yield exactly `size` bytes in several parts.

        Raises:
            SnapshotRefusedError: there are fewer.
        """
        while size:
            if self._place == len(self._chunk):
                self._chunk, self._place = self._next_bytes(), 0
                if not self._chunk:
                    raise SnapshotRefusedError(f"the state ends {size} bytes too early")
            part = self._chunk[self._place : self._place + size]
            self._place += len(part)
            size -= len(part)
            assert self._place <= len(self._chunk), (
                f"read up to {self._place} of a chunk of {len(self._chunk)} bytes"
            )
            yield part

    def check_end(self) -> None:
        """Refuse bytes beyond the end.

        Raises:
            SnapshotRefusedError: there are some.
        """
        if self._place < len(self._chunk) or self._next_bytes():
            raise SnapshotRefusedError("there are bytes beyond the state")
