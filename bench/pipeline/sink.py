"""How fast does Spark write into topics of a live group, beside our producer's batches without Spark in the same run?

    python -m bench.pipeline sink [--messages 200000] [--rounds 3] [--json]

Three brokers, one topic of eight queues, bodies of 1 KB with a key, another one for each. The floor is two processes
that have their messages before they begin, and send them in batches as large as the sink's, all of them under way at
once. Spark has two tasks, and its frame is in memory before it is written. The cases take turns; each row is the median
of its rounds. All of it shares the machine with the brokers; their CPU time, and that of those who write, is counted
apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console
from rich.table import Table

from bench.cpu import process_cpu_seconds, tree_cpu_seconds
from bench.real_group import BODY_BYTES, QUEUE_COUNT, broker_group
from dledger_mq import Message, MessageQueue, PendingSend, Producer
from jepsen.processes import Group
from pipeline.sink.options import PRODUCER_GROUP, read_options

if TYPE_CHECKING:
    from pipeline.spark.names import SparkSession

TOPIC: Final = "Sink"
PROCESSES: Final = 2
FLOOR: Final = "batches, no Spark"


@dataclass(frozen=True, slots=True)
class SinkResult:
    """One case; `share` is of the floor's rate."""

    case: str
    rows_per_second: float
    share: float
    writers_cpu_us: float
    brokers_cpu_us: float


@dataclass(frozen=True, slots=True)
class _Spent:
    """The seconds of one round, by the clock and of CPU."""

    seconds: float
    writers_cpu_s: float
    brokers_cpu_s: float


def batches_of(numbers: range) -> list[list[Message]]:
    """Make messages as Spark's rows are, in batches as full as the sink's."""
    given = {"nameServer": "127.0.0.1:9876", "topic": TOPIC}
    of_a_batch = read_options(given, is_stream=False).batch_bytes // (BODY_BYTES + 300)
    body = b"x" * BODY_BYTES
    messages = [Message(TOPIC, body, keys=f"order-{number}") for number in numbers]
    return [messages[at : at + of_a_batch] for at in range(0, len(messages), of_a_batch)]


async def send_batches(namesrv: str, broker_name: str, batches: list[list[Message]]) -> None:
    """Send batches, all of them under way at once, and await their storing."""
    async with Producer(namesrv, PRODUCER_GROUP, timeout_s=60) as producer:
        sent: list[PendingSend] = []
        for number, batch in enumerate(batches):
            queue = MessageQueue(TOPIC, broker_name, number % QUEUE_COUNT)
            sent.append(await producer.submit_batch(batch, queue=queue))
        for one in sent:
            await one.wait()


def _writer(namesrv: str, broker_name: str, numbers: range, ready: Barrier) -> None:
    batches = batches_of(numbers)
    ready.wait()
    trio.run(send_batches, namesrv, broker_name, batches)
    ready.wait()


def send_without_spark(group: Group, count: int, brokers: Callable[[], float]) -> _Spent:
    """Send with processes that are there already."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES + 1)
    each = count // PROCESSES
    parts = [range(number * each, (number + 1) * each) for number in range(PROCESSES)]
    writers = [
        context.Process(target=_writer, args=(group.namesrv, group.group, part, ready))
        for part in parts
    ]
    for writer in writers:
        writer.start()
    pids = [writer.pid for writer in writers if writer.pid is not None]
    ready.wait()
    begun, at_brokers = time.perf_counter(), brokers()
    at_writers = sum(map(process_cpu_seconds, pids))
    while ready.n_waiting < PROCESSES:  # they wait in it until their CPU time is read
        time.sleep(0.005)
    spent = _Spent(
        time.perf_counter() - begun,
        sum(map(process_cpu_seconds, pids)) - at_writers,
        brokers() - at_brokers,
    )
    ready.wait()
    for writer in writers:
        writer.join()
    return spent


class SparkWriter:
    """Writes one frame of so many rows, again and again."""

    def __init__(self, spark: SparkSession, namesrv: str, count: int) -> None:
        rows = spark.range(0, count, 1, PROCESSES).selectExpr(
            f"repeat('x', {BODY_BYTES}) AS body", "concat('order-', id) AS keys"
        )
        self._frame = rows.persist()
        self._frame.count()
        self._namesrv = namesrv
        self._batch_id = 0

    def write(self, delivery: str, brokers: Callable[[], float], brokers_pids: set[int]) -> _Spent:
        """Write the whole frame once."""
        self._batch_id += 1
        options = {"nameServer": self._namesrv, "topic": TOPIC, "delivery": delivery}
        if delivery == "exactly-once":
            options |= {"sinkId": "bench", "batchId": str(self._batch_id), "rowKeys": "position"}
        begun, at_brokers, before = time.perf_counter(), brokers(), tree_cpu_seconds(os.getpid())
        self._frame.write.format("rocketmq").options(**options).mode("append").save()
        seconds, after = time.perf_counter() - begun, tree_cpu_seconds(os.getpid())
        used = sum(
            cpu - before.get(pid, 0.0) for pid, cpu in after.items() if pid not in brokers_pids
        )
        return _Spent(seconds, used, brokers() - at_brokers)


def measure(group: Group, count: int, rounds: int) -> list[SinkResult]:
    """Write so many rows in each way, `rounds` times in turn."""
    from pipeline.spark.session import open_session

    nodes = [*group.nodes, *group.name_servers]
    pids = {pid for node in nodes if (pid := node.pid) is not None}

    def brokers() -> float:
        return sum(map(process_cpu_seconds, pids))

    spark = open_session("bench", master=f"local[{PROCESSES}]")
    writer = SparkWriter(spark, group.namesrv, count)
    writer.write("at-least-once", brokers, pids)  # workers and JVM are warm afterwards
    cases: dict[str, Callable[[], _Spent]] = {
        FLOOR: partial(send_without_spark, group, count, brokers),
        "sink, at-least-once": partial(writer.write, "at-least-once", brokers, pids),
        "sink, exactly-once": partial(writer.write, "exactly-once", brokers, pids),
    }
    spent: dict[str, list[_Spent]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, run in cases.items():
            spent[case].append(run())
    spark.stop()
    floor = statistics.median(one.seconds for one in spent[FLOOR])
    return [_result(case, all_spent, count, floor) for case, all_spent in spent.items()]


def _result(case: str, spent: Sequence[_Spent], count: int, floor_s: float) -> SinkResult:
    seconds = statistics.median(one.seconds for one in spent)
    return SinkResult(
        case,
        count / seconds,
        floor_s / seconds,
        statistics.median(one.writers_cpu_s for one in spent) / count * 1e6,
        statistics.median(one.brokers_cpu_s for one in spent) / count * 1e6,
    )


def main(arguments: Sequence[str]) -> int:
    """Run it and print the rows."""
    parser = argparse.ArgumentParser(prog="bench.pipeline sink", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="bench-sink-"))
    try:
        with broker_group(folder, TOPIC) as (group, _, _):
            rows = measure(group, options.messages, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout)
        sys.stdout.write("\n")
    else:
        Console().print(_table(rows))
    return 0


def _table(rows: Sequence[SinkResult]) -> Table:
    """Build the table; the floor is the same writing without Spark."""
    table = Table(title=f"writing {BODY_BYTES} B messages to {QUEUE_COUNT} queues of three brokers")
    headings = (
        "case",
        "rows/s",
        "share of the floor",
        "writers' CPU µs/row",
        "brokers' CPU µs/row",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(
            row.case,
            f"{row.rows_per_second:,.0f}",
            f"{row.share:.0%}",
            f"{row.writers_cpu_us:.1f}",
            f"{row.brokers_cpu_us:.1f}",
        )
    return table
