"""How fast does Spark read topics of a live group, beside the same pulls without Spark in the same run?

    python -m bench.pipeline source [--messages 200000] [--rounds 3] [--json]

Three brokers, one topic of eight queues, bodies of 1 KB. The same ranges are read by two processes that only pull (the
floor: nothing is decoded), by two that also decode to Arrow batches, and by Spark on local[2] into nothing. The cases
take turns; each row is the median of its rounds. All of it shares the machine with the brokers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.real_group import BODY_BYTES, QUEUE_COUNT, broker_group
from dledger_mq import Message, MessageQueue
from dledger_mq.blocking import Producer, PullConsumer
from pipeline.broker_view import READ_GROUP, BrokerView
from pipeline.planning import batch_offsets
from pipeline.pulling import RangePuller
from pipeline.ranges import QueueRange, plan
from pipeline.reading import read_batches, source_columns
from pipeline.source_options import SourceOptions, read_source_options

TOPIC: Final = "Source"
PROCESSES: Final = 2
BATCH: Final = 200
FLOOR: Final = "pulls only"


@dataclass(frozen=True, slots=True)
class SourceResult:
    """One case; `share` is of the floor's rate."""

    case: str
    rows_per_second: float
    megabytes_per_second: float
    share: float


def fill(namesrv: str, group: str, count: int) -> None:
    """Store messages, evenly over the queues."""
    queues = [MessageQueue(TOPIC, group, number) for number in range(QUEUE_COUNT)]
    batch = [Message(TOPIC, b"x" * BODY_BYTES)] * BATCH
    with Producer(namesrv, "bench", timeout_s=60) as producer:
        for number in range(count // BATCH):
            producer.send_batch(batch, queue=queues[number % QUEUE_COUNT])


def pull_only(ranges: Sequence[QueueRange], options: SourceOptions) -> int:
    """Pull all records and drop them; return their bytes."""
    with PullConsumer(options.name_server, READ_GROUP) as consumer:
        return sum(len(chunk.records) for chunk in RangePuller(consumer, options).chunks(ranges))


def pull_and_decode(ranges: Sequence[QueueRange], options: SourceOptions) -> int:
    """Do what a task of Spark does, without Spark; returns the rows."""
    schema = source_columns(options)
    return sum(batch.num_rows for batch in read_batches(ranges, options, schema))


Read = Callable[[Sequence[QueueRange], SourceOptions], int]


def _reader(
    read: Read, ranges: Sequence[QueueRange], options: SourceOptions, ready: Barrier
) -> None:
    ready.wait()
    read(ranges, options)
    ready.wait()


def seconds_of(read: Read, parts: Sequence[Sequence[QueueRange]], options: SourceOptions) -> float:
    """Measure the reading of all parts, each in a process of its own that is there already."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(len(parts) + 1)
    readers = [context.Process(target=_reader, args=(read, part, options, ready)) for part in parts]
    for reader in readers:
        reader.start()
    ready.wait()
    started = time.perf_counter()
    ready.wait()
    spent = time.perf_counter() - started
    for reader in readers:
        reader.join()
    return spent


def measure(options: SourceOptions, rounds: int) -> list[SourceResult]:
    """Read everything in each way, `rounds` times in turn."""
    from pipeline.spark.session import open_session

    start, end = batch_offsets(options, BrokerView(options))
    parts = plan(start, end, bins_max=PROCESSES, parts_min=None)
    count = sum(len(one) for part in parts for one in part)
    spark = open_session("bench", master=f"local[{PROCESSES}]")

    def read_with_spark() -> float:
        reader = spark.read.format("rocketmq").option("nameServer", options.name_server)
        frame = reader.option("topic", TOPIC).load()
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    read_with_spark()  # workers and JVM are warm afterwards
    cases: dict[str, Callable[[], float]] = {
        FLOOR: lambda: seconds_of(pull_only, parts, options),
        "pulls to Arrow": lambda: seconds_of(pull_and_decode, parts, options),
        "Spark source": read_with_spark,
    }
    spent = {case: [run() for _ in range(1)] for case, run in cases.items()}
    for _ in range(rounds - 1):
        for case, run in cases.items():
            spent[case].append(run())
    spark.stop()
    floor = statistics.median(spent[FLOOR])
    return [
        SourceResult(case, count / middle, count * BODY_BYTES / middle / 1e6, floor / middle)
        for case, middle in ((case, statistics.median(times)) for case, times in spent.items())
    ]


def main(arguments: Sequence[str]) -> int:
    """Run it and print the rows."""
    parser = argparse.ArgumentParser(prog="bench.pipeline source", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="bench-source-"))
    try:
        with broker_group(folder, TOPIC) as (group, _, _):
            fill(group.namesrv, group.group, options.messages)
            given = {"nameServer": group.namesrv, "topic": TOPIC}
            rows = measure(read_source_options(given, "batch"), options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout)
        sys.stdout.write("\n")
    else:
        Console().print(_table(rows))
    return 0


def _table(rows: Sequence[SourceResult]) -> Table:
    """Build the table of rates; the floor is the same reading without Spark."""
    table = Table(
        title=f"reading {QUEUE_COUNT} queues of {BODY_BYTES} B messages from three brokers"
    )
    for heading in ("case", "rows/s", "MB/s", "share of the floor"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(
            row.case,
            f"{row.rows_per_second:,.0f}",
            f"{row.megabytes_per_second:,.0f}",
            f"{row.share:.0%}",
        )
    return table
