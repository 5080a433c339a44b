"""The queues whose readers were sent from this node to the leader, and came back: they have no other node to ask.

A node that nobody confirms may be cut off from its group, while the others have deleted a topic and made it again: what
stands here at an offset may not be what its client means. So it sends the client to the leader, with the client's own
offset. Who comes back has a route without a leader, as when the disks of a majority are full, or was sent back by a
leader that this node has not heard of. So it may read what was committed only while this node reaches no leader: the
first word of one ends that for all.
"""

from __future__ import annotations

from dledger_mq.message.numbers import QueueId


class SentAway:
    """Queues of connections, as many as were sent away since a leader was last heard of."""

    def __init__(self, count_max: int) -> None:
        """Remember no more than `count_max` queues: beyond that all are forgotten, and sent away once more."""
        self._count_max = count_max
        self._places: dict[int, set[tuple[str, QueueId]]] = {}
        self._count = 0

    def add(self, connection: int, place: tuple[str, QueueId]) -> None:
        """Note that the reader of a queue is sent to the leader."""
        if self._count >= self._count_max:
            self.forget()
        places = self._places.setdefault(connection, set())
        self._count += place not in places
        places.add(place)

    def is_back(self, connection: int, place: tuple[str, QueueId]) -> bool:
        """Return True for a queue whose reader was sent away before."""
        return place in self._places.get(connection, ())

    def forget(self) -> None:
        """Begin anew: there is a leader."""
        self._places.clear()
        self._count = 0

    def connection_closed(self, number: int) -> None:
        """Forget a connection that ended."""
        self._count -= len(self._places.pop(number, ()))
