"""The pulls that wait for a message (long polling, rules F). Pure: when to look again, and at which."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

HOLD_MS_MAX = 25_000
"""Clients give a pull 30 s in all; an answer must be on its way before that."""

SHORT_POLL_MS = 1_000
"""How long a pull is held when `longPollingEnable` is false (F2)."""


def hold_ms(suspend_timeout_ms: int, *, long_polling: bool) -> int:
    """How long a pull may wait (F2), bounded so that the client still gets its answer."""
    wanted = suspend_timeout_ms if long_polling else SHORT_POLL_MS
    return max(0, min(wanted, HOLD_MS_MAX))


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that found nothing yet.

    Attributes:
        next_offset: first queue offset that was not looked at yet; grows while nothing matches.
        request: what the shell needs to answer; this module does not look into it.
        connection: number of the connection, so that a closed one takes its pulls along.
        waiting: False once it was answered or dropped; it may linger in the heap.
    """

    topic: str
    queue_id: int
    next_offset: int
    deadline_ms: int
    connection: int
    request: Any
    waiting: bool = field(default=True)


class HeldPulls:
    """All held pulls of a node, by queue and by deadline."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._by_connection: dict[int, set[HeldPull]] = {}
        self._heap: list[tuple[int, int, HeldPull]] = []
        self._counter = 0
        self.count = 0

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull until a message comes or its deadline; False when too many wait already."""
        if self.count >= self._held_max:
            return False
        self._by_queue.setdefault((pull.topic, pull.queue_id), []).append(pull)
        self._by_connection.setdefault(pull.connection, set()).add(pull)
        self._counter += 1
        heapq.heappush(self._heap, (pull.deadline_ms, self._counter, pull))
        self.count += 1
        return True

    def waiting_on(self, topic: str, queue_id: int) -> tuple[HeldPull, ...]:
        """The pulls that wait for this queue, oldest first."""
        return tuple(self._by_queue.get((topic, queue_id), ()))

    def queues(self) -> list[tuple[str, int]]:
        """Queues that somebody waits for."""
        return list(self._by_queue)

    def release(self, pull: HeldPull) -> None:
        """Forget a pull: it is being answered."""
        if not pull.waiting:
            return
        pull.waiting = False
        self.count -= 1
        key = (pull.topic, pull.queue_id)
        same_queue = self._by_queue[key]
        same_queue.remove(pull)
        if not same_queue:
            del self._by_queue[key]
        same_connection = self._by_connection[pull.connection]
        same_connection.discard(pull)
        if not same_connection:
            del self._by_connection[pull.connection]

    def take_due(self, now_ms: int) -> list[HeldPull]:
        """Release and give the pulls whose time is over (F8)."""
        due: list[HeldPull] = []
        while self._heap and self._heap[0][0] <= now_ms:
            pull = heapq.heappop(self._heap)[2]
            if pull.waiting:
                self.release(pull)
                due.append(pull)
        return due

    def take_all(self) -> list[HeldPull]:
        """Release and give all pulls: the role changed, or the node stops (F10)."""
        every = [pull for pulls in self._by_queue.values() for pull in pulls]
        for pull in every:
            self.release(pull)
        return every

    def connection_closed(self, connection: int) -> None:
        """Drop the pulls of a connection."""
        for pull in tuple(self._by_connection.get(connection, ())):
            self.release(pull)
