"""Bodies with which tools see how far groups have consumed (303, 308, 317, 321). Pure.

Their forms: docs/formats/remoting.md, "Tables for tools". It must not know where store times are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.service.connections import wire_subscription
from broker.service.tables import GivenOffsets, consume_table
from broker.service.tags import tag_hashes
from broker.store.consume_queue import ConsumeQueues
from broker.store.groups import Groups
from broker.store.offsets import ConsumerOffsets
from broker.store.pops import Pops
from broker.store.topics import TopicConfig
from broker.store.unit_stores import UNIT
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs
from dledger_mq.remoting.heartbeat import EXPRESSION_TAG, Subscription
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue

NO_TIME_MS: Final = -1
"""The time of a message that is not there."""

NOT_COMPARED: Final = 2**63 - 1
"""The correction of a queue that others are ahead in: Java's Long.MAX_VALUE."""


class TimeSpan(NamedTuple):
    """The store times of some messages of one queue; None: there is no such message.

    Attributes:
        first_ms, last_ms: of the first message that is left, and of the newest.
        consumed_ms: of the last one that the group has consumed.
        next_ms: of the one that it consumes next.
    """

    queue_id: QueueId
    first_ms: StoreTimeMs | None
    last_ms: StoreTimeMs | None
    consumed_ms: StoreTimeMs | None
    next_ms: StoreTimeMs | None


def time_spans(topic: str, broker_name: str, spans: Sequence[TimeSpan], *, now_ms: int) -> bytes:
    """Encode the body of QUERY_CONSUME_TIME_SPAN (303).

    Args:
        topic: of the queues.
        broker_name: named in them.
        spans: one for each queue.
        now_ms: to which a delay is counted.
    """
    rows = []
    for span in spans:
        consumed_ms = span.consumed_ms if span.consumed_ms is not None else span.first_ms
        rows.append(
            {
                "consumeTimeStamp": _time(consumed_ms),
                "delayTime": 0 if span.next_ms is None else max(0, now_ms - span.next_ms),
                "maxTimeStamp": _time(span.last_ms),
                "messageQueue": WireQueue(broker_name, span.queue_id, topic),
                "minTimeStamp": _time(span.first_ms),
            }
        )
    return write_json({"consumeTimeSpanSet": rows})


def _time(store_ms: StoreTimeMs | None) -> int:
    return NO_TIME_MS if store_ms is None else store_ms


def correction_offsets(
    offsets: ConsumerOffsets,
    queues: ConsumeQueues,
    topic: str,
    *,
    compared_group: str,
    left_out: frozenset[str],
) -> bytes:
    """Encode the body of QUERY_CORRECTION_OFFSET (308): the least offset of all groups, by queue id.

    Args:
        offsets: the committed offsets.
        queues: an offset before the beginning of its queue does not count.
        topic: whose offsets are wanted.
        compared_group: where this group is behind all others, `NOT_COMPARED` stands for the queue.
        left_out: groups that do not count.
    """
    least: dict[int, int] = {}
    for group in offsets.groups_of(topic):
        if group in left_out:
            continue
        for queue_id, offset in offsets.of(group, topic).items():
            if offset >= queues.min_max(topic, queue_id)[0]:
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in offsets.of(compared_group, topic).items():
        if least.get(queue_id, offset) > offset:
            least[queue_id] = NOT_COMPARED
    return write_json({"correctionOffsets": dict(sorted(least.items()))})


def consumed_topics(
    groups: Groups, topics: Iterable[TopicConfig], offsets: ConsumerOffsets
) -> dict[str, list[TopicConfig]]:
    """Return which of these topics each group consumes: it has committed an offset there."""
    shown = {topic.name: topic for topic in topics}
    found: dict[str, list[TopicConfig]] = {}
    for name, group, _ in offsets.items():
        if name in shown and group in groups:
            found.setdefault(group, []).append(shown[name])
    return found


def all_consume_stats(
    consumed: Mapping[str, Iterable[TopicConfig]],
    *,
    broker_name: str,
    broker_address: str,
    queues: ConsumeQueues,
    offsets: ConsumerOffsets,
    given: GivenOffsets,
    pops: Pops,
    per_second: Callable[[str, str], float],
) -> bytes:
    """Encode the body of GET_BROKER_CONSUME_STATS (317): groups in their topics, and how much they lack together.

    Args:
        consumed: the topics of each group.
        broker_name: named in them.
        broker_address: of this node.
        queues: whose ends are compared.
        offsets: with what is committed.
        given: returns how far the members of a group were given messages of a topic.
        pops: with what is in flight.
        per_second: returns how many messages a group consumes of a topic in a second.
    """
    found: list[object] = []
    lacking = in_flight = 0
    for group, topics in sorted(consumed.items()):
        tables: list[object] = []
        for topic in topics:
            table = consume_table(
                [topic],
                group=group,
                broker_name=broker_name,
                queues=queues,
                offsets=offsets,
                given=given,
                pops=pops,
            )
            lacking += sum(row.lag for row in table.values())
            in_flight += sum(row.in_flight for row in table.values())
            tables.append({"consumeTps": per_second(group, topic.name), "offsetTable": table})
        found.append({group: tables})
    return write_json(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": found,
            "totalDiff": lacking,
            "totalInflightDiff": in_flight,
        }
    )


def units(
    found: memoryview,
    wanted: Subscription | None,
    *,
    min_offset: QueueOffset,
    max_offset: QueueOffset,
) -> bytes:
    """Encode the body of QUERY_CONSUME_QUEUE (321).

    Args:
        found: units of the queue, back to back.
        wanted: the subscription by whose tags each is judged; None, or one by SQL92: all pass.
        min_offset: of the queue.
        max_offset: of the queue.
    """
    is_by_tags = wanted is not None and wanted.expression_type == EXPRESSION_TAG
    hashes = tag_hashes(wanted.expression) if wanted is not None and is_by_tags else None
    rows = [
        {
            "eval": hashes is None or tag_hash in hashes,
            "physicOffset": physical_offset,
            "physicSize": size_bytes,
            "tagsCode": tag_hash,
        }
        for physical_offset, size_bytes, tag_hash in UNIT.iter_unpack(found)
    ]
    body: dict[str, object] = {
        "maxQueueIndex": max_offset,
        "minQueueIndex": min_offset,
        "queueData": rows,
    }
    if wanted is not None:
        body["subscriptionData"] = wire_subscription(wanted)
    return write_json(body)
