"""The queues that option `assign` picks out of topics, instead of all. Pure.

{"Orders": [0, 1]}                  queues 0 and 1 of every broker group that serves the topic
{"Orders": {"broker-a": [0, 1]}}    those of one group
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import topic_problem
from pipeline.errors import PipelineUsageError

SHAPE: Final = '{"topic": [queueId]} or {"topic": {"brokerName": [queueId]}}'
EVERY_BROKER: Final = ""


@dataclass(frozen=True, slots=True)
class AssignedQueues:
    """Queues as they were asked for: topic, broker name (EVERY_BROKER for all) and queue id."""

    wanted: frozenset[tuple[str, str, int]]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, sorted."""
        return tuple(sorted({topic for topic, _, _ in self.wanted}))

    def __contains__(self, queue: MessageQueue) -> bool:
        return any(
            (queue.topic, name, queue.queue_id) in self.wanted
            for name in (queue.broker_name, EVERY_BROKER)
        )

    def missing(self, there: Iterable[MessageQueue]) -> list[str]:
        """Return what was asked for and is not among these queues, in words."""
        found = {(queue.topic, queue.broker_name, queue.queue_id) for queue in there}
        found |= {(topic, EVERY_BROKER, queue_id) for topic, _, queue_id in found}
        return [
            f"{topic}@{name or 'any broker'}/{queue_id}"
            for topic, name, queue_id in sorted(self.wanted - found)
        ]


def read_assignment(value: object, what: str) -> AssignedQueues:
    """Read parsed JSON.

    Args:
        value: the JSON.
        what: the option, for errors.

    Raises:
        PipelineUsageError: it has another shape, or names no queue.
    """
    wanted: set[tuple[str, str, int]] = set()
    if not isinstance(value, dict) or not value:
        raise PipelineUsageError(f"{what}: {value!r} names no queues; the shape is {SHAPE}")
    for topic, queues in value.items():
        problem = topic_problem(topic)
        if problem is not None:
            raise PipelineUsageError(f"{what} names {topic!r}: {problem}")
        brokers = queues if isinstance(queues, dict) else {EVERY_BROKER: queues}
        for name, ids in brokers.items():
            if not isinstance(ids, list) or not ids or not all(map(_is_queue_id, ids)):
                raise PipelineUsageError(
                    f"{what}, topic {topic}: {ids!r} is no list of queue ids; the shape is {SHAPE}"
                )
            wanted.update((topic, name, queue_id) for queue_id in ids)
    return AssignedQueues(frozenset(wanted))


def _is_queue_id(value: object) -> bool:
    return type(value) is int and value >= 0
