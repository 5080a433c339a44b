"""`format("commitlog")`: the scanner behind Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.raft.entry import EntryKind
from dledger_mq.message.record import decode_records
from pipeline.spark.failures import reason_of
from tests.unit.pipeline.stores import orders, write_snapshot, write_store


def reader(spark: Any, store: Path, **options: str) -> Any:
    return spark.read.format("commitlog").options(**{"upTo": "end"} | options).load(str(store))


def test_a_store_is_a_table(spark: Any, tmp_path: Path) -> None:
    entries = orders(60).log.entries
    sealed = write_store(tmp_path, entries, 4000)
    write_snapshot(tmp_path, sealed, 10)
    wanted = {
        (record.topic, record.queue_id, record.queue_offset, record.body, record.physical_offset)
        for entry in entries
        if entry.kind is EntryKind.NORMAL
        for record in decode_records(entry.body)
    }
    frame = reader(spark, tmp_path, splitBytes="1000")
    columns = ("topic", "queueId", "queueOffset", "body", "physicalOffset")
    found = [tuple(row) for row in frame.select(*columns).collect()]
    assert {(*row[:3], bytes(row[3]), row[4]) for row in found} == wanted
    assert len(found) == len(wanted)
    assert frame.rdd.getNumPartitions() > 4
    assert frame.where("crcOk").groupBy("topic").count().collect()
    # Up to what the snapshot proves, and only the wanted columns.
    narrow = (
        spark.read.format("commitlog").schema("index bigint, topic string").option("topic", "bills")
    )
    rows = narrow.load(str(tmp_path)).collect()
    assert {row["topic"] for row in rows} == {"bills"}
    assert max(row["index"] for row in rows) == 10


def test_what_cannot_be_read_says_where(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is no store") as caught:
        reader(spark, tmp_path / "nowhere").count()
    assert reason_of(caught.value).endswith("it has no folder data/ with segments in it")
    write_store(tmp_path, orders(9).log.entries)
    (segment,) = (tmp_path / "data").iterdir()
    octets = bytearray(segment.read_bytes())
    octets[300] ^= 8
    segment.write_bytes(octets)
    with pytest.raises(Exception, match="byte ") as caught:
        reader(spark, tmp_path).count()
    assert reason_of(caught.value).startswith(f"{segment}, byte ")
    marked = reader(spark, tmp_path, onCorrupt="mark").where("not crcOk").collect()
    assert {row["segment"] for row in marked} == {segment.name}
    with pytest.raises(Exception, match="did you mean upTo"):
        reader(spark, tmp_path, upToo="3").count()
    with pytest.raises(Exception, match="there is no column nonsense"):
        spark.read.format("commitlog").schema("nonsense int").option("upTo", "end").load(
            str(tmp_path)
        ).count()
