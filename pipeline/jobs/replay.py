"""`dledger-pipeline replay`: messages of the past are sent again, in order, each exactly once."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from rich.table import Table

from dledger.raft.ids import Index
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import topic_problem
from pipeline.access import access_options
from pipeline.errors import EXIT_FINE, PipelineUsageError
from pipeline.jobs.context import JobContext
from pipeline.jobs.store_arguments import add_bound_arguments, last_index_of
from pipeline.jobs.tables import new_table
from pipeline.sink.counts import BatchCounts, read_counts, summed
from pipeline.sink.options import read_options
from pipeline.sink.queues import plan_queues

if TYPE_CHECKING:
    from pipeline.spark.replay import QueueCount, ReplaySelection, Stretch, Target
    from pipeline.spark.replay_sources import ReplaySource

TOPICS_NAMED: Final = 10

name = "replay"
summary = "send messages of an archive, of Parquet files or of a store's log to a topic again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for source, selection, target and rate."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--parquet", metavar="DIR", help="Parquet files with the source's columns, or an archive"
    )
    source.add_argument("--store", metavar="DIR", help="a broker's store: what its log has")
    add_bound_arguments(parser)
    parser.add_argument("--topic", required=True, help="the topic that the messages were in")
    parser.add_argument(
        "--from", dest="from_time", type=_time, metavar="TIME", help="stored then or later"
    )
    parser.add_argument("--to", dest="to_time", type=_time, metavar="TIME", help="stored before")
    parser.add_argument("--key", help="only messages with this key")
    parser.add_argument(
        "--name-server", required=True, help="HOST:PORT[;HOST:PORT], of the brokers they go to"
    )
    parser.add_argument("--to-topic", required=True, help="where the messages go")
    parser.add_argument(
        "--id", required=True, help="names the replay; started again with it, it goes on"
    )
    parser.add_argument("--rate", type=int, metavar="N", help="messages per second, all together")
    parser.add_argument(
        "--state", metavar="DIR", help="keeps the target's queue list; needed for several groups"
    )
    parser.add_argument(
        "--keep-delays",
        action="store_true",
        help="what was sent with a delay is delayed for as long again; default: it is sent at once",
    )
    parser.add_argument("--dry-run", action="store_true", help="only count")


def _time(text: str) -> int:
    """Parse a time: ms since 1970, or ISO form (UTC unless it says otherwise)."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: 2026-01-31T12:00 or ms since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _sink_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink that sends the messages.

    Raises:
        PipelineUsageError: the command line names no topic that there may be, or no rate.
    """
    problem = topic_problem(options.to_topic)
    if problem is not None:
        raise PipelineUsageError(f"--to-topic {options.to_topic!r}: {problem}")
    if options.rate is not None and options.rate < 1:
        raise PipelineUsageError(f"--rate {options.rate} must be above 0")
    given = {
        "nameServer": options.name_server,
        "topic": options.to_topic,
        "delivery": "exactly-once",
        "sinkId": f"replay-{options.id}",
        "queueSelector": "column",
        "olderBatch": "skip",  # a replay that goes on sends its first batches again
    }
    given |= access_options(options)
    if options.state:
        given["metadataPath"] = options.state
    return given


def run(context: JobContext) -> int:
    """Count the chosen messages and, unless this is a dry run, send them."""
    from pipeline.spark import replay as replaying

    options = context.options
    given = _sink_options(options)
    sink = read_options(given, is_stream=False)
    source = _source(context, Index(last_index_of(options) if options.store else 0))
    selection = replaying.ReplaySelection(
        options.topic, options.from_time, options.to_time, options.key
    )
    rows = replaying.chosen(replaying.with_map(source.whole(options.topic)), selection)
    with context.progress() as progress, TemporaryDirectory(prefix="dledger-replay-") as folder:
        task = progress.add_task("counting", total=None)
        stretches = replaying.stretches_of(rows, source.places())
        counts = replaying.counts_of(stretches)
        total = sum(one.messages for one in counts)
        if not total:
            raise PipelineUsageError(_nothing(context, source))
        progress.update(task, description="sending", total=total)
        written = Path(folder, "counts")
        given["countsPath"] = str(written)
        if not options.dry_run:
            target = _target(context, counts, plan_queues(sink))
            if options.rate:
                rate = options.rate // target.tasks
                assert rate > 0, f"{target.tasks} tasks share {options.rate} messages a second"
                given["maxRowsPerSecond"] = str(rate)
            for _ in _send(source, selection, stretches, target, given=given):
                progress.update(task, completed=summed(read_counts(written)).rows)
        done = summed(read_counts(written))
    assert options.dry_run or done.rows == total, f"{done.rows} of {total} messages are counted"
    context.report(_result(counts, options, done), lambda: _table(counts, options, done))
    return EXIT_FINE


def _nothing(context: JobContext, source: ReplaySource) -> str:
    """Say why there is nothing to replay: no such topic, or nothing of it is wanted."""
    options = context.options
    place = options.store or options.parquet
    every = source.whole(None)
    if every.where(every.topic == options.topic).take(1):
        return f"no message of topic {options.topic} in {place} is one of those asked for (--from, --to, --key)"
    known = sorted(row.topic for row in every.select("topic").distinct().take(TOPICS_NAMED + 1))
    more = ", ..." if len(known) > TOPICS_NAMED else ""
    topics = f"it has {', '.join(known[:TOPICS_NAMED])}{more}" if known else "it has no messages"
    return f"there is no topic {options.topic} in {place}: {topics}"


def _target(
    context: JobContext, counts: Sequence[QueueCount], queues: Sequence[MessageQueue]
) -> Target:
    """Return the target queue of each original queue, and the number of sending tasks."""
    from pipeline.spark import replay as replaying

    options = context.options
    targets = {
        (one.broker_name, one.queue_id): replaying.target_of(one.broker_name, one.queue_id, queues)
        for one in counts
    }
    tasks = len(set(targets.values()))
    if options.rate:
        # Tasks that wait for a processor would not use their share of the rate.
        tasks = min(tasks, options.rate, context.spark.sparkContext.defaultParallelism)
    return replaying.Target(options.to_topic, targets, tasks, options.keep_delays)


def _source(context: JobContext, last_index: Index) -> ReplaySource:
    """Return what is read."""
    from pipeline.spark.replay_sources import LogSource, ParquetSource

    options = context.options
    if options.store:
        return LogSource(context.spark, options.store, last_index)
    return ParquetSource(context.spark, options.parquet)


def _send(
    source: ReplaySource,
    selection: ReplaySelection,
    stretches: Sequence[Stretch],
    target: Target,
    *,
    given: dict[str, str],
) -> Iterator[int]:
    """Write batch after batch, one at a time; yield the number of each when its rows are stored."""
    from pipeline.spark import replay as replaying

    span = replaying.batch_span(replaying.counts_of(stretches))
    for batch, places in replaying.batches_of(stretches, span):
        part = replaying.with_map(source.part(selection.topic, places))
        wanted = replaying.chosen(part, selection)
        rows = replaying.between(wanted, batch * span, (batch + 1) * span)
        writer = replaying.outgoing(rows, target).write.format("rocketmq").options(**given)
        writer.option("batchId", batch).mode("append").save()
        yield batch


def _result(
    counts: list[QueueCount], options: argparse.Namespace, done: BatchCounts
) -> dict[str, object]:
    """Return what was chosen and sent, all together and of each original queue."""
    return {
        "id": options.id,
        "messages": sum(c.messages for c in counts),
        "sent": done.stored,
        "already_there": done.already + done.older,
        "dry_run": options.dry_run,
        "queues": [
            {
                "broker": c.broker_name,
                "queue": c.queue_id,
                "messages": c.messages,
                "first": c.first,
                "last": c.last,
                "bytes": c.body_bytes,
            }
            for c in counts
        ],
    }


def _table(counts: list[QueueCount], options: argparse.Namespace, done: BatchCounts) -> Table:
    what = f"{done.stored} sent, {done.already + done.older} already there"
    what = "would be sent" if options.dry_run else what
    columns = ("queue", "messages", "first", "last", "bytes")
    title = f"replay {options.id}: {options.topic} to {options.to_topic}, {what}"
    table = new_table(title, *columns, numbers=columns)
    for c in counts:
        numbers = (c.messages, c.first, c.last, c.body_bytes)
        table.add_row(f"{c.broker_name}/{c.queue_id}", *map(str, numbers))
    table.add_row("all", str(sum(c.messages for c in counts)), "", "", "")
    return table
