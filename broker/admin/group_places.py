"""The places of a consumer group in its queues, as broker groups say; they are shown and changed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from broker.admin.answers import GroupPlace, QueueStats
from broker.admin.cluster import Cluster
from dledger_mq.client.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The place of a group in a queue.

    Attributes:
        committed: the next offset that it consumes; None: it has committed none.
        start, end: what the queue holds; `end` is the next offset to be written.
        consumed_ms: store time of the last message that it has consumed; None: not known.
    """

    queue: MessageQueue
    committed: int | None
    start: int
    end: int
    consumed_ms: int | None = None

    @property
    def lag(self) -> int | None:
        """The number of messages that it has not consumed and still can; None: where it would begin is not known."""
        return (
            None if self.committed is None else max(0, self.end - max(self.committed, self.start))
        )

    @property
    def missed(self) -> int:
        """The number of messages that are gone and that it had not consumed; of a group without an offset, none."""
        return 0 if self.committed is None else max(0, self.start - self.committed)


def _position(queue: MessageQueue, progress: GroupPlace, stats: QueueStats | None) -> QueuePosition:
    """Put together what is known of a group in a queue; the queue was looked at last, so no group seems ahead."""
    held = stats or QueueStats(0, progress.broker_offset)
    committed = progress.consumer_offset if progress.consumer_offset >= 0 else None
    return QueuePosition(
        queue, committed, held.min_offset, held.max_offset, progress.last_timestamp or None
    )


async def positions(cluster: Cluster, group: str, topic: str | None) -> list[QueuePosition]:
    """Return the places of a group, in one topic or in all that it has offsets for. Raises ClientError."""
    found = []
    for broker in cluster.brokers:
        progress = await cluster.progress(broker, group, topic)
        topics = sorted({queue.topic for queue in progress})
        held = {name: await cluster.queues(broker, name) for name in topics}
        for queue, one in progress.items():
            place = MessageQueue(queue.topic, broker, queue.queue_id)
            found.append(_position(place, one, held[queue.topic].get(queue.queue_id)))
    return sorted(found, key=lambda one: one.queue)


def position_json(one: QueuePosition) -> dict[str, object]:
    """Return a place as scripts read it; what is not known is null."""
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker_name,
        "queue": one.queue.queue_id,
        "min": one.start,
        "max": one.end,
        "committed": one.committed,
        "lag": one.lag,
        "missed": one.missed,
        "consumed_ms": one.consumed_ms,
    }
