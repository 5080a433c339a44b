"""`dledger-pipeline lag`: how far consumer groups and streaming queries are behind, live."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial

import trio
from rich.table import Table

from dledger_mq import ClientError
from dledger_mq.client.lag import QueueLag, TopicLag, by_topic, consumer_lags
from pipeline.errors import EXIT_FINE, EXIT_FOUND, InconclusiveError
from pipeline.jobs.context import JobContext
from pipeline.jobs.tables import alarming, new_table

name = "lag"
summary = "say how far consumer groups and streaming queries (commitGroup) are behind, per topic and queue"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for name servers, groups and topics, and the limit of the lag."""
    parser.add_argument("-n", "--name-server", required=True, help="HOST:PORT[;HOST:PORT]")
    parser.add_argument("--group", help="this consumer group only")
    parser.add_argument("--topic", help="this topic only")
    parser.add_argument("--queues", action="store_true", help="a line for each queue")
    parser.add_argument(
        "--max-lag", type=int, metavar="N", help="exit code 1 when a group is further behind"
    )


def run(context: JobContext) -> int:
    """Ask, print, and judge by --max-lag."""
    options = context.options
    lags = ask_lags(options.name_server, group=options.group, topic=options.topic)
    sums = by_topic(lags)
    result = {
        "groups": [
            {"group": one.group, "topic": one.topic, "lag": one.lag, "missed": one.missed}
            for one in sums
        ],
        "queues": [asdict(one) | {"lag": one.lag, "missed": one.missed} for one in lags],
    }
    context.report(result, lambda: _queue_table(lags) if options.queues else _table(sums))
    is_behind = options.max_lag is not None and any(one.lag > options.max_lag for one in sums)
    return EXIT_FOUND if is_behind else EXIT_FINE


def ask_lags(
    name_server: str, *, group: str | None = None, topic: str | None = None
) -> list[QueueLag]:
    """Ask all broker groups; of one consumer group or topic only, where given.

    Raises:
        InconclusiveError: name servers or brokers do not answer, or nobody has the group or topic that is meant.
    """
    try:
        found = trio.run(partial(consumer_lags, name_server, group=group, topic=topic))
    except ClientError as error:
        raise InconclusiveError(f"the lag is not known: {error}") from error
    if not found and (group is not None or topic is not None):
        meant = [f"group {group}"] if group is not None else []
        meant += [f"topic {topic}"] if topic is not None else []
        raise InconclusiveError(
            f"no broker has an offset of {' in '.join(meant)}: nothing was committed yet, or the name is wrong"
        )
    return found


def _table(sums: list[TopicLag]) -> Table:
    numbers = ("queues", "lag", "missed", "furthest behind")
    table = new_table("lag", "group", "topic", *numbers, numbers=numbers)
    for one in sums:
        worst = f"{one.worst.broker_name}/{one.worst.queue_id}: {one.worst.lag}"
        missed = alarming(one.missed) if one.missed else "0"
        table.add_row(one.group, one.topic, f"{one.queues}", f"{one.lag}", missed, worst)
    return table


def _queue_table(lags: list[QueueLag]) -> Table:
    columns = ("queue", "committed", "end", "lag", "missed")
    table = new_table("lag by queue", "group", "topic", *columns, numbers=columns)
    for one in lags:
        numbers = (one.committed, one.end, one.lag, one.missed)
        queue = f"{one.broker_name}/{one.queue_id}"
        table.add_row(one.group, one.topic, queue, *map(str, numbers))
    return table
