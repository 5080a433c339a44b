"""How much may be kept under names of which nothing exists: a group, a topic or a queue that there is not. Pure.

Requests may name what is not there yet, and some clients do. But nothing else bounds the names that one client can make
up, and every replica keeps what is stored under them. So what exists has room always, and the rest as long as its table
is small. The fold takes what is in the log; this is for whoever is about to write it there.
"""

from __future__ import annotations

from typing import Final

from broker.store.state import BrokerState
from dledger_mq.message.numbers import QueueId

NAME_LENGTH_MAX: Final = 255
"""Longest name of a topic (B2) or group; nothing is kept under longer ones."""

LOCKS_MAX: Final = 65_536
"""Locks in the table, above which only queues that exist are locked for groups that do: some 20 MB."""

OFFSETS_MAX: Final = 262_144
"""The same of offsets, one of each queue: some 60 MB if each is of another group."""

PROHIBITIONS_MAX: Final = 65_536
"""The same of topics that groups may not read: some 20 MB."""


def exists(state: BrokerState, group: str, topic: str, queue_id: QueueId) -> bool:
    """Return whether there are the group, the topic, and such a queue of it, as far as this node has applied."""
    config = state.topics.get(topic)
    if config is None or group not in state.groups:
        return False
    return 0 <= queue_id < max(config.read_queue_count, config.write_queue_count)


def has_room_for_offset(state: BrokerState, group: str, topic: str, queue_id: QueueId) -> bool:
    """Return whether an offset may be kept: one of the queue is already, it exists, or the table is small."""
    offsets = state.offsets
    return (
        offsets.row_count < OFFSETS_MAX
        or offsets.get(group, topic, queue_id) is not None
        or exists(state, group, topic, queue_id)
    )


def lockable(
    state: BrokerState, group: str, queues: list[tuple[str, QueueId]]
) -> list[tuple[str, QueueId]]:
    """Return those queues, topic and id each, that may be locked: in the table already, existing, or few enough."""
    locks = state.locks
    room = LOCKS_MAX - len(locks)
    if len(queues) <= room and all(len(topic) <= NAME_LENGTH_MAX for topic, _ in queues):
        return queues
    kept = []
    for topic, queue_id in queues:
        if locks.owner(group, topic, queue_id) is None and not exists(
            state, group, topic, queue_id
        ):
            if room <= 0 or len(topic) > NAME_LENGTH_MAX:
                continue
            room -= 1
        kept.append((topic, queue_id))
    return kept


def has_room_for_prohibition(state: BrokerState, topic: str) -> bool:
    """Return whether a group may be forbidden to read one more topic: there is such a topic, or the table is small."""
    is_small = state.groups.prohibition_count < PROHIBITIONS_MAX
    return topic in state.topics or (is_small and len(topic) <= NAME_LENGTH_MAX)
