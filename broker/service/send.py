"""Decisions on sends: is one stored, and as what (rules C and L14 to L16, checks in their order). Pure.

The first check that fails decides. Codes are those of release 4.9.8 (1 where 5.3.2 says 29), which is
what our answers claim to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from broker.service.catalog import (
    NOTHING_NEW,
    Catalog,
    Creation,
    group_for_use,
    special_topic,
    topic_for_send,
)
from broker.service.dead_letters import with_origin
from broker.service.key_bounds import batch_refusal, keys_refusal
from broker.service.plain_batches import PlainBatch
from broker.service.refusal import Refusal
from broker.service.shapes import (
    DELAYED,
    HALF,
    LIGHT,
    POPPED,
    REPLACED,
    TIMED,
    PlainProperties,
    Shapes,
)
from broker.service.timers import TimerRules
from broker.store.groups import SubscriptionGroupConfig
from broker.store.record_shapes import FoldedProperties
from broker.store.schedule import level_of
from broker.store.topics import PERM_WRITE, TopicConfig
from dledger_mq.message import names
from dledger_mq.message.batch import split_batch
from dledger_mq.message.compiled import ShapeParts
from dledger_mq.message.errors import BatchError
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import (
    CLUSTER,
    DELAY,
    INNER_MULTI_DISPATCH,
    KEYS,
    MSG_REGION,
    POP_CK,
    PROPERTIES_BYTES_MAX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    encode_property,
    find_property,
    remove_property,
    terminated,
)
from dledger_mq.message.sys_flags import INNER_BATCH, MULTI_TAGS, NEED_UNWRAP, TRANSACTION_MASK
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import SendFields

RETRY_LIMIT_VERSION = 121
"""Clients from this release (3.4.9) on may say how often a message is retried."""

_SENDABLE_MAX = 16_384
KEPT_FLAGS = ~(TRANSACTION_MASK | NEED_UNWRAP | INNER_BATCH)
"""The bits of a client's system flag that are stored."""
_TIMERS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS)
_STAMPED = (MSG_REGION, TRACE_ON, CLUSTER)
_UNIQ_KEY_BYTES = 64
"""Room for a unique key, where a message has none."""


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The part of the configuration that concerns sends.

    Attributes:
        stamp: the properties that every stored message gets: MSG_REGION, TRACE_ON, CLUSTER.
    """

    message_bytes_max: int
    auto_create_topics: bool
    auto_create_groups: bool
    permission: int
    delay_level_max: int
    stamp: bytes
    reject_transactions: bool = False

    @staticmethod
    def make_stamp(*, region: str, trace_on: bool, cluster: str) -> bytes:
        """Encode the three properties."""
        trace = b"true" if trace_on else b"false"
        return (
            encode_property(MSG_REGION, region.encode())
            + encode_property(TRACE_ON, trace)
            + encode_property(CLUSTER, cluster.encode())
        )


class MessagePlan(msgspec.Struct, frozen=True, gc=False):
    """One message to store.

    Attributes:
        folded: what the fold needs of `properties`, where that is known already.
    """

    flag: int
    body: bytes
    properties: bytes
    uniq_key: bytes
    folded: FoldedProperties | None = None


class SendPlan(msgspec.Struct, frozen=True, gc=False):
    """A send that is accepted.

    Attributes:
        topic: where it is stored; the dead-letter topic when the retries are used up.
        delay_level: 0 for at once.
        messages: one, or those of a batch in their order.
        creation: what has to be created before, in the same entry.
        is_half: whether it waits in the half topic for the end of its transaction (O2).
        due_ms: when it is to be delivered, 0 for at once; with a level, or of a half message, always 0.
        any_queue: the client left the queue to the broker, which picked `queue_id`.
    """

    topic: str
    queue_id: QueueId
    sys_flag: int
    reconsume_times: int
    delay_level: int
    messages: Sequence[MessagePlan]
    creation: Creation = NOTHING_NEW
    is_half: bool = False
    due_ms: int = 0
    any_queue: bool = False

    def uniq_keys(self) -> list[bytes]:
        """Return the unique key of each message; nobody changes the list."""
        messages = self.messages
        if isinstance(messages, PlainBatch):
            return messages.keys
        return [message.uniq_key for message in messages]


class PlainTopic(msgspec.Struct, frozen=True, gc=False):
    """A topic to which plain sends may go: it passed all checks, and is no retry topic.

    Attributes:
        name: as it stands in records.
        queue_count: queue ids from 0 to below it are taken.
        added_flags: of the system flag.
    """

    name: bytes
    queue_count: int
    added_flags: int


def _no_lock(group: str) -> bool:
    return False


class SendRules:
    """Decides on sends.

    `pick` returns a number from 0 to below its argument, `new_key` a unique key; `timers` decides on due times,
    None where they are switched off; `has_live_lock` says for a group if it consumes in order just now.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: SendSettings,
        *,
        pick: Callable[[int], int],
        new_key: Callable[[], str],
        timers: TimerRules | None = None,
        has_live_lock: Callable[[str], bool] = _no_lock,
    ) -> None:
        self._catalog = catalog
        self._sendable: dict[str, TopicConfig] = {}
        self.settings = settings
        self.timers = timers
        self._has_live_lock = has_live_lock
        self._pick = pick
        self._new_key = new_key

    @property
    def settings(self) -> SendSettings:
        """The settings as they hold now; what was found by others is forgotten when they change."""
        return self._settings

    @settings.setter
    def settings(self, settings: SendSettings) -> None:
        self._settings = settings
        self._sendable.clear()
        self._shapes = Shapes(settings.stamp)
        self._added_bytes = len(settings.stamp) + _UNIQ_KEY_BYTES

    def plain_topic(self, name: str) -> PlainTopic | None:
        """Return what plain sends to a topic need; None: each send to it has to be decided on by itself, for now."""
        topic = self._catalog.topic(name)
        if topic is None or topic is not self._sendable.get(name) or names.is_retry_topic(name):
            return None
        return PlainTopic(name.encode(), _queue_count(topic), _added_flags(topic))

    def plain_properties(self, properties: bytes) -> PlainProperties | None:
        """Read properties that ask for nothing; None: they do, or have to be looked at more closely."""
        return self._shapes.read(properties)

    def plain_shape(self, before: bytes, rest: bytes) -> ShapeParts | None:
        """Return what properties share that have these bytes before and behind their key; None as above."""
        return self._shapes.find(before, rest)

    def decide(self, fields: SendFields, body: bytes, version: int) -> SendPlan | Refusal:
        """Decide on one send: its header, its body (or batch body), the release of its client."""
        name = fields.topic
        topic = self._catalog.topic(name)
        creation = NOTHING_NEW
        if topic is None or topic is not self._sendable.get(name):
            found = self._check_topic(fields)
            if isinstance(found, Refusal):
                return found
            topic, creation = found
        if fields.queue_id >= _queue_count(topic):  # C10
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{fields.queue_id}] is illegal, topic {topic.name} has "
                f"{topic.write_queue_count} write and {topic.read_queue_count} read queues; nothing was stored",
            )
        sys_flag = fields.sys_flag & KEPT_FLAGS | _added_flags(topic)
        try:
            properties = (fields.properties or "").encode()
        except UnicodeEncodeError:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the properties cannot be written as UTF-8 (half of a surrogate pair); nothing was stored",
            )
        any_queue = fields.queue_id < 0
        queue_id = fields.queue_id
        if any_queue:
            count = max(1, topic.write_queue_count)
            queue_id = QueueId(self._pick(count))
            assert 0 <= queue_id < count, f"queue {queue_id} of {count} was picked for {name}"
        target = _Target(topic, queue_id, sys_flag, creation, any_queue)
        if fields.is_batch:
            return self._batch(target, body)
        return self._single(target, fields, body, properties=properties, version=version)

    def _check_topic(self, fields: SendFields) -> tuple[TopicConfig, Creation] | Refusal:
        """Check C6 to C9 and C11; a topic that passed is not checked again until it changes."""
        settings = self.settings
        refusal = _name_refusal(fields.topic, settings)
        if refusal is not None:
            return refusal
        found = topic_for_send(
            self._catalog,
            fields.topic,
            template=fields.default_topic or names.AUTO_CREATE_TOPIC,
            queue_count=fields.default_topic_queue_nums,
            auto_create=settings.auto_create_topics,
        )
        if isinstance(found, Refusal):
            return found
        topic, creation = found
        if not topic.is_writable:  # unlike RocketMQ (docs/divergence.md)
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.name}] sending message is forbidden",
            )
        if not creation:
            if len(self._sendable) >= _SENDABLE_MAX:
                self._sendable.clear()
            self._sendable[topic.name] = topic
        return found

    def _single(
        self, target: _Target, fields: SendFields, body: bytes, *, properties: bytes, version: int
    ) -> SendPlan | Refusal:
        """Decide on one message, in the order of the rules: the first check that fails gives the code of the answer."""
        reconsume_times = fields.reconsume_times or 0
        # What a consumer gives back by sending it was stored before, perhaps by a version that took any number of keys.
        is_given_back = names.is_retry_topic(target.topic.name)
        if is_given_back:
            redirected = self._retry_target(target, fields, version)
            if isinstance(redirected, Refusal):
                return redirected
            if redirected.topic is not target.topic:
                properties = remove_property(properties, DELAY, *_TIMERS)  # L15: without delay
                properties = with_origin(properties, PROPERTIES_BYTES_MAX - self._added_bytes)
            target = redirected
        # Most messages have none of these, so that they are looked for before anything is called.
        delay_level = self._delay_level(properties) if DELAYED in properties else 0
        is_half = HALF in properties and _is_half(properties, reconsume_times, delay_level)
        if is_half and self.settings.reject_transactions:  # C15
            return Refusal(
                ResponseCode.NO_PERMISSION,
                "the broker sending transaction message is forbidden (rejectTransactionMessage)",
            )
        if not 0 < len(body) <= self.settings.message_bytes_max:
            return self._size_refusal(len(body))
        due_ms = 0
        if TIMED in properties:
            if delay_level:  # M2, N2
                properties = remove_property(properties, *_TIMERS)
            else:
                due = self._due(properties)
                if isinstance(due, Refusal):
                    return due
                due_ms = due
        message = self._message(fields.flag, body, properties, is_given_back=is_given_back)
        if isinstance(message, Refusal):
            return message
        return SendPlan(
            target.topic.name,
            target.queue_id,
            target.sys_flag,
            reconsume_times,
            0 if is_half else delay_level,
            (message,),
            target.creation,
            is_half,
            0 if is_half else due_ms,
            target.any_queue,
        )

    def _due(self, properties: bytes) -> int | Refusal:
        """Return the due time that a message asks for (N1 to N4), in ms since 1970; 0 for at once."""
        if self.timers is not None:
            return self.timers.due_ms(properties)
        if TimerRules.asks(properties):
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                "the timer is switched off (timerWheelEnable): nothing was stored",
            )
        return 0

    def _batch(self, target: _Target, body: bytes) -> SendPlan | Refusal:
        """Plan a batch (C23): no retry topic, the whole within the size of one message, no delays."""
        name = target.topic.name
        if names.is_retry_topic(name):
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}"
            )
        if not 0 < len(body) <= self.settings.message_bytes_max:
            return self._size_refusal(len(body))
        messages = self._batch_messages(body)
        if isinstance(messages, Refusal):
            return messages
        return SendPlan(
            name,
            target.queue_id,
            target.sys_flag,
            0,
            0,
            messages,
            target.creation,
            any_queue=target.any_queue,
        )

    def _batch_messages(self, body: bytes) -> Sequence[MessagePlan] | Refusal:
        """Plan the messages of a batch; those of a plain one are planned once somebody looks at them."""
        shapes = self._shapes
        keys = shapes.batch_keys(body)
        if keys is not None:  # and none of its messages has KEYS
            return PlainBatch(body, keys, shapes, partial(_planned, shapes, body))
        columns = shapes.read_batch(body)
        messages = self._items(body) if columns is None else tuple(map(MessagePlan, *columns))
        if isinstance(messages, Refusal):
            return messages
        return batch_refusal(len(body), map(_keys_of, messages)) or messages

    def _items(self, body: bytes) -> tuple[MessagePlan, ...] | Refusal:
        """Plan the messages of a batch one by one."""
        try:
            items = split_batch(body)
        except BatchError as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}")
        messages: list[MessagePlan] = []
        for item in items:
            plain = self._shapes.read(item.properties)
            if plain is not None:
                uniq_key, stored, folded = plain
                messages.append(MessagePlan(item.flag, item.body, stored, uniq_key, folded))
                continue
            if self._is_delayed(item.properties):
                return Refusal(
                    ResponseCode.MESSAGE_ILLEGAL, "a message of a batch cannot be delayed"
                )
            message = self._message(item.flag, item.body, item.properties)
            if isinstance(message, Refusal):
                return message
            messages.append(message)
        return tuple(messages)

    def _retry_target(self, target: _Target, fields: SendFields, version: int) -> _Target | Refusal:
        """Find the target of a message that a consumer gives back by sending it (L13): its group decides (L14, L15)."""
        group_name = target.topic.name.removeprefix(names.RETRY_PREFIX)
        found = group_for_use(
            self._catalog, group_name, auto_create=self.settings.auto_create_groups
        )
        if isinstance(found, Refusal):
            return found
        group, created = found
        limit = retry_limit(group, fields.max_reconsume_times, version)
        groups = target.creation.groups + created.groups
        if (fields.reconsume_times or 0) <= limit and not self._has_live_lock(group_name):  # L16
            return _Target(
                target.topic,
                target.queue_id,
                target.sys_flag,
                Creation(target.creation.topics, groups),
                target.any_queue,
            )
        dead, dead_created = special_topic(self._catalog, names.dlq_topic(group_name))
        return _Target(dead, QueueId(0), target.sys_flag, Creation(dead_created.topics, groups))

    def _is_delayed(self, properties: bytes) -> bool:
        if b"TIMER_D" in properties and TimerRules.asks(properties):
            return True
        return DELAYED in properties and self._delay_level(properties) > 0

    def _delay_level(self, properties: bytes) -> int:
        """Return the level asked for, as the fold reads it, clamped (M2); 0 for none or nonsense."""
        return min(level_of(properties), self.settings.delay_level_max)

    def _size_refusal(self, body_bytes: int) -> Refusal:
        """Refuse a body of this size: C17, C18; the name's length was checked with its letters (C7)."""
        if body_bytes == 0:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: its body is empty; nothing was stored",
            )
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: body of {body_bytes} bytes, "
            f"at most {self.settings.message_bytes_max} (maxMessageSize); nothing was stored",
        )

    def _message(
        self, flag: int, body: bytes, properties: bytes, *, is_given_back: bool = False
    ) -> MessagePlan | Refusal:
        """Add what the broker adds (C13), and check the size of the result and its keys (C18)."""
        plain = self._shapes.read(properties)
        if plain is not None:
            uniq_key, stored, folded = plain
            return MessagePlan(flag, body, stored, uniq_key, folded)
        if LIGHT in properties and not is_given_back:
            queues = find_property(properties, INNER_MULTI_DISPATCH)
            if queues is not None:
                return _light_refusal(queues)
        if POPPED in properties:
            properties = remove_property(properties, POP_CK)
        if REPLACED[0] in properties or REPLACED[1] in properties:
            properties = remove_property(properties, *_STAMPED)
        properties = terminated(properties)
        key = find_property(properties, UNIQ_KEY)
        if key is None:
            key = self._new_key().encode()
            properties += encode_property(UNIQ_KEY, key)
        properties += self.settings.stamp
        if len(properties) > PROPERTIES_BYTES_MAX:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: properties of {len(properties)} bytes with what the broker adds, "
                f"at most {PROPERTIES_BYTES_MAX}; nothing was stored",
            )
        refusal = None if is_given_back else keys_refusal(find_property(properties, KEYS))
        return refusal or MessagePlan(flag, body, properties, key)


def _light_refusal(queues: bytes) -> Refusal:
    """Refuse a message for light queues: acknowledged, it would never come where it is to be read."""
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: it is for {queues[:255].decode(errors='replace')}. {names.NO_LIGHT_QUEUES}; "
        "nothing was stored",
    )


class _Target(msgspec.Struct, frozen=True, gc=False):
    topic: TopicConfig
    queue_id: QueueId
    sys_flag: int
    creation: Creation
    any_queue: bool = False


def _planned(shapes: Shapes, body: bytes) -> tuple[MessagePlan, ...]:
    """Plan the messages of a plain batch."""
    messages: list[MessagePlan] = []
    for item in split_batch(body):
        plain = shapes.read(item.properties)
        assert plain is not None, "a message of a plain batch is not plain"
        uniq_key, stored, folded = plain
        messages.append(MessagePlan(item.flag, item.body, stored, uniq_key, folded))
    return tuple(messages)


def _keys_of(message: MessagePlan) -> bytes | None:
    """Return the value of KEYS as the fold will find it."""
    folded = message.folded
    return find_property(message.properties, KEYS) if folded is None else folded[2]


def _queue_count(topic: TopicConfig) -> int:
    """Return the number that queue ids of sends have to be below (C10)."""
    return max(topic.write_queue_count, topic.read_queue_count)


def _added_flags(topic: TopicConfig) -> int:
    """Return the bits that every message of a topic gets in its system flag."""
    return MULTI_TAGS if topic.filter_type == "MULTI_TAG" else 0


def retry_limit(group: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """Return how often a message is retried (L14): as its client asks, if its release may, else as its group says."""
    if asked is not None and version >= RETRY_LIMIT_VERSION:
        return asked
    return group.retry_times_max


def _name_refusal(name: str, settings: SendSettings) -> Refusal | None:
    """Check the broker's permission and the topic's name (C6 to C8)."""
    if not settings.permission & PERM_WRITE:
        return Refusal(
            ResponseCode.NO_PERMISSION, "the broker sending message is forbidden (brokerPermission)"
        )
    problem = names.topic_problem(name)
    if problem is not None:
        return Refusal(ResponseCode.SYSTEM_ERROR, problem)
    forbidden = names.send_problem(name)
    if forbidden is not None:
        return Refusal(ResponseCode.NO_PERMISSION, forbidden)
    return None


def _is_half(properties: bytes, reconsume_times: int, delay_level: int) -> bool:
    """Return True for a half message (C15)."""
    if reconsume_times > 0 and delay_level > 0:
        return False
    value = find_property(properties, TRAN_MSG)
    return value is not None and value.lower() == b"true"
