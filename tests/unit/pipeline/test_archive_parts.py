"""A part of the archive: what is written is what the log holds, and what is not is noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow as pa
import pyarrow.parquet as pq

from dledger.raft.entry import Entry, EntryKind
from dledger_mq.message.record import decode_records
from pipeline.archive import parts
from pipeline.archive.manifests import QueueTotals, file_crc, folder_of, merged, topic_of
from pipeline.archive.parts import Part, StagedPart, stage_part
from pipeline.folders import LocalFolder
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.stores import Store
from tests.unit.pipeline.stores import orders, write_store

TOPICS = ("orders", "%RETRY%bills", "a b=c", "x{y}")
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    broker = orders(40, topics=TOPICS)
    broker.now_ms += DAY_MS
    broker.stage("orders", 0, b"next day")
    broker.commit()
    return broker.log.entries


def part_of(folder: Path, entries: list[Entry]) -> Part:
    sealed = write_store(folder / "store", entries, 2000)
    (folder / "staging").mkdir()
    bound = CommittedBound(sealed[-1].index, "test")
    plan = plan_scan(Store(folder / "store"), bound, split_bytes=1000)
    return Part(plan.ranges, "broker-a", str(folder / "staging"))


def records_of(entries: list[Entry]) -> list[Any]:
    normal = [entry for entry in entries if entry.kind is EntryKind.NORMAL]
    return [record for entry in normal for record in decode_records(entry.body)]


def check_whole(staged: StagedPart, part: Part, entries: list[Entry]) -> None:
    assert staged.difference is None
    found = []
    for file in staged.files:
        path = Path(file.path)
        assert file.crc32c == file_crc(LocalFolder(path.parent), path.name)
        assert file.bytes == Path(file.path).stat().st_size
        rows = pq.ParquetFile(file.path).read().to_pylist()
        assert len(rows) == file.rows
        places = [(row["queueId"], row["queueOffset"], row["physicalOffset"]) for row in rows]
        if parts.RUN_BYTES > 1:
            assert places == sorted(places)
        day = {row["storeTimestamp"].strftime("%Y-%m-%d") for row in rows}
        assert file.folder == folder_of(topic_of(file.folder), *day)
        assert {row["brokerName"] for row in rows} == {"broker-a"}
        found += [
            (topic_of(file.folder), *place, row["body"])
            for place, row in zip(places, rows, strict=True)
        ]
    assert {file.path for file in staged.files} == {
        str(each) for each in Path(part.staging).rglob("*.parquet")
    }
    said = records_of(entries)
    assert sorted(found) == sorted(
        (each.topic, each.queue_id, each.queue_offset, each.physical_offset, each.body)
        for each in said
    )
    assert sum(each.count for each in staged.queues) == len(said)


def test_a_part_holds_what_the_log_holds(tmp_path: Path, entries: list[Entry]) -> None:
    part = part_of(tmp_path, entries)
    staged = stage_part(part)
    check_whole(staged, part, entries)
    days_of_orders = [file.folder for file in staged.files if topic_of(file.folder) == "orders"]
    assert len(days_of_orders) == 2
    records = [each for each in records_of(entries) if (each.topic, each.queue_id) == ("orders", 0)]
    log = b"".join((path.read_bytes()) for path in sorted((tmp_path / "store" / "data").iterdir()))
    crcs = [
        crc32c(log[each.physical_offset : each.physical_offset + each.size_bytes])
        for each in records
    ]
    xor = 0
    for crc in crcs:
        xor ^= crc
    offsets = [each.queue_offset for each in records]
    expected = QueueTotals(
        "orders", 0, len(records), min(offsets), max(offsets), xor, str(sum(crcs))
    )
    assert expected in staged.queues


def test_many_runs_and_topics_need_few_open_files(
    tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "RUN_BYTES", 1)
    monkeypatch.setattr(parts, "_OPEN_FILES_MAX", 2)
    part = part_of(tmp_path, entries)
    staged = stage_part(part)
    check_whole(staged, part, entries)
    assert len(staged.files) > 5


def lose_a_row(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(1)]


def write_twice(rows: pa.Table) -> list[pa.Table]:
    return [rows, rows]


def write_nothing(rows: pa.Table) -> list[pa.Table]:
    return []


def change_a_body(rows: pa.Table) -> list[pa.Table]:
    bodies = rows["body"].to_pylist()
    bodies[-1] += b"!"
    place = rows.column_names.index("body")
    return [rows.set_column(place, "body", pa.array(bodies, pa.binary()))]


@pytest.mark.parametrize(
    ("twist", "said"),
    [
        (lose_a_row, r"date=2023-11-14, .*: the log has 10 rows, the file 9"),
        (write_twice, "rows that were not written"),
        (write_nothing, "rows that were not written"),
        (
            change_a_body,
            r"queue 1, offset 4, column body: the log has b'body .*', the file b'body .*!'",
        ),
    ],
)
def test_what_is_not_as_the_log_has_it_is_named(
    tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch, twist: Any, said: str
) -> None:
    add, left = parts._Files.add, [True]

    def twisted(self: Any, group: Any) -> None:
        is_it = topic_of(group.folder) == "orders" and left
        for rows in twist(group.rows) if is_it else [group.rows]:
            add(self, parts._Group(group.folder, rows))
        if is_it:
            left.clear()

    monkeypatch.setattr(parts._Files, "add", twisted)
    staged = stage_part(part_of(tmp_path, entries))
    assert not staged.files
    assert re.search(said, staged.difference or "")


@pytest.mark.parametrize("lost", ["first", "last"])
def test_rows_that_are_lost_while_they_are_arranged_are_missed(
    tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    arranged = parts._arranged

    def losing(run: pa.Table) -> Any:
        return arranged(run.slice(1) if lost == "first" else run.slice(0, len(run) - 1))

    monkeypatch.setattr(parts, "_arranged", losing)
    staged = stage_part(part_of(tmp_path, entries))
    assert staged.difference is not None
    assert "other rows per queue" in staged.difference


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_a_topic_is_one_folder_whatever_its_name(topic: str) -> None:
    folder = folder_of(topic, "2023-11-14")
    assert folder.count("/") == 1
    assert "\0" not in folder
    assert topic_of(f"{folder}/part.parquet") == topic
    assert folder_of("../../etc", "2023-11-14") == "topic=..%2F..%2Fetc/date=2023-11-14"


def test_totals_of_parts_are_added() -> None:
    first = QueueTotals("b", 0, 2, 5, 6, 3, "10")
    second = QueueTotals("b", 0, 1, 7, 7, 1, "20")
    other = QueueTotals("a", 1, 1, 0, 0, 9, "9")
    assert merged([first, other, second]) == (other, QueueTotals("b", 0, 3, 5, 7, 2, "30"))
