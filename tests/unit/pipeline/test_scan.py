"""The sentences of a scan about bad input: file, byte, and what may be concluded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from broker.admin.ask import NodeAnswer
from broker.store.control import DeleteTopic, PutTopic
from broker.store.topics import TopicConfig
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Term
from pipeline.committed import committed_by_group
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.log_options import log_columns, plan_log, read_log_options, scan_options
from pipeline.scan.batches import scan_batches
from pipeline.scan.errors import DamagedLogError, NotAStoreError
from pipeline.scan.plan import CommittedBound, given_bound, plan_scan
from pipeline.scan.stores import Store
from tests.unit.pipeline.stores import orders, write_snapshot, write_store
from tests.unit.store.lone_broker import LoneBroker

ALL = CommittedBound(None, "test")


def rows(store: Path, **given: str) -> list[dict[str, object]]:
    options = read_log_options({"path": str(store), "upTo": "end"} | given)
    scan = scan_options(options, log_columns(options))
    batches = [batch for part in plan_log(options).ranges for batch in scan_batches(part, scan)]
    assert all(batch.schema.equals(scan.schema) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="no folder data/"):
        Store(tmp_path / "nowhere")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "readme").touch()
    with pytest.raises(NotAStoreError, match="has no segments"):
        Store(tmp_path)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    write_store(tmp_path, orders(30).log.entries, 1500)
    first, second, *_, last = sorted((tmp_path / "data").iterdir())
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(DamagedLogError, match=r"begins at .*missing in between") as caught:
        plan_scan(Store(tmp_path), ALL)
    assert caught.value.path == str(first)
    second.write_bytes(kept)
    last.unlink()
    with pytest.raises(DamagedLogError, match="that one is missing"):
        plan_scan(Store(tmp_path), ALL)
    first.unlink()
    with pytest.raises(DamagedLogError, match="missing; the first segment is") as caught:
        Store(tmp_path)
    assert caught.value.path.endswith("/" + "0" * 20)


def test_a_cut_segment_in_the_middle_is_named(tmp_path: Path) -> None:
    write_store(tmp_path, orders(30).log.entries, 1500)
    second = sorted((tmp_path / "data").iterdir())[1]
    second.write_bytes(second.read_bytes()[:-10])
    with pytest.raises(DamagedLogError, match="missing in between") as caught:
        plan_scan(Store(tmp_path), ALL)
    assert caught.value.path == str(second)


def test_a_segment_that_goes_while_it_is_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    write_store(tmp_path, orders(30).log.entries, 1500)
    options = read_log_options({"path": str(tmp_path), "upTo": "end"})
    first, second, *_ = plan_log(options).ranges
    scan = scan_options(options, log_columns(options))
    Path(first.path).unlink()
    with pytest.raises(DamagedLogError, match="the segment is gone"):
        list(scan_batches(first, scan))
    Path(second.path).write_bytes(b"")
    with pytest.raises(DamagedLogError, match="0 are there") as caught:
        list(scan_batches(second, scan))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_index_that_is_lost_or_another_one_s_is_not_needed(tmp_path: Path) -> None:
    write_store(tmp_path, orders(30).log.entries, 1500)
    before = rows(tmp_path)
    for each in (tmp_path / "index").iterdir():
        each.unlink()
    assert rows(tmp_path) == before


def test_poison_bodies_are_named_marked_or_left_out(tmp_path: Path) -> None:
    broker = orders(6)
    broker.log.append(b"no record at all " * 8)
    write_store(tmp_path, broker.log.entries)
    poison = broker.log.entries[-1]
    with pytest.raises(
        DamagedLogError, match=f"entry {poison.index}: its body is no records"
    ) as caught:
        rows(tmp_path)
    assert caught.value.byte_offset == poison.position
    marked = rows(tmp_path, onCorrupt="mark")
    assert len(marked) == 7
    (bad,) = [row for row in marked if row["problem"]]
    assert (bad["physicalOffset"], bad["size"], bad["index"], bad["crcOk"], bad["body"]) == (
        poison.position,
        poison.size_bytes,
        poison.index,
        False,
        None,
    )
    assert len(rows(tmp_path, onCorrupt="skip")) == 6


def test_a_record_that_names_another_place_is_poison(tmp_path: Path) -> None:
    broker = orders(3)
    moved = broker.log.entries[-1]
    last = broker.log.end_position
    broker.log.entries.append(
        Entry(Index(moved.index + 1), Term(1), last, EntryKind.NORMAL, moved.body)
    )
    write_store(tmp_path, broker.log.entries)
    with pytest.raises(DamagedLogError, match=f"physical offset {last + 48} says"):
        rows(tmp_path)


def test_control_records_stand_apart_with_what_they_say(tmp_path: Path) -> None:
    broker = LoneBroker()
    broker.stage("orders", 0, b"one")
    broker.staging.stage_control(PutTopic(TopicConfig("orders", 4, 4)), broker.now_ms)
    broker.staging.stage_control(DeleteTopic("bills"), broker.now_ms)
    broker.stage("rmq_sys_dledger_topics", 0, b"no command")
    broker.commit()
    write_store(tmp_path, broker.log.entries)
    assert [row["body"] for row in rows(tmp_path)] == [b"one"]
    assert "op" not in rows(tmp_path)[0]
    control = rows(tmp_path, records="control")
    assert [row["op"] for row in control] == ["put_topic", "delete_topic", None]
    assert '"name":"orders"' in str(control[0]["command"])
    assert "rmq_sys_dledger_topics" in str(control[2]["problem"])
    both = rows(tmp_path, records="all")
    assert [row["op"] for row in both] == [None, "put_topic", "delete_topic", None]
    assert len(rows(tmp_path, records="all", topic="orders, bills")) == 1


def test_columns_follow_the_options(tmp_path: Path) -> None:
    plain = read_log_options({"path": "x"})
    assert log_columns(plain).names[-8:] == [
        "keys",
        "tags",
        "physicalOffset",
        "size",
        "term",
        "index",
        "crcOk",
        "segment",
    ]
    more = read_log_options({"path": "x", "includeMetadata": "true", "onCorrupt": "mark"})
    assert log_columns(more).names[-4:] == [
        "msgId", "commitLogOffset", "reconsumeTimes", "problem",
    ]  # fmt: skip
    write_store(tmp_path, orders(2).log.entries)
    (first, _) = rows(tmp_path, propertiesAs="map", brokerName="broker-a", includeMetadata="true")
    assert dict(first["properties"])["TAGS"] == "Tag0"  # type: ignore[call-overload] # pairs
    assert (first["tags"], first["brokerName"], first["segment"]) == ("Tag0", "broker-a", "0" * 20)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs option path"),
        ({"path": "x", "upto": "5", "nameServer": "a:1"}, "both say how far"),
        ({"path": "x", "node": "n0"}, "needs nameServer"),
        ({"path": "x", "onCorrupt": "ignore"}, "fail or mark or skip"),
        ({"path": "x", "uptoo": "5"}, "did you mean upTo"),
        ({"path": "x", "splitBytes": "0"}, "splitBytes"),
    ],
)
def test_options_are_checked(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PipelineUsageError, match=problem):
        read_log_options(given)


def test_how_far_the_log_is_committed_is_known_or_asked_for(tmp_path: Path) -> None:
    sealed = write_store(tmp_path, orders(30).log.entries)
    store = Store(tmp_path)
    with pytest.raises(InconclusiveError, match="no snapshot"):
        given_bound("snapshot", store)
    with pytest.raises(PipelineUsageError, match="is none of"):
        given_bound("soon", store)
    with pytest.raises(
        PipelineUsageError, match=f"ends at entry {sealed[-1].index}, before entry 99"
    ):
        plan_scan(store, given_bound("99", store))
    write_snapshot(tmp_path, sealed, 5)
    bound = given_bound("snapshot", store)
    assert (bound.index, bound.known_by) == (5, f"snapshot {5:020}")
    plan = plan_scan(store, bound)
    assert (plan.end.index, plan.end.position) == (5, sealed[4].end_position)
    # A node that runs may know of more than it has written.
    ahead = plan_scan(store, CommittedBound(10**6, "a node says so", is_exact=False))
    assert ahead.end.index == sealed[-1].index


def answer(name: str, commit: int, members: str = "n0,n1") -> NodeAnswer:
    return NodeAnswer(
        "x", {"raftNode": name, "raftCommitIndex": str(commit), "raftMembers": members}
    )


def test_a_store_is_read_as_far_as_its_own_node_or_every_node_says() -> None:
    both = [answer("n0", 9), answer("n1", 7)]
    assert committed_by_group(both).index == 7
    assert committed_by_group(both, "n0").index == 9
    with pytest.raises(InconclusiveError, match="no answer from n1"):
        committed_by_group([answer("n0", 9), NodeAnswer("y", problem="refused")])
    with pytest.raises(InconclusiveError, match="node n5"):
        committed_by_group(both, "n5")
    with pytest.raises(InconclusiveError, match="any node"):
        committed_by_group([])


def test_an_empty_log_has_no_ranges(tmp_path: Path) -> None:
    write_store(tmp_path, orders(0).log.entries)
    assert rows(tmp_path) == []
    assert plan_scan(Store(tmp_path), CommittedBound(0, "test")).ranges == ()
