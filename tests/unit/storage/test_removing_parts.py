"""Removing the parts that no snapshot names, while another thread takes a snapshot that has new ones.

A copy that is finished removes parts; an own snapshot may begin, get its name and be given up meanwhile. The other
thread's steps are run between any two lines of the removal, all pairs of places in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

import pytest

from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.ids import Index, Position, Term
from dledger.storage.snapshot_parts import part_names
from dledger.storage.snapshots import SnapshotCopy, SnapshotStore, SnapshotWriter
from dledger.testing.sim_disk import SimDisk
from tests.unit.storage.test_snapshot_parts import Taker, sealed

REMOVAL = {SnapshotStore._remove_unnamed_parts.__code__, SnapshotStore.sync_and_prune.__code__}


@contextmanager
def between_lines(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of each line of the removal, before that line runs."""
    before, line_count, is_acting = sys.gettrace(), 0, False

    def on_line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal line_count, is_acting
        if event == "line" and not is_acting:
            line_count += 1
            is_acting = True
            act(line_count)
            is_acting = False
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return on_line if frame.f_code in REMOVAL and not is_acting else None

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


class Race:
    """A member with two snapshots, of whose parts the older one's first is named by nobody else.

    Args:
        copy_index: of the copy that is finished.
        is_kept: the newer own snapshot stays; else there is another copy already, and this one takes its place.
    """

    def __init__(self, copy_index: int, *, is_kept: bool = True) -> None:
        self.taker = Taker(SimDisk(Random(1)))
        self.taker.parts = [sealed(data) for data in (b"first", b"second", b"third")]
        self.taker.take()
        self.taker.parts.pop(0)
        self.taker.take()
        if is_kept:
            self.taker.store.kept_index = Index(2)
        else:
            self._copy(50).finish()
        self.taker.parts.append(sealed(b"new"))
        self.taker.index = 69
        self.writer: SnapshotWriter | None = None
        self.line_count = 0
        self.copy = self._copy(copy_index)

    def _copy(self, index: int) -> SnapshotCopy:
        """Return another member's snapshot that has arrived."""
        other = SimDisk(Random(2))
        meta = SnapshotMeta(Index(index), Term(3), Position(9000), 1, 2)
        whole = SnapshotStore(other).begin(meta)
        whole.add([b"x"])
        whole.finish()
        copy = self.taker.store.begin_copy(Index(index))
        copy.add(other.content(f"snapshots/{index:020d}"))
        return copy

    def begin(self) -> None:
        self.writer = self.taker.begin()

    def finish(self) -> None:
        assert self.writer is not None
        self.writer.finish()

    def abandon(self) -> None:
        assert self.writer is not None
        self.writer.abandon()

    def run(self, first: int, second: int, end: Callable[[], None]) -> None:
        """Finish the copy; begin a snapshot before line `first`, and end it before line `second`."""

        def act(line: int) -> None:
            self.line_count = line
            if line == first:
                self.begin()
            if line == second:
                end()

        if not first:
            self.begin()
        with between_lines(act):
            self.copy.finish()
        if first > self.line_count:
            self.begin()
        if second > self.line_count:
            end()

    def check(self) -> None:
        """Demand that what is named is there, that so it is with the next snapshot, and that nothing else stays."""
        taker = self.taker
        taker.index = 100
        for _ in range(3):
            snapshots, bad = taker.store.newest_first()
            assert not bad
            for snapshot in snapshots:
                taker.store.verify(snapshot)
            taken = taker.take()
            assert b"".join(taker.store.chunks(taken)) == taker.wanted()
            taker.store.kept_index = taken.meta.index
        stored = [part.stored for part in taker.parts if part.stored is not None]
        assert len(stored) == len(taker.parts)
        wanted = [name for part in stored for name in part_names(part.number)]
        assert sorted(taker.part_files()) == sorted(wanted)


@pytest.mark.parametrize("end", ["finish", "abandon"])
@pytest.mark.parametrize(("copy_index", "is_kept"), [(60, True), (80, True), (60, False)])
@pytest.mark.slow
def test_a_copy_that_finishes_beside_a_snapshot_removes_none_of_its_parts(
    copy_index: int, is_kept: bool, end: str
) -> None:
    lines = Race(copy_index, is_kept=is_kept)
    lines.run(0, 1, lines.finish)
    assert lines.line_count > 30
    for first in range(lines.line_count + 2):
        for second in range(max(first, 1), lines.line_count + 2):
            race = Race(copy_index, is_kept=is_kept)
            race.run(first, second, getattr(race, end))
            race.check()
