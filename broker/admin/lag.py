"""`dledger-admin lag`: how far consumer groups are behind; the counting is `dledger_mq.client.lag`'s."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Final

import trio

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK
from broker.admin.options import add_json, add_namesrv
from broker.admin.printing import NONE, print_json, print_table
from dledger_mq.client.lag import by_topic, consumer_lags


def _add_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    command.add_argument(
        "-g", "--group", dest="consumer_group", metavar="GROUP", help="this consumer group only"
    )
    command.add_argument("-t", "--topic", help="this topic only")
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Print a row per topic, or with --json one per queue, since scripts can add up and people should not have to."""
    ask = partial(
        consumer_lags, ";".join(options.namesrv), group=options.consumer_group, topic=options.topic
    )
    lags = trio.run(ask)
    if options.json:
        queues = [asdict(one) | {"lag": one.lag, "missed": one.missed} for one in lags]
        print_json({"queues": queues})
        return EXIT_OK
    rows = []
    for one in by_topic(lags):
        worst = f"{one.worst.broker_name}/{one.worst.queue_id}: {one.worst.lag}"
        in_flight = NONE if one.in_flight is None else str(one.in_flight)
        numbers = (str(one.queues), str(one.lag), in_flight, str(one.missed), worst)
        rows.append((one.group, one.topic, *numbers))
    headings = ("group", "topic", "queues", "lag", "in flight", "missed", "furthest behind")
    print_table("lag of consumer groups", headings, rows)
    return EXIT_OK


_IN_FLIGHT: Final = """\
In flight is what was popped and not acknowledged. A pop moves the group on, so that is not in the lag, and comes
again if nobody acknowledges it. Brokers of RocketMQ do not say it (in JSON null)."""

LAG = Command(
    "lag",
    "how far consumer groups, and streaming queries with a commitGroup, are behind",
    _add_options,
    _run,
    "lag -n 127.0.0.1:9876 -g billing",
    details=_IN_FLIGHT,
    fields="queues: [group, topic, broker_name, queue_id, committed, start, end, in_flight, lag, missed]",
    aliases=("consumerProgress",),
)
