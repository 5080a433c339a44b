"""The plan of a scan: ranges for tasks, up to an entry that is known to be committed.

The log ends for us at the last whole entry of the last segment; after it may be half an entry that is being
written. How much of it is committed is not on the disk as such. It is known

- from the newest snapshot: it contains only committed entries, and its chain CRC says of which log;
- from the node's group, when it runs (`committed_by_group`);
- from the user, who gives an index, or says `end` of a log to which nobody writes any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dledger.codec.snapshot import HEAD_BYTES, SnapshotFormatError, decode_head
from dledger.raft.ids import Index, Position, Term
from dledger.storage.segment import SEGMENT_NAME_DIGITS
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.scan.entries import Chain, read_entries
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.ranges import READ_BYTES, LogRange
from pipeline.scan.stores import SegmentFile, SegmentIndex, Store, agrees, chain_of, read_index

SPLIT_BYTES: Final = 256 * 1024 * 1024
"""As large as a segment by default: the fixed cost of a task is small against it."""

FIRST: Final = Index(1)
"""The first entry of every log."""

END: Final = "end"
SNAPSHOT: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class CommittedBound:
    """The last entry that is known to be committed, and the source of that knowledge.

    Attributes:
        index: the last committed entry that is known; None: all that is there.
        known_by: words for reports.
        is_exact: whether the store must have the entry; else it may lag behind.
    """

    index: Index | None
    known_by: str
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The extent of a scan.

    Attributes:
        path: the store.
        ranges: in the order of the log; each goes on where the one before ends.
        committed: the bound.
        start: the entry before the first range.
        end: the last entry of the last range.
        log_end: the last whole entry that the store has.

    Invariant: the ranges join, from `start` to `end`, and `end` is not beyond `log_end`.
    """

    path: str
    ranges: tuple[LogRange, ...]
    committed: CommittedBound
    start: Chain
    end: Chain
    log_end: Chain

    def __post_init__(self) -> None:
        # A hole between two ranges would be read as a log that has nothing there.
        at = self.start.position
        for each in self.ranges:
            assert each.before.position == at, f"a range begins at {each.before.position}, not {at}"
            assert each.end.position >= at, f"a range from {at} to {each.end.position}"
            at = each.end.position
        assert at == self.end.position or not self.ranges, f"the ranges end at {at}, not {self.end}"
        assert self.end.index <= self.log_end.index, f"{self.end} is beyond {self.log_end}"

    @property
    def size_bytes(self) -> int:
        """Bytes to scan."""
        return sum(each.size_bytes for each in self.ranges)


def given_bound(text: str, store: Store) -> CommittedBound:
    """Read `upTo`: an index, `snapshot`, or `end`.

    Raises:
        PipelineUsageError: none of these.
        InconclusiveError: there is no snapshot to go by.
    """
    if text == END:
        return CommittedBound(None, "as asked: all that is there")
    if text == SNAPSHOT:
        return committed_by_snapshot(store)
    if text.isascii() and text.isdigit():
        return CommittedBound(Index(int(text)), "as asked")
    raise PipelineUsageError(f"upTo={text!r} is none of: an entry's index, snapshot, end")


def committed_by_snapshot(store: Store) -> CommittedBound:
    """Return the newest snapshot of the store whose head is good.

    Raises:
        InconclusiveError: there is none.
    """
    folder = Path(store.path) / "snapshots"
    names = [
        each
        for each in (folder.iterdir() if folder.is_dir() else ())
        if len(each.name) == SEGMENT_NAME_DIGITS and each.name.isascii() and each.name.isdigit()
    ]
    for path in sorted(names, reverse=True):
        try:
            with path.open("rb") as file:
                meta = decode_head(file.read(HEAD_BYTES))
        except (SnapshotFormatError, FileNotFoundError):
            continue
        if int(path.name) == meta.index:
            return CommittedBound(meta.index, f"snapshot {path.name}")
    raise InconclusiveError(
        f"{store.path}: how much of the log is committed is not known: it has no snapshot. Name the group's "
        "name server, or give upTo: an entry's index, or `end` when no node writes to this store any more"
    )


def plan_scan(
    store: Store,
    committed: CommittedBound,
    *,
    first_index: Index = FIRST,
    split_bytes: int = SPLIT_BYTES,
    fails: bool = True,
) -> ScanPlan:
    """Decide what to scan.

    Args:
        store: the log.
        committed: scan nothing beyond it.
        first_index: the first entry that is wanted; 1: the first one that the log keeps.
        split_bytes: a segment is divided into ranges of about so many bytes where its index allows it.
        fails: whether damage ends the scan; else a place where segments do not join is scanned as it is.

    Raises:
        DamagedLogError: segments are missing or do not join; only with `fails`.
        PipelineUsageError: the log ends before the entry that was asked for, or begins behind it.
    """
    layout = _Layout(store, fails=fails)
    end = _bounded(layout, committed)
    start = store.start
    if first_index > 1:
        start = end if first_index > end.index else layout.entry(Index(first_index - 1))
    ranges: list[LogRange] = []
    for place, segment in enumerate(store.segments):
        before = max(layout.befores[place], start, key=_position)
        segment_end = min(layout.ends[place], end, key=_position)
        if before.position < segment_end.position:
            ranges += _split(
                segment,
                layout.indexes[place],
                before=before,
                end=segment_end,
                split_bytes=split_bytes,
            )
    return ScanPlan(store.path, tuple(ranges), committed, start, end, layout.ends[-1])


def _position(chain: Chain) -> int:
    return chain.position


def _bounded(layout: _Layout, committed: CommittedBound) -> Chain:
    """Return the last entry to be scanned."""
    log_end = layout.ends[-1]
    if committed.index == log_end.index:
        return log_end
    if committed.index is None or committed.index > log_end.index:
        layout.check_end()
    if committed.index is None:
        return log_end
    if committed.index > log_end.index:
        if committed.is_exact:
            raise PipelineUsageError(
                f"{layout.path}: the log ends at entry {log_end.index}, before entry {committed.index} "
                f"({committed.known_by})"
            )
        return log_end
    return layout.entry(committed.index)


def _split(
    segment: SegmentFile, index: SegmentIndex, *, before: Chain, end: Chain, split_bytes: int
) -> list[LogRange]:
    """Split one segment's part of the log into ranges of about `split_bytes`."""
    cuts = [before]
    if before.crc is not None and end.position - before.position > split_bytes:
        positions = index.units["position"].astype(np.int64)
        aims = np.arange(before.position + split_bytes, end.position, split_bytes)
        for place in np.unique(np.searchsorted(positions, aims)).tolist():
            if 0 < place < len(positions) and cuts[-1].position < positions[place] < end.position:
                cuts.append(chain_of(index.units[place - 1]))
    return [
        LogRange(segment.path, segment.name, segment.first_position, first, last)
        for first, last in zip(cuts, [*cuts[1:], end], strict=True)
    ]


class _Layout:
    """The first and last entry of each segment, found in one walk over them.

    Attributes:
        befores, ends: per segment, what its first entry follows, and its last entry.
        indexes: what the index files say.
        remembered: the last entry that the last segment's index knows to have been durable.
    """

    def __init__(self, store: Store, *, fails: bool) -> None:
        self.path = store.path
        self._segments = store.segments
        self._fails = fails
        self.befores: list[Chain] = []
        self.ends: list[Chain] = []
        self.indexes: list[SegmentIndex] = []
        self.start = before = self.remembered = store.start
        positions = [each.first_position for each in store.segments[1:]]
        for segment, next_position in zip(store.segments, [*positions, None], strict=True):
            index = read_index(segment, before)
            self.befores.append(before)
            self.indexes.append(index)
            if next_position is None:
                before = self._end_of_last(segment, index, before)
            else:
                before = self._end_of_earlier(segment, index, before, next_position)
            self.ends.append(before)

    def entry(self, index: Index) -> Chain:
        """Return an entry before the log's last one."""
        if index == self.start.index:
            return self.start
        if index < self.start.index:
            raise PipelineUsageError(
                f"{self.path}: the log begins with entry {self.start.index + 1}, what stood before is deleted: "
                f"entry {index} and what follows it are not there (docs/retention.md)"
            )
        known_ends = [(at, end) for at, end in enumerate(self.ends) if end.crc is not None]
        place = next((at for at, end in known_ends if end.index >= index), None)
        if place is None:
            raise DamagedLogError(self.path, 0, f"entry {index} cannot be found after the damage")
        units, start = self.indexes[place].units, self.befores[place]
        known = int(np.searchsorted(units["index"], index, side="right"))
        if known and (not self._fails or agrees(self._segments[place], units[known - 1])):
            start = chain_of(units[known - 1])
        if start.index == index:
            return start
        return last_entry(self._segments[place], start, None, index)

    def check_end(self) -> None:
        """Refuse a log that has lost its end; a torn write, which was never acknowledged, is none.

        Raises:
            DamagedLogError: the index remembers an entry that is no longer whole.
        """
        end, segment = self.ends[-1], self._segments[-1]
        if self.remembered.index > end.index and end.crc is not None:
            raise DamagedLogError(
                segment.path,
                end.position - segment.first_position,
                f"entry {end.index + 1} is not whole, and the index remembers entries up to "
                f"{self.remembered.index}",
            )

    def _end_of_earlier(
        self, segment: SegmentFile, index: SegmentIndex, before: Chain, next_position: Position
    ) -> Chain:
        """Return the last entry of a finished segment, which reaches to the next one."""
        if index.is_sealed and len(index.units):
            end = chain_of(index.units[-1])
        else:
            end = last_entry(segment, before, next_position)
        size = segment.size_bytes()
        if end.position == next_position and size >= next_position - segment.first_position:
            return end
        if self._fails:
            at = min(end.position - segment.first_position, size)
            raise DamagedLogError(
                segment.path,
                at,
                f"its entries end at position {segment.first_position + at}, the next segment begins at "
                f"{next_position}: bytes or a whole segment are missing in between",
            )
        return Chain(Index(0), Term(0), next_position, None)

    def _end_of_last(self, segment: SegmentFile, index: SegmentIndex, before: Chain) -> Chain:
        """Return the log's last entry; a sealed last segment means that a later one is missing."""
        if index.is_sealed and self._fails:
            raise DamagedLogError(
                segment.path,
                segment.size_bytes(),
                "the segment is finished, so another one followed; that one is missing",
            )
        if len(index.units):
            self.remembered = chain_of(index.units[-1])
            if agrees(segment, index.units[-1]):
                before = self.remembered
        end = last_entry(segment, before, None)
        # Going on after damage needs an end; the index remembers one.
        is_further = self.remembered.position > end.position
        return self.remembered if is_further and not self._fails else end


def last_entry(
    segment: SegmentFile,
    before: Chain,
    end_position: Position | None,
    last_index: Index | None = None,
) -> Chain:
    """Return the last whole entry of a segment; whatever stands further is not one.

    Args:
        segment: which.
        before: an entry of the segment, or what its first one follows.
        end_position: look no further; None: to the end of the file.
        last_index: look no further than this entry.
    """
    chain, wanted = before, 0
    size = segment.size_bytes()
    if end_position is not None:
        size = min(size, end_position - segment.first_position)
    with Path(segment.path).open("rb") as file:
        while (offset := chain.position - segment.first_position) < size:
            file.seek(offset)
            data = file.read(min(max(READ_BYTES, wanted), size - offset))
            stretch = read_entries(data, chain)
            count = stretch.entries.whole_count()
            if last_index is not None:
                count = min(count, last_index - chain.index)
            if count < len(stretch.entries):
                return stretch.entries.chain_after(count, chain)
            is_all = len(data) == size - offset and not stretch.taken_bytes
            if stretch.problem or is_all:
                return stretch.after
            chain, wanted = stretch.after, stretch.wanted_bytes
    return chain
