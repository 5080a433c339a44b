"""Reading old entries, or parts of them, in any thread: what is wanted becomes plans, and these give verified parts.

Plans are made by the owner of the log, and know everything that they need; a file that is removed meanwhile makes
them fail. What a plan reads is verified: a whole entry by what the log remembers of it, a part of one by the checksum
that was taken when the entry was read as a whole. Nothing here decides what becomes of damage.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from dledger.codec.entry import EntryFormatError, decode_known
from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry
from dledger.raft.ids import Index, Position
from dledger.storage.log_reader import CheckPlan, FilePlace
from dledger.storage.part_cache import PART_BYTES, CutEntry, PartCache, cut_entry
from dledger.storage.segmented_log import SegmentedLog

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Read in one go for readers that go through the log in order: every queue finds some of it there."""

GAP_BYTES_MAX: Final = 64 * 1024
"""Not wanted, and read all the same with what stands before and after it: to read twice would cost more."""

LOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Read for one request, one entry at least; who wants more comes again."""

Place = tuple[int, int]
"""Position and size of some wanted bytes of the log."""


@dataclass(frozen=True, slots=True)
class PartsPlan:
    """Some parts of one large entry, back to back.

    Attributes:
        place: where the first of them stands.
        position: of the first of them in the log.
        size_bytes: of all.
        checksums: of each.
    """

    place: FilePlace
    position: Position
    size_bytes: int
    checksums: array[int]

    def read(self) -> list[BodySpan]:
        """Read and verify them; return them up to the first damaged one.

        Raises:
            OSError: the disk failed, or the file was removed.
        """
        data = self.place.read(self.size_bytes)
        found: list[BodySpan] = []
        for number, checksum in enumerate(self.checksums):
            at = number * PART_BYTES
            part = data[at : at + PART_BYTES]
            if crc32c(part) != checksum:
                break
            found.append(BodySpan(Position(self.position + at), part))
        return found


@dataclass(frozen=True, slots=True)
class EntriesPlan:
    """Some entries, read in one go with what stands between them.

    Attributes:
        span: all entries from the first one to the last.
        picks: of each wanted one, its number in the span, and where it begins and ends there, in bytes; None: all are.
    """

    span: CheckPlan
    picks: Sequence[tuple[int, int, int]] | None

    def read(self) -> Iterator[Entry]:
        """Read them, and yield those that are wanted, verified: that costs most.

        Raises:
            OSError: the disk failed, or the file was removed.
            EntryFormatError: the disk gave other bytes than were written.
        """
        span = self.span
        if self.picks is None:
            yield from span.read()
            return
        data, chain_crcs = span.place.read(span.size_bytes), span.chain_crcs
        for number, start, end in self.picks:
            before = chain_crcs[number - 1] if number else span.prev_chain_crc
            yield from decode_known(data[start:end], chain_crcs[number : number + 1], before)


@dataclass(slots=True)
class Load:
    """The reads for one request; `run` may run in any thread.

    Attributes:
        entries, parts: the plans.
        indexes: the entries that they concern.
        size_bytes: what is read.
        found_entries, found_parts: what `run` has read. Damage ends it early; whoever needs the rest meets it.
    """

    entries: list[EntriesPlan] = field(default_factory=list)
    parts: list[PartsPlan] = field(default_factory=list)
    indexes: set[Index] = field(default_factory=set)
    size_bytes: int = 0
    found_entries: list[CutEntry] = field(default_factory=list)
    found_parts: list[BodySpan] = field(default_factory=list)

    def run(self) -> None:
        """Read and verify."""
        try:
            for plan in self.parts:
                self.found_parts += plan.read()
            for entries in self.entries:
                self.found_entries += map(cut_entry, entries.read())
        except (OSError, EntryFormatError):
            return

    def put_into(self, cache: PartCache) -> None:
        """Give the cache what was read."""
        for entry in self.found_entries:
            cache.put_entry(entry)
        for part in self.found_parts:
            cache.put(part)


class LoadPlanner:
    """Decides what is read from the disk for some wanted places of the log."""

    def __init__(self, log: SegmentedLog, cache: PartCache) -> None:
        self._log = log
        self._cache = cache

    def span(self, index: Index, position: Position, size_bytes: int) -> BodySpan | None:
        """Return bytes of an entry's body from memory, with whatever stands around them; None if they are not there."""
        entry = self._log.cached(index)
        if entry is not None:
            return BodySpan(Position(entry.position + ENTRY_HEADER_BYTES), entry.body)
        cache = self._cache
        first, end = self._parts_of(index, position, size_bytes)
        found = cache.get(first)
        if found is None or first + PART_BYTES >= end:
            return None if found is None else BodySpan(first, found)
        pieces = [found]
        for start in range(first + PART_BYTES, end, PART_BYTES):
            part = cache.get(Position(start))
            if part is None:
                return None
            pieces.append(part)
        return BodySpan(first, b"".join(pieces))

    def plan(self, places: Iterable[Place], last: Index, *, ahead: bool = True) -> Load:
        """Plan the reading of what is not in memory.

        Args:
            places: wanted bytes.
            last: the last committed entry; what follows may still become another one, and is not read.
            ahead: whether to read on after them for readers that go through the log in order.
        """
        load = Load()
        wanted = sorted(self._missing(places, last).items())
        planned_to = Index(0)
        for number, (index, starts) in enumerate(wanted):
            if load.size_bytes >= LOAD_BYTES_MAX:
                break
            if index < planned_to:
                continue
            checksums = self._cache.checksums(index)
            if checksums is not None:
                self._add_parts(load, index, starts, checksums, ahead=ahead)
            else:
                later = (other for other, _ in wanted[number:])
                planned_to = self._add_entries(load, index, later, last=last)
        return load

    def _missing(self, places: Iterable[Place], last: Index) -> dict[Index, list[Position]]:
        """Return where the parts begin that are wanted and not in memory, in order, by entry."""
        missing: dict[Index, list[Position]] = {}
        for position, size_bytes in sorted(places):
            index = self._log.layout.index_at(Position(position))
            if index is None or index > last or self._log.cached(index) is not None:
                continue
            first, end = self._parts_of(index, Position(position), size_bytes)
            for start in map(Position, range(first, end, PART_BYTES)):
                if start not in self._cache:
                    starts = missing.setdefault(index, [])
                    if not starts or starts[-1] != start:
                        starts.append(start)
        return missing

    def _body_of(self, index: Index) -> tuple[Position, Position]:
        """Return where an entry's body begins and ends."""
        layout = self._log.layout
        start = layout.position_of(index) + ENTRY_HEADER_BYTES
        return Position(start), layout.position_of(Index(index + 1))

    def _parts_of(
        self, index: Index, position: Position, size_bytes: int
    ) -> tuple[Position, Position]:
        """Return where the first part begins, and where the bytes end, of a place in an entry."""
        start, end = self._body_of(index)
        number = max(0, position - start) // PART_BYTES
        return Position(start + number * PART_BYTES), min(end, Position(position + size_bytes))

    def _is_in_order(self, index: Index, start: Position) -> bool:
        """Return whether what stands before a part is in memory: then its reader goes through the log in order."""
        body, _ = self._body_of(index)
        if start > body:
            return Position(start - PART_BYTES) in self._cache
        if not self._log.layout.has(Index(index - 1)):
            return False
        before, end = self._body_of(Index(index - 1))
        last = before + max(0, end - before - 1) // PART_BYTES * PART_BYTES
        return Position(last) in self._cache

    def _add_parts(
        self,
        load: Load,
        index: Index,
        starts: Sequence[Position],
        checksums: array[int],
        *,
        ahead: bool,
    ) -> None:
        """Plan the reading of some parts of an entry."""
        body, body_end = self._body_of(index)
        planned_end = body
        for run, length in _runs(starts):
            if load.size_bytes >= LOAD_BYTES_MAX:
                break
            first = max(run, planned_end)
            count = length - (first - run) // PART_BYTES
            if count <= 0:
                continue  # read ahead for the run before
            number = (first - body) // PART_BYTES
            if ahead and self._is_in_order(index, first):
                count = max(count, READ_AHEAD_BYTES // PART_BYTES)
            chosen = checksums[number : number + count]
            size = min(body_end - first, len(chosen) * PART_BYTES)
            load.parts.append(PartsPlan(self._log.file_place(first), first, size, chosen))
            load.size_bytes += size
            planned_end = Position(first + size)
        load.indexes.add(index)

    def _add_entries(
        self, load: Load, index: Index, wanted: Iterable[Index], *, last: Index
    ) -> Index:
        """Plan the reading of `index` and of the wanted entries that follow it closely; return where the plan ends.

        Who goes through the log in order gets all entries from there on.
        """
        layout = self._log.layout
        if self._is_in_order(index, self._body_of(index)[0]):
            span = self._log.plan_check(index, READ_AHEAD_BYTES, last=last)
            load.entries.append(EntriesPlan(span, None))
            load.indexes.update(map(Index, range(index, span.end_index)))
        else:
            first: int = layout.position_of(index)
            picks: list[tuple[int, int, int]] = []
            size = 0
            for each in wanted:
                start = layout.position_of(each) - first
                end = layout.position_of(Index(each + 1)) - first
                if picks and (start - size > GAP_BYTES_MAX or end > READ_AHEAD_BYTES):
                    break
                picks.append((each - index, start, end))
                size = end
            span = self._log.plan_check(index, size, last=last)
            # One that stands in the next segment is not in the span.
            picks = [pick for pick in picks if index + pick[0] < span.end_index]
            load.entries.append(EntriesPlan(span, picks))
            load.indexes.update(Index(index + pick[0]) for pick in picks)
        load.size_bytes += span.size_bytes
        return span.end_index


def _runs(starts: Sequence[Position]) -> Iterator[tuple[Position, int]]:
    """Yield the first of each run of adjacent parts, and their count."""
    first, count = starts[0], 0
    for start in starts:
        if start != first + count * PART_BYTES:
            yield first, count
            first, count = start, 0
        count += 1
    yield first, count
