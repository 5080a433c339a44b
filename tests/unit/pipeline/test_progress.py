"""The lag of a query, from Spark's reports."""

from __future__ import annotations

import json

from dledger_mq.client.queues import MessageQueue
from pipeline.spark.progress import lag_of


def test_the_lag_is_what_lies_beyond_each_queues_end() -> None:
    ours = {
        "endOffset": json.dumps({"T": {"b": {"0": 7, "1": 5}}}),
        "latestOffset": json.dumps({"T": {"b": {"0": 10, "1": 5, "2": 9}}}),
    }
    others = [
        {"endOffset": "17", "latestOffset": "18"},
        {"endOffset": '{"t":{"0":5}}', "latestOffset": '{"t":{"0":9}}'},
        {"endOffset": None, "latestOffset": None},
    ]
    found = lag_of({"sources": [ours, *others]})
    assert found == {
        MessageQueue("T", "b", 0): 3,
        MessageQueue("T", "b", 1): 0,
        MessageQueue("T", "b", 2): 0,
    }, "a queue that is new is noted first, and read from its next batch on"
