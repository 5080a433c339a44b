"""Topics as tables: what comes back is what was sent, within the offsets that were asked for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from dledger_mq import Message, MessageQueue
from pipeline.spark.failures import reason_of
from tests.integration.pipeline.topics import Topics, load, numbers


def test_every_column_is_what_was_sent(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    sent = topics.producer.send(
        Message(topic, b"x" * 5000, tags="A", keys=("k1", "k2"), properties={"a": 'q"'}, flag=7)
    )
    (row,) = load(spark, topics, topic, includeMetadata=True).collect()
    assert row.topic == topic
    assert row.flag == 7
    assert bytes(row.body) == b"x" * 5000
    properties = json.loads(row.properties)
    assert (properties["TAGS"], properties["KEYS"], properties["a"]) == ("A", "k1 k2", 'q"')
    assert (row.brokerName, row.queueId, row.queueOffset) == ("broker-a", sent.queue_id, 0)
    # The group's clock and this process's are read in whole milliseconds, each by itself.
    assert row.storeTimestamp >= row.bornTimestamp - timedelta(milliseconds=1)
    assert (row.tags, row.keys, row.msgId) == ("A", "k1 k2", sent.message_id)
    assert row.reconsumeTimes == 0


def test_a_table_is_what_its_first_action_saw_in_as_few_tasks_as_asked(
    spark: Any, topics: Topics
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 1000)
    frame = load(spark, topics, topic, numPartitions=2)
    assert frame.rdd.getNumPartitions() == 2
    assert numbers(frame) == list(range(1000))
    topics.fill(topic, 10, first=1000)
    assert frame.count() == 1000
    again = load(spark, topics, topic, minPartitions=6)
    assert again.rdd.getNumPartitions() >= 6
    assert numbers(again) == list(range(1010))


def test_several_topics_projected_and_under_the_other_name(spark: Any, topics: Topics) -> None:
    first, second = topics.fresh(), topics.fresh()
    topics.fill(first, 8)
    topics.fill(second, 8)
    reader = spark.read.format("dledger").schema("queueOffset bigint, topic string")
    options = {"nameServer": topics.namesrv, "topicPattern": f"{first}|{second}"}
    rows = reader.options(**options).load().groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in rows} == {first: 8, second: 8}


def test_offsets_times_and_tags_narrow_a_read(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    queue = MessageQueue(topic, "broker-a", 0)
    for n in range(6):
        tag = "even" if n % 2 == 0 else "odd"
        topics.producer.send(Message(topic, b"%d" % n, tags=tag), queue=queue)
    places = {str(number): -2 for number in range(4)}
    start = json.dumps({topic: {"broker-a": places | {"0": 1}}})
    end = json.dumps({topic: {"broker-a": dict.fromkeys(places, -1) | {"0": 5}}})
    frame = load(spark, topics, topic, startingOffsets=start, endingOffsets=end)
    assert numbers(frame) == [1, 2, 3, 4]
    assert numbers(load(spark, topics, topic, subExpression="odd")) == [1, 3, 5]
    times = load(spark, topics, topic).selectExpr("cast(storeTimestamp as double) t").collect()
    later = round(1000 * max(row.t for row in times)) + 1
    assert numbers(load(spark, topics, topic, endingTimestamp=later)) == list(range(6))
    late = load(spark, topics, topic, startingTimestamp=later)
    with pytest.raises(Exception, match="Topic") as caught:
        late.count()
    assert f"have no message stored at {later} ms or later" in reason_of(caught.value)


def test_what_is_chosen_is_what_a_filter_on_the_whole_would_leave(
    spark: Any, topics: Topics
) -> None:
    topic = topics.fresh()
    for n in range(90):
        properties = {"region": ("EU", "US", "it's")[n % 3], "amount": f"{n}", f"only{n}": "x"}
        keys = (f"order-{n}", f"day-{n % 7}")
        topics.producer.send(
            Message(topic, b"%d" % n, tags=f"t{n % 4}", keys=keys, properties=properties)
        )
    rows = load(spark, topics, topic).toArrow().to_pylist()
    assert len(rows) == 90
    every = [row | {"of": json.loads(row["properties"])} for row in rows]

    def bodies_with(options: dict[str, str]) -> list[int]:
        found = load(spark, topics, topic, **options).toArrow()["body"].to_pylist()
        return sorted(map(int, found))

    for options, is_wanted in (
        (
            {"sqlExpression": "region IN ('EU', 'it''s') AND amount BETWEEN 20 AND 70"},
            lambda r: r["of"]["region"] != "US" and 20 <= int(r["of"]["amount"]) <= 70,
        ),
        (
            {"sqlExpression": "only7 IS NOT NULL OR amount > 85"},
            lambda r: n_of(r) in (7, *range(86, 90)),
        ),
        ({"keys": "order-1 order-33 order-999"}, lambda r: n_of(r) in (1, 33)),
        (
            {"keys": "day-3 day-5", "subExpression": "t1 || t2", "readFrom": "any"},
            lambda r: {"day-3", "day-5"} & set(r["keys"].split()) and r["tags"] in ("t1", "t2"),
        ),
        (
            {"sqlExpression": "amount > 30 -- dear", "subExpression": "t0", "keys": "day-1"},
            lambda r: int(r["of"]["amount"]) > 30 and r["tags"] == "t0" and "day-1" in r["keys"],
        ),
    ):
        expected = sorted(n_of(row) for row in every if is_wanted(row))
        assert expected
        assert bodies_with(options) == expected, options


def n_of(row: dict[str, Any]) -> int:
    return int(row["body"])


def test_followers_serve_what_is_committed(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 200)
    frame = load(spark, topics, topic, readFrom="any", propertiesAs="map")
    assert numbers(frame) == list(range(200))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "NoSuchTopic"}, "topic NoSuchTopic does not exist (name server 127.0.0.1:"),
        ({"topicPattern": "None.*"}, "there is no queue: topics matching 'None.*' at name server"),
        ({"topic": "T", "nameServer": "127.0.0.1:1"}, "no name server answers: 127.0.0.1:1"),
        ({"topic": "T", "startingOffsets": "{"}, "option startingOffsets is no JSON"),
        ({"topic": "T", "topik": "x"}, "has no option topik; did you mean topic?"),
        ({"topic": "T", "sqlExpression": "a = 1 OR"}, "cannot be used: line 1, column 7"),
        ({"topic": "T", "group": "g"}, "option group is not taken"),
        ({"topic": "T", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(
    spark: Any, topics: Topics, options: dict[str, str], text: str
) -> None:
    given = {"nameServer": topics.namesrv, "fetchOffset.numRetries": "0"} | options

    with pytest.raises(Exception, match="Error") as caught:
        spark.read.format("rocketmq").options(**given).load().count()
    assert text in reason_of(caught.value)


def test_offsets_out_of_range_and_unknown_columns(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 4)
    places = {str(number): 0 for number in range(4)}
    late = json.dumps({topic: {"broker-a": places | {"2": 7}}})
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, startingOffsets=late).count()
    assert f"{topic}@broker-a/2 ends at 1, 7 was next" in reason_of(caught.value)
    lenient = load(spark, topics, topic, startingOffsets=late, failOnDataLoss=False)
    assert lenient.count() == 3
    some = json.dumps({topic: {"broker-a": {"0": 0}}})
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, startingOffsets=some).count()
    assert f"leaves out {topic}@broker-a/1" in reason_of(caught.value)
    for column, said in (
        ("key string", "no column key"),
        ("queueId bigint", "is int32, not int64"),
    ):
        reader = spark.read.format("rocketmq").schema(column).option("nameServer", topics.namesrv)
        with pytest.raises(Exception, match="Error") as caught:
            reader.option("topic", topic).load().count()
        assert said in reason_of(caught.value)


def test_an_empty_topic_is_an_empty_table(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 4)
    places = dict.fromkeys("0123", 1)
    start = json.dumps({topic: {"broker-a": places}})
    assert load(spark, topics, topic, startingOffsets=start).count() == 0
