"""Derived state from the log against what is kept: equal where it is, and the first difference named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger_mq.message.numbers import QueueId

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from broker.store.commands import carry_out
from broker.store.control import (
    CommitOffsets,
    DeleteTopic,
    MarkDigests,
    OffsetCommit,
    SetDelayLevels,
)
from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.raft.entry import Entry
from pipeline.derived.fold import fold, new_state
from pipeline.derived.kept import DamagedSnapshotError, load_snapshot
from pipeline.derived.rebuild import rebuild
from pipeline.errors import PipelineUsageError
from pipeline.jobs.verify import Findings, verify
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.plan import CommittedBound, ScanPlan, plan_scan
from pipeline.scan.stores import Store
from pipeline.spark.consume_queues import checked_queues
from tests.unit.pipeline.stores import orders, write_snapshot, write_store
from tests.unit.store.lone_broker import LoneBroker


def lively() -> LoneBroker:
    """A broker with offsets, a removed topic, delays, a half message and marks in its log."""
    broker = orders(60)
    now = broker.now_ms
    broker.staging.stage_control(CommitOffsets([OffsetCommit("g", "orders", 0, 5)]), now)
    broker.staging.stage_control(SetDelayLevels([10, 20]), now)
    broker.stage("SCHEDULE_TOPIC_XXXX", 0, b"later", DELAY="1", REAL_TOPIC="orders", REAL_QID="0")
    broker.stage("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"half", REAL_TOPIC="orders", REAL_QID="0")
    broker.commit()
    broker.staging.stage_control(MarkDigests(), now)
    broker.commit()
    index, digests = broker.state.marks.latest()
    broker.staging.stage_control(DeleteTopic("bills"), now)
    broker.commit()
    for number in range(5):
        broker.stage("bills", 0, b"again %d" % number)
    broker.staging.stage_control(MarkDigests(index, dict(digests)), now)
    broker.commit()
    return broker


@pytest.fixture
def broker() -> LoneBroker:
    return lively()


def whole(store: Path) -> ScanPlan:
    return plan_scan(Store(store), CommittedBound(None, "test"))


def keep_files(store: Path, entries: list[Entry]) -> BrokerState:
    """Leave the files that a running node would."""
    state = BrokerState(
        UnitFiles(store / "derived"),
        SegmentFiles(store / "derived"),
        StateLimits(index_segment_units=16),
    )
    state.apply(entries)
    for queue in state.queues:
        queue.spill(1)
    return state


def found_in(store: Path) -> Findings:
    return verify(whole(store), lambda _: None)


def test_a_node_that_keeps_what_its_log_says_is_equal(
    spark: Any, tmp_path: Path, broker: LoneBroker
) -> None:
    sealed = write_store(tmp_path, broker.log.entries, 4000)
    write_snapshot(tmp_path, sealed, 12)
    write_snapshot(tmp_path, sealed, len(sealed))
    keep_files(tmp_path, sealed)
    findings = verify(whole(tmp_path), lambda _: None, spark)
    assert findings.differences == []
    told = " / ".join(findings.compared)
    for part in (
        f"snapshot {12:020}",
        "digests in the log",
        "consume queue files",
        "computed by Spark",
    ):
        assert part in told


def test_spark_names_a_queue_that_is_another(
    spark: Any, tmp_path: Path, broker: LoneBroker
) -> None:
    sealed = write_store(tmp_path, broker.log.entries)
    state = BrokerState()
    state.apply(sealed)
    assert checked_queues(spark, str(tmp_path), len(sealed), state) == []
    queue = state.queues.by_key[b"orders", QueueId(1)]
    queue.append(1, 2, 3)
    (told,) = checked_queues(spark, str(tmp_path), len(sealed), state)
    assert told.startswith("topic orders, queue 1: the fold has 16 units")


def test_the_first_difference_of_each_component_is_named(
    tmp_path: Path, broker: LoneBroker
) -> None:
    sealed = write_store(tmp_path, broker.log.entries)

    def twist(state: BrokerState) -> None:
        queue = state.queues.by_key[b"orders", QueueId(0)]
        queue.tail[3 * 20] ^= 1
        queue._digest = queue._digested_bytes = 0  # as if that unit had been folded
        carry_out(state, CommitOffsets([OffsetCommit("g", "orders", 0, 9)]), broker.now_ms, 0)

    write_snapshot(tmp_path, sealed, len(sealed), twist)
    queues, offsets = found_in(tmp_path).differences
    assert queues.component == "queues"
    assert queues.where == "topic orders, queue 0, offset 3"
    assert offsets.component == "offsets"
    assert (offsets.from_log, offsets.kept) == ("5", "9")


def test_changed_files_are_named_to_the_byte(tmp_path: Path, broker: LoneBroker) -> None:
    sealed = write_store(tmp_path, broker.log.entries)
    keep_files(tmp_path, sealed)
    assert found_in(tmp_path).differences == []
    path = next((tmp_path / "derived" / "consumequeue" / "orders" / "1").iterdir())
    octets = bytearray(path.read_bytes())
    octets[47] ^= 16
    path.write_bytes(octets)
    (difference,) = found_in(tmp_path).differences
    assert difference.where == f"{path}, byte 47 (queue offset 2)"
    path.unlink()
    stray = tmp_path / "derived" / "consumequeue" / "nothing" / "0"
    stray.mkdir(parents=True)
    (difference,) = found_in(tmp_path).differences
    assert (difference.where, difference.from_log) == (str(stray), "no such queue")


def test_what_a_node_did_beyond_the_bound_is_no_difference(
    tmp_path: Path, broker: LoneBroker
) -> None:
    broker.stage("new", 0, b"of a topic that the bound does not know")
    broker.commit()
    broker.stage("new", 0, b"and another")
    broker.commit()
    sealed = write_store(tmp_path, broker.log.entries)
    keep_files(tmp_path, sealed)
    assert {each.name for each in (tmp_path / "derived" / "consumequeue").iterdir()} > {
        "new",
        "bills",
    }
    for index in range(1, len(sealed) + 1):  # "bills" is removed and made anew somewhere in between
        plan = plan_scan(Store(tmp_path), CommittedBound(index, "test"))
        assert verify(plan, lambda _: None).differences == []


def test_what_a_running_node_removes_meanwhile_is_left_out(
    tmp_path: Path, broker: LoneBroker
) -> None:
    sealed = write_store(tmp_path, broker.log.entries)
    write_snapshot(tmp_path, sealed, 12)
    write_snapshot(tmp_path, sealed, len(sealed))

    def remove_the_older(_: int) -> None:
        (tmp_path / "snapshots" / f"{12:020}").unlink(missing_ok=True)

    findings = verify(whole(tmp_path), remove_the_older)
    assert findings.differences == []
    assert not any(f"{12:020}" in text for text in findings.compared)
    assert any(f"{len(sealed):020}" in text for text in findings.compared)


def test_digests_that_a_leader_wrote_are_compared(tmp_path: Path, broker: LoneBroker) -> None:
    index, digests = broker.state.marks.latest()
    broker.staging.stage_control(MarkDigests(index, dict(digests) | {"offsets": 1}), broker.now_ms)
    broker.commit()
    write_store(tmp_path, broker.log.entries)
    (difference,) = found_in(tmp_path).differences
    assert (difference.component, difference.where) == ("offsets", f"digest at entry {index}")


def test_a_damaged_snapshot_is_named(tmp_path: Path, broker: LoneBroker) -> None:
    sealed = write_store(tmp_path, broker.log.entries)
    write_snapshot(tmp_path, sealed, 9)
    path = tmp_path / "snapshots" / f"{9:020}"
    octets = bytearray(path.read_bytes())
    octets[200] ^= 1
    path.write_bytes(octets)
    with pytest.raises(DamagedSnapshotError, match=f"{path}, byte"):
        found_in(tmp_path)


def test_what_is_rebuilt_is_what_a_node_would_have(tmp_path: Path, broker: LoneBroker) -> None:
    store, place = tmp_path / "store", tmp_path / "rebuilt"
    sealed = write_store(store, broker.log.entries, 4000)
    folded: list[int] = []
    state = rebuild(whole(store), place, folded.append)
    assert sum(folded) == sealed[-1].end_position
    assert state.digests() == broker.state.digests()
    last = place / "snapshots" / f"{len(sealed):020}"
    kept = load_snapshot(last)
    assert kept is not None
    assert kept.digests() == broker.state.digests()
    for queue in broker.state.queues:
        files = place / "consumequeue" / queue.key[0].decode() / str(queue.key[1])
        units = b"".join(path.read_bytes() for path in sorted(files.iterdir()))
        assert units == bytes(queue.units(0, queue.max_offset))
    told = json.loads((place / "state.json").read_text())
    assert told["appliedIndex"] == len(sealed)
    assert told["digests"]["transactions"] == f"{broker.state.transactions.digest:08x}"
    assert not list(tmp_path.glob("*.aside*"))
    with pytest.raises(PipelineUsageError, match="exists"):
        rebuild(whole(store), place, folded.append)


def test_a_log_that_cannot_be_folded_says_where(tmp_path: Path, broker: LoneBroker) -> None:
    broker.log.append(b"poison" * 30)
    write_store(tmp_path, broker.log.entries)
    poison = broker.log.entries[-1]
    with pytest.raises(DamagedLogError, match=f"entry {poison.index}") as caught:
        rebuild(whole(tmp_path), tmp_path / "rebuilt", lambda _: None)
    assert caught.value.byte_offset == poison.position
    assert not (tmp_path / "rebuilt").exists()
    assert not list(tmp_path.glob("*.aside*"))


def stops_of(plan: ScanPlan, stops: list[int], folder: Path) -> Iterator[tuple[int, int]]:
    state = new_state(folder)
    for index in fold(plan, state, stops):
        yield index, state.applied_index


def test_a_fold_pauses_where_it_is_asked_to(tmp_path: Path) -> None:
    write_store(tmp_path / "store", orders(30).log.entries, 1500)
    plan = whole(tmp_path / "store")
    assert list(stops_of(plan, [4, 7, 0, 999], tmp_path / "files")) == [(4, 4), (7, 7), (11, 11)]
