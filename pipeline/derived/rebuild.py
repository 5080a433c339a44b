"""Derived state written out: files as a node would have them, a snapshot, and tables for people.

    consumequeue/, keyindex/    every unit, laid out as RocketMQ's and the broker's (docs/formats/control.md)
    snapshots/<index>           what a node could start from (docs/formats/snapshot.md)
    state.json                  applied index, digests, consumer offsets, open transactions, and the other tables

It is written beside its place and renamed, so a folder under its name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from broker.store.state import BrokerState
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.ids import Index, Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore
from pipeline.derived.compare import tables
from pipeline.derived.fold import fold, new_state
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.scan.plan import ScanPlan


def rebuild(plan: ScanPlan, folder: str | Path, progress: Callable[[int], None]) -> BrokerState:
    """Fold a log and write what follows from it into a new folder.

    Args:
        plan: the log, from its first entry.
        folder: must not exist.
        progress: called with the bytes folded.

    Returns:
        The state; its files are in the folder.

    Raises:
        PipelineUsageError: the folder exists.
        PipelineError: the disk failed or is full; there is no such folder then.
        DamagedLogError: the log cannot be folded.
    """
    place = Path(folder).absolute()
    if place.exists():
        raise PipelineUsageError(f"{place} exists; what is rebuilt goes into a new folder")
    aside = place.with_name(f"{place.name}.aside-{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        state = new_state(aside)
        for _ in fold(plan, state, progress=progress):
            pass
        for queue in state.queues:
            queue.spill(0)
        _write_snapshot(aside, state, plan)
        (aside / "state.json").write_text(json.dumps(described(state), indent=1, default=_text))
        aside.rename(place)
    except OSError as error:
        raise PipelineError(
            f"{place} is not rebuilt, what was begun is removed: {error}"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return state


def _write_snapshot(folder: Path, state: BrokerState, plan: ScanPlan) -> None:
    end = plan.end
    meta = SnapshotMeta(
        Index(end.index), Term(end.term), Position(end.position), end.crc or 0, state.digest()
    )
    if not end.index:
        return
    writer = SnapshotStore(PosixDisk(folder)).begin(meta)
    for chunk in state.snapshot():
        writer.add([chunk])
    writer.finish()


class DescribedQueue(TypedDict):
    """A queue in a description."""

    topic: str
    queueId: int
    maxOffset: int
    digest: str


class Described(TypedDict):
    """A state in words and numbers."""

    appliedIndex: int
    digests: dict[str, str]
    queues: list[DescribedQueue]
    tables: dict[str, object]


def described(state: BrokerState) -> Described:
    """Describe the state in words and numbers: digests, queues, and the small tables."""
    return {
        "appliedIndex": state.applied_index,
        "digests": {name: f"{digest:08x}" for name, digest in state.digests().items()},
        "queues": [
            {
                "topic": queue.key[0].decode(errors="replace"),
                "queueId": queue.key[1],
                "maxOffset": queue.max_offset,
                "digest": f"{queue.digest():08x}",
            }
            for queue in state.queues
        ],
        "tables": tables(state),
    }


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
