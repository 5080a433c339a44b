"""Stores made without a broker: entries staged as a leader stages them, written by the log itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from broker.store.state import BrokerState
from dledger.codec.entry import chain_crc
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.snapshots import SnapshotStore
from dledger.testing.check_log_store import flush
from dledger.testing.sim_disk import SimDisk
from tests.unit.store.lone_broker import LoneBroker


def write_store(folder: Path, entries: list[Entry], segment_bytes: int = 1 << 16) -> list[Entry]:
    """Write entries into a new store; returns them sealed. Simulated, then copied: it waits for no disk."""
    disk = SimDisk(Random(0))
    log = SegmentedLog.open(disk, segment_size_bytes=segment_bytes)
    sealed: list[Entry] = []
    for entry in entries:
        sealed += log.append([entry])
        flush(log)
    log.close()
    for path in disk.paths():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(disk.content(path))
    return sealed


def write_snapshot(
    folder: Path,
    sealed: list[Entry],
    index: int,
    twist: Callable[[BrokerState], None] = lambda _: None,
) -> BrokerState:
    """Write the snapshot that a node would take after an entry, twisted; returns the state in it."""
    state = BrokerState()
    state.apply(sealed[:index])
    twist(state)
    last = sealed[index - 1]
    meta = SnapshotMeta(Index(index), last.term, last.end_position, chain_crc(last), state.digest())
    writer = SnapshotStore(PosixDisk(folder)).begin(meta)
    writer.add(list(state.snapshot()))
    writer.finish()
    return state


def orders(
    count: int, *, per_entry: int = 3, topics: tuple[str, ...] = ("orders", "bills")
) -> LoneBroker:
    """A broker that took `count` messages on two topics, with keys and tags, two queues each."""
    broker = LoneBroker()
    for number in range(count):
        broker.now_ms += 7
        broker.stage(
            topics[number % len(topics)],
            number // len(topics) % 2,
            b"body %d " % number * (number % 5),
            TAGS=f"Tag{number % 3}",
            KEYS=f"k{number} common",
            UNIQ_KEY=f"{number:032X}",
        )
        if number % per_entry == per_entry - 1:
            broker.commit()
    if count % per_entry:
        broker.commit()
    return broker
