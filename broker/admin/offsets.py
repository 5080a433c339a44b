"""`dledger-admin offsets`: where consumer groups are in their queues; set anew, and copied to another group."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import trio

from broker.admin.cluster import ChangeOutcome, Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import UnchangedError
from broker.admin.group_places import QueuePosition, position_json, positions
from broker.admin.groups import find_group, online_members
from broker.admin.moments import FORMS
from broker.admin.offset_reset import EARLIEST, LATEST, PlannedMove, move, plan_reset
from broker.admin.options import (
    add_broker_names,
    add_consumer_group,
    add_json,
    add_namesrv,
    add_topic,
    add_yes,
    consumer_group,
    count,
    moment,
    truth,
)
from broker.admin.outcomes import exit_code_of, outcomes_json, print_outcomes
from broker.admin.printing import at, number, print_json, print_line, print_table
from dledger_mq.client.queues import MessageQueue
from dledger_mq.remoting.codes import RequestCode

OFFSET_MAX: Final = 2**63 - 1


def _add_show_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_consumer_group(command)
    add_topic(command, required=False, text="this topic only")
    add_broker_names(command)
    add_json(command)


def _run_show(options: argparse.Namespace) -> int:
    """Print a row for each queue in which a group has a place."""
    group: str = options.consumer_group

    async def ask() -> list[QueuePosition]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            await find_group(cluster, group)
            return await positions(cluster, group, options.topic)

    found = trio.run(ask)
    if options.json:
        print_json({"group": group, "queues": [position_json(one) for one in found]})
        return EXIT_OK
    headings = (
        "topic",
        "broker",
        "queue",
        "min",
        "max",
        "committed",
        "lag",
        "missed",
        "last consumed was stored",
    )
    cells = [
        (
            one.queue.topic,
            one.queue.broker_name,
            str(one.queue.queue_id),
            *map(number, (one.start, one.end, one.committed, one.lag, one.missed)),
            at(one.consumed_ms),
        )
        for one in found
    ]
    lag = number(sum(one.lag or 0 for one in found))
    print_table(f"{group}: lag {lag} messages", headings, cells, right=headings[2:8])
    return EXIT_OK


def _add_reset_options(command: argparse.ArgumentParser) -> None:
    """Add where a group is to go on."""
    add_namesrv(command, required=True)
    add_consumer_group(command)
    add_topic(command)
    command.add_argument(
        "-q",
        "--queue",
        type=count(0, 2**31 - 1),
        action="append",
        metavar="ID",
        help="in this queue only; may be given several times",
    )
    to = command.add_mutually_exclusive_group(required=True)
    to.add_argument(
        "--to", choices=(EARLIEST, LATEST), help="the first message that is kept, or the end"
    )
    to.add_argument(
        "-s",
        "--to-time",
        type=moment,
        metavar="TIME",
        help=f"the first message that was stored at or after it: {FORMS}",
    )
    to.add_argument(
        "--to-offset",
        type=count(0, OFFSET_MAX),
        metavar="OFFSET",
        help="this offset, or the nearest that the queue has",
    )
    add_broker_names(command)
    add_yes(command, "set the offsets")
    add_json(command)


def _run_reset(options: argparse.Namespace) -> int:
    """Let a group that is not online go on elsewhere in a topic, or say where it would."""
    group: str = options.consumer_group

    async def carry_out() -> tuple[list[PlannedMove], list[str], list[ChangeOutcome]]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            plan = await plan_reset(cluster, options)
            online = await online_members(cluster, group)
            return plan, online, await move(cluster, group, plan, online) if options.yes else []

    plan, online, outcomes = trio.run(carry_out)
    if options.json:
        print_json(_plan_json(options, plan, online, outcomes))
    else:
        headings = ("broker", "queue", "min", "max", "committed", "new", "messages")
        cells = [
            (
                one.position.queue.broker_name,
                str(one.position.queue.queue_id),
                *map(
                    number,
                    (one.position.start, one.position.end, one.position.committed, one.to),
                ),
                one.effect,
            )
            for one in plan
        ]
        done = "set" if outcomes else "would be set"
        print_table(
            f"offsets of {group} in {options.topic}: {done}", headings, cells, right=headings[1:6]
        )
        if online:
            print_line(
                f"online: {', '.join(online)}; they go on there, if the broker can make them"
            )
        print_outcomes(outcomes)
    if not options.yes:
        raise UnchangedError("nothing was changed: --yes sets the offsets")
    return exit_code_of(outcomes)


def _plan_json(
    options: argparse.Namespace,
    plan: Sequence[PlannedMove],
    online: Sequence[str],
    outcomes: Sequence[ChangeOutcome],
) -> dict[str, object]:
    """Return a reset as scripts read it."""
    return {
        "group": options.consumer_group,
        "topic": options.topic,
        "members": list(online),
        "queues": [{**position_json(one.position), "new": one.to} for one in plan],
        "done": bool(outcomes) and not any(each.problem for each in outcomes),
        "problems": [row for row in outcomes_json(outcomes) if row["problem"]],
    }


def _add_clone_options(command: argparse.ArgumentParser) -> None:
    """Add the two groups."""
    add_namesrv(command, required=True)
    command.add_argument(
        "-s",
        "--source",
        type=consumer_group,
        required=True,
        metavar="GROUP",
        help="whose offsets they are",
    )
    command.add_argument(
        "-d", "--target", type=consumer_group, required=True, metavar="GROUP", help="who gets them"
    )
    add_topic(command, required=False, text="in this topic only")
    command.add_argument(
        "-o",
        "--offline",
        type=truth,
        default=True,
        metavar="BOOL",
        help="false: leave topics out that the source's members do not subscribe to any more",
    )
    add_broker_names(command)
    add_yes(command, "copy the offsets")
    add_json(command)


_Copies = dict[MessageQueue, tuple[int | None, int | None]]
"""By queue: where the source is, and where the target is."""


async def _copies(cluster: Cluster, options: argparse.Namespace) -> _Copies:
    """Return where both groups are, in the topics in which the source is anywhere. Raises ClientError."""
    given = await positions(cluster, options.source, options.topic)
    had = await positions(cluster, options.target, options.topic)
    wanted = {one.queue: one.committed for one in given if one.committed is not None}
    before = {one.queue: one.committed for one in had if one.committed is not None}
    topics = {queue.topic for queue in wanted}
    queues = sorted({*wanted, *(queue for queue in before if queue.topic in topics)})
    return {queue: (wanted.get(queue), before.get(queue)) for queue in queues}


def _run_clone(options: argparse.Namespace) -> int:
    """Give a group another one's offsets, or say which; a target that is online is left alone."""
    source, target = options.source, options.target
    ext = {"srcGroup": source, "destGroup": target, "offline": str(options.offline).lower()}
    ext |= {"topic": options.topic} if options.topic else {}

    async def carry_out() -> tuple[_Copies, list[str], list[ChangeOutcome]]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            await find_group(cluster, source)
            online = await online_members(cluster, target)
            outcomes: list[ChangeOutcome] = []
            if options.yes and not online:
                code = RequestCode.CLONE_GROUP_OFFSET
                outcomes = [await cluster.change(each, code, ext) for each in cluster.brokers]
            return await _copies(cluster, options), online, outcomes

    table, online, outcomes = trio.run(carry_out)
    if options.json:
        print_json(_clone_json(options, table, online, outcomes))
    else:
        headings = ("topic", "broker", "queue", source, target)
        cells = [
            (queue.topic, queue.broker_name, str(queue.queue_id), number(given), number(had))
            for queue, (given, had) in table.items()
        ]
        what = "offsets now" if outcomes else f"offsets of {source}, which {target} would get"
        print_table(what, headings, cells, right=headings[2:])
        print_outcomes(outcomes)
    if online:
        names = ", ".join(online)
        raise UnchangedError(
            f"nothing was changed: {names} of {target} is online, and would commit its own; stop it first"
        )
    if not options.yes:
        raise UnchangedError("nothing was changed: --yes copies the offsets")
    return exit_code_of(outcomes)


def _clone_json(
    options: argparse.Namespace,
    table: _Copies,
    online: Sequence[str],
    outcomes: Sequence[ChangeOutcome],
) -> dict[str, object]:
    """Return a clone as scripts read it."""
    return {
        "source": options.source,
        "target": options.target,
        "members": list(online),
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "source": given,
                "target": had,
            }
            for queue, (given, had) in table.items()
        ],
        "done": bool(outcomes) and not any(each.problem for each in outcomes),
        "brokers": outcomes_json(outcomes),
    }


OFFSETS = CommandGroup(
    "offsets",
    "where consumer groups are: show, reset, clone",
    (
        Command(
            "show",
            "a group's place in each queue: what the queue holds, what is committed, the lag",
            _add_show_options,
            _run_show,
            "offsets show -n 127.0.0.1:9876 -g billing -t Orders",
            fields="group, queues: [topic, broker, queue, min, max, committed, lag (null: none committed), missed,\n"
            "  consumed_ms]",
        ),
        Command(
            "reset",
            "let a group go on elsewhere in a topic",
            _add_reset_options,
            _run_reset,
            "offsets reset -n 127.0.0.1:9876 -g billing -t Orders --to-time 2h --yes",
            fields="group, topic, members: [...], done, problems: [broker, outcome, problem],\n"
            "queues: [topic, broker, queue, min, max, committed, lag, missed, consumed_ms, new]",
            aliases=("resetOffsetByTime",),
            details="Without --yes it shows where the group is in each queue, where it would go on, and what that "
            "means. A group with members online is moved if the broker can make them follow.",
        ),
        Command(
            "clone",
            "give a group that is not online another group's offsets, and no others",
            _add_clone_options,
            _run_clone,
            "offsets clone -n 127.0.0.1:9876 -s billing -d billing-new --yes",
            fields="source, target, members: [...], done, brokers: [broker, outcome, problem],\n"
            "queues: [topic, broker, queue, source, target]",
            aliases=("cloneGroupOffset",),
        ),
    ),
    shortcuts={"skipAccumulatedMessage": ("offsets", "reset", "--to", LATEST)},
)
