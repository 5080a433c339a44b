"""The record that a send becomes, and the comparison with records and sends that store the same already.

One function, `stored_as`, makes the record of a message of a send; it is what the leader stages. Another,
`_requested`, takes from a record what its client asked for: without what differs between two tries of one send by
nature (places, times, hosts), and without what the broker adds. A message is the same as another if and only if
their requested messages are equal. A due time is compared as the wish for it: counted from now, it comes out
differently each time.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.service.send import MessagePlan, SendPlan
from broker.store.schedule import DELIVERY_PROPERTIES_BYTES, SCHEDULE_KEY
from broker.store.timers import TIMER_KEY
from broker.store.transactions import HALF_KEY
from dledger_mq.message.errors import PropertyError, RecordError
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import (
    CLUSTER,
    MSG_REGION,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRACE_ON,
    TRANSACTION_ID,
    encode_property,
    find_property,
    remove_property,
    terminated,
)
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6

HALF_ROOM_BYTES: Final = DELIVERY_PROPERTIES_BYTES + 40
"""The room that a half message leaves for its commit, its due time and its delivery."""

_STAMP: Final = (MSG_REGION, TRACE_ON, CLUSTER)
_WAITING: Final = (REAL_TOPIC, REAL_QID, TIMER_OUT_MS)
_TIMED: Final = (*_WAITING, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # M2
_HALF: Final = (REAL_TOPIC, REAL_QID, TRANSACTION_ID)
_ADDED: Final = {SCHEDULE_KEY: _WAITING, TIMER_KEY: _WAITING, HALF_KEY: _HALF}
"""Properties that the broker adds to what waits in a topic of its own."""

_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6


class RequestedMessage(NamedTuple):
    """A message as its client asked to have it stored.

    Attributes:
        queue_id: as asked; for a request that left it to the broker, the one that was picked.
        waits_in: the topic in which it waits for a level or for the end of its transaction; empty for others.
        properties: as the client gave them.
    """

    topic: bytes
    queue_id: QueueId
    waits_in: bytes
    flag: int
    sys_flag: int
    reconsume_times: int
    properties: bytes
    body: bytes


def stored_as(plan: SendPlan, message: MessagePlan) -> tuple[bytes, QueueId, bytes]:
    """Return topic, queue id and properties of the record that a message of a send becomes.

    Raises:
        RecordError: it has to wait, and leaves no room for what is added later, or its key is no transaction id.
    """
    if plan.is_half:  # O2
        assert not plan.delay_level, f"a half message for {plan.topic} has level {plan.delay_level}"
        assert not plan.due_ms, f"a half message for {plan.topic} has due time {plan.due_ms}"
        try:
            added = encode_property(TRANSACTION_ID, message.uniq_key)
        except PropertyError as error:
            raise RecordError(str(error)) from error
        return (
            HALF_KEY,
            QueueId(0),
            _parked(plan, message, replaced=_HALF, added=added, room_bytes=HALF_ROOM_BYTES),
        )
    if plan.delay_level:  # M3
        assert not plan.due_ms, (
            f"level {plan.delay_level} and due time {plan.due_ms} for {plan.topic}"
        )
        properties = _parked(plan, message, replaced=_TIMED)
        return SCHEDULE_KEY, QueueId(plan.delay_level - 1), properties
    if plan.due_ms:  # N7
        added = encode_property(TIMER_OUT_MS, b"%d" % plan.due_ms)
        properties = _parked(plan, message, replaced=_WAITING, added=added)
        return TIMER_KEY, QueueId(0), properties
    return plan.topic.encode(), plan.queue_id, message.properties


def _parked(
    plan: SendPlan,
    message: MessagePlan,
    *,
    replaced: tuple[bytes, ...],
    added: bytes = b"",
    room_bytes: int = DELIVERY_PROPERTIES_BYTES,
) -> bytes:
    """Return the properties of a message that waits in a topic of its own.

    Raises:
        RecordError: they do not leave `room_bytes` free.
    """
    parked = (
        terminated(remove_property(message.properties, *replaced))
        + encode_property(REAL_TOPIC, plan.topic.encode())
        + encode_property(REAL_QID, b"%d" % plan.queue_id)
        + added
    )
    if len(parked) > PROPERTIES_BYTES_MAX - room_bytes:
        raise RecordError(
            f"properties of {len(parked)} bytes with what the broker adds; a message that waits for its time or "
            f"its transaction has room for {PROPERTIES_BYTES_MAX - room_bytes}"
        )
    return parked


def requested_by_plan(plan: SendPlan, message: MessagePlan) -> RequestedMessage:
    """Return what a message of a send asks for.

    Raises:
        RecordError: as `stored_as`.
    """
    topic, queue_id, properties = stored_as(plan, message)
    return _requested(
        topic,
        queue_id,
        properties=properties,
        body=message.body,
        flag=message.flag,
        sys_flag=plan.sys_flag,
        reconsume_times=plan.reconsume_times,
    )


def requested_by_record(record: StoredMessage) -> RequestedMessage:
    """Return what the client asked for whose send became this record. A copy that the broker made is like no send."""
    return _requested(
        record.topic.encode(),
        record.queue_id,
        properties=record.properties,
        body=record.body,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )


def _requested(
    topic: bytes,
    queue_id: QueueId,
    *,
    properties: bytes,
    body: bytes,
    flag: int,
    sys_flag: int,
    reconsume_times: int,
) -> RequestedMessage:
    """Take what its client asked for from a record: without what the broker added or what differs between tries."""
    waits_in = b""
    added = _ADDED.get(topic)
    if added is not None:
        # A due time may have passed when its message comes again, which then is stored at once.
        waits_in = b"" if topic == TIMER_KEY else topic
        real_queue_id = find_property(properties, REAL_QID) or b""
        topic = find_property(properties, REAL_TOPIC) or b""
        queue_id = QueueId(int(real_queue_id) if real_queue_id.isdigit() else -1)
    return RequestedMessage(
        topic,
        queue_id,
        waits_in,
        flag,
        sys_flag & ~_HOST_BITS,
        reconsume_times,
        remove_property(properties, *_STAMP, *(added or ())),
        body,
    )


def is_same(asked: RequestedMessage, other: RequestedMessage, *, any_queue: bool) -> bool:
    """Return True if both are the same message; `any_queue`: the asking one leaves its queue to the broker."""
    if any_queue:
        asked = asked._replace(queue_id=other.queue_id)
    return asked == other
