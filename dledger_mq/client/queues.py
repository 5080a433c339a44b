"""Queues by name, and how a producer chooses one.

Pure: the route says which queues there are, the caller's key or a counter picks one. The order of
queues is Java's (topic, broker name, queue id), so that the same key meets the same queue from here
as from a Java producer that hashes it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from dledger_mq.message.hashes import consistent_hash, java_hash


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic. Sorts as Java's MessageQueue does: topic, broker name, queue id.

    Applications make them too, so the queue id is an `int`.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}/{self.queue_id}"


QueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Given all queues of a topic in order, returns the one that a message goes to."""


def queue_for_key(queues: Sequence[MessageQueue], key: str | bytes) -> MessageQueue:
    """Return the queue that always takes messages of `key`, while the number of queues stays.

    The hash is CRC-32 of the UTF-8 text: the same in every process and on every machine, which
    Python's own `hash` is not.
    """
    assert queues, "a topic that takes messages has queues"
    data = key.encode() if isinstance(key, str) else key
    return queues[crc32(data) % len(queues)]


def queue_for_group(queues: Sequence[MessageQueue], message_group: str) -> MessageQueue:
    """Return the queue of a message group: RocketMQ's proxy, which chooses for its 5.x clients, takes the same one."""
    assert queues, "a topic that takes messages has queues"
    return queues[consistent_hash(java_hash(message_group), len(queues))]


class RoundRobin:
    """Deals messages out over the queues of a topic in turn.

    Queues of brokers named in `avoid` are passed over while there are others: a producer names the
    brokers there that it cannot reach just now.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def __call__(
        self, queues: Sequence[MessageQueue], avoid: frozenset[str] = frozenset()
    ) -> MessageQueue:
        """Return the next queue. `queues` is not empty."""
        count = len(queues)
        assert count, "a topic that takes messages has queues"
        for step in range(count if avoid else 0):
            queue = queues[(self._next + step) % count]
            if queue.broker_name not in avoid:
                self._next = (self._next + step + 1) % count
                return queue
        queue = queues[self._next % count]
        self._next = (self._next + 1) % count
        return queue
