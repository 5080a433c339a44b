"""Entry headers of a stretch of the log, all at once; every checksum verified.

The chain CRC of a header covers the header and, through the chain CRC before it, everything before. With the
stored value of the entry before at hand each header is checked by itself, so all of them can be checked
together; that the first of them follows what came before is the caller's `Chain`. A header that is right
vouches for the size of its body, and for the body's CRC32C.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from dledger.raft.entry import ENTRY_HEADER_BYTES, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger_mq.message.compiled import Bytes
from pipeline.scan.crc import crc32c_columns
from pipeline.scan.records import Int64s

HEADER: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_length", ">i4"),
    ]
)
_SIZE: Final = struct.Struct(">i")
_SIZE_AT: Final = 4
_CHAIN_CRC_AT: Final = 36
_BODY_CRC_AT: Final = 40

assert HEADER.itemsize == ENTRY_HEADER_BYTES, f"{HEADER.itemsize} bytes of {ENTRY_HEADER_BYTES}"


@dataclass(frozen=True, slots=True)
class Chain:
    """The entry before the next one.

    Attributes:
        position: where the next one starts.
        crc: its chain CRC; None when nothing but the position is known, as after a damaged place: the
            next header's index, term and chain CRC are then taken as given.
    """

    index: Index
    term: Term
    position: Position
    crc: int | None


LOG_START: Final = Chain(Index(0), Term(0), Position(0), 0)


@dataclass(frozen=True, eq=False, slots=True)
class EntryTable:
    """Whole entries back to back whose headers are right.

    Attributes:
        start: places of the headers in the bytes that were read.
        header: their fields, big-endian.
        body_ok: whether each body has the CRC32C that its header says; all true where that was not asked.

    Invariant: one element of each for every entry.
    """

    start: Int64s
    header: NDArray[np.void]
    body_ok: NDArray[np.bool_]

    def __post_init__(self) -> None:
        lengths = (len(self.start), len(self.header), len(self.body_ok))
        assert len(set(lengths)) == 1, f"places, headers and checksums of {lengths} entries"

    def __len__(self) -> int:
        return len(self.start)

    def whole_count(self) -> int:
        """Count the leading entries that have a whole body."""
        bad = np.flatnonzero(~self.body_ok)
        return int(bad[0]) if len(bad) else len(self)

    def chain_after(self, count: int, before: Chain) -> Chain:
        """Return the last of the first `count` entries; `before` when that is none."""
        assert 0 <= count <= len(self), f"{count} of {len(self)} entries"
        if not count:
            return before
        header = self.header[count - 1]
        return Chain(
            Index(int(header["index"])),
            Term(int(header["term"])),
            Position(int(header["position"]) + int(header["size"])),
            int(header["chain_crc"]),
        )

    def none(self) -> EntryTable:
        """Return no entries."""
        return EntryTable(self.start[:0], self.header[:0], self.body_ok[:0])

    @property
    def end(self) -> Int64s:
        """The places after the entries, as an array."""
        return self.start + self.header["size"]

    @property
    def is_normal(self) -> NDArray[np.bool_]:
        """The entries that carry records, as a mask."""
        return self.header["magic"] == EntryKind.NORMAL


@dataclass(frozen=True, slots=True)
class ScannedEntries:
    """The entries that were found in some bytes of the log.

    Attributes:
        entries: the whole entries from the start.
        after: the last of them, for the next stretch.
        taken_bytes: where the entries end.
        problem: what is wrong after them; empty when they only end within an entry.
        wanted_bytes: without a problem: from `taken_bytes`, how much would hold the next entry.
    """

    entries: EntryTable
    after: Chain
    taken_bytes: int
    problem: str = ""
    wanted_bytes: int = ENTRY_HEADER_BYTES


def read_entries(data: Bytes, before: Chain, *, check_bodies: bool = True) -> ScannedEntries:
    """Take all whole entries from the start of `data`.

    A body with a wrong checksum is marked in `EntryTable.body_ok` and is no end: its header says where the next
    entry starts.
    """
    start, wanted_bytes = _walk(data)
    if not len(start):
        return _nothing(data, before, wanted_bytes)
    fields = np.ndarray((len(data) - HEADER.itemsize + 1,), HEADER, data, strides=(1,))
    header = fields[start]
    good = _count_good(header, start, before)
    problem = _problem(header, good, before) if good < len(start) else ""
    is_cut = good == len(start) and start[-1] + int(header["size"][-1]) > len(data)
    count = good - 1 if is_cut else good
    if is_cut:
        wanted_bytes = int(header["size"][-1])
    start, header = start[:count], header[:count]
    body_ok = _bodies_ok(data, start, header) if check_bodies else np.ones(count, bool)
    entries = EntryTable(start, header, body_ok)
    after = entries.chain_after(count, before)
    return ScannedEntries(entries, after, after.position - before.position, problem, wanted_bytes)


def _nothing(data: Bytes, before: Chain, wanted_bytes: int) -> ScannedEntries:
    none = EntryTable(np.empty(0, np.int64), np.empty(0, HEADER), np.empty(0, bool))
    return ScannedEntries(none, before, 0, "", wanted_bytes)


def _walk(data: Bytes) -> tuple[Int64s, int]:
    """Return places of headers, each where the one before says that it ends; the last may be cut by the end.

    The sizes are not yet known to be right, only that following them ends.
    """
    starts: list[int] = []
    add, unpack = starts.append, _SIZE.unpack_from
    at, last = 0, len(data) - ENTRY_HEADER_BYTES
    while at <= last:
        add(at)
        (size,) = unpack(data, at + _SIZE_AT)
        if size < ENTRY_HEADER_BYTES:
            break
        at += size
    return np.array(starts, np.int64), ENTRY_HEADER_BYTES


def _count_good(header: NDArray[np.void], start: Int64s, before: Chain) -> int:
    """Count the leading headers that are valid and follow each other."""
    octets = header.view(np.uint8).reshape(-1, ENTRY_HEADER_BYTES)
    covered = np.concatenate((octets[:, :_CHAIN_CRC_AT], octets[:, _BODY_CRC_AT:]), axis=1)
    stored = header["chain_crc"].astype(np.uint32)
    previous = np.empty_like(stored)
    previous[0] = before.crc or 0
    previous[1:] = stored[:-1]
    right = crc32c_columns(covered, previous) == stored
    index, term = header["index"].astype(np.int64), header["term"].astype(np.int64)
    size, length = header["size"].astype(np.int64), header["body_length"].astype(np.int64)
    first_index, first_term = Index(before.index + 1), before.term
    if before.crc is None:
        right[0] = True
        first_index, first_term = Index(int(index[0])), Term(int(term[0]))
    right &= index == first_index + np.arange(len(header))
    right &= header["position"] == before.position + start
    right &= (length >= 0) & (size == length + ENTRY_HEADER_BYTES)
    right &= (header["magic"] >= EntryKind.NORMAL) & (header["magic"] <= EntryKind.CONFIGURATION)
    right &= header["channel"] == 0
    right[0] &= term[0] >= first_term
    right[1:] &= term[1:] >= term[:-1]
    wrong = np.flatnonzero(~right)
    return int(wrong[0]) if len(wrong) else len(header)


def _problem(header: NDArray[np.void], place: int, before: Chain) -> str:
    """Describe what is wrong with the first header that is not right."""
    which = f"entry {before.index + 1 + place}" if before.crc is not None else "an entry"
    if not any(header[place : place + 1].tobytes()):
        return f"zeros where the header of {which} should be"
    return f"no whole header of {which}: its chain crc, its place or its sizes are wrong"


def _bodies_ok(data: Bytes, start: Int64s, header: NDArray[np.void]) -> NDArray[np.bool_]:
    view = memoryview(data)
    begin = start + ENTRY_HEADER_BYTES
    pairs = zip(begin.tolist(), (start + header["size"]).tolist(), strict=True)
    found = np.fromiter((crc32c(view[a:b]) for a, b in pairs), np.uint32, len(start))
    return found == header["body_crc"]
