"""What a pop brought, as messages with their handles; and what a handle says. Pure.

A handle is RocketMQ's (rule R11): eight texts with blanks between, put together from the fields of the answer: first
offset of the pop, pop time, invisible time, revive queue, kind of topic, broker name, queue id, queue offset. It is
brought back as it is, by whoever acknowledges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from dledger_mq.client.errors import ClientUsageError, ConnectionLostError
from dledger_mq.client.messages import ReceivedMessage, received
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting import fields
from dledger_mq.remoting.errors import FieldError

_PARTS: Final = 8
_POP_TIME_PART: Final = 1


class PoppedMessage(ReceivedMessage, frozen=True, kw_only=True):
    """A message that a simple consumer has until it acknowledges it, or until its time is over.

    Attributes:
        handle: the receipt by which it is acknowledged, or its time is changed. It dies with either, and when the
            message is handed out again.
        invisible_until_ms: until then nobody else gets it, by the brokers' time (ms since 1970): surely not before,
            and later when a leader was elected meanwhile.
    """

    handle: str
    invisible_until_ms: int


class PopTimes(NamedTuple):
    """The fields of an answer to a pop, or to a change of time, that every handle of it has.

    Attributes:
        popped_ms: the pop time.
        invisible_ms: for how long nobody else gets the messages.
        revive_queue: as the broker said it.
    """

    popped_ms: int
    invisible_ms: int
    revive_queue: int

    @classmethod
    def read(cls, ext: Mapping[str, str]) -> PopTimes:
        """Read them from a header.

        Raises:
            FieldError: one is missing or no number.
        """
        return cls(
            fields.int64(ext, "popTime"),
            fields.int64(ext, "invisibleTime"),
            fields.int32(ext, "reviveQid"),
        )


def popped_messages(
    records: bytes, ext: Mapping[str, str], broker_name: str
) -> tuple[PoppedMessage, ...]:
    """Return the messages of an answer to a pop, in queue order.

    Raises:
        ConnectionLostError: the records or the fields cannot be read. What was popped comes again after its time.
    """
    try:
        times = PopTimes.read(ext)
        starts = _starts(ext.get("startOffsetInfo", ""))
        found = decode_records(records)
    except (FieldError, MessageFormatError, ValueError) as error:
        raise ConnectionLostError(
            f"a pop of {broker_name} brought a damaged answer: {error}"
        ) from error
    return tuple(_popped(record, starts, times, broker_name) for record in found)


def with_new_time(message: PoppedMessage, ext: Mapping[str, str]) -> PoppedMessage:
    """Return a message with the handle that the answer to a change of its time makes.

    Raises:
        ConnectionLostError: the answer cannot be read.
    """
    try:
        times = PopTimes.read(ext)
    except FieldError as error:
        text = (
            f"the new time of {message.queue}, offset {message.queue_offset}, came damaged: {error}"
        )
        raise ConnectionLostError(text) from error
    queue, offset = message.queue, message.queue_offset
    return msgspec.structs.replace(
        message,
        handle=_handle(queue, offset, times, start=offset),
        invisible_until_ms=times.popped_ms + times.invisible_ms,
    )


def popped_ms_of(message: PoppedMessage) -> int:
    """Return the pop time in a message's handle.

    Raises:
        ClientUsageError: the handle is none.
    """
    parts = message.handle.split(" ")
    if len(parts) != _PARTS or not parts[_POP_TIME_PART].isdecimal():
        raise ClientUsageError(f"{message.handle[:80]!r} is not the handle of a popped message")
    return int(parts[_POP_TIME_PART])


def _popped(
    record: StoredMessage, starts: Mapping[str, int], times: PopTimes, broker_name: str
) -> PoppedMessage:
    """Make a message of a record; a queue of which no first offset is named begins with the message itself."""
    message = received(record, broker_name)
    offset = record.queue_offset
    start = starts.get(f"{_topic_flag(record.topic)} {record.queue_id}", offset)
    given = {name: getattr(message, name) for name in message.__struct_fields__}
    return PoppedMessage(
        **given,
        handle=_handle(message.queue, offset, times, start=start),
        invisible_until_ms=times.popped_ms + times.invisible_ms,
    )


def _starts(text: str) -> dict[str, int]:
    """Return the first offset of each queue in `startOffsetInfo`, by "flag queue".

    Raises:
        ValueError: a row has other parts, or its last is no number.
    """
    starts = {}
    for row in filter(None, text.split(";")):
        flag, queue_id, start = row.split(" ")
        starts[f"{flag} {queue_id}"] = int(start)
    return starts


def _handle(queue: MessageQueue, offset: QueueOffset, times: PopTimes, *, start: int) -> str:
    return (
        f"{start} {times.popped_ms} {times.invisible_ms} {times.revive_queue} {_topic_flag(queue.topic)} "
        f"{queue.broker_name} {queue.queue_id} {offset}"
    )


def _topic_flag(topic: str) -> str:
    """Return the kind of a topic in handles: 0 for a plain one, 1 for a retry topic."""
    return "1" if is_retry_topic(topic) else "0"
