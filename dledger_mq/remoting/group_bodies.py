"""Small bodies around consumer groups: member lists (38) and queue locks (41, 42)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.message_queue import WireQueue

LOCK_QUEUES_MAX: Final = 65_536
"""Queues in one lock request; bounds its work."""


class LockRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: tuple[WireQueue, ...] = ()
    only_this_broker: bool = False


class _LockRequestIn(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: list[WireQueue] | None = None
    only_this_broker: bool | None = None


class _LockReply(msgspec.Struct):
    lockOKMQSet: list[WireQueue] | None = None  # noqa: N815 - the name on the wire


class _ConsumerList(msgspec.Struct):
    consumerIdList: list[str] | None = None  # noqa: N815 - the name on the wire


_decode_lock_request: Final = msgspec.json.Decoder(_LockRequestIn, strict=False).decode
_decode_lock_reply: Final = msgspec.json.Decoder(_LockReply, strict=False).decode
_decode_consumer_list: Final = msgspec.json.Decoder(_ConsumerList).decode


def decode_lock_request(body: bytes) -> LockRequest:
    """Read a lock or unlock request.

    Raises:
        BodyError: it is not one, or names more than LOCK_QUEUES_MAX queues.
    """
    try:
        data = _decode_lock_request(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a lock request: {error}") from error
    queues = data.mq_set or []
    if len(queues) > LOCK_QUEUES_MAX:
        raise BodyError(f"lock request for {len(queues)} queues, at most {LOCK_QUEUES_MAX}")
    return LockRequest(
        data.consumer_group, data.client_id, tuple(queues), bool(data.only_this_broker)
    )


def encode_lock_request(request: LockRequest) -> bytes:
    """Write a lock or unlock request."""
    return msgspec.json.encode(request)


def encode_lock_reply(locked: Iterable[WireQueue]) -> bytes:
    """Write the queues now held by the asker; the member is there even when there are none."""
    return msgspec.json.encode(_LockReply(list(locked)))


def decode_lock_reply(body: bytes) -> list[WireQueue]:
    """Read the answer to a lock request.

    Raises:
        BodyError: it is not one.
    """
    try:
        return _decode_lock_reply(body).lockOKMQSet or []
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not the answer to a lock request: {error}") from error


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Write the body of the answer to GET_CONSUMER_LIST_BY_GROUP."""
    return msgspec.json.encode(_ConsumerList(list(client_ids)))


def decode_consumer_list(body: bytes) -> list[str]:
    """Read the client ids of a group.

    Raises:
        BodyError: it is not a member list.
    """
    try:
        return _decode_consumer_list(body).consumerIdList or []
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not a list of consumers: {error}") from error
