"""Conflicts between the whole entries of a damaged log, or with their index: which entries to keep.

Two histories meet in one store when a data file, or an index, was replaced by an older copy. The
decisions are about values alone: what `survey` has read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, Position
from dledger.storage.damage import Run, Survey
from dledger.storage.index_view import IndexView


def settle_conflicts(found: Survey, views: dict[Position, IndexView]) -> None:
    """Discard one of every two contradicting runs: a lone entry, else the earlier one.

    A lone entry may have a flipped bit in its own index. Longer ones contradict each other when a data
    file was replaced by an older copy, of another history: what stands after it follows what it lacks.
    """
    first = found.runs[0] if found.runs else None
    is_at_start = first is not None and first.first_index == found.before.index + 1
    if first is not None and is_at_start and first.before_chain_crc != found.before.chain_crc:
        # The first entry follows what the log's start says: its header is damaged, or the index that was believed.
        if len(first.columns) > 1:
            first.drop_first()
        else:
            found.runs.remove(first)
    while True:
        for one, other in pairwise(found.runs):
            end = one.end()
            gap_entries = other.first_index - end.index - 1
            gap_bytes = other.columns.first_position - end.position
            if gap_entries > 0 and gap_bytes >= gap_entries * ENTRY_HEADER_BYTES:
                continue
            if len(other.columns) == 1:
                found.runs.remove(other)
            elif len(one.columns) == 1:
                found.runs.remove(one)
            else:
                _cut_run(found, one, views)
            break
        else:
            return


def _cut_run(found: Survey, run: Run, views: dict[Position, IndexView]) -> None:
    """Discard entries of a run's last segment from where its index records different ones."""
    columns = run.columns
    name = found.names[bisect_right(found.names, columns.positions[-1]) - 1]
    found.doubtful.add(name)
    first = Index(run.first_index + bisect_left(columns.positions, name))
    foreign = _first_foreign(run, first, views.get(name))
    run.cut(foreign if foreign is not None else first)
    if not len(columns):
        found.runs.remove(run)


def _first_foreign(run: Run, first: Index, view: IndexView | None) -> Index | None:
    """Return the first entry from `first` on of which the index claims another history, to the run's end."""
    if view is None:
        return None
    foreign: Index | None = None
    for index in map(Index, range(first, run.last_index + 1)):
        unit, own = view.units.get(index), run.columns.unit(index - run.first_index)
        if unit is None:
            continue
        if unit.chain_crc == own.chain_crc:
            foreign = None  # the chain CRC vouches for everything before it
        elif unit.position == own.position and unit.term != own.term and foreign is None:
            foreign = index
    return foreign


def cut_other_history(found: Survey, view: IndexView) -> bool:
    """Cut off the entries of which the last segment's index claims another history; returns whether there are any.

    Those that a sealed last segment claims after itself are lost as well, but nothing has to be cut for it.
    """
    name = found.names[-1]
    if view.sealed is not None:
        found.is_tail_cut = True
        found.doubtful.add(name)
        return False
    if not found.runs or found.runs[-1].columns.end_position <= name:
        return False
    run = found.runs[-1]
    first = Index(run.first_index + bisect_left(run.columns.positions, name))
    foreign = _first_foreign(run, first, view)
    if foreign is None:
        return False
    run.cut(foreign)
    if not len(run.columns):
        found.runs.remove(run)
    found.is_tail_cut = True
    found.doubtful.add(name)
    return True


def remember_tail(found: Survey, views: dict[Position, IndexView]) -> None:
    """Note the last entry after all runs that an index remembers.

    It may be that of a sealed segment: after it another one was begun, and holds nothing yet.
    """
    last = found.last_end()
    remembered = [
        (unit.index, name, unit)
        for name, view in views.items()
        for unit in view.units.values()
        if unit.index > last.index and unit.position >= last.position and unit.term >= last.term
    ]
    if remembered:
        _, name, found.tail = max(remembered, key=lambda each: each[:2])
        found.doubtful.add(name)
