"""The audit of replicas: identical ones are, and of others the first difference is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from broker.store.control import CommitOffsets, OffsetCommit
from dledger.raft.entry import Entry
from pipeline.audit import common_bound, outliers
from pipeline.cli import main
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.jobs.audit import audit, named
from pipeline.scan.plan import CommittedBound
from tests.unit.pipeline.stores import orders, write_snapshot, write_store

LAST = 25


def entries_with(body: bytes) -> list[Entry]:
    """A log whose sixteenth entry has a message with that body."""
    broker = orders(42)
    broker.stage("orders", 0, body)
    broker.commit()
    broker.staging.stage_control(CommitOffsets([OffsetCommit("g", "orders", 0, 5)]), broker.now_ms)
    while len(broker.log.entries) < LAST:
        broker.stage("bills", 1, b"more")
        broker.commit()
    return broker.log.entries


@pytest.fixture
def replicas(tmp_path: Path) -> dict[str, Path]:
    """Three stores with the same log, in segments of different sizes."""
    entries = entries_with(b"the same")
    folders = {name: tmp_path / name for name in ("n0", "n1", "n2")}
    for folder, segment_bytes in zip(folders.values(), (2000, 3000, 1 << 16), strict=True):
        sealed = write_store(folder, entries, segment_bytes)
        write_snapshot(folder, sealed, 20)
    return folders


def findings(spark: Any, replicas: dict[str, Path], last: int = LAST) -> list[tuple[str, str]]:
    stores = named([str(folder) for folder in replicas.values()])
    found = audit(spark, stores, last, lambda _: None)
    found.sort(key=lambda each: (each.position < 0, each.position))
    return [(each.replica, each.what) for each in found]


def test_replicas_of_one_log_are_identical(spark: Any, replicas: dict[str, Path]) -> None:
    assert findings(spark, replicas) == []


def test_a_flipped_bit_is_named_with_its_replica(spark: Any, replicas: dict[str, Path]) -> None:
    segment = sorted((replicas["n1"] / "data").iterdir())[1]
    octets = bytearray(segment.read_bytes())
    octets[700] ^= 1
    segment.write_bytes(octets)
    found = findings(spark, replicas)
    assert {replica for replica, _ in found} == {"n1"}
    assert any(segment.name in what for _, what in found)


def test_another_record_is_named_with_entry_queue_and_offset(
    spark: Any, replicas: dict[str, Path]
) -> None:
    shutil.rmtree(replicas["n2"])
    write_store(replicas["n2"], entries_with(b"not same"))
    (parted, record) = findings(spark, replicas)
    assert parted[0] == record[0] == "n2"
    assert parted[1].startswith("entry 16 is another one")
    assert f"{replicas['n2']}/data/" in parted[1]
    assert record[1].startswith("entry 16: topic orders, queue 0, offset 11 is another record")
    # Before that entry all is the same.
    assert findings(spark, replicas, 15) == []


def test_a_store_of_another_group_is_said_to_be_one(spark: Any, replicas: dict[str, Path]) -> None:
    shutil.rmtree(replicas["n0"])
    write_store(replicas["n0"], orders(80, topics=("else",)).log.entries)
    (parted, _) = findings(spark, replicas)
    assert parted[0] == "n0"
    assert "entry 2 is another one" in parted[1]


def test_other_derived_state_is_named(spark: Any, replicas: dict[str, Path]) -> None:
    entries = entries_with(b"the same")
    shutil.rmtree(replicas["n1"])
    sealed = write_store(replicas["n1"], entries)
    write_snapshot(replicas["n1"], sealed, 20, lambda state: setattr(state.refusals, "digest", 1))
    ((replica, what),) = findings(spark, replicas)
    assert replica == "n1"
    assert what.startswith("derived state: refusals")


def test_who_is_odd_is_who_is_not_of_the_majority() -> None:
    assert outliers({"a": 1, "b": 1, "c": 2}) == "c"
    assert outliers({"a": 1, "b": 2}) == "a, b"


def test_what_cannot_be_told_is_said(
    replicas: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PipelineUsageError, match="two or more"):
        named([str(replicas["n0"])])
    stores = named([str(folder) for folder in replicas.values()])
    bounds = {name: CommittedBound(None, "test") for name in stores}
    assert common_bound(stores, bounds).index == LAST
    bounds["n1"] = CommittedBound(9, "its snapshot")
    assert common_bound(stores, bounds).known_by == "its snapshot; n1 reaches least far"
    bounds["n2"] = CommittedBound(0, "test")
    with pytest.raises(InconclusiveError, match="n2: nothing"):
        common_bound(stores, bounds)
    assert main(["audit", str(replicas["n0"]), str(tmp_path / "nowhere")]) == 2
    assert "is no store" in capsys.readouterr().err
