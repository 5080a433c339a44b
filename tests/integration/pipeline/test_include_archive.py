"""`includeArchive`: history from Parquet and the rest from brokers, as one table without a seam."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from dledger_mq import Message
from pipeline.archive.manifests import listed_files
from pipeline.locations import ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.spark.failures import reason_of
from pipeline.spark.streams import start_stream
from tests.integration.pipeline.archiving import archive_all
from tests.integration.pipeline.topics import Topics, load, numbers

ENDS_WITHIN_S = 300
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline-table.md").read_text()


def test_history_and_live_data_are_one_table(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fresh()
    topics.fill(topic, 80)
    topics.producer.send(Message(topic, b"80", tags="A", keys=("k",), properties={"c": "d"}))
    archive_all(spark, topics, tmp_path / "archive")
    topics.fill(topic, 39, first=81)
    topics.producer.send(Message(topic, b"120", keys=("j", "kk"), properties={"c": "e"}))
    both = {"includeArchive": tmp_path / "archive", "includeMetadata": True}
    whole = load(spark, topics, topic, **both)
    assert numbers(whole) == list(range(121))

    # Row for row what the brokers alone say, who still have everything here; only they know no terms.
    live = load(spark, topics, topic, includeMetadata=True)
    assert whole.drop("term").exceptAll(live.drop("term")).isEmpty()
    assert live.drop("term").exceptAll(whole.drop("term")).isEmpty()
    assert whole.where("term is not null").count() == 81

    assert numbers(load(spark, topics, topic, subExpression="A", **both)) == [80]
    condition = "c IN ('d', 'e') AND KEYS IS NOT NULL"
    assert numbers(load(spark, topics, topic, sqlExpression=condition, **both)) == [80, 120]
    assert numbers(load(spark, topics, topic, keys="k j", **both)) == [80, 120]
    as_map = load(spark, topics, topic, propertiesAs="map", subExpression="A", **both)
    assert [row.c for row in as_map.selectExpr("properties['c'] c").collect()] == ["d"]
    places = dict.fromkeys("0123", 10)
    middle = json.dumps({topic: {"broker-a": places}})
    assert load(spark, topics, topic, startingOffsets=middle, **both).count() == 121 - 40
    assert load(spark, topics, topic, endingOffsets=middle, **both).count() == 40

    # An archive that does not hold what it lists is an error, not fewer rows.
    Path(listed_files(tmp_path / "archive", frozenset({topic}))[0]).unlink()
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, **both).count()
    assert "is missing, and a manifest lists it" in reason_of(caught.value)


def test_a_table_and_live_data_are_one_table(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """The example of docs/pipeline-table.md."""
    pytest.importorskip("deltalake", reason="deltalake is not installed (extra `delta`)")
    from pipeline.table.compacting import compact
    from pipeline.table.following import follow

    topic, archive = topics.fresh(), tmp_path / "archive"
    for first in (0, 40):
        topics.fill(topic, 40, first=first)
        archive_all(spark, topics, archive)
        follow(archive)
    compact(archive)
    topics.fill(topic, 10, first=80)
    archive_all(spark, topics, archive)
    follow(archive)
    topics.fill(topic, 10, first=90)
    archive_all(spark, topics, archive)  # which the table does not follow
    topics.fill(topic, 10, first=100)
    text = PAGE.split("```python\n")[-1].split("```")[0]
    for shown, meant in (
        ("/data/archive", str(archive)),
        ("Orders", topic),
        ("127.0.0.1:9876", topics.namesrv),
    ):
        text = text.replace(shown, meant)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(text, "the example", "exec"), names)
    assert len({"/_table/" in path for path in names["table"].files}) == 2
    assert numbers(names["table_rows"](spark, names["table"])) == list(range(90))
    assert numbers(names["live"]) == list(range(90, 110))
    whole, plainly = names["whole"], load(spark, topics, topic)
    assert numbers(whole) == list(range(110))
    assert whole.exceptAll(plainly).isEmpty()
    assert plainly.exceptAll(whole).isEmpty()


def test_an_archive_that_is_not_there_is_an_error(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 4)
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, includeArchive="/no/such/folder").count()
    assert "there is no folder /no/such/folder" in reason_of(caught.value)


def test_history_may_lie_in_googles_store(spark: Any, topics: Topics, google: ObjectPath) -> None:
    topic = topics.fresh()
    topics.fill(topic, 40)
    archive_all(spark, topics, google / "archive")
    topics.fill(topic, 20, first=40)
    whole = load(spark, topics, topic, includeArchive=str(google / "archive"), includeMetadata=True)
    read = whole.selectExpr("cast(cast(body as string) as int) n", "term is not null").collect()
    assert sorted(map(tuple, read)) == [(n, n < 40) for n in range(60)], "40 from the archive"


def test_history_and_where_a_stream_began_may_lie_in_an_object_store(
    spark: Any, topics: Topics, store: ObjectPath, tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 40)
    archive_all(spark, topics, store / "archive")
    topics.fill(topic, 20, first=40)
    both = {"includeArchive": f"s3a://{(store / 'archive').path}", "includeMetadata": True}
    whole = load(spark, topics, topic, **both)
    assert numbers(whole) == list(range(60))
    live = load(spark, topics, topic, includeMetadata=True)
    assert whole.drop("term").exceptAll(live.drop("term")).isEmpty()
    assert whole.where("term is not null").count() == 40

    def run() -> None:
        query = start_stream(
            spark,
            {
                "nameServer": topics.namesrv,
                "topic": topic,
                "startingOffsets": "earliest",
                "metadataPath": str(store / "began"),
            },
            lambda frame: (
                frame.writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .trigger(availableNow=True)
            ),
            checkpoint=str(tmp_path / "checkpoint"),
        )
        assert query.awaitTermination(ENDS_WITHIN_S)

    run()
    topics.fill(topic, 10, first=60)
    run()
    assert ObjectFolder(store / "began").names("") == ["initial-offsets.json"]
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(70))
