"""Frames and streams are written to topics of a real group; every row arrives, and exactly-once means once."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dledger_mq import MessageQueue, ReceivedMessage
from dledger_mq.blocking import PullConsumer
from jepsen.processes import poll
from pipeline.spark.failures import reason_of
from tests.integration.pipeline.topics import PATIENCE_S, Topics

pytestmark = pytest.mark.slow


def write(frame: Any, topics: Topics, **options: object) -> None:
    writer = frame.write.format("rocketmq").option("nameServer", topics.namesrv)
    writer.options(**options).mode("append").save()


def refusal(frame: Any, topics: Topics, **options: object) -> str:
    with pytest.raises(Exception, match="Error") as caught:
        write(frame, topics, **options)
    return reason_of(caught.value)


def stored(topics: Topics, topic: str) -> dict[MessageQueue, list[ReceivedMessage]]:
    """Every message of a topic, by queue in order."""
    found: dict[MessageQueue, list[ReceivedMessage]] = {}
    with PullConsumer(topics.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
        for queue in reader.queues(topic):
            messages = found[queue] = []
            end = reader.max_offset(queue)
            while len(messages) < end:
                messages.extend(reader.pull(queue, len(messages), max_messages=256).messages)
    return found


def bodies(topics: Topics, topic: str) -> list[bytes]:
    return sorted(message.body for some in stored(topics, topic).values() for message in some)


def numbered(spark: Any, count: int) -> Any:
    return spark.range(count).selectExpr("id", "format_string('%04d', id) body")


def expected(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def test_a_frame_arrives_with_everything_that_its_columns_say(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    frame = numbered(spark, 300).selectExpr(
        "body",
        "concat('T', id % 2) tags",
        "concat('key', id % 7) keys",
        "map('n', cast(id as string)) properties",
        "cast(id as int) flag",
    )
    write(frame, topics, topic=topic, sendBatchBytes=5000)
    found = stored(topics, topic)
    assert bodies(topics, topic) == expected(300)
    for messages in found.values():
        by_key: dict[str, list[int]] = {}
        for message in messages:
            number = int(message.body)
            assert (message.tags, message.keys) == (f"T{number % 2}", (f"key{number % 7}",))
            assert (message.properties["n"], message.flag) == (str(number), number)
            by_key.setdefault(message.keys[0], []).append(number)
        assert all(  # two tasks wrote, each in order
            sum(one > two for one, two in pairwise(some)) <= 1 for some in by_key.values()
        )
    queues = [{m.keys for m in messages} for messages in found.values()]
    assert sum(map(len, queues)) == 7, "each key has one queue"


def test_rows_may_name_their_topics_and_queues(spark: Any, topics: Topics) -> None:
    one, two = topics.fresh(), topics.fresh()
    for topic in (one, two):
        topics.fill(topic, 1)
    group = topics.group.group
    frame = numbered(spark, 40).selectExpr(
        "body",
        f"if(id < 10, '{one}', '{two}') topic",
        f"'{group}' brokerName",
        "cast(id % 4 as int) queueId",
    )
    write(frame, topics, queueSelector="column")
    found = stored(topics, two)
    third = sorted(int(m.body) for m in found[MessageQueue(two, group, 3)])
    assert third == list(range(11, 40, 4)), "two tasks wrote there"
    wrong = frame.selectExpr("body", "topic", "brokerName", "queueId + 100 queueId")
    assert f"@{group}/100, which does not exist" in refusal(wrong, topics, queueSelector="column")


def test_delayed_rows_go_to_the_broker_at_once_and_to_consumers_later(
    spark: Any, topics: Topics
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 1)
    frame = spark.sql(
        "select '0001' body, current_timestamp() + interval 700 milliseconds deliverAt "
        "union all select '0002', null"
    )
    write(frame.coalesce(1), topics, topic=topic)
    assert poll(lambda: len(bodies(topics, topic)) == 3, PATIENCE_S)
    found = {m.body: m for some in stored(topics, topic).values() for m in some}
    assert "TIMER_DELIVER_MS" in found[b"0001"].properties
    assert "TIMER_DELIVER_MS" not in found[b"0002"].properties


def test_an_exactly_once_frame_can_be_written_again(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    frame = numbered(spark, 500).selectExpr("body", "id idempotencyKey")
    once = {"topic": topic, "delivery": "exactly-once", "sinkId": f"frame-{topic}"}
    write(frame.where("id < 200"), topics, **once)
    write(frame, topics, **once)
    write(frame.repartition(3), topics, **once)
    assert bodies(topics, topic) == expected(500)
    write(frame.where("id < 10"), topics, batchId=1, **once)
    assert len(bodies(topics, topic)) == 510, "another batch of the same sink"


def test_a_lower_batch_is_an_error_or_a_count(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic, counts = topics.fresh(), tmp_path / "counts"
    frame = numbered(spark, 20).selectExpr("body", "id idempotencyKey")
    sink = f"lower-{topic}"
    once = {"topic": topic, "delivery": "exactly-once", "sinkId": sink, "countsPath": str(counts)}
    write(frame.where("id < 10"), topics, batchId=7, **once)
    write(frame.where("id < 15"), topics, batchId=7, **once)
    told = refusal(frame.where("id >= 15"), topics, batchId=3, **once)
    assert f"are not stored: batch 3 of sink {sink} is over, for it has begun batch 7" in told
    write(frame.where("id >= 15"), topics, batchId=3, olderBatch="skip", **once)
    assert bodies(topics, topic) == expected(15)
    found = [json.loads(line) for line in counts.read_text().splitlines()]
    assert found == [
        {"sinkId": sink, "batchId": batch, "rows": rows}
        | {"stored": stored, "already": already, "older": older}
        for batch, rows, stored, already, older in (
            (7, 10, 10, 0, 0),
            (7, 15, 5, 10, 0),
            (3, 5, 0, 0, 5),
        )
    ]


def test_bad_rows_and_options_are_told_in_one_sentence(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    frame = numbered(spark, 50).coalesce(1)
    null = frame.selectExpr("if(id = 17, null, body) body", "concat('key', id) keys")
    assert "row 17 of partition 0 (keys 'key17') cannot be sent: body is null" in refusal(
        null, topics, topic=topic
    )
    large = frame.where("id < 2").selectExpr("repeat('x', 5000000 * int(id) + 1) body")
    assert "row 1 of partition 0 cannot be sent: the body has 5000001 bytes" in refusal(
        large, topics, topic=topic
    )
    assert "no column id" in refusal(frame, topics, topic=topic)
    assert "needs option topic" in refusal(frame.select("body"), topics)
    nobody = refusal(
        frame.select("body"), topics, topic=topic, nameServer="127.0.0.1:1", sendTimeoutMs=1000
    )
    assert topic in nobody
    assert "127.0.0.1:1" in nobody
    overwrite = frame.select("body").write.format("rocketmq").option("nameServer", topics.namesrv)
    with pytest.raises(Exception, match="only appends"):
        overwrite.option("topic", topic).mode("overwrite").save()


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Any:
    """A stream of 200 numbered rows, 100 in a batch."""
    folder = str(tmp_path / "in")
    numbered(spark, 200).repartition(2, "id").write.parquet(folder)
    assert len(list(Path(folder).glob("*.parquet"))) == 2
    reader = spark.readStream.schema("id bigint, body string").option("maxFilesPerTrigger", 1)
    return reader.parquet(folder)


def start(frame: Any, topics: Topics, checkpoint: Path, **options: object) -> Any:
    writer = frame.writeStream.format("rocketmq").option("nameServer", topics.namesrv)
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_a_batch_of_a_stream_that_is_repeated_stores_nothing_twice(
    files: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, checkpoint = topics.fresh(), tmp_path / "checkpoint"
    frame = files.selectExpr("body", "id idempotencyKey")
    query = start(frame, topics, checkpoint, topic=topic, delivery="exactly-once")
    assert query.awaitTermination(PATIENCE_S)
    assert bodies(topics, topic) == expected(200)
    # As after a crash between the sink's last acknowledgement and Spark's commit log.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    again = start(frame, topics, checkpoint, topic=topic, delivery="exactly-once")
    assert again.awaitTermination(PATIENCE_S)
    assert [progress["numInputRows"] for progress in again.recentProgress if progress["sink"]]
    assert bodies(topics, topic) == expected(200)
    assert (checkpoint / "rocketmq-sink" / f"queues-{topic}.json").exists()


def test_a_stream_that_cannot_send_says_why(files: Any, topics: Topics, tmp_path: Path) -> None:
    query = start(
        files.selectExpr("if(id = 133, '', body) body"),
        topics,
        tmp_path / "checkpoint",
        topic=topics.fresh(),
    )
    with pytest.raises(Exception, match="empty body") as caught:
        query.awaitTermination(PATIENCE_S)
    assert "cannot be sent" in reason_of(caught.value)
