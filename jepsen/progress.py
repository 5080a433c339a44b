"""Running totals of a history while it grows, and the gaps that the kills made. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from jepsen.history import Event

Message = tuple[str, str, int]  # producer, queue, number


class Progress:
    """Counts what happened so far; `update` takes in what was added since the last call."""

    def __init__(self, events: list[Event]) -> None:
        self.sent: dict[str, int] = defaultdict(int)
        self.acknowledged: dict[str, int] = defaultdict(int)
        self.unknown = 0
        self.kills = 0
        self.leader = ""
        self.term = 0
        self._events = events
        self._read = 0
        self._acked: set[Message] = set()
        self._received: dict[str, set[Message]] = defaultdict(set)

    def update(self) -> None:
        """Take in the new events."""
        fresh = list(islice(self._events, self._read, None))
        self._read += len(fresh)
        for event in fresh:
            if event.stream:
                continue
            match event.kind:
                case "send":
                    self.sent[event.producer] += 1
                case "ack":
                    self.acknowledged[event.producer] += 1
                    self._acked.add((event.producer, event.queue, event.number))
                case "unknown":
                    self.unknown += 1
                case "receive":
                    message = (event.producer, event.queue, event.number)
                    self._received[event.consumer].add(message)
                case "kill":
                    self.kills += 1
                case "leader":
                    self.leader, self.term = event.node, event.term
                case _:
                    pass

    def received(self, group: str) -> int:
        """Distinct messages that a consumer group has received."""
        return len(self._received[group])

    def missing(self, group: str) -> int:
        """Acknowledged messages that a consumer group has not received yet."""
        return len(self._acked - self._received[group])


def failover_gaps_ms(events: Sequence[Event], producer: str) -> list[float | None]:
    """Return per kill the time until the first acknowledgement of a send begun after it.

    A send that was on its way when the leader died may have been answered by it; one that was begun
    afterwards cannot. None: no such send was acknowledged before the next kill.
    """
    gaps: list[float | None] = []
    began: dict[Message, float] = {}
    killed_at: float | None = None
    for event in events:
        if event.kind == "kill":
            if killed_at is not None:
                gaps.append(None)
            killed_at = event.t_ms
        elif event.producer == producer and event.kind == "send":
            began[event.producer, event.queue, event.number] = event.t_ms
        elif (
            event.producer == producer
            and event.kind == "ack"
            and killed_at is not None
            and began[event.producer, event.queue, event.number] > killed_at
        ):
            gaps.append(event.t_ms - killed_at)
            killed_at = None
    if killed_at is not None:
        gaps.append(None)
    return gaps


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of all values do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]
