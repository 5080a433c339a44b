"""Messages that ask for a reply, and the replies to them.

A requester marks its message with an id of its own (CORRELATION_ID) and its client id (REPLY_TO_CLIENT); whoever
consumes it sends a reply to the broker group that the message came from, which hands it on over a connection of the
requester's. A reply that comes when nobody waits for it any more is dropped.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Final

import anyio
import msgspec

from dledger_mq.client.errors import ClientUsageError, InvalidMessageError, SendError
from dledger_mq.client.messages import (
    BODY_BYTES_MAX,
    Message,
    ReceivedMessage,
    pack_body,
    unpack_body,
)
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.session import Session, raise_for
from dledger_mq.message import sys_flags
from dledger_mq.message.names import reply_topic
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import decode_properties, encode_properties
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.header import RemotingCommand, make_response

log = logging.getLogger(__name__)

REPLY_TIMEOUT_S: Final = 5.0
"""The time for which it is tried to hand a reply over; a requester waits for seconds, not for minutes."""

_REPLY: Final = "reply"


@dataclass(slots=True)
class AwaitedReply:
    """A message whose reply is waited for.

    Attributes:
        message: it, with the properties that ask for a reply.
        correlation_id: by which its reply is known.
        reply: once it has come.
        failure: why the message is not stored, or may not be, once that is known.
        ended: set with either.
    """

    message: Message
    correlation_id: str
    reply: ReceivedMessage | None = None
    failure: SendError | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)


class OpenQuestions:
    """The messages of one producer whose replies are waited for."""

    def __init__(self) -> None:
        self._open: dict[str, AwaitedReply] = {}

    def ask(self, message: Message, client_id: str, timeout_s: float) -> AwaitedReply:
        """Mark a message as one that asks for a reply, and wait for that from now on, until `forget`.

        Raises:
            InvalidMessageError: its properties name one of those that ask for a reply.
        """
        correlation_id = str(uuid.uuid4())
        asking = {
            "CORRELATION_ID": correlation_id,
            "REPLY_TO_CLIENT": client_id,
            "TTL": str(int(timeout_s * 1000)),
        }
        given = sorted(asking.keys() & message.properties.keys())
        if given:
            raise InvalidMessageError(f"a request sets these itself: {', '.join(given)}")
        asked = msgspec.structs.replace(message, properties={**message.properties, **asking})
        question = self._open[correlation_id] = AwaitedReply(asked, correlation_id)
        return question

    def forget(self, question: AwaitedReply) -> None:
        """Wait for the reply no longer."""
        self._open.pop(question.correlation_id, None)

    def taken(self, command: RemotingCommand) -> RemotingCommand:
        """Take a reply that a broker pushes; return the answer to the broker.

        One that nobody waits for is taken as well, as Java does: whoever replies cannot do anything about it.
        """
        try:
            reply = _received(command)
        except FieldError as error:
            text = f"the reply cannot be read: {error}"
            return make_response(command.opaque, ResponseCode.SYSTEM_ERROR, text)
        question = self._open.get(reply.properties.get("CORRELATION_ID", ""))
        if question is None:
            log.info("a reply came when nobody waited for it: %.80r", reply.unique_key)
        elif question.reply is None:
            question.reply = reply
            question.ended.set()
        return make_response(command.opaque, ResponseCode.SUCCESS)


async def send_reply(
    session: Session, group: str, message: ReceivedMessage, body: bytes, *, timeout_s: float
) -> None:
    """Hand a reply to whoever asked for one with a message; tried over all nodes and failovers of its group.

    Raises:
        ClientUsageError: the message asks for no reply, or the body is too large.
        RequestFailedError: the broker could not hand it on; the remark says why.
        NoRouteError, ConnectionLostError, RequestTimeoutError: nobody answered; the requester may have it.
    """
    if len(body) > BODY_BYTES_MAX:
        raise InvalidMessageError(f"the reply has {len(body)} bytes, at most {BODY_BYTES_MAX}")
    asked = message.properties
    wanted = {name: asked.get(name) for name in ("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT")}
    lacking = [name for name, value in wanted.items() if not value]
    if lacking:
        raise ClientUsageError(
            f"the message {message.message_id} asks for no reply: it has no {' and no '.join(lacking)}"
        )
    pairs = {
        "CORRELATION_ID": str(wanted["CORRELATION_ID"]),
        "REPLY_TO_CLIENT": str(wanted["REPLY_TO_CLIENT"]),
        "MSG_TYPE": _REPLY,
    }
    if ttl := asked.get("TTL"):
        pairs["TTL"] = ttl
    packed, sys_flag = pack_body(body)
    ext = _reply_header(group, reply_topic(str(wanted["CLUSTER"])), pairs, sys_flag)
    raise_for(
        await session.call_group(
            message.queue.broker_name,
            RequestCode.SEND_REPLY_MESSAGE_V2,
            ext,
            packed,
            timeout_s=timeout_s,
            try_timeout_s=timeout_s,
        )
    )


def _reply_header(
    group: str, topic: str, properties: dict[str, str], sys_flag: int
) -> dict[str, str]:
    """Return the fields of a request that sends a reply now, which are those of a send (V2)."""
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": str(sys_flag),
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }


def _received(command: RemotingCommand) -> ReceivedMessage:
    """Make a message of a reply that was pushed; it stands nowhere, so its offsets are 0.

    Raises:
        FieldError: a number is none.
    """
    ext = command.ext
    pairs = decode_properties(ext.get("properties", "").encode(errors="replace"))
    topic = ext.get("topic", "")
    sys_flag = fields.int32(ext, "sysFlag", 0)
    body = unpack_body(command.body, sys_flag)
    keys = pairs.get("KEYS")
    return ReceivedMessage(
        topic,
        body,
        MessageQueue(topic, "", QueueId(fields.int32(ext, "queueId", 0))),
        QueueOffset(0),
        PhysicalOffset(0),
        "",
        pairs.get("UNIQ_KEY", pairs.get("CORRELATION_ID", "")),
        pairs.get("TAGS"),
        tuple(keys.split()) if keys else (),
        pairs,
        fields.int32(ext, "flag", 0),
        fields.int64(ext, "bornTimestamp", 0),
        StoreTimeMs(fields.int64(ext, "storeTimestamp", 0)),
        fields.int32(ext, "reconsumeTimes", 0),
        bool(sys_flag & sys_flags.COMPRESSED) and body is command.body,
    )
