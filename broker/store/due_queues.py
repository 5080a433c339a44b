"""Queues in the order in which the first of their messages in flight is due.

Who returns what nobody pops (broker/server/handlers/pop_returns.py) would else look through all queues of which
something is in flight. It follows from the table of pops (pops.py) and is in no snapshot and no digest.

Nothing here knows messages, or when a queue is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList

from broker.store.emptying import emptied
from dledger_mq.message.numbers import QueueId

QueueKey = tuple[str, str, QueueId]
"""Group, topic, queue id."""

DuePlace = tuple[int, QueueKey]
"""The time at which a queue is due, and the queue: where it stands in the order."""


class DueQueues:
    """The order; each queue stands in it once, or not at all."""

    def __init__(self) -> None:
        self._places: SortedList[DuePlace] = SortedList()
        self._due_ms: dict[QueueKey, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, key: QueueKey, due_ms: int | None) -> None:
        """Let a queue stand where it is due; None: nowhere."""
        before = self._due_ms.get(key)
        if before == due_ms:
            return
        if before is not None:
            self._places.remove((before, key))
            del self._due_ms[key]
        if due_ms is not None:
            self._places.add((due_ms, key))
            self._due_ms[key] = due_ms

    def due(self, until_ms: int, after: DuePlace | None, count_max: int) -> list[DuePlace]:
        """Return places of queues that are due by then, in order: at most so many, behind `after`; None: the first."""
        found: list[DuePlace] = []
        for place in islice(self._places.irange(after, None, (False, False)), count_max):
            if place[0] > until_ms:
                break
            found.append(place)
        return found

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps."""
        yield from emptied(self._places)
        yield from emptied(self._due_ms)
