"""Tables of brokers as their answers spell them, read with care: whoever answers may send anything. Pure.

It must not know who asks, nor how a table is shown.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import force_setattr

from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import WireTopicConfig

_T = TypeVar("_T")

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number as Java has it: figures are added, and made into rates, which a longer one would not survive."""


class QueueStats(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of a queue.

    Attributes:
        last_update_timestamp: store time of its newest message, in ms since 1970; 0: it has none.
    """

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0

    @property
    def messages(self) -> int:
        """The number of messages that are kept."""
        return max(0, self.max_offset - self.min_offset)


class GroupPlace(msgspec.Struct, frozen=True, rename="camel"):
    """The place of a consumer group in a queue.

    Attributes:
        broker_offset: the next offset to be written.
        consumer_offset: the next one that it consumes; -1: it has committed none.
        last_timestamp: store time of the last message that it has consumed; 0: not known.
        is_committed: False where the offset 0 stands for none. Older brokers of ours say -1 there, those of RocketMQ 0.
        pull_offset: so far ahead of `consumer_offset` as messages are handed out and not done with; -1: it is not said.
    """

    broker_offset: Long = 0
    consumer_offset: Long = -1
    last_timestamp: Long = 0
    is_committed: bool = True
    pull_offset: Long = -1

    def __post_init__(self) -> None:
        if not self.is_committed:
            force_setattr(self, "consumer_offset", -1)

    @property
    def in_flight(self) -> int:
        """Messages that are handed out and not done with; 0 where nobody says."""
        return max(0, self.pull_offset - max(0, self.consumer_offset))


class WireGroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of a consumer group; members in the order in which fastjson writes them."""

    group_name: str = ""
    broker_id: Long = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Long = 16
    retry_queue_nums: Long = 1
    which_broker_when_consume_slowly: Long = 1


class GroupClient(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a group, as 203 and 204 name it."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: Long = 0


class WireSubscription(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a topic that a consumer group wants."""

    topic: str = ""
    sub_string: str = ""
    expression_type: str = "TAG"


class ConsumerConnections(msgspec.Struct, frozen=True, rename="camel"):
    """The clients of a consumer group and what they want (203)."""

    connection_set: tuple[GroupClient, ...] = ()
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, WireSubscription] = {}


class ProducerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a producer group, as 328 names it."""

    client_id: str = ""
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    language: str = ""
    version: Long = 0
    last_update_timestamp: Long = 0


def read_runtime(body: bytes) -> dict[str, str]:
    """Read the runtime information of a broker (28). Raises BodyError."""
    return _convert(read_object(body).get("table"), dict[str, str])


def read_topics(body: bytes) -> dict[str, WireTopicConfig]:
    """Read all topics of a broker (21). Raises BodyError."""
    return _convert(read_object(body).get("topicConfigTable"), dict[str, WireTopicConfig])


def read_groups(body: bytes) -> dict[str, WireGroupConfig]:
    """Read all consumer groups of a broker (201). Raises BodyError."""
    return _convert(read_object(body).get("subscriptionGroupTable"), dict[str, WireGroupConfig])


def read_topic_stats(body: bytes) -> dict[int, QueueStats]:
    """Read what the queues of a topic hold (202), by queue id. Raises BodyError."""
    table = _by_queue(body, QueueStats)
    return {queue.queue_id: table[queue] for queue in sorted(table)}


def read_consume_stats(body: bytes) -> dict[WireQueue, GroupPlace]:
    """Read how far a consumer group is (208). Raises BodyError."""
    table = _by_queue(body, GroupPlace)
    return {
        queue: table[queue] for queue in sorted(table, key=lambda one: (one.topic, one.queue_id))
    }


def read_group_list(body: bytes) -> list[str]:
    """Read the groups that consume a topic (300). Raises BodyError."""
    return sorted(_convert(read_object(body).get("groupList") or [], list[str]))


def read_consumers(body: bytes) -> ConsumerConnections:
    """Read the clients of a consumer group (203). Raises BodyError."""
    return _convert(read_object(body), ConsumerConnections)


def read_producers(body: bytes) -> dict[str, list[ProducerInfo]]:
    """Read the producers of a node (328), by their group. Raises BodyError."""
    return _convert(read_object(body).get("data") or {}, dict[str, list[ProducerInfo]])


def _by_queue(body: bytes, kind: type[_T]) -> dict[WireQueue, _T]:
    """Read a table whose keys are queues.

    Raises:
        BodyError: it is none.
    """
    table = read_object(body).get("offsetTable")
    if not isinstance(table, dict) or not all(isinstance(each, WireQueue) for each in table):
        raise BodyError("the answer has no member `offsetTable` by queues")
    return {
        queue: _convert(row, kind) for queue, row in table.items() if isinstance(queue, WireQueue)
    }


def _convert(value: object, kind: type[_T]) -> _T:
    """Return a value of JSON as `kind`.

    Raises:
        BodyError: it does not fit.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BodyError(f"unreadable answer: {error}") from error
