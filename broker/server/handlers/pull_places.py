"""How far groups were given messages of each queue, by the pulls that this node answered since its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_mq.message.numbers import QueueId, QueueOffset

PLACES_MAX: Final = 65_536
"""Queues of groups; of those that were pulled first nothing is known any more."""


class PullPlaces:
    """The offset behind the last message that each group was given of each queue."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], dict[QueueId, QueueOffset]] = {}
        self._count = 0

    def note(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        """Note that a group was given what stands before an offset, or goes on there."""
        queues = self._places.setdefault((group, topic), {})
        if queue_id not in queues:
            self._count += 1
        queues[queue_id] = offset
        while self._count > PLACES_MAX:
            self._count -= len(self._places.pop(next(iter(self._places))))

    def of(self, group: str, topic: str) -> Mapping[QueueId, QueueOffset]:
        """Return where a group is in a topic, by queue id."""
        return self._places.get((group, topic), {})
