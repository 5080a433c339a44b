"""The pulls that wait for a message (long polling, rules F). Pure.

It knows when to look again, and at which pulls. It must not know what a pull asks for, nor read for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from broker.service.wait_room import WaitRoom
from dledger_mq.message.numbers import QueueId, QueueOffset

HOLD_MS_MAX = 25_000
"""Clients give a pull 30 s in all; an answer must be on its way before that."""

SHORT_POLL_MS = 1_000
"""The hold of a pull when `longPollingEnable` is false (F2)."""


def hold_ms(suspend_timeout_ms: int, *, long_polling: bool) -> int:
    """Return how long a pull may wait (F2), in ms, bounded so that the client still gets its answer."""
    wanted = suspend_timeout_ms if long_polling else SHORT_POLL_MS
    return max(0, min(wanted, HOLD_MS_MAX))


class HeldPull(Protocol):
    """A pull that found nothing yet.

    Attributes:
        connection: its number, so that a closed one takes its pulls along.
        held_until_ms: when it is answered with what is there.
        next_offset: the queue offset from which on it waits for messages.
        is_held: False once it was answered or dropped; it may linger in the heap.
    """

    held_until_ms: int
    next_offset: QueueOffset
    is_held: bool

    @property
    def kept_bytes(self) -> int:
        """See `wait_room.MemoryKeeper`."""
        ...

    @property
    def shared(self) -> tuple[object, int] | None:
        """See `wait_room.MemoryKeeper`."""
        ...

    @property
    def place(self) -> tuple[str, QueueId]:
        """The topic and queue id that it reads."""
        ...

    @property
    def connection(self) -> int:
        """The number of the connection that the pull came on."""
        ...


class GrowingQueue(Protocol):
    """A queue to which messages come."""

    @property
    def max_offset(self) -> QueueOffset:
        """The queue offset that the next message gets."""
        ...


P = TypeVar("P", bound=HeldPull)


class HeldPulls(Generic[P]):
    """All held pulls of a node, by queue and by deadline."""

    def __init__(self, held_max: int, room: WaitRoom | None = None) -> None:
        """Start without any; those that keep much share the room."""
        self._held_max = held_max
        self._room = WaitRoom() if room is None else room
        self._by_queue: dict[tuple[bytes, QueueId], list[P]] = {}
        """By topic, encoded as the fold has it: they are looked up there again and again."""
        self._by_connection: dict[int, set[P]] = {}
        self._heap: list[tuple[int, int, P]] = []
        self._counter = 0
        self.count = 0
        """Invariant: 0 <= count <= held_max; the pulls in `_by_queue`."""

    def hold(self, pull: P) -> bool:
        """Keep a pull until a message comes or its deadline; False when too many wait already."""
        if self.count >= self._held_max or not self._room.enter(pull):
            return False
        assert not pull.is_held, f"a pull on {pull.place} is held twice"
        pull.is_held = True
        self._by_queue.setdefault(_key_of(pull), []).append(pull)
        self._by_connection.setdefault(pull.connection, set()).add(pull)
        self._counter += 1
        heapq.heappush(self._heap, (pull.held_until_ms, self._counter, pull))
        self.count += 1
        return True

    def queues(self) -> list[tuple[bytes, QueueId]]:
        """Return the queues that pulls wait for."""
        return list(self._by_queue)

    @property
    def queue_count(self) -> int:
        """The count of the queues that pulls wait for."""
        return len(self._by_queue)

    def reached(
        self,
        queues: Iterable[tuple[bytes, QueueId]],
        ends: Mapping[tuple[bytes, QueueId], GrowingQueue],
    ) -> list[P]:
        """Return the pulls on some queues for which there are messages by now, those of a queue oldest first."""
        found: list[P] = []
        for key in queues:
            end = ends.get(key)
            if end is not None:
                pulls = self._by_queue.get(key, ())
                found += [pull for pull in pulls if end.max_offset > pull.next_offset]
        return found

    def all(self) -> list[P]:
        """Return all pulls, those of a queue oldest first."""
        return [pull for pulls in self._by_queue.values() for pull in pulls]

    def release(self, pull: P) -> None:
        """Forget a pull: it is being answered."""
        if not pull.is_held:
            return
        pull.is_held = False
        self._room.leave(pull)
        self.count -= 1
        assert self.count >= 0, (
            f"{self.count} pulls are held after one on {pull.place} was released"
        )
        key = _key_of(pull)
        same_queue = self._by_queue[key]
        same_queue.remove(pull)
        if not same_queue:
            del self._by_queue[key]
        same_connection = self._by_connection[pull.connection]
        same_connection.discard(pull)
        if not same_connection:
            del self._by_connection[pull.connection]

    def take_due(self, now_ms: int) -> list[P]:
        """Release and return the pulls whose time is over (F8)."""
        due: list[P] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, pull = heapq.heappop(self._heap)
            if pull.is_held and pull.held_until_ms == due_ms:
                self.release(pull)
                due.append(pull)
        return due

    def connection_closed(self, connection: int) -> None:
        """Drop the pulls of a connection."""
        for pull in tuple(self._by_connection.get(connection, ())):
            self.release(pull)


def _key_of(pull: HeldPull) -> tuple[bytes, QueueId]:
    """Return the queue that a pull waits for, as the fold names it."""
    topic, queue_id = pull.place
    return topic.encode(), queue_id
