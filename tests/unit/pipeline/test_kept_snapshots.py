"""Snapshots of a node, whose parts are files of their own, are read without writing to its store."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy is not installed (extra `spark`)")

from broker.store.state import BrokerState, StateLimits
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.ids import Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore
from pipeline.derived.kept import DamagedSnapshotError, load_snapshot, snapshots_of
from tests.unit.store.lone_broker import LoneBroker

LIMITS = StateLimits(sealed_units=4, index_segment_units=4)


def taken(folder: Path) -> BrokerState:
    """Write the snapshot of a state most of whose units are in parts."""
    broker = LoneBroker()
    for number in range(30):
        broker.stage("T", number % 2, b"body %d" % number, KEYS=f"key{number}")
        broker.commit()
    state = BrokerState(limits=LIMITS)
    state.apply(broker.log.entries)
    store = SnapshotStore(PosixDisk(folder))
    meta = SnapshotMeta(state.applied_index, Term(1), Position(1000), 0, state.digest())
    writer = store.begin(meta, has_parts=True)
    for item in store.with_parts(state.sealed_snapshot()):
        writer.add([item])
    writer.finish()
    return state


def test_a_snapshot_with_parts_gives_the_state(tmp_path: Path) -> None:
    state = taken(tmp_path)
    ((path, meta),) = snapshots_of(tmp_path)
    parts = sorted((tmp_path / "snapshots").glob("*.part"))
    assert len(parts) > 3
    parts[0].write_bytes(parts[0].read_bytes()[:-1])  # there is a second one
    found = load_snapshot(path)
    assert found is not None
    assert found.digest() == state.digest() == meta.digest


def test_a_lost_part_is_named(tmp_path: Path) -> None:
    taken(tmp_path)
    ((path, _),) = snapshots_of(tmp_path)
    for each in (tmp_path / "snapshots").glob(f"{1:020d}.*"):
        each.unlink()
    with pytest.raises(DamagedSnapshotError, match=rf"{1:020d}\.twin"):
        load_snapshot(path)
    path.unlink()
    assert load_snapshot(path) is None
