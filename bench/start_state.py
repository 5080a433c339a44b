"""How long does a start take until a broker's state is there, and how much memory, by the number of messages?

    python -m bench.start_state [--messages 1000000 4000000 10000000] [--queues 8] [--json]

Fills the queues and the key index as the fold would, a unit and a key for each message, and writes a snapshot with
parts. Each snapshot is opened in processes of their own, in turn: reading all parts and writing their units into files
again, as every start did before docs/adr/0253; and serving them where they stand. Said are processor time, the
system's work for the process included, by how much its memory grows, and what it takes to look at one unit in a part
and at one key in a full segment, for the first time, when the part is verified, and again. The files are in the
system's memory: on a disk, what is not read is not waited for either.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import SegmentFiles, UnitFiles
from broker.store.unit_stores import UNIT
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.ids import Index, Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotFile, SnapshotStore
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs

RECORD_BYTES = 1200
STEP_MESSAGES = 16_384
TOPIC = "Bench"
ROUNDS = 3
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Opening:
    """The cost of one opening.

    Attributes:
        cpu_s: processor time until the state is there.
        memory_mb: by which the process has grown then.
        unit_ms, unit_again_ms: of looking at a unit of a queue's first part.
        key_ms, key_again_ms: of looking for a key in the first segment.
    """

    cpu_s: float
    memory_mb: float
    unit_ms: float
    unit_again_ms: float
    key_ms: float
    key_again_ms: float


@dataclass(frozen=True)
class Openings:
    """The openings of one snapshot: the best of some rounds, in turn."""

    messages: int
    parts: int
    all_read: Opening
    in_place: Opening


def main() -> int:
    """Fill, write, open; print a line for each number of messages."""
    parser = argparse.ArgumentParser(prog="bench.start_state", description="opening a state")
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    found = [_measure(messages, options.queues) for messages in options.messages]
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
    else:
        Console().print(_table(found))
    return 0


def _measure(messages: int, queues: int) -> Openings:
    """Write a snapshot of so many messages, and open it."""
    with tempfile.TemporaryDirectory(prefix="dledger-start-") as name:
        folder = Path(name)
        store = SnapshotStore(PosixDisk(folder))
        snapshot = _write(_filled(folder, messages, queues), store)
        rounds = [
            (_open(folder, snapshot, in_place=False), _open(folder, snapshot, in_place=True))
            for _ in range(ROUNDS)
        ]
        parts = len(list(folder.glob("snapshots/*.part")))
        all_read, in_place = (
            min(each, key=lambda one: one.cpu_s) for each in zip(*rounds, strict=True)
        )
        return Openings(messages, parts, all_read, in_place)


def _filled(folder: Path, messages: int, queue_count: int) -> BrokerState:
    """Return a state of so many messages, spread over the queues in stretches."""
    state = BrokerState(UnitFiles(folder / "filled"), SegmentFiles(folder / "filled"))
    limits = StateLimits()
    queues = [state.queues.create((TOPIC.encode(), QueueId(n))) for n in range(queue_count)]
    end = 0
    for number in range(0, messages, STEP_MESSAGES):
        queue = queues[number // STEP_MESSAGES % queue_count]
        count = min(STEP_MESSAGES, messages - number)
        offsets = [PhysicalOffset(end + place * RECORD_BYTES) for place in range(count)]
        queue.tail += b"".join(map(UNIT.pack, offsets, repeat(RECORD_BYTES), repeat(0)))
        queue.max_offset = QueueOffset(queue.max_offset + count)
        queue.put_bytes += count * RECORD_BYTES
        texts = [_key_at(offset).encode() for offset in offsets]
        time_ms = StoreTimeMs(START_MS + number)
        state.key_index.add(texts, [queue.key_seed] * count, offsets, [time_ms] * count)
        queue.spill(limits.keep_units_max // 2)
        end += count * RECORD_BYTES
        state.last_store_ms = time_ms
    state.applied_index = Index(messages)
    return state


def _key_at(offset: int) -> str:
    return f"{offset:032x}"


def _write(state: BrokerState, store: SnapshotStore) -> SnapshotFile:
    """Write the state's snapshot."""
    index = state.applied_index
    meta = SnapshotMeta(index, Term(1), Position(index), 0, state.digest())
    writer = store.begin(meta, has_parts=True)
    for item in store.with_parts(state.sealed_snapshot()):
        writer.add([item])
    return writer.finish()


def _open(folder: Path, snapshot: SnapshotFile, *, in_place: bool) -> Opening:
    """Open a snapshot in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_open_here, (folder, snapshot, in_place))


def _open_here(folder: Path, snapshot: SnapshotFile, in_place: bool) -> Opening:
    """Open a snapshot here, and measure that and the first looks into it."""
    memory, began_s = _resident_bytes(), time.process_time()
    store = SnapshotStore(PosixDisk(folder))
    state = BrokerState(UnitFiles(folder / "opened"), SegmentFiles(folder / "opened"))
    state.restore_sealed(store.sealed_chunks(snapshot) if in_place else store.chunks(snapshot))
    assert state.digest() == snapshot.meta.digest, f"{state.digest()} is another state"
    cpu_s = time.process_time() - began_s
    grown = _resident_bytes() - memory
    queue = state.queues.get(TOPIC, QueueId(0))
    assert queue is not None, "it has messages"
    offset = queue.unit(QueueOffset(queue.max_offset // 2)).physical_offset

    def look_at_unit() -> None:
        assert queue.unit(QueueOffset(0)).physical_offset == 0, "the first record is the first"

    def look_for_key() -> None:
        found = state.key_index.candidates(TOPIC, _key_at(offset), 0, 2**62)
        assert offset in found, f"no key of the record at {offset}"

    looks = (look_at_unit, look_at_unit, look_for_key, look_for_key)
    opening = Opening(cpu_s, grown / 1e6, *map(_took_ms, looks))
    state.close()
    return opening


def _took_ms(look: Callable[[], None]) -> float:
    began_s = time.process_time()
    look()
    return (time.process_time() - began_s) * 1000


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _table(found: list[Openings]) -> Table:
    """Return the costs as a table, one row for each number of messages."""
    table = Table(title="Opening a state: all parts read, and in place")
    columns = (
        "messages",
        "parts",
        "read s",
        "MB",
        "in place s",
        "MB",
        "ratio",
        "unit ms",
        "key ms",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for each in found:
        read, placed = each.all_read, each.in_place
        table.add_row(
            f"{each.messages:,}",
            f"{each.parts:,}",
            f"{read.cpu_s:.2f}",
            f"{read.memory_mb:.0f}",
            f"{placed.cpu_s:.3f}",
            f"{placed.memory_mb:.0f}",
            f"{read.cpu_s / placed.cpu_s:.1f}",
            f"{placed.unit_ms:.2f}, then {placed.unit_again_ms:.3f}",
            f"{placed.key_ms:.2f}, then {placed.key_again_ms:.3f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
