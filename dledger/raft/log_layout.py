"""The log without its bodies: which entry stands where, and in which term.

Kept in memory, 8 bytes an entry and a little for every change of term. The core decides with it,
the store finds entries with it; each has its own copy. Indexes are contiguous and positions have no
gaps, so the end of an entry is where the next begins.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, Position, Term


@dataclass(frozen=True, slots=True)
class LogBase:
    """The place just before the first kept entry: the log is empty after it."""

    prev_index: Index = NO_INDEX
    prev_term: Term = NO_TERM
    position: Position = Position(0)


class LogLayout:
    """Positions and terms of the entries first_index..last_index.

    Invariants: terms never decrease; first_index == start.prev_index + 1; positions strictly increase.

    Attributes:
        first_index: index of the first kept entry, whether or not it exists yet. To be read only.
        last_index: index of the last entry; first_index - 1 when the log is empty. To be read only.
        end_position: where the next entry's header will stand. To be read only.
    """

    # The ends are plain attributes: the leader reads them many times for every proposal.
    __slots__ = (
        "_base",
        "_positions",
        "_run_firsts",
        "_run_terms",
        "end_position",
        "first_index",
        "last_index",
    )

    def __init__(self, base: LogBase | None = None) -> None:
        self._base = base or LogBase()
        self._positions = array("q")
        self._run_firsts: list[Index] = []
        self._run_terms: list[Term] = []
        self.first_index: Index = Index(self._base.prev_index + 1)
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
        if index == self._base.prev_index:
            return self._base.prev_term
        if not self.has(index):
            return None
        return self._run_terms[bisect_right(self._run_firsts, index) - 1]

    def position_of(self, index: Index) -> Position:
        """Return the byte place of an entry's header; of last_index + 1 it is the end position."""
        offset = index - self._base.prev_index - 1
        if offset == len(self._positions):
            return self.end_position
        assert 0 <= offset < len(self._positions), f"entry {index} is not in the log"
        return Position(self._positions[offset])

    def index_at(self, position: Position) -> Index | None:
        """Return the entry whose header or body covers this byte; None outside the log."""
        if not self._base.position <= position < self.end_position:
            return None
        return Index(self._base.prev_index + bisect_right(self._positions, position))

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
            assert term >= self.last_term, f"term {term} after term {self.last_term}"
            if term != self.last_term or not self._run_terms:
                self._run_firsts.append(Index(self.last_index + 1 + place))
                self._run_terms.append(term)
            following = bisect_right(terms, term, place)
            assert terms[place:following].count(term) == following - place, "terms decrease"
            place = following
        self._positions.extend(positions)
        self.last_index = Index(self.last_index + len(positions))
        self.end_position = end_position

    def truncate_from(self, first: Index) -> None:
        """Remove `first` and everything after it."""
        assert self.has(first), f"entry {first} is not in the log"
        self.end_position = self.position_of(first)
        self.last_index = Index(first - 1)
        del self._positions[first - self._base.prev_index - 1 :]
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
        del self._positions[: prev_index - self._base.prev_index]
        run = bisect_right(self._run_firsts, first) - 1
        del self._run_firsts[:run]
        del self._run_terms[:run]
        self._run_firsts[0] = first
        self.first_index = first
        self._base = base

    def begin_after(self, base: LogBase) -> None:
        """Forget everything: the log is empty after this place."""
        self._base = base
        del self._positions[:]
        self._run_firsts.clear()
        self._run_terms.clear()
        self.first_index = Index(base.prev_index + 1)
        self.last_index = base.prev_index
        self.end_position = base.position

    def end_within(self, first: Index, *, bytes_max: int, count_max: int) -> Index:
        """Return the end (exclusive) of the entries from `first` that fit both bounds; at least one if any is there."""
        assert self.first_index <= first <= self.last_index + 1, (
            f"entry {first} of {self.first_index}..{self.last_index}"
        )
        end_max = Index(min(self.last_index + 1, first + count_max))
        limit = self.position_of(first) + bytes_max
        if first == end_max or self.position_of(end_max) <= limit:
            return end_max
        # The entry after `end` starts at most at the limit: found without looking at each.
        offset = first - self._base.prev_index - 1
        offset_max = end_max - self._base.prev_index - 1
        end = bisect_right(self._positions, limit, offset, offset_max) + self._base.prev_index
        return Index(max(end, first + 1))

    def columns(self, first: Index, end: Index) -> tuple[array[int], array[int], array[int]]:
        """Return terms, positions and sizes of the entries first..end-1, without a step of Python for each."""
        assert self.first_index <= first <= end <= self.last_index + 1, (
            f"entries {first}..{end - 1} of {self.first_index}..{self.last_index}"
        )
        start, stop = first - self.first_index, end - self.first_index
        positions = self._positions[start:stop]
        ends = self._positions[start + 1 : stop]
        if positions:
            ends.append(self.position_of(end))
        terms = array("q")
        bounds = [*self._run_firsts, int(self.last_index) + 1]
        for term, (low, high) in zip(self._run_terms, pairwise(bounds), strict=True):
            terms.extend(array("q", (term,)) * (min(high, end) - max(low, first)))
        return terms, positions, array("i", map(sub, ends, positions))

    def runs(self) -> list[tuple[Index, Term]]:
        """Return first index and term of every run of equal terms, in order."""
        return list(zip(self._run_firsts, self._run_terms, strict=True))

    def copy(self) -> LogLayout:
        """Return an independent copy."""
        twin = LogLayout(self._base)
        twin._positions = self._positions[:]
        twin._run_firsts = self._run_firsts[:]
        twin._run_terms = self._run_terms[:]
        twin.last_index = self.last_index
        twin.end_position = self.end_position
        return twin
