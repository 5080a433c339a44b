"""Bodies with which tools see the broker's tables: topics, groups, offsets. Pure.

Their forms: docs/formats/remoting.md, "Tables for tools".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from broker.store.consume_queue import ConsumeQueues
from broker.store.groups import Groups, SubscriptionGroupConfig
from broker.store.offsets import ConsumerOffsets
from broker.store.pops import Pops
from broker.store.topics import DataVersion, TopicConfig, Topics
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import Int32, Int64, WireDataVersion, WireTopicConfig

GivenOffsets = Callable[[str, str], Mapping[QueueId, QueueOffset]]
"""Returns how far the members of a group were given messages of a topic, by queue id."""


def wire_topic(config: TopicConfig, *, perm_mask: int = 15) -> WireTopicConfig:
    """Return a topic in the protocol's words; the broker's own permission masks the topic's."""
    return WireTopicConfig(
        order=config.is_order,
        perm=config.perm & perm_mask,
        read_queue_nums=config.read_queue_count,
        topic_filter_type=config.filter_type,
        topic_name=config.name,
        topic_sys_flag=config.sys_flag,
        write_queue_nums=config.write_queue_count,
        attributes=config.attributes or msgspec.UNSET,
    )


def wire_version(version: DataVersion) -> WireDataVersion:
    """Return the version of a table in the protocol's words."""
    return WireDataVersion(counter=version.counter, timestamp=version.timestamp_ms)


def all_topics(topics: Topics) -> bytes:
    """Encode the body of GET_ALL_TOPIC_CONFIG (21)."""
    return write_json(
        {
            "dataVersion": wire_version(topics.version),
            "topicConfigTable": {config.name: wire_topic(config) for config in topics},
        }
    )


class _TopicList(msgspec.Struct, rename="camel"):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[WireTopicConfig]


def read_topics(body: bytes) -> list[WireTopicConfig]:
    """Decode the body of UPDATE_AND_CREATE_TOPIC_LIST (18).

    Raises:
        BodyError: it is no list of topics.
    """
    try:
        return msgspec.json.decode(body, type=_TopicList, strict=False).topic_config_list
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a list of topics: {error}") from error


def attributes_text(topic: WireTopicConfig) -> str:
    """Return the change of a topic's attributes as one text, as UPDATE_AND_CREATE_TOPIC carries it."""
    attributes = topic.attributes or {}
    return ",".join(
        f"{key}={value}" if key.startswith("+") else key for key, value in attributes.items()
    )


def one_topic(config: TopicConfig) -> bytes:
    """Encode the body of GET_TOPIC_CONFIG (351)."""
    return write_json(wire_topic(config))


def topic_list(topics: Iterable[str], broker_address: str) -> bytes:
    """Encode a TopicList (305, 343)."""
    return write_json({"brokerAddr": broker_address, "topicList": sorted(topics)})


class _Group(msgspec.Struct, rename="camel"):
    """SubscriptionGroupConfig on the wire; all members may be missing in a request.

    JSON has numbers of any length. Those that Java's members hold are taken; larger ones could not be written down.
    """

    group_name: str
    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int64 = 1


def _wire_group(config: SubscriptionGroupConfig) -> _Group:
    """Convert the settings of a group to the JSON of the tools; positional, in the order of `_Group`'s fields."""
    return _Group(
        config.name,
        config.broker_id,
        config.consume_broadcast_enable,
        config.consume_enable,
        config.consume_from_min_enable,
        config.consume_message_orderly,
        config.notify_consumer_ids_changed,
        config.retry_times_max,
        config.retry_queue_count,
        config.slow_broker_id,
    )


def read_group(body: bytes) -> SubscriptionGroupConfig:
    """Decode the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200).

    Raises:
        BodyError: it is no group configuration.
    """
    try:
        group = msgspec.json.decode(body, type=_Group, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a group configuration: {error}") from error
    return _group(group)


class _GroupList(msgspec.Struct, rename="camel"):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[_Group]


def read_groups(body: bytes) -> list[SubscriptionGroupConfig]:
    """Decode the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225).

    Raises:
        BodyError: it is no list of group configurations.
    """
    try:
        groups = msgspec.json.decode(body, type=_GroupList, strict=False).group_config_list
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a list of group configurations: {error}") from error
    return [_group(group) for group in groups]


def _group(group: _Group) -> SubscriptionGroupConfig:
    """Convert the JSON of the tools to the settings of a group; the names differ where ours say what is counted."""
    return SubscriptionGroupConfig(
        name=group.group_name,
        consume_enable=group.consume_enable,
        consume_from_min_enable=group.consume_from_min_enable,
        consume_broadcast_enable=group.consume_broadcast_enable,
        consume_message_orderly=group.consume_message_orderly,
        retry_queue_count=group.retry_queue_nums,
        retry_times_max=group.retry_max_times,
        broker_id=group.broker_id,
        slow_broker_id=group.which_broker_when_consume_slowly,
        notify_consumer_ids_changed=group.notify_consumer_ids_changed_enable,
    )


def all_groups(groups: Groups) -> bytes:
    """Encode the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
    return write_json(
        {
            "dataVersion": wire_version(groups.version),
            "subscriptionGroupTable": {config.name: _wire_group(config) for config in groups},
        }
    )


def one_group(config: SubscriptionGroupConfig) -> bytes:
    """Encode the body of GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
    return write_json(_wire_group(config))


def all_offsets(offsets: ConsumerOffsets, pops: Pops) -> bytes:
    """Encode the body of GET_ALL_CONSUMER_OFFSET (43); queue ids stand as bare numbers.

    `inFlightTable` is ours: what is popped and not acknowledged, of the queues of which anything is.
    """
    table = {f"{topic}@{group}": dict(queues) for topic, group, queues in offsets.items()}
    in_flight: dict[str, dict[int, int]] = {}
    for (group, topic, queue_id), count in pops.queues():
        in_flight.setdefault(f"{topic}@{group}", {})[queue_id] = count
    return write_json(
        {
            "dataVersion": {"counter": offsets.change_count, "timestamp": 0},
            "inFlightTable": in_flight,
            "offsetTable": table,
        }
    )


def delay_offsets(progress: Mapping[int, int]) -> bytes:
    """Encode the body of GET_ALL_DELAY_OFFSET (45); levels stand as bare numbers."""
    return write_json({"offsetTable": dict(sorted(progress.items()))})


def topic_stats(
    topic: TopicConfig,
    broker_name: str,
    queues: ConsumeQueues,
    last_store_ms: Mapping[QueueId, StoreTimeMs],
) -> bytes:
    """Encode the body of GET_TOPIC_STATS_INFO (202).

    Args:
        topic: the topic.
        broker_name: named in the keys.
        queues: the consume queues.
        last_store_ms: store time of each queue's newest message, by queue id.
    """
    table = {}
    for queue_id in map(QueueId, range(topic.write_queue_count)):
        low, high = queues.min_max(topic.name, queue_id)
        assert low <= high, f"queue {queue_id} of {topic.name} goes from {low} to {high}"
        table[WireQueue(broker_name, queue_id, topic.name)] = {
            "lastUpdateTimestamp": last_store_ms.get(queue_id, 0),
            "maxOffset": high,
            "minOffset": low,
        }
    return write_json({"offsetTable": table})


class QueueProgress(msgspec.Struct, rename="camel"):
    """The place of a group in one queue.

    Attributes:
        broker_offset: the max offset.
        consumer_offset: what is committed; 0 where nothing is, as RocketMQ says it: tools subtract it as it stands.
        pull_offset: so far ahead of `consumer_offset` as members have messages in hand: given by pulls, as far as that
            is known, or popped and not acknowledged. RocketMQ 5's tools show the difference as in flight.
        last_timestamp: store time, in ms, of the last message that was consumed; 0: it was not looked up, or is gone.
        is_committed: whether anything is; for our own tools, others pass over it.
    """

    broker_offset: QueueOffset
    consumer_offset: QueueOffset
    pull_offset: QueueOffset
    last_timestamp: int = 0
    is_committed: bool = True

    @property
    def lag(self) -> int:
        """Messages that are still to be consumed."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Messages that members have in hand."""
        return self.pull_offset - self.consumer_offset


def consume_table(
    topics: Iterable[TopicConfig],
    *,
    group: str,
    broker_name: str,
    queues: ConsumeQueues,
    offsets: ConsumerOffsets,
    given: GivenOffsets,
    pops: Pops,
) -> dict[WireQueue, QueueProgress]:
    """Return how far a group is in all queues of these topics; `given` says how far its members were given messages."""
    table = {}
    for topic in topics:
        places = given(group, topic.name)
        for queue_id in map(QueueId, range(topic.read_queue_count)):
            key = (group, topic.name, queue_id)
            committed, popped = offsets.get(*key), pops.queue(key)
            consumed = committed or QueueOffset(0)
            end = queues.end(topic.name, queue_id)
            pulled = max(consumed, min(end, places.get(queue_id, consumed)))
            table[WireQueue(broker_name, queue_id, topic.name)] = QueueProgress(
                end,
                consumed,
                QueueOffset(pulled + (0 if popped is None else popped.count)),
                is_committed=committed is not None,
            )
    return table


def consume_lag(
    topic: TopicConfig, *, group: str, queues: ConsumeQueues, offsets: ConsumerOffsets
) -> int:
    """Return what a group lacks in all queues of a topic, as `consume_table` shows it; nothing is read for it."""
    ends = (queues.end(topic.name, QueueId(number)) for number in range(topic.read_queue_count))
    consumed = offsets.of(group, topic.name)
    return sum(end - max(0, consumed.get(QueueId(number), 0)) for number, end in enumerate(ends))


def consume_stats(table: Mapping[WireQueue, QueueProgress], *, per_second: float) -> bytes:
    """Encode the body of GET_CONSUME_STATS (208): where a group is, and how many messages it consumes in a second."""
    return write_json({"consumeTps": per_second, "offsetTable": table})


def group_list(groups: Iterable[str]) -> bytes:
    """Encode the body of QUERY_TOPIC_CONSUME_BY_WHO (300)."""
    return write_json({"groupList": sorted(set(groups))})
