"""The handle of a popped message (`extraInfo`, POP_CK; rule R11), and the strings from which clients build it. Pure.

Eight texts with blanks between: first offset of the pop, pop time, invisible time, revive queue, kind of topic, broker
name, queue id, queue offset. Clients put it together from what a pop is answered with, and bring it back as it is.
RocketMQ's proxy puts a ninth behind them, the message's position in the log, or -1.

Queue offset and pop time name what is in flight; a handle that names anything else acknowledges nothing. The others are
looked at only where they say that the handle is another broker's. There is no secret in it: who may acknowledge is
decided by the rights to topic and group, and whoever has these may pop as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger_mq.message import names
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.errors import FieldError

ORDER_REVIVE_QUEUE: int = 999
"""The revive queue that clients are told after a pop in order (R3)."""

_PARTS = 8
_POP_TIME_MAX = 2**42 - 1
_OFFSET_MAX = 2**63 - 1


class PopHandle(NamedTuple):
    """The time and the place of a pop, as a client brings them back."""

    popped_ms: int
    broker_name: str
    queue_id: QueueId
    offset: QueueOffset


def _number(text: str, largest: int) -> int:
    """Read a whole number of at most `largest`.

    Raises:
        ValueError: it is none.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > largest:
        raise ValueError(f"{text[:40]!r} is not a number up to {largest}")
    return int(text)


def parse_handle(text: str, offset: QueueOffset) -> PopHandle:
    """Read a handle; older clients leave out the offset, which the request names as well.

    Raises:
        FieldError: it is none, or of another message.
    """
    parts = text.split(" ")
    if not _PARTS - 1 <= len(parts) <= _PARTS + 1:
        raise FieldError("extraInfo", f"has {len(parts)} parts, not {_PARTS}: {text[:80]!r}")
    try:
        popped_ms = _number(parts[1], _POP_TIME_MAX)
        queue_id = QueueId(_number(parts[6], 2**31 - 1))
        named = _number(parts[7], _OFFSET_MAX) if len(parts) >= _PARTS else offset
    except ValueError as error:
        raise FieldError("extraInfo", str(error)) from error
    if named != offset:
        raise FieldError("extraInfo", f"is of the message at {named}, not of that at {offset}")
    return PopHandle(popped_ms, parts[5], queue_id, offset)


def topic_flag(topic: str) -> str:
    """Return the kind of a topic in handles: 0 for a plain one, 1 for a retry topic."""
    return "1" if names.is_retry_topic(topic) else "0"


def info_of(
    topic: str, queue_id: QueueId, offsets: Sequence[QueueOffset], *, in_order: Sequence[int] = ()
) -> dict[str, str]:
    """Return the strings from which a client builds its handles (R12); offsets ascend and are one or more.

    `in_order` are the counts of earlier deliveries, for a pop in order.
    """
    flag = topic_flag(topic)
    place = f"{flag} {queue_id}"
    info = {
        "startOffsetInfo": f"{place} {offsets[0]}",
        "msgOffsetInfo": f"{place} {','.join(map(str, offsets))}",
    }
    if in_order:
        each = zip(offsets, in_order, strict=True)
        counts = ";".join(f"{flag} qo{queue_id}%{offset} {count}" for offset, count in each)
        info["orderCountInfo"] = counts
    return info
