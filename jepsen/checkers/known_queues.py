"""Finds the queues of messages that a client placed without saying of which group. Pure.

Some clients do not show the broker name: of what they were handed only topic, queue id and offset are known, and where
a send went they do not say at all. With one group that is enough; with several, the queue is looked up by the message,
in what others said of it. A queue without a broker name is written "topic//3".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dledger_mq.message.numbers import QueueOffset


def is_nameless(queue: str) -> bool:
    """Return whether a queue has no broker name."""
    return "//" in queue


class KnownQueues:
    """The queues in which messages are known to stand, by key."""

    def __init__(self) -> None:
        self._places: dict[str, set[tuple[str, QueueOffset]]] = defaultdict(set)

    def note(self, key: str, queue: str, offset: QueueOffset) -> None:
        """Note where a message stands; of a queue without a broker name nothing is learnt."""
        if not is_nameless(queue):
            self._places[key].add((queue, offset))

    def queue_of(self, key: str, offset: QueueOffset, nameless: str = "") -> str | None:
        """Return the one queue in which a message stands.

        Args:
            key: of the message.
            offset: at which it is said to stand; decides where several queues hold the message.
            nameless: the queue without its broker name, where that is known.

        Returns:
            None when nobody knows, or when it may be one of several.
        """
        known = [place for place in self._places.get(key, ()) if _fits(place[0], nameless)]
        exact = [place for place in known if place[1] == offset]
        return _only(queue for queue, _ in exact or known)


def _fits(queue: str, nameless: str) -> bool:
    topic, _, queue_id = queue.rsplit("/", 2)
    return not nameless or f"{topic}//{queue_id}" == nameless


def _only(queues: Iterable[str]) -> str | None:
    found = set(queues)
    return found.pop() if len(found) == 1 else None
