"""How fast is derived state written down, taken in again, and rebuilt from the log?

    python -m bench.snapshot [--messages 1000000]

Folds entries of 32 messages of 1 KiB with a key each, writes a snapshot to a file and restores it. The
rates are of the snapshot's bytes, that of the fold of the log's. The pause is the longest step, which
is what the driver's loop would be held up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import encode_properties

ENTRY_COUNT = 32
QUEUE_COUNT = 8
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
START_MS = 1_700_000_000_000


def main() -> int:
    """Fold, write, restore; print a line for each."""
    parser = argparse.ArgumentParser(prog="bench.snapshot", description="speed of snapshots")
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-snapshot-") as folder:
        _run(Path(folder), options.messages)
    return 0


def _run(folder: Path, messages: int) -> None:
    """Fold `messages`, then write and restore a snapshot; a pause is the time of one chunk on the loop's thread."""
    say = sys.stdout.write
    state = BrokerState(UnitFiles(folder / "a"), SegmentFiles(folder / "a"))
    staging = Staging(state, HOST)
    fold_s, position = 0.0, Position(0)
    for index, first in enumerate(range(0, messages, ENTRY_COUNT), start=1):
        for number in range(first, first + ENTRY_COUNT):
            staging.stage(
                b"Bench",
                QueueId(number % QUEUE_COUNT),
                b"x" * 1024,
                encode_properties({"UNIQ_KEY": f"{number:032x}"}),
                born_timestamp_ms=START_MS,
                born_host=HOST,
            )
        body = staging.build_entry(position, START_MS + index).body
        entry = Entry(Index(index), Term(1), position, EntryKind.NORMAL, body)
        position = entry.end_position
        began = time.perf_counter()
        state.apply([entry])
        fold_s += time.perf_counter() - began
    say(f"rebuild  {position / fold_s / 1e6:8.0f} MB/s of log ({position / 1e6:.0f} MB)\n")
    store = SnapshotStore(PosixDisk(folder))
    began = time.perf_counter()
    meta = SnapshotMeta(state.applied_index, Term(1), position, 0, state.digest())
    steps = state.snapshot()
    pauses = [time.perf_counter() - began]
    writer = store.begin(meta)
    while True:
        step = time.perf_counter()
        chunk = next(steps, None)
        pauses.append(time.perf_counter() - step)
        if chunk is None:
            break
        writer.add([chunk])
    snapshot = writer.finish()
    took_s = time.perf_counter() - began
    size = snapshot.size_bytes
    say(f"write    {size / took_s / 1e6:8.0f} MB/s ({size / 1e6:.0f} MB, synced)\n")
    say(f"pause    {max(pauses) * 1000:8.1f} ms at most, {pauses[0] * 1000:.1f} ms to begin\n")
    again = BrokerState(UnitFiles(folder / "b"), SegmentFiles(folder / "b"))
    began = time.perf_counter()
    again.restore(store.chunks(snapshot))
    took_s = time.perf_counter() - began
    assert again.digest() == state.digest(), f"{again.digest()} after {state.digest()}"
    say(f"restore  {size / took_s / 1e6:8.0f} MB/s\n")


if __name__ == "__main__":
    sys.exit(main())
