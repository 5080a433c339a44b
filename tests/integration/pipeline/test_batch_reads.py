"""Topics as tables: what comes back is what was sent, within the offsets that were asked for."""

from __future__ import annotations

import json
from typing import Any

from broker.client import Message
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
    assert row.storeTimestamp >= row.bornTimestamp
    assert (row.tags, row.keys, row.msgId) == ("A", "k1 k2", sent.message_id)
    assert row.reconsumeTimes == 0


def test_a_thousand(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 1000)
    frame = load(spark, topics, topic, numPartitions=2)
    assert frame.rdd.getNumPartitions() == 2
    assert numbers(frame) == list(range(1000))
