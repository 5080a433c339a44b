"""`dledger-pipeline trace`: what became of one message, or of all with a key."""

from __future__ import annotations

import argparse
import datetime
from dataclasses import asdict

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from broker.admin.trace_view import trace_json, trace_steps
from dledger_mq.client.trace_reader import ClientTrace
from dledger_mq.message.names import TRACE_TOPIC
from pipeline.errors import EXIT_FINE, EXIT_FOUND
from pipeline.jobs.context import JobContext
from pipeline.trace import GroupProgress, MessageTrace, trace

name = "trace"
summary = "follow a message through delays, transactions, retries, dead letters and groups"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for name servers and the message."""
    parser.add_argument("message", help="an offset message id; with --topic a unique key or a key")
    parser.add_argument("--topic", help="the topic that it was sent to")
    parser.add_argument("-n", "--name-server", required=True, help="HOST:PORT[;HOST:PORT]")
    parser.add_argument(
        "--trace-topic",
        default=TRACE_TOPIC,
        help=f"where clients tell of messages (default {TRACE_TOPIC}; there need be none)",
    )


def run(context: JobContext) -> int:
    """Ask, and print the stories; exit code 1 when nothing is known of it."""
    options = context.options
    stories = trace(
        options.name_server,
        options.message,
        topic=options.topic,
        trace_topic=options.trace_topic,
    )
    result = {"messages": [_json(story, options.trace_topic) for story in stories]}
    context.report(
        result, lambda: Group(*map(_tree, stories)) if stories else "nothing is known of it"
    )
    return EXIT_FINE if stories else EXIT_FOUND


def _json(story: MessageTrace, trace_topic: str) -> dict[str, object]:
    """Return a story as scripts read it."""
    standings = [asdict(one) | {"is_done": one.is_done} for one in story.standings]
    told = None if story.told.is_empty else trace_json(story.told, trace_topic)
    return asdict(story) | {"standings": standings, "told": told}


def _tree(story: MessageTrace) -> Tree:
    """Draw one message's story; each group's standing hangs under the record that the group reads."""
    tree = Tree(Text.assemble((story.topic, "bold"), " ", story.unique_key))
    for step in story.steps:
        place = f"{step.topic}@{step.broker_name}/{step.queue_id} offset {step.queue_offset}"
        line = (_time(step.at_ms), "  ", (step.what, "cyan"), f"  {place}  {step.message_id}")
        branch = tree.add(Text.assemble(*line))
        for one in story.standings:
            if (one.topic, one.broker_name, one.queue_id, one.queue_offset) == (
                step.topic,
                step.broker_name,
                step.queue_id,
                step.queue_offset,
            ):
                branch.add(_standing(one))
    if not story.told.is_empty:
        tree.add(_clients_tree(story.told))
    return tree


def _clients_tree(told: ClientTrace) -> Tree:
    """Draw what clients have told, which is by their clocks."""
    tree = Tree(Text("told by clients, by their clocks", "bold"))
    for step in trace_steps(told):
        who = f"{step.group or 'a group that is not told'} at {step.client or 'an unknown address'}"
        took = "" if step.cost_ms is None else f" after {step.cost_ms} ms"
        when = _time(step.at_ms) if step.at_ms else "no time"
        outcome = (f"{step.outcome}{took}", "green" if step.is_good else "yellow")
        tree.add(Text.assemble(when, "  ", (step.what, "cyan"), f"  {who}: ", outcome))
    return tree


def _standing(one: GroupProgress) -> Text:
    if one.is_done:
        done = (f"{one.group} is done with it", "green")
        return Text.assemble(done, f" (stands at {one.committed})")
    return Text(f"{one.group} has {one.queue_offset - one.committed} before it", "yellow")


def _time(at_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
