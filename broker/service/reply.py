"""A reply message as its sender wants it handed on, and the request (326) by which the requester gets it. Pure.

It must not know where the requester is connected, nor what became of the reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.service.refusal import Refusal
from dledger_mq.message.errors import PropertyError
from dledger_mq.message.names import REPLY_TOPIC_SUFFIX, topic_problem
from dledger_mq.message.properties import (
    CORRELATION_ID,
    PROPERTIES_BYTES_MAX,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    find_property,
    set_property,
)
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_request
from dledger_mq.remoting.requests import SendFields

CLIENT_ID_CHARS_MAX: Final = 255
CORRELATION_ID_CHARS_MAX: Final = 255
"""Of both: Java's are an address with a process number, and a UUID of 36 characters."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that may be handed on.

    Attributes:
        requester: the client id of who waits for it.
        queue_id: that it names, at least 0; the answer repeats it.
        size_bytes: of its body and properties.
        push: the request to the requester, without an opaque.
    """

    requester: str
    queue_id: int
    size_bytes: int
    push: RemotingCommand


def read_reply(
    send: SendFields,
    body: bytes,
    *,
    body_bytes_max: int,
    born_host: str,
    store_host: str,
    now_ms: int,
) -> Reply | Refusal:
    """Read a reply, or say why it is none that anybody can be given.

    Args:
        send: its fields, which are those of a send.
        body: of the message, at most `body_bytes_max` bytes.
        body_bytes_max: of a message.
        born_host: host:port of whoever replies.
        store_host: host:port of this node.
        now_ms: the time that the requester is told as that of the push.
    """
    properties = (send.properties or "").encode(errors="surrogatepass")
    problem = _problem(send, body, properties, body_bytes_max)
    if problem is not None:
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{problem}; it was given to nobody")
    requester = _id_of(properties, REPLY_TO_CLIENT, CLIENT_ID_CHARS_MAX)
    correlation = _id_of(properties, CORRELATION_ID, CORRELATION_ID_CHARS_MAX)
    for found, name in ((requester, REPLY_TO_CLIENT), (correlation, CORRELATION_ID)):
        if found is None:
            text = (
                f"the reply's {name.decode()} is missing, longer than {CLIENT_ID_CHARS_MAX} characters or not "
                "printable; it was given to nobody"
            )
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, text)
    assert requester is not None, "it was looked at above"
    queue_id = max(0, send.queue_id)
    try:
        stamped = set_property(properties, PUSH_REPLY_TIME, b"%d" % now_ms)
    except PropertyError as error:
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{error}; it was given to nobody")
    ext = _push_fields(
        send, stamped, queue_id, born_host=born_host, store_host=store_host, now_ms=now_ms
    )
    push = make_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, 0, ext, body)
    return Reply(requester, queue_id, len(body) + len(stamped), push)


def requester_of(properties: str | None) -> str | None:
    """Return the client id of who asks for a reply to a message with these properties; None: nobody does."""
    if not properties or REPLY_TO_CLIENT.decode() not in properties:
        return None
    return _id_of(properties.encode(errors="replace"), REPLY_TO_CLIENT, CLIENT_ID_CHARS_MAX)


def _push_fields(
    send: SendFields,
    properties: bytes,
    queue_id: int,
    *,
    born_host: str,
    store_host: str,
    now_ms: int,
) -> dict[str, str]:
    """Return the fields of a push: those of the send, with other properties, and where and when it was taken."""
    return {
        "producerGroup": send.producer_group,
        "topic": send.topic,
        "defaultTopic": send.default_topic,
        "defaultTopicQueueNums": str(send.default_topic_queue_nums),
        "queueId": str(queue_id),
        "sysFlag": str(send.sys_flag),
        "bornTimestamp": str(send.born_timestamp_ms),
        "flag": str(send.flag),
        "properties": properties.decode(errors="surrogatepass"),
        "reconsumeTimes": str(send.reconsume_times or 0),
        "unitMode": "true" if send.unit_mode else "false",
        "bornHost": born_host,
        "storeHost": store_host,
        "storeTimestamp": str(now_ms),
    }


def _problem(send: SendFields, body: bytes, properties: bytes, body_bytes_max: int) -> str | None:
    """Return why a reply is none, but for its ids; None: it is one."""
    if send.is_batch:
        return "a batch is no reply"
    problem = topic_problem(send.topic)
    if problem is not None:
        return problem
    if not send.topic.endswith(REPLY_TOPIC_SUFFIX):
        return f"{send.topic} is no topic of replies, whose names end with {REPLY_TOPIC_SUFFIX}"
    if len(body) > body_bytes_max:
        return f"the body has {len(body)} bytes, at most {body_bytes_max} (maxMessageSize)"
    if len(properties) > PROPERTIES_BYTES_MAX:
        return f"the properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX}"
    return None


def _id_of(properties: bytes, name: bytes, chars_max: int) -> str | None:
    """Return a property that names something; None: it is missing, too long, or not printable."""
    value = find_property(properties, name)
    if value is None:
        return None
    text = value.decode(errors="replace")
    return text if len(text) <= chars_max and text.isprintable() else None
