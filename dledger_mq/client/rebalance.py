"""Which member of a consumer group reads which queues: RocketMQ's six allocation strategies.

Pure. Every member computes the whole allocation for itself from the same two sorted lists, so all
members must use the same strategy, and sort and divide exactly as the Java client does: a mixed group
would otherwise read some queues twice and others not at all. Sources: rule Q5;
Java AllocateMessageQueueAveragely, ...AveragelyByCircle, ...ByConfig, ...ConsistentHash,
...ByMachineRoom, AllocateMachineRoomNearby.

A strategy is a function of (queues, client ids of all members, own client id) that returns the own
queues; the functions named `by_...` and `..._nearby` make one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.queues import MessageQueue

Strategy = Callable[[Collection[MessageQueue], Collection[str], str], list[MessageQueue]]

VIRTUAL_NODES: Final = 10  # Java's default


def java_order(text: str) -> bytes:
    """Return a sort key that orders strings as Java's String.compareTo: by UTF-16 code units."""
    return text.encode("utf-16-be")


def _members(client_ids: Collection[str]) -> list[str]:
    return sorted(set(client_ids), key=java_order)


def _ordered(queues: Collection[MessageQueue]) -> list[MessageQueue]:
    return sorted(
        set(queues), key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id)
    )


def allocate_average(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`: contiguous ranges, the first members get one more.

    A client that is not (yet) in `client_ids` gets nothing: the others count without it.
    """
    members = _members(client_ids)
    if client_id not in members or not queues:
        return []
    ordered = _ordered(queues)
    index = members.index(client_id)
    share, left_over = divmod(len(ordered), len(members))
    start = index * share + min(index, left_over)
    return ordered[start : start + share + (1 if index < left_over else 0)]


def allocate_circle(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return every n-th queue, as cards are dealt out: members of a group share each broker."""
    members = _members(client_ids)
    if client_id not in members:
        return []
    return _ordered(queues)[members.index(client_id) :: len(members)]


def by_config(wanted: Iterable[MessageQueue]) -> Strategy:
    """Return a strategy that takes the queues named here, no matter who else is a member.

    The members are to be configured so that every queue is named at exactly one of them.
    Queues that do not exist (yet) are not taken.
    """
    mine = frozenset(wanted)

    def allocate(
        queues: Collection[MessageQueue], _client_ids: Collection[str], _client_id: str
    ) -> list[MessageQueue]:
        return [queue for queue in _ordered(queues) if queue in mine]

    return allocate


def by_consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Return a strategy that moves few queues when members come and go.

    Each member stands at `virtual_nodes` places of a ring of 32-bit hashes; a queue belongs to the
    first place at or after its own. Shares differ in size, and a member may get none.

    Raises:
        ClientUsageError: there would be no place at all.
    """
    if virtual_nodes < 1:
        raise ClientUsageError(f"virtual_nodes {virtual_nodes} must be above 0")

    def allocate(
        queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
    ) -> list[MessageQueue]:
        members = _members(client_ids)
        if client_id not in members:
            return []
        # Of two places with one hash the later member's stands, as in Java's map.
        owners = {
            _ring_hash(f"{member}-{number}"): member
            for member in members
            for number in range(virtual_nodes)
        }
        ring = sorted(owners)
        return [
            queue
            for queue in _ordered(queues)
            if owners[ring[bisect_left(ring, _ring_hash(_java_text(queue))) % len(ring)]]
            == client_id
        ]

    return allocate


def _ring_hash(text: str) -> int:
    """Return Java's MD5Hash: the first four bytes of the digest, unsigned."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """Return Java's MessageQueue.toString, which is what its client hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """Return a strategy that divides the queues of some machine rooms evenly, and takes no others.

    The room of a queue is what stands before the "@" of its broker's name ("hz@broker-a"). What is left
    after the even division goes to the first members, from the end of the list.
    """
    wanted = frozenset(rooms)

    def allocate(
        queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
    ) -> list[MessageQueue]:
        members = _members(client_ids)
        if client_id not in members:
            return []
        inside = [queue for queue in _ordered(queues) if _room_of(queue) in wanted]
        index = members.index(client_id)
        share, left_over = divmod(len(inside), len(members))
        mine = inside[index * share : (index + 1) * share]
        if index < left_over:
            mine.append(inside[share * len(members) + index])
        return mine

    return allocate


def _room_of(queue: MessageQueue) -> str | None:
    parts = queue.broker_name.split("@")
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    queue_room: Callable[[MessageQueue], str],
    member_room: Callable[[str], str],
    within: Strategy = allocate_average,
) -> Strategy:
    """Return a strategy by which queues are read in their own machine room while anybody is there.

    Queues of rooms without any member are divided among all members.

    Args:
        queue_room: names the room of a queue; never empty.
        member_room: names the room of a client id; never empty.
        within: divides the queues of one room.
    """

    def room(name: str, thing: object) -> str:
        if not name:
            raise ClientUsageError(f"no machine room is known for {thing}")
        return name

    def allocate(
        queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in _ordered(queues):
            queues_of[room(queue_room(queue), queue)].append(queue)
        members_of: dict[str, list[str]] = defaultdict(list)
        for member in _members(client_ids):
            members_of[room(member_room(member), member)].append(member)
        mine_here = member_room(client_id)
        found = within(queues_of.pop(mine_here, []), members_of[mine_here], client_id)
        for name, left in sorted(queues_of.items(), key=lambda item: java_order(item[0])):
            if name not in members_of:
                found = found + within(left, client_ids, client_id)
        return found

    return allocate


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of a rebalance for a member: queues to give up, queues to take on. Both sorted."""

    released: tuple[MessageQueue, ...]
    acquired: tuple[MessageQueue, ...]


def changes(owned: Collection[MessageQueue], wanted: Sequence[MessageQueue]) -> Changes:
    """Return what leads from `owned` to `wanted`."""
    have, want = set(owned), set(wanted)
    return Changes(tuple(sorted(have - want)), tuple(sorted(want - have)))
