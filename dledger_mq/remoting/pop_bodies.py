"""JSON bodies of pop consumption: acknowledgements in a batch (200151), and whose queues are asked for (400).

A batch names the messages of several pops. Those of one pop are bits counted from its first offset, the lowest of the
first byte first, as Java's BitSet is written; fastjson writes the bytes in base64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import Json, JsonKey, read_object

BATCH_MAX: Final = 1024
"""Pops whose messages one batch acknowledges."""

POPPED_MAX: Final = 1024
"""Messages of one of them."""

MESSAGES_MAX: Final = 16_384
"""Messages of a batch: some 300 KB of records from bits that take 2 KB, and none of them is divided."""

EACH_FIELD: Final = "dledgerEach"
"""Of BATCH_ACK_MESSAGE, `true`: the answer shall say of each message what became of it."""

ENDED_FIELD: Final = "dledgerEnded"
"""Of such an answer, if it is a success: an `AckMark` for each message, pop after pop, by ascending offsets."""

_NAME_CHARS_MAX: Final = 255


class AckMark(StrEnum):
    """The end of one message of a batch."""

    ENDED = "1"
    """This request has acknowledged it."""
    NOT_IN_FLIGHT = "0"
    """It was not in flight under its handle; nothing was changed."""
    PERHAPS_EARLIER = "?"
    """The same, but an earlier try of this request may have acknowledged it."""


class PoppedBatch(NamedTuple):
    """The messages of one pop that a batch acknowledges."""

    group: str
    topic: str
    queue_id: QueueId
    popped_ms: int
    offsets: list[QueueOffset]


class AssignmentRequest(NamedTuple):
    """A client's request for queues; an empty strategy is the server's choice."""

    group: str
    topic: str
    client_id: str
    strategy: str


class _BatchAck(msgspec.Struct):
    c: str
    t: str
    so: int
    q: int
    pt: int
    b: bytes


class _Batch(msgspec.Struct):
    acks: list[_BatchAck] = []


class _BatchAddress(msgspec.Struct, rename="camel"):
    broker_name: str | None = None


_decode_batch: Final = msgspec.json.Decoder(_Batch).decode
_decode_address: Final = msgspec.json.Decoder(_BatchAddress).decode


def decode_batch_ack(body: bytes) -> list[PoppedBatch]:
    """Read a batch of acknowledgements; pops of which it names no message are left out.

    Raises:
        BodyError: it is none, or too large.
    """
    try:
        batch = _decode_batch(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"a batch of acknowledgements: {error}") from error
    if len(batch.acks) > BATCH_MAX:
        raise BodyError(f"{len(batch.acks)} pops are acknowledged at once, at most {BATCH_MAX}")
    pops = []
    count = 0
    for each in batch.acks:
        bits = int.from_bytes(each.b, "little")
        if bits.bit_length() > POPPED_MAX:
            raise BodyError(f"{bits.bit_length()} messages of one pop, at most {POPPED_MAX}")
        is_sane = 0 <= each.so < 2**62 and 0 <= each.q < 2**31 and 0 <= each.pt < 2**42
        is_named = 0 < len(each.c) <= _NAME_CHARS_MAX and 0 < len(each.t) <= _NAME_CHARS_MAX
        if not (is_sane and is_named):
            raise BodyError(f"a pop of {each.c[:80]!r} in {each.t[:80]!r} cannot be")
        count += bits.bit_count()
        if count > MESSAGES_MAX:
            raise BodyError(f"more than {MESSAGES_MAX} messages are acknowledged at once")
        offsets = [
            QueueOffset(each.so + bit) for bit in range(bits.bit_length()) if bits >> bit & 1
        ]
        if offsets:
            pops.append(PoppedBatch(each.c, each.t, QueueId(each.q), each.pt, offsets))
    return pops


def batch_broker_name(body: bytes) -> str | None:
    """Return the broker that a batch of acknowledgements is for; None: it names none.

    Raises:
        BodyError: it is none.
    """
    try:
        return _decode_address(body).broker_name
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"a batch of acknowledgements: {error}") from error


def encode_batch_ack(broker_name: str, pops: Iterable[PoppedBatch]) -> bytes:
    """Write a batch of acknowledgements; the offsets of each pop ascend, over at most POPPED_MAX.

    RocketMQ's brokers also look for what the handles say beyond queue, offset and pop time; they are not asked here.
    """
    acks = []
    for pop in pops:
        first = pop.offsets[0]
        bits = 0
        for offset in pop.offsets:
            bits |= 1 << (offset - first)
        assert bits.bit_length() <= POPPED_MAX, f"{pop} spans {bits.bit_length()} offsets"
        packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        acks.append(_BatchAck(pop.group, pop.topic, first, pop.queue_id, pop.popped_ms, packed))
    return msgspec.json.encode({"brokerName": broker_name, "acks": acks})


def batch_places(body: bytes) -> list[tuple[str, str]]:
    """Return group and topic of what a batch acknowledges.

    Raises:
        BodyError: it is none.
    """
    return [(each.group, each.topic) for each in decode_batch_ack(body)]


def decode_assignment(body: bytes) -> AssignmentRequest:
    """Read who asks for queues.

    Raises:
        BodyError: the body says it not.
    """
    members = read_object(body)
    strategy = members.get("strategyName") or ""
    if not isinstance(strategy, str):
        raise BodyError(f"strategyName is {str(strategy)[:80]!r}, not a name")
    return AssignmentRequest(
        name_in(members, "consumerGroup"),
        name_in(members, "topic"),
        name_in(members, "clientId"),
        strategy,
    )


def assignment_place(body: bytes) -> tuple[str, str]:
    """Return group and topic of a request for queues.

    Raises:
        BodyError: it names none.
    """
    wanted = decode_assignment(body)
    return wanted.group, wanted.topic


def name_in(members: Mapping[JsonKey, Json], name: str) -> str:
    """Return a member of a JSON object that is a name.

    Raises:
        BodyError: it is missing, or no name.
    """
    value = members.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_CHARS_MAX:
        raise BodyError(f"{name} is {str(value)[:80]!r}, not a name")
    return value
