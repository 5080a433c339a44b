"""The values of a survey of a damaged log: runs of whole entries, and the gaps between (docs/adr/0100).

`survey` finds them, `repair` asks other members for what is missing. An entry that cannot be found is
named without having it: the chain CRC is invertible, so the header of the first whole entry after a gap
names the last entry in the gap; and at the log's end the index remembers what stood there.

What is found after a broken place is a claim until the repaired entries join it: they are verified
from the entry before the gap to the one after it, and a claim that no other member knows is given up
(`Survey.distrust`). No module that reads or writes files is known here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from dledger.codec.chain import preceding_chain_crc
from dledger.codec.entry import decode_header
from dledger.codec.index_unit import EntryColumns, IndexUnit
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, Position
from dledger.storage.scan import NOTHING_BEFORE, ChainEnd


@dataclass(slots=True)
class Run:
    """Whole entries in a row.

    Attributes:
        columns: the entries; each follows the one before.
        before_chain_crc: chain CRC of the entry before the first, as the first header demands it.
        is_proven: the first header is verified too, by what stands before it or by the index's unit of
            that; the others are verified by the chain.
    """

    columns: EntryColumns
    before_chain_crc: int
    is_proven: bool = False

    @property
    def first_index(self) -> Index:
        """The index of its first entry."""
        return self.columns.first_index

    @property
    def last_index(self) -> Index:
        """The index of its last entry."""
        return Index(self.columns.end_index - 1)

    def end(self) -> ChainEnd:
        """Return its last entry."""
        last = self.columns.unit(-1)
        return ChainEnd(last.index, last.term, self.columns.end_position, last.chain_crc)

    def cut(self, first: Index) -> None:
        """Remove the entry `first` and everything after it from the run."""
        self.columns.cut(first)

    def drop_first(self) -> None:
        """Remove the first entry from the run; it can be fetched again, since its successor names it."""
        self.before_chain_crc = self.columns.drop_first().chain_crc
        self.is_proven = True  # what was dropped named it


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries that were durable here and are not whole any more.

    Attributes:
        first_index, last_index: both included.
        position, end_position: where they stood.
        prev_chain_crc: of the entry before the first.
        last_chain_crc: of the last one: it identifies all of them.
        is_tail: no whole entry stands after them.
    """

    first_index: Index
    last_index: Index
    position: Position
    end_position: Position
    prev_chain_crc: int
    last_chain_crc: int
    is_tail: bool = False

    def __post_init__(self) -> None:
        assert self.first_index <= self.last_index, f"{self.first_index} to {self.last_index}"
        assert self.position <= self.end_position, f"{self.position} to {self.end_position}"

    def __str__(self) -> str:
        place = f"bytes {self.position} to {self.end_position} of the log"
        if self.first_index == self.last_index:
            return f"entry {self.first_index} ({place})"
        return f"entries {self.first_index} to {self.last_index} ({place})"


@dataclass(slots=True)
class Survey:
    """A damaged log as it was found.

    Attributes:
        before: what the first entry of the log follows.
        names: first positions of the segments that are or were there, ascending, that of the log included.
        runs: the whole entries, in order.
        tail: the last entry that the index remembers after all runs.
        is_tail_cut: entries were lost after the last run or `tail`, and nobody here knows which.
        is_start_lost: where the log began is not known any more; `before` is that of a whole log.
        is_end_unreadable: the device does not give some bytes of the last segment.
        doubtful: segments whose index is to be made again from the data.
    """

    before: ChainEnd = NOTHING_BEFORE
    names: list[Position] = field(default_factory=lambda: [Position(0)])
    runs: list[Run] = field(default_factory=list)
    tail: IndexUnit | None = None
    is_tail_cut: bool = False
    is_start_lost: bool = False
    is_end_unreadable: bool = False
    doubtful: set[Position] = field(default_factory=set)

    def check(self) -> None:
        """Make sure that the runs stand in order, with room for what is missing between them."""
        at = self.before
        for run in self.runs:
            assert len(run.columns), f"a run without entries after entry {at.index}"
            assert run.first_index > at.index, f"entry {run.first_index} after entry {at.index}"
            assert run.columns.first_position >= at.position, (
                f"entry {run.first_index} at position {run.columns.first_position}, "
                f"the one before it ends at {at.position}"
            )
            at = run.end()

    def missing(self) -> list[Missing]:
        """Return the gaps, in order."""
        self.check()
        found: list[Missing] = []
        at = self.before
        for run in self.runs:
            if run.first_index > at.index + 1:
                found.append(
                    Missing(
                        first_index=Index(at.index + 1),
                        last_index=Index(run.first_index - 1),
                        position=at.position,
                        end_position=run.columns.first_position,
                        prev_chain_crc=at.chain_crc,
                        last_chain_crc=run.before_chain_crc,
                    )
                )
            at = run.end()
        if self.tail is not None and self.tail.index > at.index:
            unit = self.tail
            found.append(
                Missing(
                    first_index=Index(at.index + 1),
                    last_index=unit.index,
                    position=at.position,
                    end_position=Position(unit.position + unit.size_bytes),
                    prev_chain_crc=at.chain_crc,
                    last_chain_crc=unit.chain_crc,
                    is_tail=True,
                )
            )
        return found

    def learn(self, entries: Sequence[Entry]) -> None:
        """Add verified entries that were recovered; they must end where a run begins, or at the log's end."""
        first = entries[0]
        columns = EntryColumns(first.index, first.position)
        for entry in entries:
            columns.append(decode_header(entry.header).index_unit())
        place = bisect_right(self.runs, first.index, key=lambda run: run.first_index)
        before = self.runs[place - 1].end() if place else self.before
        own_before = preceding_chain_crc(first.header)
        joins = (before.index + 1, before.chain_crc) == (first.index, own_before)
        if place < len(self.runs):
            self.runs[place].is_proven = True
        self.runs.insert(place, Run(columns, own_before, is_proven=joins))

    def distrust(self, missing: Missing) -> None:
        """Discard the first entry after a gap, since no member has the predecessor that it names."""
        run = self.run_of(Index(missing.last_index + 1))
        if run is None:
            return
        if len(run.columns) > 1:
            run.drop_first()
            return
        lone = run.columns.unit(0)
        self.runs.remove(run)
        if lone.index > max(self.last_end().index, self.tail.index if self.tail else 0):
            self.tail = lone

    def last_end(self) -> ChainEnd:
        """Return the last whole entry, or what the first entry follows."""
        return self.runs[-1].end() if self.runs else self.before

    def run_of(self, index: Index) -> Run | None:
        """Return the run that holds an entry."""
        place = bisect_right(self.runs, index, key=lambda run: run.first_index) - 1
        if place < 0 or index > self.runs[place].last_index:
            return None
        return self.runs[place]
