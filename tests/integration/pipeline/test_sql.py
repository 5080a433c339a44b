"""Topics as tables of a catalog, and writers in threads of a pool."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.planning import INITIAL_FILE
from pipeline.spark.failures import reason_of
from tests.integration.pipeline.sessions import SENT, Sessions
from tests.integration.pipeline.topics import Topics, load, numbers

pytestmark = pytest.mark.slow

PATIENCE_S = 600


def create(spark: Any, topics: Topics, topic: str, **more: str) -> str:
    """Make a table of a topic; returns its name."""
    given = {"nameServer": topics.namesrv, "topic": topic, "maxOffsetsPerTrigger": "100"} | more
    texts = ", ".join(f"{name} '{text}'" for name, text in given.items())
    spark.sql(f"CREATE TABLE t_{topic} USING rocketmq OPTIONS ({texts})")
    return f"t_{topic}"


def bodies(frame: Any) -> list[str]:
    return sorted(row.b for row in frame.selectExpr("cast(body as string) b").collect())


def test_a_topic_is_a_table_with_views_inserts_and_filters(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, other = topics.fresh(), topics.fresh()
    topics.fill(topic, 40)
    topics.fill(other, 1)
    table, copy = create(spark, topics, topic), create(spark, topics, other, sendTimeoutMs="120000")
    try:
        assert spark.sql(f"SELECT count(*) n FROM {table}").first().n == 40
        third = spark.sql(f"SELECT * FROM {table} WHERE queueId = 3 AND queueOffset < 5")
        assert numbers(third) == [3, 7, 11, 15, 19]
        both = spark.sql(
            f"SELECT body FROM {table} WHERE queueId = 1 UNION ALL SELECT body FROM {table}"
        )
        assert both.count() == 50
        spark.sql(f"CREATE VIEW v_{topic} AS SELECT queueId, body FROM {table} WHERE queueId = 2")
        assert numbers(spark.table(f"v_{topic}")) == list(range(2, 40, 4))
        later = spark.sql(
            f"SELECT * FROM {table} WITH (startingTimestamp '99999999999999', "
            "startingOffsetsByTimestampStrategy 'latest')"
        )
        assert later.count() == 0, "options of one query come before the table's"

        spark.sql(f"INSERT INTO {table} (body, keys, tags) VALUES (cast('40' as binary), 'k', 'T')")
        assert spark.sql(f"SELECT count(*) n FROM {table}").first().n == 41
        (row,) = spark.sql(f"SELECT * FROM {table} WHERE keys = 'k'").collect()
        assert (bytes(row.body), row.tags, row.topic) == (b"40", "T", topic)
        spark.sql(f"INSERT INTO {copy} SELECT * FROM {table}")
        assert numbers(spark.table(copy)) == sorted([0, *range(41)])
        with pytest.raises(Exception, match="only appends"):
            spark.sql(f"INSERT OVERWRITE {copy} SELECT * FROM {table}")

        query = (
            spark.readStream.option("startingOffsets", "earliest")
            .option("metadataPath", str(tmp_path / "began"))
            .table(table)
            .writeStream.format("memory")
            .queryName(f"seen_{topic}")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        assert numbers(spark.table(f"seen_{topic}")) == list(range(41))
        assert (tmp_path / "began" / INITIAL_FILE).exists()
        with pytest.raises(Exception, match="Error") as caught:
            create(spark, topics, other + "x", topik="y")
        assert "has no option topik; did you mean topic?" in reason_of(caught.value)
    finally:
        spark.sql(f"DROP VIEW IF EXISTS v_{topic}")
        for name in (table, copy):
            spark.sql(f"DROP TABLE {name}")


def test_a_table_with_a_list_of_columns_says_why_it_has_no_options(
    spark: Any, topics: Topics
) -> None:
    spark.sql(
        f"CREATE TABLE bare (body binary) USING rocketmq OPTIONS (nameServer '{topics.namesrv}', topic 'T')"
    )
    try:
        with pytest.raises(Exception, match="Error") as caught:
            spark.table("bare").count()
        assert "created without a list of columns" in reason_of(caught.value)
    finally:
        spark.sql("DROP TABLE bare")


def test_every_thread_writes_frames_streams_and_tables(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 1)
    table = create(spark, topics, topic)
    sink = {"nameServer": topics.namesrv, "topic": topic}
    spark.range(100, 103).selectExpr("cast(id as string) body").write.parquet(str(tmp_path / "in"))

    def write(number: int) -> None:
        frame = spark.range(number, number + 1).selectExpr("cast(id as string) body")
        frame.write.format("rocketmq").options(**sink).mode("append").save()

    def stream() -> None:
        frame = spark.readStream.schema("body string").parquet(str(tmp_path / "in"))
        writer = frame.writeStream.format("rocketmq").options(**sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)

    def insert() -> None:
        columns = ", ".join(
            "cast('50' as binary) body" if name == "body" else f"cast(null as {kind}) {name}"
            for name, kind in spark.table(table).dtypes
        )
        spark.sql(f"SELECT {columns}").write.insertInto(table)

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(write, 1), pool.submit(stream), pool.submit(insert)]
        for each in done:
            each.result(PATIENCE_S)
    assert numbers(load(spark, topics, topic)) == [0, 1, 50, 100, 101, 102]
    spark.sql(f"DROP TABLE {table}")


def test_tables_and_views_are_there_in_the_next_session(sessions: Sessions) -> None:
    assert f"tables {SENT + 1} 4\n" in sessions.first.stdout, sessions.first.stderr[-3000:]
    assert sessions.first.returncode == 0
    assert f"tables {SENT + 2} 4\n" in sessions.second.stdout, sessions.second.stderr[-3000:]
    assert not list(sessions.folder.glob("derby.log"))


def test_a_stream_without_its_topic_says_so_in_plain_text_before_sparks_pages_about_it(
    sessions: Sessions, topics: Topics
) -> None:
    said = sessions.second.stderr
    told = f"rocketmq: topic Missing does not exist (name server {topics.namesrv} knows no route)\n"
    before, _, after = said.partition(told)
    assert after, said[-3000:]
    for theirs in ("Traceback", "StreamingQueryException"):
        assert theirs not in before
        assert theirs in after
    assert sessions.second.returncode == 1
