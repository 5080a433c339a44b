"""What does a snapshot of the broker's state cost, and how long does taking it hold up the loop?

    python -m bench.snapshot [--messages 600000] [--queues 80000] [--json]

Folds entries of 32 messages of 1 KiB with a key each, spread over the queues, writes a snapshot to a file and restores
it. First as it was before docs/adr/0188, gathered at once and written whole; then in steps, with parts that the next
one names again; and once more 32 000 messages later. "MB" is the snapshot's file, without parts. A stop is the
processor time of the longest step on the loop's thread: what holds up the loop of a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import SealedPart
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotFile, SnapshotStore
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import encode_properties

ENTRY_COUNT = 32
TOPIC_QUEUES = 8
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
START_MS = 1_700_000_000_000


@dataclass
class SnapshotCost:
    """The costs of one snapshot.

    Attributes:
        size_bytes: of its file, without parts.
        written_bytes: to disk for it, new parts among them.
        taken_s: from the first step to the synced file.
        stop_ms: processor time of the longest step.
        held_ms: processor time of the steps for which the fold must stand still.
        opened_s: until the state is there again.
    """

    how: str
    size_bytes: int = 0
    written_bytes: int = 0
    taken_s: float = 0.0
    stop_ms: float = 0.0
    held_ms: float = 0.0
    opened_s: float = 0.0

    def note(self, began_s: float, *, is_held: bool) -> None:
        """Note the end of a step."""
        took_ms = (time.thread_time() - began_s) * 1000
        self.stop_ms = max(self.stop_ms, took_ms)
        self.held_ms += took_ms if is_held else 0


class Filling:
    """A state that grows by entries."""

    def __init__(self, folder: Path, queues: int) -> None:
        self.state = BrokerState(UnitFiles(folder), SegmentFiles(folder))
        self.position = Position(0)
        self._staging = Staging(self.state, HOST)
        self._queues = queues
        self._number = 0

    def fold(self, messages: int) -> None:
        """Fold so many messages more, spread over the queues."""
        for _ in range(0, messages, ENTRY_COUNT):
            for _ in range(ENTRY_COUNT):
                queue = self._number % self._queues
                self._staging.stage(
                    b"Bench-of-topics-%06d" % (queue // TOPIC_QUEUES),
                    QueueId(queue % TOPIC_QUEUES),
                    b"x" * 1024,
                    encode_properties({"UNIQ_KEY": f"{self._number:032x}"}),
                    born_timestamp_ms=START_MS,
                    born_host=HOST,
                )
                self._number += 1
            index = Index(self.state.applied_index + 1)
            body = self._staging.build_entry(self.position, START_MS + index).body
            entry = Entry(index, Term(1), self.position, EntryKind.NORMAL, body)
            self.position = entry.end_position
            self.state.apply([entry])


def main() -> int:
    """Fold, write, restore; print a line for each snapshot."""
    parser = argparse.ArgumentParser(prog="bench.snapshot", description="cost of snapshots")
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    costs: list[SnapshotCost] = []
    with tempfile.TemporaryDirectory(prefix="dledger-snapshot-") as folder:
        filling = Filling(Path(folder, "a"), options.queues)
        filling.fold(options.messages)
        store = SnapshotStore(PosixDisk(Path(folder)))
        for how in ("at once", "in parts", "32 000 later"):
            filling.fold(32_000 if how.endswith("later") else ENTRY_COUNT)
            costs.append(_measure(how, filling, store, Path(folder)))
    if options.json:
        sys.stdout.write(json.dumps([asdict(cost) for cost in costs]) + "\n")
    else:
        Console().print(
            _table(costs, f"{options.messages:,} messages in {options.queues:,} queues")
        )
    return 0


def _measure(how: str, filling: Filling, store: SnapshotStore, folder: Path) -> SnapshotCost:
    """Take one snapshot and open it."""
    cost = SnapshotCost(how)
    state = filling.state
    began_s = time.perf_counter()
    if how != "at once":
        _prepare(filling, cost)
    step_s = time.thread_time()
    meta = SnapshotMeta(state.applied_index, Term(1), filling.position, 0, state.digest())
    is_old = how == "at once"
    chunks = state.snapshot() if is_old else state.sealed_snapshot()
    cost.note(step_s, is_held=True)
    snapshot = _write(chunks, store, meta, cost)
    cost.taken_s = time.perf_counter() - began_s
    cost.size_bytes = snapshot.size_bytes
    again = BrokerState(UnitFiles(folder / "b"), SegmentFiles(folder / "b"))
    began_s = time.perf_counter()
    again.restore_sealed(store.sealed_chunks(snapshot))
    assert again.digest() == state.digest(), f"{again.digest()} after {state.digest()}"
    cost.opened_s = time.perf_counter() - began_s
    return cost


def _prepare(filling: Filling, cost: SnapshotCost) -> None:
    """Let the state gather itself, while a few entries are folded as long as that may be."""
    steps = filling.state.prepare_snapshot()
    is_held = False
    while True:
        step_s = time.thread_time()
        must_hold = next(steps, None)
        cost.note(step_s, is_held=is_held)
        if must_hold is None:
            return
        is_held = is_held or must_hold
        if not is_held:
            filling.fold(ENTRY_COUNT)


def _write(
    chunks: Iterator[bytes | SealedPart],
    store: SnapshotStore,
    meta: SnapshotMeta,
    cost: SnapshotCost,
) -> SnapshotFile:
    """Write the chunks, as the node's thread would beside the loop."""
    writer = store.begin(meta, has_parts=True)
    items = store.with_parts(chunks)
    while True:
        step_s = time.thread_time()
        item = next(items, None)
        cost.note(step_s, is_held=False)
        if item is None:
            snapshot = writer.finish()
            cost.written_bytes = snapshot.size_bytes + writer.part_bytes
            return snapshot
        writer.add([item])


def _table(costs: list[SnapshotCost], title: str) -> Table:
    """Return the costs as a table, one row for each snapshot."""
    table = Table(title=title)
    for column in ("gathered", "MB", "written MB", "taken s", "longest stop ms", "fold held ms"):
        table.add_column(column, justify="left" if column == "gathered" else "right")
    table.add_column("opened s", justify="right")
    for cost in costs:
        table.add_row(
            cost.how,
            f"{cost.size_bytes / 1e6:.1f}",
            f"{cost.written_bytes / 1e6:.1f}",
            f"{cost.taken_s:.2f}",
            f"{cost.stop_ms:.1f}",
            f"{cost.held_ms:.1f}",
            f"{cost.opened_s:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
