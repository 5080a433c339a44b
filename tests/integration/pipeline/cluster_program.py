"""A job for a cluster, started by `spark-submit`: it reads, writes, is slow and dies, and writes down what it saw.

    spark-submit ... job.py NAMESRV GROUP STORE HIDDEN

It lies beside nothing of the tests: what it uses is what was packed (test_cluster.py). The result is `result.json`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from dledger_mq.blocking import PullConsumer
from dledger_mq.client.credentials import read_credentials
from dledger_mq.client.tls import make_tls_context
from pipeline.spark.failures import reason_of
from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream

NAMESRV, GROUP, STORE, HIDDEN = sys.argv[1:]
ACCESS = {
    "nameServer": NAMESRV,
    "credentialsPath": "keys.yml",
    "tlsTrustPath": "ca.pem",
}
"""Bare names: the files came with the job."""

TASKS = 4
ROWS = 1200
PATIENCE_TENTHS = 6000
BODY_BYTES = 8192
"""Spark hands rows on in blocks of 64 KiB."""

Rows = Iterator[tuple[str, int]]


def surroundings(_: object) -> Iterator[dict[str, Any]]:
    """What a task runs in."""
    import pipeline

    hidden = [Path(HIDDEN), Path.cwd().parents[3] / "driver"]

    yield {
        "python": sys.executable,
        "package": str(pipeline.__file__),
        "folder": str(Path.cwd()),
        "networks": sorted(name for _, name in socket.if_nameindex()),
        "sees": [str(each) for folder in hidden if folder.exists() for each in folder.iterdir()],
    }


def wait_for_rows(topic: str) -> None:
    """Wait in an executor until a topic has a message."""
    tls, account = make_tls_context(trust="ca.pem"), read_credentials("keys.yml")
    with PullConsumer(NAMESRV, "TOOLS_CONSUMER", tls=tls, credentials=account) as consumer:
        queues = consumer.queues(topic)
        for _ in range(PATIENCE_TENTHS):
            if any(map(consumer.max_offset, queues)):
                return
            time.sleep(0.1)
    raise TimeoutError(f"no message in {topic}")


def rows_of(topic: str, partition: int, numbers: Iterator[int], odd: Callable[[int], None]) -> Rows:
    """Numbered rows; the first rows of a topic are those of the odd attempt, the first one of partition 0.

    Args:
        topic: where they go.
        partition: of the task.
        numbers: of its rows.
        odd: called by the odd attempt with the place of each row before it is handed on.
    """
    is_odd = partition == 0 and TaskContext.get().attemptNumber() == 0
    if not is_odd:
        wait_for_rows(topic)
    for place, number in enumerate(numbers):
        if is_odd:
            odd(place)
        yield f"{number:0{BODY_BYTES}}", number


def be_slow(place: int) -> None:
    """Take a minute for the last rows."""
    if place > 100:
        time.sleep(0.3)


def die(place: int) -> None:
    """Kill the executor once some of the rows before are stored."""
    if place == 200:
        wait_for_rows("Deaths")
        os.kill(parent_of(os.getppid()), signal.SIGKILL)


def parent_of(pid: int) -> int:
    """The executor is the parent of the daemon that makes Python workers."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def sink(topic: str, **more: str) -> dict[str, str]:
    """Options of a sink, exactly-once unless they say otherwise."""
    return {
        **ACCESS,
        "topic": topic,
        "delivery": "exactly-once",
        "sinkId": topic,
        "countsPath": str(Path(f"{topic}.counts").absolute()),
        "sendTimeoutMs": "30000",
        **more,
    }


def write(spark: Any, topic: str, odd: Callable[[int], None]) -> None:
    """Write numbered rows."""
    numbers = spark.sparkContext.parallelize(range(ROWS), TASKS)
    rows = numbers.mapPartitionsWithIndex(
        lambda partition, some: rows_of(topic, partition, some, odd)
    )
    frame = spark.createDataFrame(rows, "body string, idempotencyKey bigint")
    options = sink(topic, sendBatchBytes="1")
    frame.write.format("rocketmq").options(**options).mode("append").save()


def refusal(spark: Any) -> str:
    """What a sink without exactly-once says to speculation."""
    options = sink("Slow") | {"delivery": "at-least-once"}
    try:
        frame = spark.sql("SELECT 'x' body")
        frame.write.format("rocketmq").options(**options).mode("append").save()
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return reason_of(error)
    return ""


def main() -> None:
    """Run everything."""
    spark = open_session("job")
    found: dict[str, Any] = {"master": spark.sparkContext.master}
    at_once = spark.sparkContext.parallelize(range(TASKS), TASKS).barrier()
    found["surroundings"] = at_once.mapPartitions(surroundings).collect()

    reader = spark.read.format("rocketmq").options(**ACCESS, topic="Orders", minPartitions=TASKS)
    rows = reader.load().selectExpr("cast(cast(body as string) as int) number").collect()
    found["read"] = sorted(row.number for row in rows)

    log = spark.read.format("commitlog").options(**ACCESS, path=STORE, group=GROUP)
    found["in the log"] = log.option("topic", "Orders").load().count()

    query = start_stream(
        spark,
        {**ACCESS, "topic": "Orders", "startingOffsets": "earliest"},
        lambda orders: (
            orders.writeStream.format("rocketmq")
            .options(**sink("Copies"))
            .trigger(availableNow=True)
        ),
        checkpoint=str(Path("checkpoint").absolute()),
        schema="topic string, brokerName string, queueId int, queueOffset bigint, body binary",
    )
    query.awaitTermination()

    found["refused"] = refusal(spark)
    write(spark, "Slow", be_slow)
    write(spark, "Deaths", die)
    Path("result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
