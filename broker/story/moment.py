"""What held at a time: the state after the last entry that was stored by then, folded from the nearest snapshot.

Time is the store time of records, which never goes back in a log; so "at 03:12" is behind the last record with a store
time of 03:12 or before.

It must not know what is shown of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from broker.store.state import BrokerState
from broker.story.copies import Progress, records_of
from broker.story.errors import StoryError
from broker.story.places import StorePlaces, fold, scratch_state
from broker.times import time_text
from dledger.raft.entry import Entry, EntryKind
from dledger.storage.scan import ChainEnd
from dledger.storage.snapshots_beside import end_of


@dataclass(frozen=True, slots=True)
class Moment:
    """A state at a time.

    Attributes:
        state: after the last entry that was stored by then; it is gone when the moment is left.
        index: that entry.
        at_ms: store time of its last record, or of what came before it; the log's time then.
        is_last: the log has nothing later.
    """

    state: BrokerState
    index: int
    at_ms: int
    is_last: bool


@contextmanager
def moment_at(places: StorePlaces, at_ms: int, progress: Progress) -> Iterator[Moment]:
    """Bring a state to a time.

    Args:
        places: the store.
        at_ms: the time, in ms since 1970.
        progress: told how far the fold has come.

    Raises:
        StoryError: what held then cannot be said; names the earliest time of which it can.
        CorruptionError: the log is damaged.
        OSError: the disk failed.
    """
    earliest: int | None = None
    for snapshot in places.snapshots:
        with scratch_state() as state:
            if not places.restore(snapshot, state):
                continue
            if state.last_store_ms <= at_ms:
                yield _folded(places, state, end_of(snapshot), at_ms=at_ms, progress=progress)
                return
            earliest = state.last_store_ms
    if not places.is_whole:
        since = "of no time" if earliest is None else f"from {time_text(earliest)} on"
        raise StoryError(
            f"{places.path}: what held then cannot be told: the log begins with entry "
            f"{places.log.before.index + 1}, and snapshots give the state {since}"
        )
    with scratch_state() as state:
        yield _folded(places, state, places.log.before, at_ms=at_ms, progress=progress)


def _folded(
    places: StorePlaces, state: BrokerState, start: ChainEnd, *, at_ms: int, progress: Progress
) -> Moment:
    """Fold what was stored after an entry, up to a time."""
    limit = places.log.end_position_max()
    for some in places.log.entries(start):
        stored_by_then = list(takewhile(lambda each: _stored_ms(each) <= at_ms, some))
        fold(state, stored_by_then)
        progress(some[-1].end_position - start.position, limit - start.position)
        if len(stored_by_then) < len(some) or some[-1].end_position >= limit:
            return Moment(
                state,
                state.applied_index,
                state.last_store_ms,
                is_last=len(stored_by_then) == len(some),
            )
    return Moment(state, state.applied_index, state.last_store_ms, is_last=True)


def _stored_ms(entry: Entry) -> int:
    """Return when the records of an entry were stored; 0 if it has none."""
    if entry.kind is not EntryKind.NORMAL:
        return 0
    first = next(records_of(entry), None)
    return 0 if first is None else first.store_timestamp_ms
