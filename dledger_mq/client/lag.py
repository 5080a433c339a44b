"""How far consumer groups are behind the ends of their queues; streaming queries show as groups, too (commitGroup)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dledger_mq.client.errors import ClientError
from dledger_mq.client.inspector import GroupCounts, Inspector
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import is_system_topic
from dledger_mq.message.numbers import QueueOffset


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of one group in one queue.

    Attributes:
        committed: the next offset that the group will consume.
        start, end: what the queue holds; `end` is the next offset to be written.
        in_flight: messages that are popped and not acknowledged: the group has passed them, and they may come again.
            None: the broker does not say.
    """

    group: str
    topic: str
    broker_name: str
    queue_id: int
    committed: QueueOffset
    start: QueueOffset
    end: QueueOffset
    in_flight: int | None = None

    @property
    def lag(self) -> int:
        """The number of messages that the group has not consumed and still can."""
        return max(0, self.end - max(self.committed, self.start))

    @property
    def missed(self) -> int:
        """The number of messages that are gone and that the group had not consumed."""
        return max(0, self.start - self.committed)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The lag of one group in one topic: sums over its queues, and the queue that is furthest behind."""

    group: str
    topic: str
    queues: int
    lag: int
    missed: int
    worst: QueueLag
    in_flight: int | None = None


async def consumer_lags(
    namesrv: str, *, group: str | None = None, topic: str | None = None, timeout_s: float = 10.0
) -> list[QueueLag]:
    """Ask all broker groups; of one consumer group or topic only, where given.

    Raises:
        ClientError: name servers or brokers do not answer; nothing was changed.
    """
    found: list[QueueLag] = []
    async with Inspector(namesrv, timeout_s=timeout_s) as inspector:
        for broker_name in await inspector.broker_names():
            found += await _lags_of(inspector, broker_name, group, topic)
    return sorted(found, key=lambda one: (one.group, one.topic, one.broker_name, one.queue_id))


async def _lags_of(
    inspector: Inspector, broker_name: str, wanted_group: str | None, wanted_topic: str | None
) -> list[QueueLag]:
    """Compute the lags in one group; offsets are read before bounds, so that no consumer seems ahead of its queue."""
    offsets, in_flight = await inspector.consumer_places(broker_name)
    rows = [
        (group, MessageQueue(topic, broker_name, queue_id), offset)
        for group, topics in offsets.items()
        for topic, queues in topics.items()
        for queue_id, offset in queues.items()
        if wanted_group in (None, group)
        and wanted_topic in (None, topic)
        and not is_system_topic(topic)
    ]
    known: dict[str, set[MessageQueue]] = {}
    for topic in {queue.topic for _, queue, _ in rows}:
        try:
            known[topic] = set(await inspector.reader.queues(topic))
        except ClientError:
            known[topic] = set()  # deleted, or nobody may read it
    bounds = await inspector.reader.bounds(
        {queue for _, queue, _ in rows if queue in known[queue.topic]}
    )
    return [
        QueueLag(
            group,
            queue.topic,
            broker_name,
            queue.queue_id,
            offset,
            *bounds[queue],
            in_flight=_count_of(in_flight, group, queue),
        )
        for group, queue, offset in rows
        if queue in bounds
    ]


def _count_of(in_flight: GroupCounts | None, group: str, queue: MessageQueue) -> int | None:
    if in_flight is None:
        return None
    return in_flight.get(group, {}).get(queue.topic, {}).get(queue.queue_id, 0)


def by_topic(lags: Iterable[QueueLag]) -> list[TopicLag]:
    """Sum up per group and topic, largest lag first."""
    gathered: dict[tuple[str, str], list[QueueLag]] = {}
    for one in lags:
        gathered.setdefault((one.group, one.topic), []).append(one)
    sums = [
        TopicLag(
            group,
            topic,
            len(queues),
            sum(one.lag for one in queues),
            sum(one.missed for one in queues),
            max(queues, key=lambda one: (one.lag, one.missed)),
            _sum_of([one.in_flight for one in queues]),
        )
        for (group, topic), queues in gathered.items()
    ]
    return sorted(sums, key=lambda one: (-one.lag, one.group, one.topic))


def _sum_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum of what is known; None: nothing is."""
    known = [each for each in counts if each is not None]
    return sum(known) if known else None
