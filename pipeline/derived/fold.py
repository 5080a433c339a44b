"""The broker's own fold over a store's log: the oracle for everything that is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from broker.store.errors import MisplacedRecordError, NewerVersionError
from broker.store.state import BrokerState
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.raft.entry import Entry
from dledger_mq.message.errors import RecordError
from pipeline.errors import InconclusiveError
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.plan import ScanPlan
from pipeline.scan.ranges import LogRange, RangeScan

ENTRIES_AT_ONCE: Final = 256


def new_state(folder: Path) -> BrokerState:
    """Return a state whose units go to files under a folder when they leave memory, as a node's do."""
    return BrokerState(UnitFiles(folder), SegmentFiles(folder))


def fold(
    plan: ScanPlan,
    state: BrokerState,
    stops: Iterable[int] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[int]:
    """Fold the log of a plan from its first entry to its last.

    Args:
        plan: a whole log.
        state: an empty state.
        stops: applied indexes at which to pause; those beyond the plan's end are left out.
        progress: called with the bytes folded.

    Yields:
        Each stop, when `state` is what follows from the log up to that entry; the end of the plan last.

    Raises:
        DamagedLogError: the log cannot be folded; names the place.
        InconclusiveError: the log has control records of a newer version, or has lost its beginning.
    """
    if plan.start.index:
        raise InconclusiveError(
            f"{plan.path}: the log begins with entry {plan.start.index + 1}, what stood before is deleted "
            "(docs/retention.md): what follows from all of it cannot be computed from the rest"
        )
    waiting = sorted({stop for stop in stops if 0 < stop < plan.end.index} | {plan.end.index})
    for range_ in plan.ranges:
        entries = RangeScan(range_).entries()
        while waiting:
            room = min(ENTRIES_AT_ONCE, waiting[0] - state.applied_index)
            some = list(islice(entries, room))
            _apply(state, some, range_)
            progress(sum(entry.size_bytes for entry in some))
            if state.applied_index == waiting[0]:
                yield waiting.pop(0)
            if len(some) < room:
                break


def _apply(state: BrokerState, entries: list[Entry], range_: LogRange) -> None:
    try:
        state.apply(entries)
    except (RecordError, MisplacedRecordError) as error:
        poison = next(each for each in entries if each.index == state.applied_index + 1)
        raise DamagedLogError(
            range_.path, poison.position - range_.segment_position, f"entry {poison.index}: {error}"
        ) from error
    except NewerVersionError as error:
        raise InconclusiveError(f"entry {state.applied_index + 1}: {error}") from error
