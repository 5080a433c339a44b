"""A range of the log, read piece by piece: entries verified, their records found, damage reported or passed over.

A range is what one task scans. It begins after a known entry and ends at a known position, so a scan proves
that it saw everything in between, and that the next range goes on where it ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from crc32c import crc32c

from dledger.codec.entry import find_headers
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger_mq.message.errors import RecordError
from pipeline.scan.entries import Chain, EntryTable, ScannedEntries, read_entries
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.records import Int64s, RecordTable, read_records

READ_BYTES: Final = 4 * 1024 * 1024
"""Read and handled at once: large enough for numpy, small enough to stay in the processor's cache."""

SEARCH_BYTES: Final = 1024 * 1024


class OnCorrupt(Enum):
    """The reaction of a scan to bytes that are not what was written."""

    FAIL = "fail"
    MARK = "mark"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries back to back within one segment.

    Attributes:
        path: the data file.
        segment: its name.
        segment_position: position of the file's first byte.
        before: what the first entry follows.
        end: the last entry; its `crc` is None where nothing but the end's position is known.
    """

    path: str
    segment: str
    segment_position: Position
    before: Chain
    end: Chain

    @property
    def size_bytes(self) -> int:
        """Bytes of the log in it."""
        return self.end.position - self.before.position


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that could not be read as what they should be.

    Attributes:
        path, byte_offset: where.
        position: the same in the log.
        size_bytes: how much of the log is concerned.
        index, term: of the entry; 0 where the header itself is damaged.
        problem: what is wrong.
    """

    path: str
    byte_offset: int
    position: Position
    size_bytes: int
    index: Index
    term: Term
    problem: str


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Some entries of a range and their records. Its arrays die with the next piece.

    Attributes:
        entries: whole entries, in order.
        table: their records.
        entry_of: for each record its entry, as a place in `entries`.
        damages: what stands here and could not be read; empty unless the scan goes on after damage.
    """

    entries: EntryTable
    table: RecordTable
    entry_of: Int64s
    damages: tuple[Damage, ...]


class RangeScan:
    """Reads a range.

    Args:
        range_: what.
        on_corrupt: FAIL raises at the first damage; the others go on after it and report it in `Piece`.
        check_crc: verify bodies; headers always are.
    """

    def __init__(
        self, range_: LogRange, on_corrupt: OnCorrupt = OnCorrupt.FAIL, *, check_crc: bool = True
    ) -> None:
        self._range = range_
        self._fails = on_corrupt is OnCorrupt.FAIL
        self._check_crc = check_crc

    def pieces(self) -> Iterator[Piece]:
        """Yield all of the range in order.

        Raises:
            DamagedLogError: FAIL, and something is wrong; or the file cannot be read at all.
        """
        for data, before, stretch, damage in self._stretches():
            if damage is None:
                yield self._piece(data, before, stretch)
            else:
                none: Int64s = np.empty(0, np.int64)
                yield Piece(stretch.entries.none(), read_records(b""), none, (damage,))

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the range as the log's own, for a fold; only with FAIL.

        Raises:
            DamagedLogError: something is wrong.
        """
        assert self._fails, "a fold cannot pass over damage"
        for data, before, stretch, _ in self._stretches():
            bad = np.flatnonzero(~stretch.entries.body_ok)
            if len(bad):
                self._entry_damage(before, stretch.entries, int(bad[0]), "")
            names = ["size", "index", "term", "position", "magic"]
            fields = stretch.entries.header[names].tolist()
            for start, field in zip(stretch.entries.start.tolist(), fields, strict=True):
                size, index, term, position, magic = field
                body = bytes(data[start + ENTRY_HEADER_BYTES : start + size])
                kind = EntryKind(magic)
                yield Entry(Index(index), Term(term), Position(position), kind, body)

    def _stretches(self) -> Iterator[tuple[memoryview, Chain, ScannedEntries, Damage | None]]:
        """Yield the range in stretches; damage stands in the one that follows it."""
        try:
            descriptor = os.open(self._range.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedLogError(self._range.path, 0, "the segment is gone") from None
        try:
            yield from self._read(descriptor)
        finally:
            os.close(descriptor)

    def _read(
        self, descriptor: int
    ) -> Iterator[tuple[memoryview, Chain, ScannedEntries, Damage | None]]:
        """Yield stretches of whole entries; the buffer is reused, so a stretch is valid only until the next one."""
        chain, end = self._range.before, self._range.end
        buffer = bytearray(min(READ_BYTES, max(self._range.size_bytes, ENTRY_HEADER_BYTES)))
        held = 0
        wanted = ENTRY_HEADER_BYTES
        while chain.position < end.position:
            left = end.position - chain.position
            size = min(max(len(buffer), wanted), left)
            if size > len(buffer):
                buffer = buffer + bytes(size - len(buffer))
            view = memoryview(buffer)
            held += self._fill(descriptor, view[held:size], Position(chain.position + held))
            stretch = read_entries(view[:held], chain, check_bodies=self._check_crc)
            if len(stretch.entries):
                yield view[:held], chain, stretch, None
            wanted = stretch.wanted_bytes
            problem = stretch.problem
            if not problem and not len(stretch.entries) and (held < size or wanted > left):
                problem = f"an entry of {wanted} bytes or more, {held} are there"
            if problem:
                chain, damage = self._beyond_damage(descriptor, stretch.after, problem)
                yield view[:0], chain, stretch, damage
                held, wanted = 0, ENTRY_HEADER_BYTES
                continue
            chain = stretch.after
            held -= stretch.taken_bytes
            buffer[:held] = buffer[stretch.taken_bytes : stretch.taken_bytes + held]
        self._check_end(chain)

    def _fill(self, descriptor: int, view: memoryview, position: Position) -> int:
        """Read as much as there is; returns the bytes read."""
        done = 0
        place = position - self._range.segment_position
        while done < len(view):
            got = os.preadv(descriptor, [view[done:]], place + done)
            if not got:
                break
            done += got
        return done

    def _check_end(self, chain: Chain) -> None:
        end = self._range.end
        if end.crc is not None and chain.crc is not None and chain.crc != end.crc:
            self._damage(
                chain.position,
                0,
                Chain(end.index, end.term, Position(0), None),
                f"entry {chain.index} is whole, but the index remembers another one here "
                f"(chain crc {chain.crc:#010x}, the index says {end.crc:#010x})",
            )

    def _damage(self, position: Position, size_bytes: int, entry: Chain, problem: str) -> Damage:
        """Report damage.

        Raises:
            DamagedLogError: the scan does not go on after damage.
        """
        byte_offset = position - self._range.segment_position
        if self._fails:
            raise DamagedLogError(self._range.path, byte_offset, problem)
        return Damage(
            self._range.path, byte_offset, position, size_bytes, entry.index, entry.term, problem
        )

    def _beyond_damage(self, descriptor: int, before: Chain, problem: str) -> tuple[Chain, Damage]:
        """Find the next entry that is whole after a header that is not; or the end of the range."""
        damage = self._damage(
            before.position, 0, Chain(Index(0), Term(0), Position(0), None), problem
        )
        found = self._next_whole(descriptor, before.position + 1, Index(before.index + 1))
        size = found - before.position
        reported = Damage(
            damage.path,
            damage.byte_offset,
            damage.position,
            size,
            Index(0),
            Term(0),
            damage.problem,
        )
        return Chain(Index(0), Term(0), Position(found), None), reported

    def _next_whole(self, descriptor: int, at: int, index_min: Index) -> int:
        """Return the position of the first whole entry from `at` on; the range's end when there is none."""
        end = self._range.end.position
        while at < end:
            data = bytearray(min(SEARCH_BYTES, end - at))
            got = self._fill(descriptor, memoryview(data), Position(at))
            found = self._whole_entry(descriptor, bytes(data[:got]), at, index_min)
            if found is not None:
                return found
            if got < len(data) or at + got == end:
                break
            at += (
                got - ENTRY_HEADER_BYTES
            )  # overlap, so that a header across the border is seen whole
        return end

    def _whole_entry(self, descriptor: int, data: bytes, at: int, index_min: Index) -> int | None:
        """Return the position of the first entry in `data` whose header fits its place, and whose body its header."""
        for _, header in find_headers(data, base_position=at, index_min=index_min):
            if header.position + header.size_bytes > self._range.end.position:
                continue
            body = bytearray(header.body_bytes)
            got = self._fill(
                descriptor, memoryview(body), Position(header.position + ENTRY_HEADER_BYTES)
            )
            if got == len(body) and crc32c(body) == header.body_crc:
                return int(header.position)
        return None

    def _piece(self, data: memoryview, before: Chain, stretch: ScannedEntries) -> Piece:
        """Parse all records at once; only if that fails, entry by entry, to find which ones are damaged."""
        entries = stretch.entries
        bad = np.flatnonzero(~entries.body_ok)
        damages: list[Damage] = []
        if len(bad) and self._fails:
            damages.append(
                self._entry_damage(before, entries, int(bad[0]), "its body crc is wrong")
            )
        normal = np.flatnonzero(entries.is_normal)
        try:
            table, entry_of = _records(data, entries, normal)
            wrong = table.physical_offset != before.position + table.start
            if not wrong.any():
                return Piece(entries, table, entry_of, tuple(damages))
        except RecordError:
            pass
        readable = []
        for place in normal.tolist():
            problem = _poison(data, entries, place, before.position)
            if not problem:
                readable.append(place)
                continue
            damages.append(self._entry_damage(before, entries, place, problem))
        table, entry_of = _records(data, entries, np.array(readable, np.int64))
        return Piece(entries, table, entry_of, tuple(damages))

    def _entry_damage(self, before: Chain, entries: EntryTable, place: int, problem: str) -> Damage:
        header = entries.header[place]
        index = int(header["index"])
        if not entries.body_ok[place]:
            problem = "its body does not have the crc that its header says"
        return self._damage(
            Position(before.position + int(entries.start[place])),
            int(header["size"]),
            Chain(Index(index), Term(int(header["term"])), Position(0), None),
            f"entry {index}: {problem}",
        )


def _records(data: memoryview, entries: EntryTable, places: Int64s) -> tuple[RecordTable, Int64s]:
    """Return the records of some entries, and for each the place of its entry."""
    begin = entries.start[places] + ENTRY_HEADER_BYTES
    spans = np.stack((begin, entries.end[places]), axis=1)
    table = read_records(data, spans)
    return table, places[np.searchsorted(begin, table.start, side="right") - 1]


def _poison(data: memoryview, entries: EntryTable, place: int, position: Position) -> str:
    """Describe what is wrong with the records of one entry; empty when nothing is."""
    try:
        table, _ = _records(data, entries, np.array([place]))
    except RecordError as error:
        return f"its body is no records: {error.reason}"
    wrong = np.flatnonzero(table.physical_offset != position + table.start)
    if not len(wrong) or not entries.body_ok[place]:
        return ""
    said, found = table.physical_offset[wrong[0]], position + table.start[wrong[0]]
    return f"the record at physical offset {found} says {said}"
