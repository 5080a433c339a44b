"""Messages as an application sees them: to be sent, and received. Pure.

Sending: limits are checked and bodies compressed here, before anything leaves (rule C24).
Receiving: a stored record becomes a `ReceivedMessage` with its body inflated and its topic restored
when it came back through a retry topic.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, SupportsIndex

import msgspec

from dledger_mq.client.arguments import wrong_type
from dledger_mq.client.errors import InvalidMessageError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message import properties as names
from dledger_mq.message import sys_flags
from dledger_mq.message.errors import PropertyError
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.names import is_retry_topic, send_problem, topic_problem
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import (
    decode_properties,
    encode_properties,
    has_control_character,
)
from dledger_mq.message.record import StoredMessage

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # the broker's maxMessageSize
COMPRESS_FROM_BYTES: Final = 4096
COMPRESSION_LEVEL: Final = 5  # the Java producer's; zlib container
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024  # a small body must not fill the memory of a consumer
DELAY_LEVEL_MAX: Final = 18
MESSAGE_GROUP_BYTES_MAX: Final = 64  # RocketMQ's proxy takes no more
DUE_MS_END: Final = (
    10**17
)  # the year 3 170 843; what brokers take (`timerMaxDelaySec`) they say themselves

_COMPRESSION: Final = sys_flags.COMPRESSION_MASK
_MESSAGE_GROUP: Final = names.SHARDING_KEY.decode()
_RESERVED: Final = frozenset(
    name.decode()
    for name in (
        names.UNIQ_KEY,
        names.SINK_ROW,
        names.TAGS,
        names.KEYS,
        names.DELAY,
        names.TRAN_MSG,
        names.PGROUP,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
    )
)


class Message(msgspec.Struct, frozen=True):
    """A message to send.

    Attributes:
        topic: where to.
        body: 1 byte to 4 MiB. From 4096 bytes on it travels zlib-compressed. A bytearray or memoryview is
            copied: what is done to it later does not change the message.
        tags: one tag, for filters of consumers.
        keys: index keys under which the message can be looked up: one, or several.
        properties: the application's own; names that the system uses have attributes here instead.
        flag: a number of the application's own, stored with the message.
        delay_level: 0 deliver at once, 1 to 18: after 1s 5s 10s 30s 1m ... 2h.
        delay_ms: 0 deliver at once, else so many milliseconds after the broker gets it. Beyond its
            `timerMaxDelaySec` (3 days unless set otherwise) it refuses, as it does for deliver_at_ms.
        deliver_at_ms: deliver at this time (ms since 1970); at once if it is past. Of delay_level,
            delay_ms and deliver_at_ms one may be given.
        message_group: messages of one group keep their order (FIFO): they go to one queue, the same to which RocketMQ's
            proxy puts those that its 5.x clients send with that group. At most 64 bytes; not for delayed messages,
            nor in transactions.
        unique_key: the UNIQ_KEY of an earlier send of this very message whose outcome stayed
            unknown: a group that has it already does not store it again. Else the producer makes one.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    unique_key: str | None = None
    delay_ms: int = 0
    deliver_at_ms: int | None = None
    message_group: str | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong type, where they are given.

        Raises:
            InvalidMessageError: says which, and what it is.
        """
        # Once for each message: classes are compared without a call.
        if self.body.__class__ is not bytes or self.topic.__class__ is not str:
            _check_type("topic", self.topic, str, "text")
            _check_type("body", self.body, (bytes, bytearray, memoryview), "bytes")
            msgspec.structs.force_setattr(self, "body", bytes(self.body))
        if (
            self.flag.__class__ is not int
            or self.delay_level.__class__ is not int
            or self.delay_ms.__class__ is not int
            or self.deliver_at_ms is not None
        ):
            _convert_numbers(self)
        if (
            self.properties
            or self.tags is not None
            or self.unique_key is not None
            or self.message_group is not None
            or self.keys
            or self.keys.__class__ is not tuple
            or self.properties.__class__ is not dict
        ):
            _check_labels(self)

    @property
    def is_delayed(self) -> bool:
        """True if it asks to be delivered later."""
        return bool(self.delay_level or self.delay_ms) or self.deliver_at_ms is not None


def _check_type(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, kinds):
        raise InvalidMessageError(wrong_type(name, value, wanted))


def _convert_numbers(message: Message) -> None:
    """Convert each number to an `int`: those of numpy, for example, are none."""
    for name in ("flag", "delay_level", "delay_ms", "deliver_at_ms"):
        value = getattr(message, name)
        if value is None and name == "deliver_at_ms":
            continue
        is_number = isinstance(value, SupportsIndex) and not isinstance(value, bool)
        if not is_number:
            raise InvalidMessageError(wrong_type(name, value, "a whole number"))
        msgspec.structs.force_setattr(message, name, operator.index(value))


def _check_labels(message: Message) -> None:
    """Raise for a tag, key or property of a wrong type; the encoding joins them and would fail less clearly."""
    if message.tags is not None:
        _check_type("tags", message.tags, str, "one tag as text")
    if message.unique_key is not None:
        _check_type("unique_key", message.unique_key, str, "text")
    if message.message_group is not None:
        _check_type("message_group", message.message_group, str, "text")
    if not isinstance(message.keys, str):
        _check_type("keys", message.keys, Sequence, "text, or a list of texts")
        for key in message.keys:
            _check_type("one of keys", key, str, "text")
    _check_type("properties", message.properties, Mapping, "names with values")
    for name, value in message.properties.items():
        _check_type("the name of a property", name, str, "text")
        _check_type(f"property {name!r}", value, str, "text")


class SendResult(msgspec.Struct, frozen=True):
    """The place of an acknowledged message.

    Attributes:
        status: SEND_OK: on disk at a majority. The others (FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE,
            FLUSH_SLAVE_TIMEOUT) come from brokers that answer before: stored, with less certainty.
        unique_key: the UNIQ_KEY that the client gave the message.
        message_id: the broker's offset message id; of a batch, one per message, joined by commas.
        queue: topic, broker name, queue id.
        queue_offset: in the queue; of a batch, the first message's.
        transaction_id: of a half message.
        recall_handle: of a message with a due time that lies ahead; `Producer.recall` takes it.
        rows_stored: of rows (`IdempotentProducer`): 1 for each that was stored now, 0 for one already there.
        newer_batch: of rows whose sink has begun a higher batch: which. None of them was stored now.
    """

    status: str
    unique_key: str
    message_id: str
    queue: MessageQueue
    queue_offset: QueueOffset
    transaction_id: str | None = None
    recall_handle: str | None = None
    rows_stored: str | None = None
    newer_batch: int | None = None

    @property
    def queue_id(self) -> int:
        """The number of the queue."""
        return self.queue.queue_id


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message as a consumer gets it.

    Attributes:
        topic: the topic it was sent to, also when it came back through a retry topic.
        queue: the queue it was read from (that of the retry topic then).
        queue_offset: its offset in that queue.
        physical_offset: byte position in the commit log of its broker group.
        message_id: the broker's offset message id of this delivery.
        unique_key: the producer's UNIQ_KEY; the offset message id when there is none.
        reconsume_times: how often it was sent back before.
        properties: all of them, the system's too.
        is_packed: the body is compressed in a way that this client does not know, and given as it is.
        value: what the consumer's `deserializer` made of the body; None without one.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    message_id: str
    unique_key: str
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: StoreTimeMs
    reconsume_times: int
    is_packed: bool = False
    value: Any = None

    @property
    def message_group(self) -> str | None:
        """The group within which the message keeps its order; None: it has none."""
        return self.properties.get(_MESSAGE_GROUP)


@lru_cache(maxsize=1024)  # a producer has few topics, and many messages for each
def _topic_refusal(topic: str) -> str | None:
    return topic_problem(topic) or send_problem(topic)


def check_message(message: Message, bytes_max: int = BODY_BYTES_MAX) -> None:
    """Refuse what no broker would store, and bodies above `bytes_max`.

    Raises:
        InvalidMessageError: says which rule, and the values.
    """
    if message.__class__ is not Message:
        _check_type("message", message, Message, "a Message")
    problem = _topic_refusal(message.topic)
    if problem is not None:
        raise InvalidMessageError(problem)
    size = len(message.body)
    if not size:
        raise InvalidMessageError(f"a message to {message.topic} has an empty body")
    if size > bytes_max:
        raise InvalidMessageError(f"the body has {size} bytes, at most {bytes_max}")
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        raise InvalidMessageError(
            f"delay level {message.delay_level} is not in 0..{DELAY_LEVEL_MAX}"
        )
    if message.delay_ms or message.deliver_at_ms is not None:
        _check_due_time(message)
    if message.message_group is not None:
        _check_message_group(message, message.message_group)
    if not -(2**31) <= message.flag < 2**31:
        raise InvalidMessageError(f"flag {message.flag} is not a 32-bit number")


def _check_due_time(message: Message) -> None:
    given = (message.delay_level, message.delay_ms, message.deliver_at_ms is not None)
    if sum(map(bool, given)) > 1:
        raise InvalidMessageError(
            "only one of delay_level, delay_ms and deliver_at_ms may be given"
        )
    if not 0 <= message.delay_ms < DUE_MS_END:
        raise InvalidMessageError(f"delay_ms {message.delay_ms} is not in 0..{DUE_MS_END - 1}")
    at_ms = message.deliver_at_ms
    if at_ms is not None and not 0 < at_ms < DUE_MS_END:
        raise InvalidMessageError(f"deliver_at_ms {at_ms} is no time in ms since 1970")


def _check_message_group(message: Message, group: str) -> None:
    size = len(group.encode("utf-8", "surrogatepass"))
    if size > MESSAGE_GROUP_BYTES_MAX:
        text = f"the message group has {size} bytes, at most {MESSAGE_GROUP_BYTES_MAX}"
        raise InvalidMessageError(text)
    if not group or group.isspace() or has_control_character(group):
        raise InvalidMessageError(f"message group {group!r} is blank, or holds a control character")
    if message.is_delayed:
        raise InvalidMessageError("a message with a message group has no delay: it would be late")
    if _MESSAGE_GROUP in message.properties:
        raise InvalidMessageError(f"the message group is given twice, also as {_MESSAGE_GROUP}")


def has_labels(message: Message) -> bool:
    """Return whether a message has properties other than its UNIQ_KEY."""
    return bool(
        message.tags
        or message.keys
        or message.properties
        or message.message_group is not None
        or message.delay_level
        or message.delay_ms
        or message.deliver_at_ms is not None
    )


def message_properties(message: Message, unique_key: str) -> bytes:
    """Return the property bytes of a message, UNIQ_KEY first.

    Raises:
        InvalidMessageError: a reserved name, a separator inside, an empty value, or too long.
    """
    if not has_labels(message) and not message.unique_key:
        return b"UNIQ_KEY\x01%b\x02" % unique_key.encode()  # the hot path: nothing to check
    pairs = {"UNIQ_KEY": unique_key}
    if message.tags:
        pairs["TAGS"] = message.tags
    if message.keys:
        pairs["KEYS"] = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if message.message_group is not None:
        pairs[_MESSAGE_GROUP] = message.message_group
    if message.delay_level:
        pairs["DELAY"] = str(message.delay_level)
    if message.delay_ms:
        pairs["TIMER_DELAY_MS"] = str(message.delay_ms)
    if message.deliver_at_ms is not None:
        pairs["TIMER_DELIVER_MS"] = str(message.deliver_at_ms)
    if message.properties:
        reserved = _RESERVED & message.properties.keys()
        if reserved:
            raise InvalidMessageError(
                f"properties use reserved names: {', '.join(sorted(reserved))}"
            )
        pairs.update(message.properties)
    try:
        return encode_properties(pairs)
    except PropertyError as error:
        raise InvalidMessageError(str(error)) from error


def pack_body(
    body: bytes, from_bytes: int = COMPRESS_FROM_BYTES, level: int = COMPRESSION_LEVEL
) -> tuple[bytes, int]:
    """Return the body as it travels, and its system flag: large bodies are compressed."""
    if len(body) < from_bytes:
        return body, 0
    packed = zlib.compress(body, level)
    if len(packed) >= len(body):
        return body, 0
    return packed, sys_flags.COMPRESSED


def unpack_body(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent. Kinds of compression that are not known here stay packed.

    A zlib body that does not inflate, or to more than INFLATED_BYTES_MAX, also stays as it is: the
    application gets what is stored, and a bad message must not stop the queue after it.
    """
    kind = sys_flag & _COMPRESSION
    is_zlib = kind in (sys_flags.COMPRESSION_ZLIB_LEGACY, sys_flags.COMPRESSION_ZLIB)
    if not sys_flag & sys_flags.COMPRESSED or not is_zlib:
        return body
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error:
        return body
    return inflated if inflater.eof else body


def received(record: StoredMessage, broker_name: str) -> ReceivedMessage:
    """Make what the application sees of one stored record."""
    pairs = decode_properties(record.properties)
    message_id = offset_msg_id(record.store_host, record.physical_offset)
    topic = record.topic
    if is_retry_topic(topic):
        topic = pairs.get("RETRY_TOPIC", topic)
    keys = pairs.get("KEYS")
    body = unpack_body(record.body, record.sys_flag)
    return ReceivedMessage(
        topic,
        body,
        MessageQueue(record.topic, broker_name, record.queue_id),
        record.queue_offset,
        record.physical_offset,
        message_id,
        pairs.get("UNIQ_KEY", message_id),
        pairs.get("TAGS"),
        tuple(keys.split()) if keys else (),
        pairs,
        record.flag,
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        record.reconsume_times,
        bool(record.sys_flag & sys_flags.COMPRESSED) and body is record.body,
    )
