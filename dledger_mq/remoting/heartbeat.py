"""Bodies of HEART_BEAT (34) and CHECK_CLIENT_CONFIG (46): what a client reports of its groups.

Clients differ: C++ sends enums as ordinals, `subVersion` as text, and leaves empty members out; Go sends
`codeSet` as texts; Node and Java send names. Codes of tags are not taken from the client (C++ sends
zeros): the filtering side computes them from the expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import msgspec

from dledger_mq.remoting.errors import BodyError

GROUPS_MAX: Final = 4096
SUBSCRIPTIONS_MAX: Final = 4096
"""Per client; bounds what one connection can make a broker remember."""

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"


class ConsumeType(IntEnum):
    """The ways in which a consumer gets its messages; ordinals as Java has them."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(IntEnum):
    """The two models of a group: members share the queues, or each reads all."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(IntEnum):
    """The places at which a group without an offset starts."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


class Subscription(msgspec.Struct, frozen=True):
    """A topic that a group reads, and the selection of its messages.

    Attributes:
        expression: `*`, empty, `a || b`, or an SQL condition, by `expression_type`.
        tags: as the client split them; may be empty although the expression has tags.
        version: grows with each change; ms or, from Go, ns.
    """

    topic: str
    expression: str = "*"
    expression_type: str = EXPRESSION_TAG
    tags: tuple[str, ...] = ()
    version: int = 0
    is_class_filter: bool = False


class ConsumerEntry(msgspec.Struct, frozen=True):
    """A consumer group of a client."""

    group: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: tuple[Subscription, ...] = ()
    is_unit_mode: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """All groups of a client."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerEntry, ...] = ()


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _SubscriptionIn(msgspec.Struct):
    topic: str
    subString: str | None = None  # noqa: N815 - the names on the wire, here and below
    expressionType: str | None = None  # noqa: N815
    tagsSet: list[str] | None = None  # noqa: N815
    subVersion: _Int64 = 0  # noqa: N815
    classFilterMode: bool | None = None  # noqa: N815


class _ConsumerIn(msgspec.Struct):
    groupName: str  # noqa: N815
    consumeType: int | str | None = None  # noqa: N815
    messageModel: int | str | None = None  # noqa: N815
    consumeFromWhere: int | str | None = None  # noqa: N815
    subscriptionDataSet: list[_SubscriptionIn] | None = None  # noqa: N815
    unitMode: bool | None = None  # noqa: N815


class _ProducerIn(msgspec.Struct):
    groupName: str  # noqa: N815


class _HeartbeatIn(msgspec.Struct):
    clientID: str  # noqa: N815
    consumerDataSet: list[_ConsumerIn] | None = None  # noqa: N815
    producerDataSet: list[_ProducerIn] | None = None  # noqa: N815


class _ClientConfigIn(msgspec.Struct):
    clientId: str  # noqa: N815
    group: str
    subscriptionData: _SubscriptionIn  # noqa: N815


_decode_heartbeat: Final = msgspec.json.Decoder(_HeartbeatIn, strict=False).decode
_decode_client_config: Final = msgspec.json.Decoder(_ClientConfigIn, strict=False).decode
_E = TypeVar("_E", ConsumeType, MessageModel, ConsumeFromWhere)


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Read a heartbeat. Entries with an empty group name are dropped.

    Raises:
        BodyError: not a heartbeat, an unknown enum value, or more groups or subscriptions than the
            limits above.
    """
    try:
        data = _decode_heartbeat(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a heartbeat: {error}") from error
    consumers = data.consumerDataSet or []
    producers = data.producerDataSet or []
    if not data.clientID:
        raise BodyError("not a heartbeat: clientID is empty")
    if len(consumers) + len(producers) > GROUPS_MAX:
        raise BodyError(
            f"heartbeat with {len(consumers) + len(producers)} groups, at most {GROUPS_MAX}"
        )
    if sum(len(entry.subscriptionDataSet or ()) for entry in consumers) > SUBSCRIPTIONS_MAX:
        raise BodyError(f"heartbeat with more than {SUBSCRIPTIONS_MAX} subscriptions")
    return Heartbeat(
        client_id=data.clientID,
        producer_groups=tuple(entry.groupName for entry in producers if entry.groupName),
        consumers=tuple(_consumer(entry) for entry in consumers if entry.groupName),
    )


def decode_client_config(body: bytes) -> tuple[str, str, Subscription]:
    """Read the body of CHECK_CLIENT_CONFIG: client id, group, subscription.

    Raises:
        BodyError: it is not one.
    """
    try:
        data = _decode_client_config(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a client configuration: {error}") from error
    return data.clientId, data.group, _subscription(data.subscriptionData)


def encode_client_config(client_id: str, group: str, subscription: Subscription) -> bytes:
    """Write the body of CHECK_CLIENT_CONFIG."""
    return msgspec.json.encode(
        {
            "clientId": client_id,
            "group": group,
            "subscriptionData": _subscription_out(subscription),
        }
    )


def _consumer(entry: _ConsumerIn) -> ConsumerEntry:
    return ConsumerEntry(
        group=entry.groupName,
        consume_type=_member(ConsumeType, entry.consumeType, ConsumeType.CONSUME_PASSIVELY),
        message_model=_member(MessageModel, entry.messageModel, MessageModel.CLUSTERING),
        consume_from_where=_member(
            ConsumeFromWhere, entry.consumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        ),
        subscriptions=tuple(_subscription(item) for item in entry.subscriptionDataSet or ()),
        is_unit_mode=bool(entry.unitMode),
    )


def _subscription(item: _SubscriptionIn) -> Subscription:
    return Subscription(
        topic=item.topic,
        expression=item.subString or "*",
        expression_type=item.expressionType or EXPRESSION_TAG,
        tags=tuple(item.tagsSet or ()),
        version=item.subVersion,
        is_class_filter=bool(item.classFilterMode),
    )


def _member(kind: type[_E], value: int | str | None, default: _E) -> _E:
    """Return the enum member that a name, an ordinal or an ordinal as text stands for."""
    if value is None:
        return default
    try:
        if isinstance(value, int) or value.isdecimal():
            return kind(int(value))
        return kind[value]
    except (KeyError, ValueError) as error:
        raise BodyError(f"{value!r} is no {kind.__name__}") from error


class _SubscriptionOut(msgspec.Struct, rename="camel"):
    class_filter_mode: bool
    code_set: list[int]
    expression_type: str
    sub_string: str
    sub_version: int
    tags_set: list[str]
    topic: str


def _subscription_out(item: Subscription, codes: Sequence[int] = ()) -> _SubscriptionOut:
    return _SubscriptionOut(
        item.is_class_filter,
        list(codes),
        item.expression_type,
        item.expression,
        item.version,
        list(item.tags),
        item.topic,
    )


def encode_heartbeat(heartbeat: Heartbeat, code_sets: Sequence[Sequence[int]] = ()) -> bytes:
    """Write a heartbeat as the Java client does.

    Args:
        heartbeat: what is reported.
        code_sets: the tag hashes of each subscription, in order of all consumers' subscriptions; empty
            where none are given, which brokers accept.
    """
    codes = iter(code_sets)
    return msgspec.json.encode(
        {
            "clientID": heartbeat.client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": entry.consume_from_where.name,
                    "consumeType": entry.consume_type.name,
                    "groupName": entry.group,
                    "messageModel": entry.message_model.name,
                    "subscriptionDataSet": [
                        _subscription_out(item, next(codes, ())) for item in entry.subscriptions
                    ],
                    "unitMode": entry.is_unit_mode,
                }
                for entry in heartbeat.consumers
            ],
            "producerDataSet": [{"groupName": group} for group in heartbeat.producer_groups],
        }
    )
