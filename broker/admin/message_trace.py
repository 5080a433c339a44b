"""`dledger-admin messages trace`: what clients that write message trace have told of one message."""

from __future__ import annotations

import argparse
from typing import Final

import trio

from broker.admin.cluster import Cluster, open_cluster
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError
from broker.admin.options import add_json, add_namesrv, topic_name
from broker.admin.printing import NONE, at, number, print_json, print_line, print_table
from broker.admin.trace_view import trace_json, trace_steps
from dledger_mq.client.errors import NoRouteError
from dledger_mq.client.inspector import MATCHES_MAX
from dledger_mq.client.trace_reader import ClientTrace, read_trace
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.names import TRACE_TOPIC
from dledger_mq.message.properties import UNIQ_KEY

_HEADINGS: Final = ("time", "what", "group", "client", "ms", "outcome", "")


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the message and the topic."""
    add_namesrv(command, required=True)
    command.add_argument(
        "-i",
        "--id",
        required=True,
        metavar="ID",
        help="its UNIQ_KEY, as a send returns it, or its offset message id",
    )
    command.add_argument(
        "-t",
        "--trace-topic",
        type=topic_name,
        default=TRACE_TOPIC,
        metavar="TOPIC",
        help="where clients write their records (%(default)s)",
    )
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Read the trace, and print it."""

    async def read() -> ClientTrace:
        async with open_cluster(options.namesrv) as cluster:
            return await _trace(cluster, options.id, options.trace_topic)

    trace = trio.run(read)
    if options.json:
        print_json(trace_json(trace, options.trace_topic))
        return EXIT_OK
    rows = [
        (
            at(step.at_ms),
            step.what,
            step.group or NONE,
            step.client or NONE,
            number(step.cost_ms),
            step.outcome,
            step.more,
        )
        for step in trace_steps(trace)
    ]
    print_table(f"trace of {trace.message_id}", _HEADINGS, rows, right=("ms",))
    if trace.unreadable:
        print_line(f"{trace.unreadable} records beside these cannot be read", "yellow")
    if trace.is_cut:
        text = f"older records than those of the newest {MATCHES_MAX} messages were not looked at"
        print_line(text, "yellow")
    return EXIT_OK


async def _trace(cluster: Cluster, wanted: str, topic: str) -> ClientTrace:
    """Return the trace of the message with a unique key, or else with an offset message id.

    Raises:
        NotThereError: there is none; says whether message trace is off.
        ClientError: nobody could be asked.
    """
    try:
        found = await read_trace(cluster.inspector, wanted, topic=topic)
        if found.is_empty and (key := await _unique_key(cluster, wanted)):
            found = await read_trace(cluster.inspector, key, topic=topic)
    except NoRouteError as error:
        raise NotThereError(f"no broker has the topic {topic}: {error}") from error
    if found.is_empty:
        raise NotThereError(
            f"{topic} has no trace of {wanted}: its producer and consumers write none, theirs stands in another topic "
            "(--trace-topic), or it is no longer kept"
        )
    return found


async def _unique_key(cluster: Cluster, wanted: str) -> str | None:
    """Return the unique key of the message with an offset message id; None: that is none, or has no such key."""
    try:
        _, _, place = parse_offset_msg_id(wanted)
    except MessageIdError:
        return None
    for broker in cluster.brokers:
        for record in (await cluster.inspector.view(broker, place)).messages:
            if offset_msg_id(record.store_host, record.physical_offset) == wanted.upper():
                key = record.find(UNIQ_KEY)
                return None if key is None else key.decode(errors="replace")
    return None


TRACE = Command(
    "trace",
    "what producers and consumers tell of one message: sent, committed, delivered, consumed",
    _add_options,
    _run,
    "messages trace -n 127.0.0.1:9876 -i 7F0000010B9A18B4AAC216A7A8A60000",
    aliases=("queryMsgTraceById",),
    details="Clients write it that were told to (docs/trace.md); it says what they have told, by their clocks.",
    fields="""\
message_id, trace_topic, sends: [at_ms, group, client, topic, tags, keys: [...], store_host, body_bytes, cost_ms, kind,
  message_id, success], transactions: [at_ms, group, client, state, from_check, transaction_id],
  recalls: [at_ms, group, client, success], deliveries: [group, client, began_ms, ended_ms, cost_ms, retry_times,
  success, end], unreadable, cut""",
)
