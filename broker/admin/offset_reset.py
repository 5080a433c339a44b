"""The work of `dledger-admin offsets reset`: where a group would go on, and moving it there. It must not print.

A broker of ours that carries out 222 moves a group at once, and its members follow. Others get what a consumer sends, a
commit; so a group that is online there is left alone, since its members would commit their own places again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.admin.cluster import ChangeOutcome, Cluster
from broker.admin.failures import NotThereError
from broker.admin.group_places import QueuePosition, positions
from broker.admin.printing import number
from dledger_mq.client.errors import ClientError
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A queue in which a group is to go on elsewhere."""

    position: QueuePosition
    to: QueueOffset

    @property
    def effect(self) -> str:
        """The consequence for the group, in words."""
        before = self.position.committed
        if before is None:
            return f"begins there, {number(self.position.end - self.to)} to come"
        if self.to < before:
            return f"{number(before - max(self.to, self.position.start))} again"
        if self.to > before:
            skipped = self.to - max(before, self.position.start)
            return f"{number(max(0, skipped))} left out"
        return "stays"


async def plan_reset(cluster: Cluster, options: argparse.Namespace) -> list[PlannedMove]:
    """Find out where a group would go on, by the options of `offsets reset`.

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


async def move(
    cluster: Cluster, group: str, plan: Sequence[PlannedMove], online: Sequence[str]
) -> list[ChangeOutcome]:
    """Set the new places of a group; return an outcome for each queue.

    Where nobody is online it is looked whether they hold; elsewhere members may have gone on since.
    """
    outcomes: list[ChangeOutcome] = []
    for broker in sorted({one.position.queue.broker_name for one in plan}):
        moves = [one for one in plan if one.position.queue.broker_name == broker]
        try:
            is_able = await cluster.moves_groups(broker)
        except ClientError as error:
            outcomes += [ChangeOutcome(_name(one), str(error)) for one in moves]
            continue
        if is_able:
            done = [await _reset(cluster, group, one) for one in moves]
        elif online:
            text = f"{', '.join(online)} is online, and this broker cannot make members follow: stop it first"
            done = [ChangeOutcome(_name(one), text) for one in moves]
        else:
            done = [await _commit(cluster, group, one) for one in moves]
        outcomes += done if online else await _held(cluster, group, moves, done)
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
        requests = GroupRequests(reader.live_session(), group, timeout_s=reader.timeout_s)
        await requests.commit(queue, move.to)
    except ClientError as error:
        return ChangeOutcome(_name(move), str(error), not error.definite)
    return ChangeOutcome(_name(move))


async def _held(
    cluster: Cluster, group: str, moves: Sequence[PlannedMove], done: Sequence[ChangeOutcome]
) -> list[ChangeOutcome]:
    """Return what became of moves, after a look where the group is now."""
    try:
        found = await positions(cluster, group, moves[0].position.queue.topic)
    except ClientError as error:
        text = f"was answered as done; where the group is now could not be asked: {error}"
        return [each if each.problem else ChangeOutcome(each.broker, text, True) for each in done]
    now = {one.queue: one.committed for one in found}
    return [
        outcome if outcome.problem else _after_look(one, now.get(one.position.queue))
        for one, outcome in zip(moves, done, strict=True)
    ]


def _after_look(move: PlannedMove, now: int | None) -> ChangeOutcome:
    """Return what became of a move that was answered as done, by where the group is now."""
    if now == move.to:
        return ChangeOutcome(_name(move))
    text = f"the group is at {now}: the broker did not go there, or a member came"
    # One that came has gone on from the new place: then it is neither there nor where it was.
    return ChangeOutcome(_name(move), text, is_unknown=now != move.position.committed)
