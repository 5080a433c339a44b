"""The lag of a query, from Spark's reports."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from dledger_mq.client.queues import MessageQueue
from dledger_mq.testing import FakeGroup, open_fake_group
from pipeline.errors import PipelineUsageError
from pipeline.pulling import PullTotals
from pipeline.source_options import read_source_options
from pipeline.spark.progress import QueueBehind, lag_of, metrics_of


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


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


def started(group: FakeGroup, end: dict[str, int] | None, pulled: PullTotals | None = None) -> Any:
    """A query that has come so far in the queues of T."""
    given = {"nameServer": group.namesrv, "topic": "T"}
    source = SimpleNamespace(options=read_source_options(given, "stream"), pulled=lambda: pulled)
    report = {"endOffset": json.dumps({"T": {"broker-a": end}}), "latestOffset": None}
    progress = None if end is None else {"sources": [report]}
    return cast("Any", SimpleNamespace(source=source, lastProgress=progress))


async def asked(query: Any) -> Any:
    return await trio.to_thread.run_sync(metrics_of, query)


async def test_metrics_have_the_lag_in_messages_and_seconds_now(group: FakeGroup) -> None:
    for number in range(3):
        group.put("T", 0, b"%d" % number)
    stored_s = group.messages("T", 0)[2].store_timestamp_ms / 1000
    group.drop_before("T", 0, 2)
    behind = await asked(started(group, {"0": 1, "1": 0, "7": 4}, PullTotals(5, 600)))
    first, second = (MessageQueue("T", "broker-a", number) for number in (0, 1))
    assert behind.queues.keys() == {first, second}, "one that is gone is not behind"
    assert behind.queues[second] == QueueBehind(0, 0.0)
    assert behind.messages == behind.queues[first].messages == 1, "retention has taken the other"
    assert 0 <= behind.seconds <= time.time() - stored_s
    assert behind.seconds == behind.queues[first].seconds
    assert (behind.pulls, behind.size) == (5, 600)


async def test_of_a_query_that_has_done_nothing_nothing_is_told(group: FakeGroup) -> None:
    behind = await asked(started(group, None))
    assert (behind.queues, behind.messages, behind.seconds) == ({}, 0, 0.0)
    assert (behind.pulls, behind.size) == (None, None)
    with pytest.raises(PipelineUsageError, match="start_stream"):
        await asked(SimpleNamespace(source=None, lastProgress=None))
