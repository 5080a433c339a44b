"""Topics as streams: every message once, over restarts, limits and triggers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dledger_mq import MessageQueue
from dledger_mq.blocking import PullConsumer
from pipeline.errors import PipelineUsageError
from pipeline.spark.checkpoints import qualified
from pipeline.spark.failures import reason_of
from pipeline.spark.progress import lag_of, metrics_of
from pipeline.spark.streams import start_stream
from tests.integration.pipeline.topics import PATIENCE_S, Topics, load, numbers


def stream(spark: Any, topics: Topics, topic: str, folder: Path, **options: object) -> Any:
    """Run an AvailableNow query into Parquet to its end; returns it."""
    query = start_stream(
        spark,
        {"nameServer": topics.namesrv, "topic": topic}
        | {name: str(value) for name, value in options.items()},
        lambda frame: (
            frame.writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .trigger(availableNow=True)
        ),
        checkpoint=str(folder / "checkpoint"),
    )
    assert query.awaitTermination(PATIENCE_S)
    return query


def test_available_now_goes_on_from_its_checkpoint_within_limits(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 100)
    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 40,
        "commitGroup": "spark-lag",
    }
    query = stream(spark, topics, topic, tmp_path, **options)
    assert [progress["numInputRows"] for progress in query.recentProgress][:3] == [40, 40, 20]
    topics.fill(topic, 30, first=100)
    stream(spark, topics, topic, tmp_path, **options)
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(130))
    # What is done is visible under the group, though nothing is read from there.
    with PullConsumer(topics.namesrv, "spark-lag", timeout_s=PATIENCE_S) as consumer:
        ends = consumer.bounds(consumer.queues(topic))
        stored = {queue: consumer.committed(queue) for queue in ends}
    assert stored == {queue: end for queue, (_, end) in ends.items()}


def test_files_deleted_from_a_checkpoint_lose_and_repeat_nothing_in_an_exactly_once_sink(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """A batch whose commit is gone is repeated. Where offsets are gone Spark begins with the batch before, which is
    over; then the batch itself is planned anew, with newer rows in it."""
    topic, copy = topics.fresh(), topics.fresh()
    topics.fill(topic, 90)
    topics.fill(copy, 1, first=-1)
    checkpoint = tmp_path / "checkpoint"
    sink = {"nameServer": topics.namesrv, "topic": copy, "delivery": "exactly-once"}

    def run(**more: str) -> int:
        query = start_stream(
            spark,
            {
                "nameServer": topics.namesrv,
                "topic": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "40",
            },
            lambda frame: (
                frame.drop("bornTimestamp", "storeTimestamp")
                .writeStream.format("rocketmq")
                .options(**sink, **more, sinkId=f"sink-{copy}")
                .trigger(availableNow=True)
            ),
            checkpoint=str(checkpoint),
        )
        assert query.awaitTermination(PATIENCE_S)
        assert numbers(load(spark, topics, copy)) == list(range(-1, count))
        return max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))

    def delete(folder: str, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (checkpoint / folder / name).unlink(missing_ok=True)

    count = 90
    last = run()
    delete("commits", last)
    assert run() == last
    count += 10
    topics.fill(topic, 10, first=90)
    delete("offsets", last)
    with pytest.raises(Exception, match=f"batch {last - 1} of sink sink-{copy} is over"):
        run()
    for batch in (last - 1, last):  # else Spark believes that another query runs
        delete("commits", batch)
    assert run(olderBatch="skip") >= last


def test_a_running_query_reads_what_comes_and_reports_its_lag(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 8)
    query = start_stream(
        spark,
        {"nameServer": topics.namesrv, "topic": topic},
        lambda frame: frame.writeStream.format("memory").queryName("seen"),
        checkpoint=str(tmp_path / "checkpoint"),
        schema="body binary",
    )
    query.processAllAvailable()
    queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    assert metrics_of(query).pulls is None, "no task had anything to pull"
    assert spark.table("seen").count() == 0  # latest: what was there before is not wanted
    topics.fill(topic, 20, first=8)
    query.processAllAvailable()
    assert numbers(spark.table("seen")) == list(range(8, 28))
    source = query.lastProgress["sources"][0]
    assert source["endOffset"] == source["latestOffset"]
    assert lag_of(query.lastProgress) == dict.fromkeys(queues, 0)
    caught_up = metrics_of(query)
    assert (caught_up.messages, caught_up.seconds) == (0, 0)
    assert caught_up.pulls == 4, "one of each queue"
    assert caught_up.size is not None
    with PullConsumer(topics.namesrv, "TOOLS_CONSUMER", timeout_s=PATIENCE_S) as consumer:
        pulled = [consumer.pull_records(queue, 2) for queue in queues]
    assert caught_up.size == sum(len(each.records) for each in pulled)
    query.stop()
    began = time.time()
    topics.fill(topic, 6, first=28)
    behind = metrics_of(query)
    assert [behind.queues[queue].messages for queue in queues] == [2, 2, 1, 1]
    assert all(0 < each.seconds < time.time() - began for each in behind.queues.values())
    assert (behind.pulls, behind.size) == (caught_up.pulls, caught_up.size)


def test_a_checkpoint_lies_where_hadoop_says_it_does(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """Hadoop's default file system is another one here: its views of others, with one link."""
    topic = topics.fresh()
    topics.fill(topic, 8)
    changed = {
        "fs.defaultFS": "viewfs:///",
        "fs.viewfs.mounttable.default.link./kept": f"file:{tmp_path}",
    }
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        folder = "/kept/checkpoint"
        assert qualified(spark, folder) == f"viewfs:{folder}"
        with pytest.raises(PipelineUsageError, match=r"lies in viewfs:.*give option metadataPath"):
            start_stream(spark, {}, lambda _: pytest.fail("nothing is begun"), checkpoint=folder)
        query = start_stream(
            spark,
            {
                "nameServer": topics.namesrv,
                "topic": topic,
                "startingOffsets": "earliest",
                "metadataPath": str(tmp_path / "began"),
            },
            lambda frame: frame.writeStream.format("noop").trigger(availableNow=True),
            checkpoint=folder,
        )
        assert query.awaitTermination(PATIENCE_S)
    finally:
        for name in changed:
            spark.conf.unset(name)
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()
    assert [each.name for each in (tmp_path / "began").iterdir()] == ["initial-offsets.json"]
    assert qualified(spark, str(tmp_path)) == f"file:{tmp_path}"


def test_the_checkpoint_of_a_query_on_another_topic_is_refused(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, other = topics.fresh(), topics.fresh()
    topics.fill(topic, 8)
    topics.fill(other, 4)
    stream(spark, topics, topic, tmp_path, startingOffsets="earliest")
    with pytest.raises(Exception, match="gone") as caught:
        stream(spark, topics, other, tmp_path, startingOffsets="earliest")
    told = f"the checkpoint stands in topic {topic}, and the query reads topic {other}"
    assert told in reason_of(caught.value)
    # Asked to, the query goes on; the new topic's queues are read from their beginning.
    stream(spark, topics, other, tmp_path, startingOffsets="earliest", failOnDataLoss="false")
    rows = spark.read.parquet(str(tmp_path / "out")).groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in rows} == {topic: 8, other: 4}


def test_no_batch_goes_beyond_what_is_committed(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fresh()
    topics.fill(topic, 40)
    query = stream(spark, topics, topic, tmp_path, startingOffsets="earliest", readFrom="any")
    with PullConsumer(topics.namesrv, "TOOLS_CONSUMER", timeout_s=PATIENCE_S) as consumer:
        ends = consumer.bounds(consumer.queues(topic))
    offsets = {str(queue.queue_id): end for queue, (_, end) in ends.items()}
    import json

    assert json.loads(query.recentProgress[0]["sources"][0]["endOffset"]) == {
        topic: {"broker-a": offsets}
    }
    assert load(spark, topics, topic).count() == 40
