"""An archive's history before Spark is asked: which folders are one, and what it says of queues and times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_mq.client.queues import MessageQueue
from pipeline.archive.history import History
from pipeline.archive.manifests import (
    ArchiveError,
    Manifest,
    QueueTotals,
    listed_files,
    write_manifest,
)
from pipeline.archive.writing import Archive
from pipeline.errors import PipelineUsageError
from pipeline.offsets import Bounds
from tests.unit.pipeline.archives import write_archive
from tests.unit.pipeline.stores import orders


def history(folder: Path, broker_name: str | None) -> History:
    return History(str(folder), lambda _: True, broker_name)


def test_a_folder_that_is_no_archive_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(PipelineUsageError, match="is no archive: it has no _manifests"):
        history(tmp_path, "b")
    with Archive(tmp_path):
        pass
    assert history(tmp_path, "b").bounds == {}, "nothing is archived yet"


def test_who_wrote_the_log_may_be_unknown(tmp_path: Path) -> None:
    totals = QueueTotals("Old", 3, 7, 2, 8, 0, "0")
    write_manifest(tmp_path, Manifest("", 1, 5, 0, 400, 0, 7, "test", 7, (totals,), ()))
    assert history(tmp_path, "").bounds == {MessageQueue("Old", "", 3): Bounds(2, 9)}
    with pytest.raises(PipelineUsageError, match="does not say which group"):
        history(tmp_path, None)
    late = history(tmp_path, "b")
    assert late.offsets_at(late.bounds, 2**63 - 1) == {}, "no file is of so late a day"


def test_a_manifest_of_another_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, Manifest("b", 1, 5, 0, 400, 0, 7, "test", 0, (), ()))
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ArchiveError, match="version 2, known is 1"):
        history(tmp_path, "b")


def test_the_offsets_of_a_time_are_read_from_the_row_groups_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = orders(240).log.entries
    archive = write_archive(tmp_path, log, ends=tuple(range(10, len(log), 10)))
    held = history(archive, None)
    rows = [
        row | {"topic": topic}
        for topic in ("orders", "bills")
        for path in listed_files(archive, frozenset({topic}))
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    counted: list[int] = []
    read = pq.ParquetFile.read_row_group

    def read_row_group(file: pq.ParquetFile, number: int, **named: Any) -> pa.Table:
        counted.append(file.metadata.row_group(number).num_rows)
        return read(file, number, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_: pytest.fail("a file is read whole"))
    instants = sorted({row["storeTimestamp"] for row in rows})
    assert len(instants) == 80
    for instant in instants:
        expected: dict[MessageQueue, int] = {}
        for row in rows:
            if row["storeTimestamp"] >= instant:
                queue = MessageQueue(row["topic"], "broker-a", row["queueId"])
                expected[queue] = min(expected.get(queue, 2**63), row["queueOffset"])
        counted.clear()
        at_ms = round(instant.timestamp() * 1000)
        assert held.offsets_at(held.bounds, at_ms) == expected
        # A stretch has 30 messages, in a row group for each of two topics.
        assert sum(counted) <= 60, f"{sum(counted)} rows of {len(rows)} are read"
    assert held.offsets_at(held.bounds, 0) == dict.fromkeys(held.bounds, 0)
