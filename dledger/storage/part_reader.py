"""Reading old entries in any thread: what is wanted becomes plans, and these give verified parts of the log.

Plans are made by the owner of the log, and know everything that they need; a file that is removed meanwhile makes
them fail. What a plan reads is verified: entries by what the log remembers of them, and a part of which all entries
were verified once by the checksum that was taken then. Nothing here decides what becomes of damage.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from dledger.codec.entry import EntryFormatError, decode_known, verified_bytes
from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry
from dledger.raft.ids import Index, Position
from dledger.storage.log_reader import CheckPlan, FilePlace
from dledger.storage.page_loads import PageLoad
from dledger.storage.part_cache import PART_BITS, PART_BYTES, LogPart, PartCache
from dledger.storage.segmented_log import SegmentedLog

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Read in one go for readers that go through the log in order: every queue finds some of it there."""

LOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Read for one request, one entry at least; who wants more comes again."""

Place = tuple[int, int]
"""Position and size of some wanted bytes of the log."""

Run = tuple[int, int]
"""The first position of some bytes of the log, and that after the last."""


def cut(position: Position, data: memoryview) -> list[LogPart]:
    """Cut verified bytes of the log into parts, each with memory of its own."""
    found: list[LogPart] = []
    end = position + len(data)
    start: int = position
    while start < end:
        stop = min(end, (start >> PART_BITS) + 1 << PART_BITS)
        piece = bytes(data[start - position : stop - position])
        checksum = crc32c(piece) if stop - start == PART_BYTES else None
        found.append(LogPart(Position(start), memoryview(piece), checksum))
        start = stop
    return found


_NO_BYTES: Final = memoryview(b"")


class Stretches(NamedTuple):
    """Bytes of the log around some records: a record stands in the last stretch that begins at it or before, if at all.

    Attributes:
        positions: of the first byte of each stretch, ascending.
        data: the stretches.
    """

    positions: list[int]
    data: list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """Some whole parts back to back, whose checksums are known.

    Attributes:
        places: where they stand, and how much of them: in one segment, or in several.
        position: of the first of them in the log.
        checksums: of each.
    """

    places: Sequence[tuple[FilePlace, int]]
    position: Position
    checksums: array[int]

    def read(self) -> list[LogPart]:
        """Read and verify them; return them up to the first damaged one.

        Raises:
            OSError: the disk failed, or a file was removed.
        """
        data = b"".join([place.read(size) for place, size in self.places])
        found: list[LogPart] = []
        for part, checksum in zip(
            cut(self.position, memoryview(data)), self.checksums, strict=False
        ):
            if part.checksum != checksum:
                break
            found.append(part)
        return found


@dataclass(frozen=True, slots=True)
class EntriesPlan:
    """Some entries back to back, in one segment.

    Attributes:
        position: of the first of them.
        span: all of them.
        picks: of each that is wanted, its number in the span, and where it begins and ends there, in bytes.
    """

    position: Position
    span: CheckPlan
    picks: Sequence[tuple[int, int, int]]

    def read(self) -> tuple[bytes, list[Entry]]:
        """Read and verify them: return the bytes up to the first damaged one, and those that are wanted behind it.

        Raises:
            OSError: the disk failed, or the file was removed.
        """
        span = self.span
        data = span.place.read(span.size_bytes)
        chain_crcs = span.chain_crcs
        whole = verified_bytes(data, chain_crcs, span.prev_chain_crc)
        behind: list[Entry] = []
        for number, start, end in self.picks:
            if end <= whole:
                continue
            before = chain_crcs[number - 1] if number else span.prev_chain_crc
            # Whoever needs a damaged one meets the damage.
            with suppress(EntryFormatError):
                behind += decode_known(data[start:end], chain_crcs[number : number + 1], before)
        return data[:whole], behind


@dataclass(slots=True)
class Load:
    """The reads for one request; `run` may run in any thread.

    Attributes:
        entries, parts: the plans.
        numbers: the parts that they concern.
        size_bytes: what is read.
        begun_count: of the log, when it was planned.
        found_entries, found_parts: what `run` has read. Damage ends it early; whoever needs the rest meets it.
    """

    entries: list[EntriesPlan] = field(default_factory=list)
    parts: list[PartsPlan] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    size_bytes: int = 0
    begun_count: int = 0
    found_entries: list[Entry] = field(default_factory=list)
    found_parts: list[LogPart] = field(default_factory=list)

    def run(self) -> None:
        """Read and verify."""
        stretches: list[tuple[Position, bytes]] = []
        with suppress(OSError):
            for plan in self.parts:
                self.found_parts += plan.read()
            for entries in self.entries:
                position, (data, behind) = entries.position, entries.read()
                self.found_entries += behind
                if stretches and stretches[-1][0] + len(stretches[-1][1]) == position:
                    # A part has entries of two segments.
                    position, before = stretches.pop()
                    data = before + data
                stretches.append((position, data))
        for position, data in stretches:
            self.found_parts += cut(position, memoryview(data))


class LoadPlanner:
    """Finds places of the log in memory, and decides what is read from the disk for those that are not there."""

    def __init__(self, log: SegmentedLog, cache: PartCache) -> None:
        self._log = log
        self._cache = cache
        self._begun_count = log.begun_count

    # Looking things up.

    @property
    def first_position(self) -> Position:
        """Byte place of the first kept entry."""
        return self._log.layout.first_position

    def views(self, runs: Iterable[Run]) -> list[memoryview] | None:
        """Return the bytes of runs, each of which stands in the body of one entry, in order.

        A run may come in several pieces. None: some are not in memory, and have to be loaded.
        """
        self._look_at_beginning()
        log, get = self._log, self._cache.get
        newest = log.newest_position
        found: list[memoryview] = []
        number, position, behind, data = -1, 0, 0, _NO_BYTES
        for start, end in runs:
            if position <= start and end <= behind:  # in what has the run before it
                found.append(data[start - position : end - position])
                continue
            if start >= newest:
                position, data = log.newest_body(start) or (start, _NO_BYTES)
                number, behind = -1, position + len(data)
                if start < position or end > behind:
                    return None
                found.append(data[start - position : end - position])
                continue
            at = start
            while at < end:
                if at >> PART_BITS != number:
                    number = at >> PART_BITS
                    part = get(number) or self._read_resident(number)
                    if part is None:
                        return None
                    position, data = part
                    behind = position + len(data)
                first = at - position
                piece = data[first : first + end - at]
                if first < 0 or not piece:
                    return None
                found.append(piece)
                at += len(piece)
        return found

    def stretches(self, starts: Sequence[int], sizes: Sequence[int]) -> Stretches:
        """Return the bytes in memory around some records, up to the first record that is not there.

        Args:
            starts: positions of the records within the log, ascending; each stands in the body of one entry.
            sizes: of the records in bytes.

        Raises:
            OSError: where a record stands cannot be looked up.
        """
        self._look_at_beginning()
        older_count = bisect_left(starts, self._log.newest_position)
        found = Stretches([], [])
        if self._add_older(found, zip(starts[:older_count], sizes, strict=False)):
            newest = starts[older_count:]
            if newest:
                positions, bodies = self._log.newest_around(newest)
                found.positions.extend(positions)
                found.data.extend(bodies)
        return found

    def _add_older(self, found: Stretches, places: Iterable[Place]) -> bool:
        """Add what stands in parts; return whether all of it does."""
        number, end = -1, 0
        for start, size_bytes in places:
            if start >> PART_BITS != number:
                number = start >> PART_BITS
                part = self._cache.get(number) or self._read_resident(number)
                if part is None:
                    return False
                found.positions.append(part[0])
                found.data.append(part[1])
                end = part[0] + len(part[1])
            if start + size_bytes > end:  # it goes on in the next part
                pieces = self.views([(start, start + size_bytes)])
                if pieces is None:
                    return False
                found.positions.append(start)
                found.data.append(b"".join(pieces))
        return True

    def span(self, index: Index, position: Position, size_bytes: int) -> BodySpan | None:
        """Return bytes of an entry's body from memory, with whatever stands around them; None if they are not there."""
        self._look_at_beginning()
        entry = self._log.cached(index)
        if entry is not None:
            return BodySpan(Position(entry.position + ENTRY_HEADER_BYTES), entry.body)
        body = self._cache.body(index)
        if body is not None:
            return BodySpan(body[0], body[1])
        start, end = self._body_of(index)
        first = max(start, position)
        end = min(end, Position(first + size_bytes))
        pieces = self.views([(first, end)])
        if pieces is None or len(pieces) == 1:
            return None if pieces is None else self._around(index, first)
        return BodySpan(first, b"".join(pieces))

    def _around(self, index: Index, position: Position) -> BodySpan:
        """Return what is in memory of an entry's body in the part that has a position, which is there."""
        found = self._cache.get(position >> PART_BITS)
        assert found is not None, f"the part of position {position} was just there"
        start, end = self._body_of(index)
        first = max(start, found[0])
        return BodySpan(first, found[1][first - found[0] : end - found[0]])

    def _read_resident(self, number: int) -> tuple[Position, memoryview] | None:
        """Read a part of known checksum anew, if the system has it in memory; None if not, or it is damaged."""
        position = Position(number << PART_BITS)
        self._log.note_reader(position)
        checksum = self._cache.checksum(number)
        if checksum is None:
            return None
        data = self._log.read_resident(position, PART_BYTES)
        if data is None or crc32c(data) != checksum:
            return None
        part = (position, memoryview(data))
        self._cache.put(LogPart(*part, None))
        return part

    def keep(self, entry: Entry) -> None:
        """Keep an entry that was read and verified."""
        start = Position(entry.position + ENTRY_HEADER_BYTES)
        if len(entry.body) < PART_BYTES:
            self._cache.put_body(entry.index, BodySpan(start, entry.body))
            return
        for part in cut(entry.position, memoryview(entry.header + entry.body)):
            self._cache.put(part)

    def put(self, load: Load) -> None:
        """Keep what a load has read, unless the log began anew meanwhile."""
        self._look_at_beginning()
        if load.begun_count != self._begun_count:
            return
        for part in load.found_parts:
            self._cache.put(part)
        for entry in load.found_entries:
            self._cache.put_body(
                entry.index, BodySpan(Position(entry.position + ENTRY_HEADER_BYTES), entry.body)
            )

    def _look_at_beginning(self) -> None:
        """Forget everything if the log was begun anew."""
        if self._begun_count != self._log.begun_count:
            self._begun_count = self._log.begun_count
            self._cache.clear()

    # Planning.

    def missing_pages(self, places: Iterable[Place], *, ahead: bool = True) -> list[PageLoad]:
        """Plan the reading of what `plan` will want to look up, as far as it is known before."""
        found: list[PageLoad] = []
        looked_to, before = Position(0), -1
        for position, _ in sorted(places):
            number = position >> PART_BITS
            if number == before:
                continue
            before = number
            count = READ_AHEAD_BYTES >> PART_BITS if ahead and number - 1 in self._cache else 1
            # The entry before is what the chain of the first one follows.
            start, end = (
                max(looked_to, (number << PART_BITS) - 1),
                (number + count << PART_BITS) + 1,
            )
            if start < end:
                found += self._log.missing_pages(Position(start), Position(end))
                looked_to = Position(end)
        return found

    def plan(self, places: Iterable[Place], last: Index, *, ahead: bool = True) -> Load:
        """Plan the reading of what is not in memory.

        Args:
            places: wanted bytes.
            last: the last committed entry; what follows may still become another one, and is not read.
            ahead: whether to read on after them for readers that go through the log in order.
        """
        self._look_at_beginning()
        load = Load(begun_count=self._begun_count)
        last = min(last, self._log.durable_index)
        missing = self._missing(places, last)
        planned_to = 0
        for number in sorted(missing):
            if load.size_bytes >= LOAD_BYTES_MAX:
                break
            if number < planned_to:
                continue
            count = READ_AHEAD_BYTES >> PART_BITS if ahead and number - 1 in self._cache else 1
            is_kept = number << PART_BITS >= self._log.layout.first_position
            if is_kept and self._cache.checksum(number) is not None:
                planned_to = self._add_parts(load, number, count)
            else:
                planned_to = self._add_entries(load, number, count, missing, last=last)
        return load

    def _missing(self, places: Iterable[Place], last: Index) -> dict[int, list[Index]]:
        """Return the parts that are wanted and not in memory, and the entries that are wanted of each."""
        missing: dict[int, list[Index]] = {}
        layout, cache = self._log.layout, self._cache
        index, body, body_end, is_in_memory = Index(0), Position(0), Position(0), False
        for position, size_bytes in sorted(places):
            if not body <= position < body_end:  # else it is another record of the same entry
                found = layout.index_at(Position(position))
                if found is None or found > last:
                    continue
                index = found
                body, body_end = self._body_of(index)
                is_in_memory = self._log.cached(index) is not None or cache.body(index) is not None
            if is_in_memory:
                continue
            start = max(body, position)
            end = min(body_end, start + size_bytes)
            while start < end:
                number = start >> PART_BITS
                stop = min(end, number + 1 << PART_BITS)
                if not cache.has(number, start, stop):
                    wanted = missing.setdefault(number, [])
                    if not wanted or wanted[-1] != index:
                        wanted.append(index)
                start = stop
        return missing

    def _body_of(self, index: Index) -> tuple[Position, Position]:
        """Return where an entry's body begins and ends."""
        layout = self._log.layout
        start = layout.position_of(index) + ENTRY_HEADER_BYTES
        return Position(start), layout.position_of(Index(index + 1))

    def _add_parts(self, load: Load, number: int, count: int) -> int:
        """Plan the reading of parts whose checksums are known, from a missing one on; return where the plan ends."""
        checksums = array("I")
        for each in range(number, number + count):
            checksum = self._cache.checksum(each)
            if checksum is None or (each != number and each in self._cache):
                break
            checksums.append(checksum)
        position, size = Position(number << PART_BITS), len(checksums) << PART_BITS
        load.parts.append(PartsPlan(self._log.file_places(position, size), position, checksums))
        load.size_bytes += size
        end = number + len(checksums)
        load.numbers.update(range(number, end))
        return end

    def _add_entries(
        self,
        load: Load,
        number: int,
        count: int,
        missing: dict[int, list[Index]],
        *,
        last: Index,
    ) -> int:
        """Plan the reading of all entries that stand in some parts; return where the plan ends, in parts."""
        layout = self._log.layout
        start = max(number << PART_BITS, layout.first_position)
        first = layout.index_at(Position(start))
        assert first is not None, f"part {number} stands outside the log"
        end = min(number + count << PART_BITS, layout.position_of(Index(last + 1)))
        index = first
        while index <= last and layout.position_of(index) < end:
            position = layout.position_of(index)
            span = self._log.plan_check(index, self._whole_bytes(index, Position(end)), last=last)
            wanted = {
                each
                for part in range(position >> PART_BITS, number + count)
                for each in missing.get(part, ())
                if index <= each < span.end_index
            }
            picks = [
                (
                    each - index,
                    layout.position_of(each) - position,
                    layout.position_of(Index(each + 1)) - position,
                )
                for each in sorted(wanted)
            ]
            load.entries.append(EntriesPlan(position, span, picks))
            load.size_bytes += span.size_bytes
            index = span.end_index
        load.numbers.update(range(number, number + count))
        return number + count

    def _whole_bytes(self, index: Index, end: Position) -> int:
        """Return how many bytes stand from an entry on to the end of that which has the byte before `end`."""
        layout = self._log.layout
        last = layout.index_at(Position(end - 1))
        assert last is not None, f"position {end} lies beyond the log"
        return layout.position_of(Index(last + 1)) - layout.position_of(index)
