"""`dledger-admin offsets`: where consumer groups are in their queues; set anew, and copied to another group.

Members that are online know their own places, and would commit them again. So a group that has some is moved only by a
broker that makes them follow, and gets no copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import trio

from broker.admin.answers import GroupProgress, QueueStats
from broker.admin.cluster import ChangeOutcome, Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError, UnchangedError
from broker.admin.groups import find_group
from broker.admin.moments import FORMS
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
from dledger_mq.client.errors import ClientError
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode

EARLIEST = "earliest"
LATEST = "latest"
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The place of a group in a queue.

    Attributes:
        committed: the next offset that it consumes; None: it has committed none.
        start, end: what the queue holds; `end` is the next offset to be written.
        consumed_ms: store time of the last message that it has consumed; None: not known.
    """

    queue: MessageQueue
    committed: int | None
    start: int
    end: int
    consumed_ms: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of messages that it has not consumed and still can; None: where it would begin is not known."""
        return (
            None if self.committed is None else max(0, self.end - max(self.committed, self.start))
        )

    @property
    def missed(self) -> int:
        """The number of messages that are gone and that it had not consumed; of a group without an offset, none."""
        return 0 if self.committed is None else max(0, self.start - self.committed)


def _position(
    queue: MessageQueue, progress: GroupProgress, stats: QueueStats | None
) -> QueuePosition:
    """Put together what is known of a group in a queue; the queue was looked at last, so no group seems ahead."""
    held = stats or QueueStats(0, progress.broker_offset)
    committed = progress.consumer_offset if progress.consumer_offset >= 0 else None
    return QueuePosition(
        queue, committed, held.min_offset, held.max_offset, progress.last_timestamp or None
    )


async def positions(cluster: Cluster, group: str, topic: str | None) -> list[QueuePosition]:
    """Return the places of a group, in one topic or in all that it has offsets for. Raises ClientError."""
    found = []
    for broker in cluster.brokers:
        progress = await cluster.progress(broker, group, topic)
        topics = sorted({queue.topic for queue in progress})
        held = {name: await cluster.queues(broker, name) for name in topics}
        for queue, one in progress.items():
            place = MessageQueue(queue.topic, broker, queue.queue_id)
            found.append(_position(place, one, held[queue.topic].get(queue.queue_id)))
    return sorted(found, key=lambda one: one.queue)


def _position_json(one: QueuePosition) -> dict[str, object]:
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker_name,
        "queue": one.queue.queue_id,
        "min": one.start,
        "max": one.end,
        "committed": one.committed,
        "lag": one.lag,
        "missed": one.missed,
        "consumed_ms": one.consumed_ms,
    }


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
        print_json({"group": group, "queues": [_position_json(one) for one in found]})
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


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A queue in which a group is to go on elsewhere."""

    position: QueuePosition
    to: QueueOffset

    @property
    def effect(self) -> str:
        """What it means for the group."""
        before = self.position.committed
        if before is None:
            return f"begins there, {number(self.position.end - self.to)} to come"
        if self.to < before:
            return f"{number(before - max(self.to, self.position.start))} again"
        if self.to > before:
            skipped = self.to - max(before, self.position.start)
            return f"{number(max(0, skipped))} left out"
        return "stays"


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


async def _plan(cluster: Cluster, options: argparse.Namespace) -> list[PlannedMove]:
    """Find out where a group would go on.

    Raises:
        NotThereError: there is no such topic or queue.
        ClientError: a queue could not be asked.
    """
    found = await positions(cluster, options.consumer_group, options.topic)
    wanted = [one for one in found if not options.queue or one.queue.queue_id in options.queue]
    if not wanted:
        which = f"queue {options.queue} of topic" if options.queue and found else "topic"
        raise NotThereError(
            f"there is no {which} {options.topic} on {', '.join(cluster.brokers)}; nothing was changed"
        )
    plan = []
    for one in wanted:
        if options.to is not None:
            place = one.start if options.to == EARLIEST else one.end
        elif options.to_time is not None:
            place = await cluster.inspector.reader.offset_at(one.queue, options.to_time)
        else:
            place = options.to_offset
        plan.append(PlannedMove(one, QueueOffset(min(max(place, one.start), one.end))))
    return plan


async def _move(
    cluster: Cluster, group: str, plan: Sequence[PlannedMove], online: Sequence[str]
) -> list[ChangeOutcome]:
    """Set the new places of a group, and look whether they hold; return an outcome for each queue.

    Raises:
        ClientError: a broker group could not be asked; others may be done.
    """
    outcomes: list[ChangeOutcome] = []
    for broker in sorted({move.position.queue.broker_name for move in plan}):
        moves = [move for move in plan if move.position.queue.broker_name == broker]
        if await cluster.moves_groups(broker):
            done = [await _reset(cluster, group, move) for move in moves]
        elif online:
            text = f"{', '.join(online)} is online, and this broker cannot make members follow: stop it first"
            done = [ChangeOutcome(_name(move), text) for move in moves]
        else:
            done = [await _commit(cluster, group, move) for move in moves]
        if not online:
            done = await _held(cluster, group, moves, done)
        outcomes += done
    return outcomes


def _name(move: PlannedMove) -> str:
    return f"{move.position.queue.broker_name}, queue {move.position.queue.queue_id}"


async def _reset(cluster: Cluster, group: str, move: PlannedMove) -> ChangeOutcome:
    """Let the broker move a group, and its members, if there are any."""
    queue = move.position.queue
    ext = {
        "topic": queue.topic,
        "group": group,
        "timestamp": "-1",
        "isForce": "true",
        "queueId": str(queue.queue_id),
        "offset": str(move.to),
    }
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    outcome = await cluster.change(queue.broker_name, code, ext)
    return replace(outcome, broker=_name(move))


async def _commit(cluster: Cluster, group: str, move: PlannedMove) -> ChangeOutcome:
    """Commit as a consumer does; a broker may pass over a place before the one that is committed."""
    reader, queue = cluster.inspector.reader, move.position.queue
    try:
        await reader.queues(queue.topic)  # whose route says where its leader is
        await GroupRequests(reader.live_session(), group).commit(queue, move.to)
    except ClientError as error:
        return ChangeOutcome(_name(move), str(error), not error.definite)
    return ChangeOutcome(_name(move))


async def _held(
    cluster: Cluster, group: str, moves: Sequence[PlannedMove], done: Sequence[ChangeOutcome]
) -> list[ChangeOutcome]:
    """Return what became of moves, after a look where the group is now. Raises ClientError."""
    now = {
        one.queue: one.committed
        for one in await positions(cluster, group, moves[0].position.queue.topic)
    }
    return [
        outcome
        if outcome.problem or now.get(move.position.queue) == move.to
        else replace(
            outcome,
            problem=f"the group is at {now.get(move.position.queue)}: the broker did not go there, or a member came",
        )
        for move, outcome in zip(moves, done, strict=True)
    ]


def _run_reset(options: argparse.Namespace) -> int:
    """Let a group that is not online go on elsewhere in a topic, or say where it would."""
    group: str = options.consumer_group

    async def carry_out() -> tuple[list[PlannedMove], list[str], list[ChangeOutcome]]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            plan = await _plan(cluster, options)
            online = await _online(cluster, group)
            return plan, online, await _move(cluster, group, plan, online) if options.yes else []

    plan, online, outcomes = trio.run(carry_out)
    if options.json:
        print_json(_plan_json(options, plan, online, outcomes))
    else:
        headings = ("broker", "queue", "min", "max", "committed", "new", "messages")
        cells = [
            (
                move.position.queue.broker_name,
                str(move.position.queue.queue_id),
                *map(
                    number,
                    (move.position.start, move.position.end, move.position.committed, move.to),
                ),
                move.effect,
            )
            for move in plan
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
        "queues": [{**_position_json(move.position), "new": move.to} for move in plan],
        "done": bool(outcomes) and not any(each.problem for each in outcomes),
        "problems": [row for row in outcomes_json(outcomes) if row["problem"]],
    }


async def _online(cluster: Cluster, group: str) -> list[str]:
    """Return the ids of a group's members, on all broker groups."""
    found: set[str] = set()
    for broker in cluster.brokers:
        clients = await cluster.consumers(broker, group)
        found.update(each.client_id for each in clients.connection_set)
    return sorted(found)


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


def _run_clone(options: argparse.Namespace) -> int:
    """Give a group another one's offsets, or say which; a target that is online is left alone."""
    source, target = options.source, options.target
    ext = {"srcGroup": source, "destGroup": target, "offline": str(options.offline).lower()}
    ext |= {"topic": options.topic} if options.topic else {}

    async def look(cluster: Cluster) -> dict[MessageQueue, tuple[int | None, int | None]]:
        given = await positions(cluster, source, options.topic)
        had = await positions(cluster, target, options.topic)
        wanted = {one.queue: one.committed for one in given if one.committed is not None}
        before = {one.queue: one.committed for one in had if one.committed is not None}
        topics = {queue.topic for queue in wanted}
        queues = sorted({*wanted, *(queue for queue in before if queue.topic in topics)})
        return {queue: (wanted.get(queue), before.get(queue)) for queue in queues}

    async def carry_out() -> tuple[
        Mapping[MessageQueue, tuple[int | None, int | None]], list[str], list[ChangeOutcome]
    ]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            await find_group(cluster, source)
            online = await _online(cluster, target)
            outcomes: list[ChangeOutcome] = []
            if options.yes and not online:
                code = RequestCode.CLONE_GROUP_OFFSET
                outcomes = [await cluster.change(each, code, ext) for each in cluster.brokers]
            return await look(cluster), online, outcomes

    table, online, outcomes = trio.run(carry_out)
    if options.json:
        print_json(
            {
                "source": source,
                "target": target,
                "members": online,
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
        )
    else:
        headings = ("topic", "broker", "queue", source, target)
        cells = [
            (queue.topic, queue.broker_name, str(queue.queue_id), number(given), number(had))
            for queue, (given, had) in table.items()
        ]
        what = "offsets now" if outcomes else f"offsets that {target} would get"
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
