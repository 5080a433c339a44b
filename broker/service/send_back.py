"""Decisions on messages that consumers give back: a later try, or the dead letters (rules L1 to L10). Pure.

It must not know when the copy becomes visible: that is the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.service.catalog import Catalog, Creation, group_for_use, special_topic
from broker.service.dead_letters import with_origin
from broker.service.refusal import Refusal
from broker.service.send import retry_limit
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import PERM_WRITE
from dledger_mq.message import names
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from dledger_mq.message.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    RETRY_TOPIC,
    WAIT,
    remove_property,
    set_property,
)
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.codes import ResponseCode

_WAITING: Final = frozenset(
    {names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.TIMER_TOPIC}
)
"""Nobody has consumed what waits there, and a copy would be seen before its time, or though it was rolled back."""

FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry, 10 s by default; each further one takes the next level (L7)."""


@dataclass(frozen=True, slots=True)
class SendBack:
    """The request: its fields as the client sent them."""

    physical_offset: PhysicalOffset
    group: str
    delay_level: int
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True)
class SendBackPlan:
    """The copy to store; body, flags, born time and host are those of `message`.

    Attributes:
        delay_level: 0 for at once (dead letters).
    """

    message: StoredMessage
    topic: str
    queue_id: QueueId
    delay_level: int
    reconsume_times: int
    properties: bytes
    creation: Creation


class SendBackRules:
    """Decides on messages that come back.

    Args:
        catalog: topics and groups.
        permission: of the broker, PERM_READ and PERM_WRITE.
        auto_create_groups: whether an unknown group is created.
        delay_level_max: the highest level that there is.
        load: returns the message at a physical offset, or None.
        pick: returns a number from 0 to below its argument.
        may_consume: whether a group consumes a topic, as far as is known; None: whoever reads a group may read all.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        permission: int,
        auto_create_groups: bool,
        delay_level_max: int,
        load: Callable[[PhysicalOffset], StoredMessage | None],
        pick: Callable[[int], int],
        may_consume: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._catalog = catalog
        self.permission = permission
        self.auto_create_groups = auto_create_groups
        self._delay_level_max = delay_level_max
        self._load = load
        self._pick = pick
        self._may_consume = may_consume

    def decide(self, request: SendBack, version: int) -> SendBackPlan | Refusal | None:
        """Decide on one request; None: nothing to do, and that is a success (L1)."""
        found = group_for_use(self._catalog, request.group, auto_create=self.auto_create_groups)
        if isinstance(found, Refusal):
            return found
        group, creation = found
        if not self.permission & PERM_WRITE:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                "the broker sending message is forbidden (brokerPermission)",
            )
        if group.retry_queue_count <= 0:
            return None
        retry, retry_created = special_topic(
            self._catalog, names.retry_topic(request.group), queue_count=group.retry_queue_count
        )
        if not retry.is_writable:
            return Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{retry.name}] sending message is forbidden"
            )
        message = self._found(request)
        if isinstance(message, Refusal):
            return message
        limit = retry_limit(group, request.max_reconsume_times, version)
        groups = creation.groups
        if message.reconsume_times >= limit or request.delay_level < 0:
            dead, dead_created = special_topic(self._catalog, names.dlq_topic(request.group))
            return self._plan(
                message,
                dead.name,
                QueueId(0),
                level=0,
                creation=Creation(dead_created.topics, groups),
                is_dead=True,
            )
        level = request.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        count = max(1, retry.write_queue_count)
        queue_id = QueueId(self._pick(count))
        assert 0 <= queue_id < count, f"queue {queue_id} of {count} was picked for {retry.name}"
        return self._plan(
            message,
            retry.name,
            queue_id,
            level=min(level, self._delay_level_max),
            creation=Creation(retry_created.topics, groups),
        )

    def _found(self, request: SendBack) -> StoredMessage | Refusal:
        """Return the message that is meant, if the group may have got it: who names a place must not read it so."""
        message = self._load(request.physical_offset)
        if message is None or _is_no_clients(message.topic):
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {request.physical_offset}: no message of a client stands there "
                "now; nothing was stored",
            )
        group, may_consume = request.group, self._may_consume
        is_own = message.topic == names.retry_topic(group)
        if may_consume is not None and not (is_own or may_consume(group, message.topic)):
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"the message at offset {request.physical_offset} is of no topic that the group {group} is "
                "known to consume; nothing was stored",
            )
        return message

    def hand_on(
        self, message: StoredMessage, group: SubscriptionGroupConfig, *, is_dead: bool
    ) -> SendBackPlan | Refusal:
        """Plan the copy of a popped message that is not handed out again: to be consumed at once, or a dead letter.

        One whose properties leave no room for where it comes from goes without that: nobody else could take it away.
        """
        name = group.name
        if is_dead:
            topic, created = special_topic(self._catalog, names.dlq_topic(name))
        else:
            count = max(1, group.retry_queue_count)
            topic, created = special_topic(
                self._catalog, names.retry_topic(name), queue_count=count
            )
        if not topic.is_writable:
            text = f"the topic[{topic.name}] sending message is forbidden"
            return Refusal(ResponseCode.NO_PERMISSION, text)
        queue_id = QueueId(0 if is_dead else self._pick(max(1, topic.write_queue_count)))
        properties = _returned_properties(message, 0, is_dead=is_dead)
        if len(properties) > PROPERTIES_BYTES_MAX:
            properties = remove_property(message.properties, DELAY)
        return SendBackPlan(
            message,
            topic.name,
            queue_id,
            delay_level=0,
            reconsume_times=message.reconsume_times + 1,
            properties=properties,
            creation=created,
        )

    def _plan(
        self,
        message: StoredMessage,
        topic: str,
        queue_id: QueueId,
        *,
        level: int,
        creation: Creation,
        is_dead: bool = False,
    ) -> SendBackPlan | Refusal:
        """Plan the copy at a delay level; one whose properties would be too long is refused, and the original stays."""
        assert 0 <= level <= self._delay_level_max, f"level {level} of {self._delay_level_max}"
        properties = _returned_properties(message, level, is_dead=is_dead)
        if len(properties) > PROPERTIES_BYTES_MAX:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the message cannot carry the properties of a retry: {len(properties)} bytes, "
                f"at most {PROPERTIES_BYTES_MAX}; nothing was stored",
            )
        return SendBackPlan(
            message,
            topic,
            queue_id,
            delay_level=level,
            reconsume_times=message.reconsume_times + 1,
            properties=properties,
            creation=creation,
        )


def _is_no_clients(topic: str) -> bool:
    """Return whether no message of a topic can be one that a client has consumed."""
    return names.is_control_topic(topic) or topic in _WAITING


def _returned_properties(message: StoredMessage, level: int, *, is_dead: bool = False) -> bytes:
    """Return the properties of the copy (L4, L8): where it came from is noted once and then kept.

    A dead letter has that also under the names that clients of RocketMQ 5 read, if there is room for it.
    """
    properties = set_property(message.properties, WAIT, b"false")
    if message.find(RETRY_TOPIC) is None:
        properties = set_property(properties, RETRY_TOPIC, message.topic.encode())
    if message.find(ORIGIN_MESSAGE_ID) is None:
        origin = offset_msg_id(message.store_host, message.physical_offset)
        properties = set_property(properties, ORIGIN_MESSAGE_ID, origin.encode())
    if level > 0:
        return set_property(properties, DELAY, str(level).encode())
    properties = remove_property(properties, DELAY)
    return with_origin(properties) if is_dead else properties
