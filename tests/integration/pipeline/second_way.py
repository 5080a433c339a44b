"""What a topic and a query's output hold, without Spark: by a consumer, and by pyarrow alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from dledger_mq import ReceivedMessage
from dledger_mq.blocking import PullConsumer
from tests.integration.pipeline.topics import PATIENCE_S, Topics


def by_queue(topics: Topics, topic: str) -> dict[int, list[ReceivedMessage]]:
    """What a consumer reads of a topic, by queue in order."""
    found: dict[int, list[ReceivedMessage]] = {}
    with PullConsumer(topics.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
        for queue in reader.queues(topic):
            some = found[queue.queue_id] = []
            end = reader.max_offset(queue)
            while len(some) < end:
                some.extend(reader.pull(queue, len(some), max_messages=256).messages)
    return found


def pulled(topics: Topics, topic: str) -> list[ReceivedMessage]:
    """The same, all together."""
    return [message for some in by_queue(topics, topic).values() for message in some]


def committed_rows(output: Path) -> list[dict[str, Any]]:
    """The rows that a query has committed to Parquet: of the files that Spark's log of the output lists."""
    listed = {
        unquote(urlparse(json.loads(line)["path"]).path)
        for batch in (output / "_spark_metadata").glob("[0-9]*")
        for line in batch.read_text().splitlines()[1:]
    }
    return rows_of(sorted(listed))


def rows_of(paths: list[str]) -> list[dict[str, Any]]:
    """The rows of Parquet files."""
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
