"""The index of a log: each entry's position, size, term and chain CRC.

With it entries are found, and verified when they are read. Of entries of the open end it holds what their index file
will hold (docs/formats/index_unit.md); those of finished segments are looked up (`sealed_index`). It knows
neither files nor bodies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from dledger.codec.index_unit import EntryColumns, encode_columns
from dledger.errors import CompactedError, OutOfRangeError
from dledger.raft.entry import Entry
from dledger.raft.finished_row import FinishedRow
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger.raft.log_layout import LogBase, LogLayout
from dledger.storage.scan import NOTHING_BEFORE, ChainEnd
from dledger.storage.sealed_index import SealedIndex


class LogIndex:
    """The entries of a log without their bodies.

    Invariants: `chain_crcs` has one number for each entry of the open end of `layout`, in order; the parts that
    `layout` asks are those of `sealed`.

    Attributes:
        layout: places and terms. It changes with this; copy it to keep it.
        chain_crcs: the chain CRC of each entry, from `layout.open_index` on. To be read only.
        sealed: the finished segments. To be read only.
    """

    __slots__ = ("_base_chain_crc", "chain_crcs", "layout", "sealed")

    def __init__(self, before: ChainEnd = NOTHING_BEFORE) -> None:
        self.layout = LogLayout(_base_of(before))
        self.chain_crcs: array[int] = array("I")
        self.sealed: FinishedRow[SealedIndex] = FinishedRow()
        self._base_chain_crc = before.chain_crc

    @property
    def last_id(self) -> EntryId:
        """Term and index of the last entry."""
        return self.layout.last_id

    @property
    def last_chain_crc(self) -> int:
        """The chain CRC of the last entry, or of what the first one follows; 0 before the first of all."""
        if self.chain_crcs:
            return self.chain_crcs[-1]
        last = self.sealed.last
        return self._base_chain_crc if last is None else last.examination.end.chain_crc

    def end(self) -> ChainEnd:
        """Return the last entry, or what the first one follows."""
        layout = self.layout
        return ChainEnd(
            layout.last_index, layout.last_term, layout.end_position, self.last_chain_crc
        )

    def extend(self, columns: EntryColumns) -> None:
        """Add the entries of a whole segment after the end."""
        if not len(columns):
            return
        layout = self.layout
        assert columns.first_index == layout.last_index + 1, (
            f"entry {columns.first_index} after entry {layout.last_index}"
        )
        layout.extend(
            terms=columns.terms, positions=columns.positions, end_position=columns.end_position
        )
        self.chain_crcs.extend(columns.chain_crcs)
        self._check()

    def extend_sealed(self, part: SealedIndex, runs: Iterable[tuple[Index, Term]]) -> None:
        """Add the entries of a finished segment after the end of an index without an open end.

        Args:
            part: follows the end.
            runs: first index and term of every run of equal terms in it.
        """
        assert part.examination.before == self.end(), (
            f"the segment follows {part.examination.before}, the log ends with {self.end()}"
        )
        self.layout.extend_finished(part, runs)
        self.sealed.add(part)
        self._check()

    def finish(self, part: SealedIndex) -> None:
        """Forget the entries of a segment that was finished: from now on they are looked up."""
        count = part.end_index - self.layout.open_index
        assert self.chain_crcs[count - 1] == part.examination.end.chain_crc, (
            f"the segment ends with {part.examination.end}, the log knows chain CRC {self.chain_crcs[count - 1]:#010x}"
        )
        self.layout.finish(part)
        self.sealed.add(part)
        del self.chain_crcs[:count]
        self._check()

    def append(self, entries: Sequence[Entry], chain_crcs: Sequence[int]) -> None:
        """Add sealed entries that follow the last one.

        Args:
            entries: in order, without gaps.
            chain_crcs: of each of them, as in its header.
        """
        layout, add_chain_crc = self.layout, self.chain_crcs.append
        for entry, chain_crc in zip(entries, chain_crcs, strict=True):
            layout.append(entry.term, entry.size_bytes)
            add_chain_crc(chain_crc)

    def truncate_from(self, first: Index) -> None:
        """Remove `first`, which is there, and everything after it."""
        layout = self.layout
        if first >= layout.open_index:
            layout.truncate_from(first)
            del self.chain_crcs[first - layout.open_index :]
        else:
            # What stays of the segment that has it is open again.
            opens = max(self.sealed.find(first).first_index, layout.first_index)
            kept = self.chain_crcs_of(opens, first)
            layout.truncate_from(first)
            self.sealed.cut(first)
            self.chain_crcs = kept
        self._check()

    def forget_before(self, first: Index) -> None:
        """Forget the entries before `first`, which is kept."""
        before_chain_crc = self.chain_crc_before(first)
        del self.chain_crcs[: max(0, first - self.layout.open_index)]
        self.layout.forget_before(first)
        self.sealed.forget_before(first)
        self._base_chain_crc = before_chain_crc
        self._check()

    def begin_after(self, before: ChainEnd) -> None:
        """Forget everything: the next entry follows this one, which is not kept."""
        self.layout.begin_after(_base_of(before))
        self.sealed.clear()
        del self.chain_crcs[:]
        self._base_chain_crc = before.chain_crc
        self._check()

    def _check(self) -> None:
        count = self.layout.last_index + 1 - self.layout.open_index
        assert len(self.chain_crcs) == count, f"{len(self.chain_crcs)} chain CRCs, {count} entries"

    def check_has(self, index: Index) -> None:
        """Make sure that an entry is kept.

        Raises:
            CompactedError: the log starts after it.
            OutOfRangeError: the log ends before it.
        """
        layout = self.layout
        if not layout.has(index):
            if index < layout.first_index:
                raise CompactedError(index, layout.first_index)
            raise OutOfRangeError(index, layout.first_index, layout.last_index)

    def index_at(self, position: Position) -> Index:
        """Return the entry whose header or body covers a byte of the log.

        Raises:
            CompactedError: the log starts after it.
            OutOfRangeError: the log ends before it.
        """
        layout = self.layout
        index = layout.index_at(position)
        if index is not None:
            return index
        if position < layout.first_position:
            raise CompactedError(Index(layout.first_index - 1), layout.first_index)
        raise OutOfRangeError(Index(layout.last_index + 1), layout.first_index, layout.last_index)

    def chain_crc_of(self, index: Index) -> int:
        """Return the chain CRC of a kept entry, or of that which the first follows: it identifies the log to there."""
        place = index - self.layout.open_index
        if place >= 0:
            return self.chain_crcs[place]
        first_index = self.layout.first_index
        assert index >= first_index - 1, f"entry {index} stands before the log"
        if index < first_index:
            return self._base_chain_crc
        part = self.sealed.find(index)
        end = part.examination.end
        return end.chain_crc if index == end.index else part.chain_crcs(index, Index(index + 1))[0]

    def chain_crc_before(self, index: Index) -> int:
        """Return the chain CRC of the entry before a kept one, or before the end; 0 before the first of all."""
        assert index >= self.layout.first_index, f"entry {index} stands before the log"
        assert index <= self.layout.last_index + 1, f"entry {index} does not follow a kept one"
        return self.chain_crc_of(Index(index - 1))

    def chain_crcs_of(self, first: Index, end: Index) -> array[int]:
        """Return the chain CRCs of the kept entries first..end-1."""
        open_index = self.layout.open_index
        if first >= open_index:
            found = self.chain_crcs[first - open_index : end - open_index]
        else:
            found = array("I")
            for part, low, high in self.sealed.pieces(first, min(end, open_index)):
                found.extend(part.chain_crcs(low, high))
            found.extend(self.chain_crcs[: max(0, end - open_index)])
        assert len(found) == end - first, f"entries {first} to {end - 1} are not all in the log"
        return found

    def encode_units(self, first: Index, end: Index) -> bytes:
        """Return the index units of the kept entries first..end-1."""
        layout = self.layout
        terms, positions, sizes = layout.columns(first, end)
        return encode_columns(
            EntryColumns(
                first_index=first,
                first_position=layout.position_of(first),
                terms=terms,
                positions=positions,
                sizes=sizes,
                chain_crcs=self.chain_crcs_of(first, end),
            )
        )


def _base_of(before: ChainEnd) -> LogBase:
    return LogBase(before.index, before.term, before.position)
