"""What a send would store, and whether that is what a record or another send stores already.

One function, `stored_as`, says which record a message of a send becomes; it is what the leader stages. Another,
`_essence`, says of a record what its client asked for: without what differs between two tries of one send by nature
(places, times, hosts), and without what the broker adds. A message is the same as another if and only if their
essences are equal. A due time is compared as the wish for it: counted from now, it comes out differently each time.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.service.send import MessagePlan, SendPlan
from broker.store.schedule import DELIVERY_PROPERTIES_BYTES, SCHEDULE_KEY
from broker.store.timers import TIMER_KEY
from broker.store.transactions import HALF_KEY
from dledger_mq.message.errors import PropertyError, RecordError
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
"""What a half message leaves free for its commit, its due time and its delivery."""

_STAMP: Final = (MSG_REGION, TRACE_ON, CLUSTER)
_WAITING: Final = (REAL_TOPIC, REAL_QID, TIMER_OUT_MS)
_TIMED: Final = (*_WAITING, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # M2
_HALF: Final = (REAL_TOPIC, REAL_QID, TRANSACTION_ID)
_ADDED: Final = {SCHEDULE_KEY: _WAITING, TIMER_KEY: _WAITING, HALF_KEY: _HALF}
"""Properties that the broker adds to what waits in a topic of its own."""

_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6


class Essence(NamedTuple):
    """What a client asked to have stored.

    Attributes:
        queue_id: as asked; for a request that left it to the broker, the one that was picked.
        waits_in: the topic in which it waits for a level or for the end of its transaction; empty for others.
        properties: as the client gave them.
    """

    topic: bytes
    queue_id: int
    waits_in: bytes
    flag: int
    sys_flag: int
    reconsume_times: int
    properties: bytes
    body: bytes


def stored_as(plan: SendPlan, message: MessagePlan) -> tuple[bytes, int, bytes]:
    """Topic, queue id and properties of the record that a message of a send becomes.

    Raises:
        RecordError: it has to wait, and leaves no room for what is added later, or its key is no transaction id.
    """
    topic, queue_id = plan.topic.encode(), plan.queue_id
    if plan.is_half:  # O2
        try:
            added = encode_property(TRANSACTION_ID, message.uniq_key)
        except PropertyError as error:
            raise RecordError(str(error)) from error
        return HALF_KEY, 0, _parked(message, topic, queue_id, _HALF, added, HALF_ROOM_BYTES)
    if plan.delay_level:  # M3
        properties = _parked(message, topic, queue_id, _TIMED, b"", DELIVERY_PROPERTIES_BYTES)
        return SCHEDULE_KEY, plan.delay_level - 1, properties
    if plan.due_ms:  # N7
        added = encode_property(TIMER_OUT_MS, b"%d" % plan.due_ms)
        properties = _parked(message, topic, queue_id, _WAITING, added, DELIVERY_PROPERTIES_BYTES)
        return TIMER_KEY, 0, properties
    return topic, queue_id, message.properties


def _parked(
    message: MessagePlan,
    topic: bytes,
    queue_id: int,
    replaced: tuple[bytes, ...],
    added: bytes,
    room_bytes: int,
) -> bytes:
    parked = (
        terminated(remove_property(message.properties, *replaced))
        + encode_property(REAL_TOPIC, topic)
        + encode_property(REAL_QID, b"%d" % queue_id)
        + added
    )
    if len(parked) > PROPERTIES_BYTES_MAX - room_bytes:
        raise RecordError(
            f"properties of {len(parked)} bytes, a message that waits has room for "
            f"{PROPERTIES_BYTES_MAX - room_bytes}"
        )
    return parked


def essence_of_plan(plan: SendPlan, message: MessagePlan) -> Essence:
    """What a message of a send asks for.

    Raises:
        RecordError: as `stored_as`.
    """
    topic, queue_id, properties = stored_as(plan, message)
    return _essence(
        topic,
        queue_id,
        properties,
        message.body,
        (message.flag, plan.sys_flag, plan.reconsume_times),
    )


def essence_of_record(record: StoredMessage) -> Essence:
    """What the client asked for whose send became this record. A copy that the broker made is like no send."""
    return _essence(
        record.topic.encode(),
        record.queue_id,
        record.properties,
        record.body,
        (record.flag, record.sys_flag, record.reconsume_times),
    )


def _essence(
    topic: bytes, queue_id: int, properties: bytes, body: bytes, numbers: tuple[int, int, int]
) -> Essence:
    waits_in = b""
    added = _ADDED.get(topic)
    if added is not None:
        # A due time may have passed when its message comes again, which then is stored at once.
        waits_in = b"" if topic == TIMER_KEY else topic
        real_queue_id = find_property(properties, REAL_QID) or b""
        topic = find_property(properties, REAL_TOPIC) or b""
        queue_id = int(real_queue_id) if real_queue_id.isdigit() else -1
    flag, sys_flag, reconsume_times = numbers
    return Essence(
        topic,
        queue_id,
        waits_in,
        flag,
        sys_flag & ~_HOST_BITS,
        reconsume_times,
        remove_property(properties, *_STAMP, *(added or ())),
        body,
    )


def is_same(asked: Essence, other: Essence, *, any_queue: bool) -> bool:
    """Whether both are the same message; `any_queue`: the asking one leaves its queue to the broker."""
    if any_queue:
        asked = asked._replace(queue_id=other.queue_id)
    return asked == other
