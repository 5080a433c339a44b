"""What a start believes of a finished segment: its edges, each proven by two files, and where its terms change.

The seal, the first and the last unit are compared with each other, with the names of the segments, and with the first
and the last header in the data; the chain CRC ties the first header to the segment before. What stands between is not
read here: no unit of it is used before `sealed_index` has verified the whole index. Where anything does not fit, there
is no answer, and `opening` reads everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.codec.chain import expected_chain_crc
from dledger.codec.entry import index_unit_of
from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexUnit,
    SealFields,
    decode_seal_fields,
    decode_unit,
    encode_unit,
)
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, Position, Term
from dledger.storage.api import ReadableFile
from dledger.storage.scan import ChainEnd

RUNS_MAX: Final = 64
"""A segment with more changes of term than that is read whole, which takes less time then."""

Runs = list[tuple[Index, Term]]
"""First index and term of every run of equal terms."""


@dataclass(frozen=True, slots=True)
class SealedEdges:
    """A finished segment that a start believes.

    Attributes:
        end: its last entry.
        runs: of its entries.
    """

    end: ChainEnd
    runs: Runs


def runs_of(columns: EntryColumns) -> Runs:
    """Return the runs of equal terms."""
    runs: Runs = []
    for place, term in enumerate(columns.terms):
        if not runs or runs[-1][1] != term:
            runs.append((Index(columns.first_index + place), Term(term)))
    return runs


def holds(data: ReadableFile, first_position: Position, unit: IndexUnit) -> bool:
    """Return whether the header in a segment's data says what an entry's unit says: in an older copy it does not.

    Args:
        data: of the segment.
        first_position: of the segment.
        unit: of an entry in it.
    """
    header = data.read_at(unit.position - first_position, ENTRY_HEADER_BYTES)
    return index_unit_of(header) == encode_unit(unit)


def continues(data: ReadableFile, first: IndexUnit, after: ChainEnd) -> bool:
    """Return whether the first header of a segment's data continues the chain, and its unit knows it so."""
    header = data.read_at(0, ENTRY_HEADER_BYTES)
    return (
        first.term >= after.term
        and len(header) == ENTRY_HEADER_BYTES
        and expected_chain_crc(header, after.chain_crc) == first.chain_crc
    )


@dataclass(frozen=True, slots=True)
class EdgeReader:
    """The two files of a finished segment.

    Attributes:
        index, data: the files.
        after: the entry that the first one follows.
        next_position: start of the next segment.
    """

    index: ReadableFile
    data: ReadableFile
    after: ChainEnd
    next_position: Position

    def read(self) -> SealedEdges | None:
        """Return what is proven of the segment; None where anything does not fit.

        Raises:
            OSError: the disk failed.
        """
        count, rest = divmod(self.index.size(), INDEX_UNIT_BYTES)
        count -= 1
        if rest or count < 1:
            return None
        seal = decode_seal_fields(self.index.read_at(count * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES))
        first, last = self._proven(Index(self.after.index + 1)), None
        if first is not None:
            last = self._proven(Index(self.after.index + count))
        if seal is None or first is None or last is None:
            return None
        if seal != SealFields(last.term, self.next_position, count):
            return None
        if first.position != self.after.position or not continues(self.data, first, self.after):
            return None
        if last.position + last.size_bytes != self.next_position:
            return None
        runs = self._runs(first, last)
        if runs is None:
            return None
        return SealedEdges(
            ChainEnd(last.index, last.term, self.next_position, last.chain_crc), runs
        )

    def _proven(self, index: Index) -> IndexUnit | None:
        """Return an entry's unit if the header in the data says the same."""
        offset = (index - self.after.index - 1) * INDEX_UNIT_BYTES
        encoded = self.index.read_at(offset, INDEX_UNIT_BYTES)
        unit = decode_unit(encoded) if len(encoded) == INDEX_UNIT_BYTES else None
        if unit is None or unit.index != index:
            return None
        if not self.after.position <= unit.position < self.next_position:
            return None
        return unit if holds(self.data, self.after.position, unit) else None

    def _runs(self, first: IndexUnit, last: IndexUnit) -> Runs | None:
        """Find where the terms change. They never decrease, so a few proven units tell it."""
        if first.term > last.term:
            return None
        runs = [(first.index, first.term)]
        while runs[-1][1] < last.term:
            begin = self._next_run(*runs[-1], last=last)
            if begin is None or len(runs) == RUNS_MAX:
                return None
            runs.append(begin)
        return runs

    def _next_run(self, first: Index, term: Term, *, last: IndexUnit) -> tuple[Index, Term] | None:
        """Return the first entry after `first` of another term; None where a unit is not proven."""
        low, high, high_term = first, last.index, last.term
        while high - low > 1:
            unit = self._proven(Index((low + high) // 2))
            if unit is None or not term <= unit.term <= high_term:
                return None
            if unit.term == term:
                low = unit.index
            else:
                high, high_term = unit.index, unit.term
        return high, high_term
