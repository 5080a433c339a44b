"""The log without its bodies: which entry stands where, and in which term.

Kept in memory: a little for every change of term, and 8 bytes for each entry of the *open end*, which is what was not
finished yet. What stands before it are finished parts (`finished_row`), and their places are looked up there. The core
decides with it, the store finds entries with it; each has its own copy of the open end, and both share the parts.
Indexes are contiguous and positions have no gaps, so the end of an entry is where the next begins.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from dledger.raft.finished_row import FinishedEntries, FinishedRow
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, Position, Term


@dataclass(frozen=True, slots=True)
class LogBase:
    """The place just before the first kept entry: the log is empty after it."""

    prev_index: Index = NO_INDEX
    prev_term: Term = NO_TERM
    position: Position = Position(0)


class LogLayout:
    """Positions and terms of the entries first_index..last_index.

    Invariants: terms never decrease; first_index == start.prev_index + 1; positions strictly increase; the finished
    parts end where the open end begins.

    Attributes:
        first_index: index of the first kept entry, whether or not it exists yet. To be read only.
        last_index: index of the last entry; first_index - 1 when the log is empty. To be read only.
        end_position: where the next entry's header will stand. To be read only.
        open_index: the first entry of the open end, whether or not it exists yet. To be read only.
    """

    # The ends are plain attributes: the leader reads them many times for every proposal.
    __slots__ = (
        "_base",
        "_finished",
        "_positions",
        "_run_firsts",
        "_run_terms",
        "end_position",
        "first_index",
        "last_index",
        "open_index",
    )

    def __init__(self, base: LogBase | None = None) -> None:
        self._base = base or LogBase()
        self._positions = array("q")
        self._finished: FinishedRow[FinishedEntries] = FinishedRow()
        self._run_firsts: list[Index] = []
        self._run_terms: list[Term] = []
        self.first_index: Index = Index(self._base.prev_index + 1)
        self.open_index: Index = self.first_index
        self.last_index: Index = self._base.prev_index
        self.end_position: Position = self._base.position

    @property
    def last_term(self) -> Term:
        """Term of the last entry, or of what lies before an empty log."""
        return self._run_terms[-1] if self._run_terms else self._base.prev_term

    @property
    def last_id(self) -> EntryId:
        """Term and index of the last entry."""
        return EntryId(self.last_term, self.last_index)

    @property
    def first_position(self) -> Position:
        """Byte place of the first kept entry."""
        return self._base.position

    def has(self, index: Index) -> bool:
        """Return whether the entry is kept here."""
        return self._base.prev_index < index <= self.last_index

    def term_of(self, index: Index) -> Term | None:
        """Return the term of an entry, or of the place just before the first; None when unknown."""
        prev_index = self._base.prev_index
        if index == prev_index:
            return self._base.prev_term
        if not prev_index < index <= self.last_index:
            return None
        return self._run_terms[bisect_right(self._run_firsts, index) - 1]

    def position_of(self, index: Index) -> Position:
        """Return the byte place of an entry's header; of last_index + 1 it is the end position."""
        offset = index - self.open_index
        if offset == len(self._positions):
            return self.end_position
        assert self.first_index <= index <= self.last_index, f"entry {index} is not in the log"
        if offset < 0:
            return Position(self._finished.find(index).positions(index, Index(index + 1))[0])
        return Position(self._positions[offset])

    def index_at(self, position: Position) -> Index | None:
        """Return the entry whose header or body covers this byte; None outside the log."""
        if not self._base.position <= position < self.end_position:
            return None
        if not self._positions or position < self._positions[0]:
            return self._finished.find_at(position).index_at(position)
        return Index(self.open_index - 1 + bisect_right(self._positions, position))

    def first_index_of_term_at(self, index: Index) -> Index:
        """Return the first kept index of the run of equal terms that contains `index`."""
        assert self.has(index), f"entry {index} is not in the log"
        return self._run_firsts[bisect_right(self._run_firsts, index) - 1]

    def last_index_of_term(self, term: Term) -> Index | None:
        """Return the last kept index with this term; None when there is none."""
        for run in range(len(self._run_terms) - 1, -1, -1):
            if self._run_terms[run] == term:
                following = run + 1
                end = (
                    self._run_firsts[following]
                    if following < len(self._run_firsts)
                    else self.last_index + 1
                )
                return Index(end - 1)
            if self._run_terms[run] < term:
                return None
        return None

    def term_runs(self, runs_max: int) -> list[tuple[Term, Index]]:
        """Return the newest runs of equal terms, each with its first kept index."""
        assert runs_max > 0, f"{runs_max} runs"
        terms, firsts = self._run_terms[-runs_max:], self._run_firsts[-runs_max:]
        return list(zip(terms, firsts, strict=True))

    def append(self, term: Term, size_bytes: int) -> None:
        """Add one entry of `size_bytes` (header included) after the end."""
        assert term >= self.last_term, f"term {term} after term {self.last_term}"
        assert size_bytes > 0, f"an entry of {size_bytes} bytes"
        if term != self.last_term or not self._run_terms:
            self._run_firsts.append(Index(self.last_index + 1))
            self._run_terms.append(term)
        self._positions.append(self.end_position)
        self.last_index = Index(self.last_index + 1)
        self.end_position = Position(self.end_position + size_bytes)

    def extend(self, *, terms: array[int], positions: array[int], end_position: Position) -> None:
        """Add many entries after the end at once, as a store does that opens a large log.

        Args:
            terms: term of each entry, never decreasing.
            positions: byte place of each; the first is this log's end position.
            end_position: end of the last entry.
        """
        assert len(terms) == len(positions) > 0, f"{len(terms)} terms, {len(positions)} positions"
        assert positions[0] == self.end_position < end_position, (
            f"entries from {positions[0]} to {end_position}, the log ends at {self.end_position}"
        )
        place = 0
        while place < len(terms):
            term = Term(terms[place])
            self._begin_run(Index(self.last_index + 1 + place), term)
            following = bisect_right(terms, term, place)
            assert terms[place:following].count(term) == following - place, "terms decrease"
            place = following
        self._positions.extend(positions)
        self.last_index = Index(self.last_index + len(positions))
        self.end_position = end_position

    def _begin_run(self, first: Index, term: Term) -> None:
        assert term >= self.last_term, f"term {term} after term {self.last_term}"
        if term != self.last_term or not self._run_terms:
            self._run_firsts.append(first)
            self._run_terms.append(term)

    def extend_finished(self, part: FinishedEntries, runs: Iterable[tuple[Index, Term]]) -> None:
        """Add a finished part after the end, of a log without an open end.

        Args:
            part: begins where this log ends.
            runs: first index and term of every run of equal terms in it.
        """
        assert not self._positions, f"a finished part after the open entry {self.last_index}"
        assert (part.first_index, part.first_position) == (self.open_index, self.end_position), (
            f"a part from entry {part.first_index} after entry {self.last_index}"
        )
        for first, term in runs:
            self._begin_run(first, term)
        self._finished.add(part)
        self.open_index = part.end_index
        self.last_index = Index(part.end_index - 1)
        self.end_position = part.end_position

    def finish(self, part: FinishedEntries) -> None:
        """Forget the places of the first entries of the open end: from now on this part is asked for them."""
        assert part.first_index <= self.open_index < part.end_index <= self.last_index + 1, (
            f"entries {part.first_index} to {part.end_index - 1} are finished, open are "
            f"{self.open_index} to {self.last_index}"
        )
        assert self.position_of(part.end_index) == part.end_position, (
            f"entry {part.end_index} stands at {self.position_of(part.end_index)}, not at {part.end_position}"
        )
        self._finished.add(part)
        del self._positions[: part.end_index - self.open_index]
        self.open_index = part.end_index

    def truncate_from(self, first: Index) -> None:
        """Remove `first` and everything after it."""
        assert self.has(first), f"entry {first} is not in the log"
        end_position = self.position_of(first)
        if first < self.open_index:
            # What stays of the part that has it is open again.
            open_index = max(self._finished.find(first).first_index, self.first_index)
            self._positions = self.positions_of(open_index, first)
            self._finished.cut(first)
            self.open_index = open_index
        else:
            del self._positions[first - self.open_index :]
        self.end_position = end_position
        self.last_index = Index(first - 1)
        while self._run_firsts and self._run_firsts[-1] >= first:
            self._run_firsts.pop()
            self._run_terms.pop()

    def forget_before(self, first: Index) -> None:
        """Forget the entries before `first`, which is kept."""
        assert self.has(first), f"entry {first} is not in the log"
        prev_index = Index(first - 1)
        prev_term = self.term_of(prev_index)
        assert prev_term is not None, f"entry {first} has none before it"
        base = LogBase(prev_index, prev_term, self.position_of(first))
        self._finished.forget_before(first)
        if first > self.open_index:
            del self._positions[: first - self.open_index]
            self.open_index = first
        run = bisect_right(self._run_firsts, first) - 1
        del self._run_firsts[:run]
        del self._run_terms[:run]
        self._run_firsts[0] = first
        self.first_index = first
        self._base = base

    def begin_after(self, base: LogBase) -> None:
        """Forget everything: the log is empty after this place."""
        self._base = base
        self._finished.clear()
        del self._positions[:]
        self._run_firsts.clear()
        self._run_terms.clear()
        self.first_index = self.open_index = Index(base.prev_index + 1)
        self.last_index = base.prev_index
        self.end_position = base.position

    def end_within(self, first: Index, *, bytes_max: int, count_max: int) -> Index:
        """Return the end (exclusive) of the entries from `first` that fit both bounds; at least one if any is there."""
        assert self.first_index <= first <= self.last_index + 1, (
            f"entry {first} of {self.first_index}..{self.last_index}"
        )
        end_max = Index(min(self.last_index + 1, first + count_max))
        if end_max <= first + 1:
            return end_max
        limit = self.position_of(first) + bytes_max
        if self.position_of(end_max) <= limit:
            return end_max
        # The entry that covers the limit is the first one that does not fit.
        end = self.index_at(Position(limit))
        assert end is not None, f"byte {limit} is not in the log, which ends at {self.end_position}"
        return Index(max(end, first + 1))

    def columns(self, first: Index, end: Index) -> tuple[array[int], array[int], array[int]]:
        """Return terms, positions and sizes of the entries first..end-1, without a step of Python for each."""
        assert self.first_index <= first <= end <= self.last_index + 1, (
            f"entries {first}..{end - 1} of {self.first_index}..{self.last_index}"
        )
        positions = self.positions_of(first, end)
        ends = positions[1:]
        if positions:
            ends.append(self.position_of(end))
        terms = array("q")
        bounds = [*self._run_firsts, int(self.last_index) + 1]
        for term, (low, high) in zip(self._run_terms, pairwise(bounds), strict=True):
            terms.extend(array("q", (term,)) * (min(high, end) - max(low, first)))
        return terms, positions, array("i", map(sub, ends, positions))

    def positions_of(self, first: Index, end: Index) -> array[int]:
        """Return the places of the entries first..end-1."""
        if first >= self.open_index:
            return self._positions[first - self.open_index : end - self.open_index]
        found = array("q")
        for part, low, high in self._finished.pieces(first, min(end, self.open_index)):
            found.extend(part.positions(low, high))
        found.extend(self._positions[: max(0, end - self.open_index)])
        return found

    def runs(self) -> list[tuple[Index, Term]]:
        """Return first index and term of every run of equal terms, in order."""
        return list(zip(self._run_firsts, self._run_terms, strict=True))

    def copy(self) -> LogLayout:
        """Return an independent copy."""
        twin = LogLayout(self._base)
        twin._positions = self._positions[:]
        twin._finished = self._finished.copy()
        twin.open_index = self.open_index
        twin._run_firsts = self._run_firsts[:]
        twin._run_terms = self._run_terms[:]
        twin.last_index = self.last_index
        twin.end_position = self.end_position
        return twin
