"""A message of a producer, as brokers take it: properties, body and system flag. Pure.

A body that came packed with gzip is unpacked: consumers of release 4 could not read it.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

from broker.proxy import checks
from broker.proxy.protocol.numbers import Code, Encoding, MessageType
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.messages import BODY_BYTES_MAX, pack_body
from dledger_mq.message import sys_flags
from dledger_mq.message.errors import PropertyError
from dledger_mq.message.properties import encode_properties

MESSAGE_ID_CHARS_MAX: Final = 255
TIMESTAMP_S_END: Final = 253_402_300_800
"""The year 10000, where protobuf's timestamps end."""

_GZIP_OR_ZLIB: Final = 47
"""A window of 32 KiB, and the container found out (zlib's manual, inflateInit2)."""


class MessageToSend(NamedTuple):
    """A message to be sent.

    Attributes:
        kind: of which it is, by what it has.
        unique_key: the client's id of it.
        group: within which it keeps its order; empty: none.
        body: as it travels, packed where that is shorter.
        properties: encoded.
        sys_flag: of the body, and of a half message.
        born_ms: as the client says it.
    """

    topic: str
    kind: MessageType
    unique_key: str
    group: str
    body: bytes
    properties: bytes
    sys_flag: int
    born_ms: int

    @property
    def is_half(self) -> bool:
        """True for a half message."""
        return self.kind is MessageType.TRANSACTION


def outgoing(message: Any, *, client_host: str, now_ms: int) -> MessageToSend:
    """Read a message.

    Args:
        message: a `Message`.
        client_host: its sender's address, where the message names none.
        now_ms: the proxy's time, at which a message was born that does not say it.

    Raises:
        CallRefusedError: says what is wrong with it.
    """
    topic = checks.topic_of(message.topic)
    system = message.system_properties
    unique_key = checks.check_text(system.message_id, "the message id", Code.ILLEGAL_MESSAGE_ID)
    if not unique_key or " " in unique_key or len(unique_key) > MESSAGE_ID_CHARS_MAX:
        text = f"message id {unique_key[:80]!r} is empty, has blanks or more than {MESSAGE_ID_CHARS_MAX} characters"
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_ID, text)
    pairs = {"UNIQ_KEY": unique_key, **_labels(message)}
    is_half = system.message_type == MessageType.TRANSACTION
    if is_half:
        pairs |= _half_properties(system, topic)
    if system.message_group:
        pairs["__SHARDINGKEY"] = checks.check_message_group(system.message_group)
    if system.HasField("delivery_timestamp"):
        pairs["TIMER_DELIVER_MS"] = str(_due_ms(system.delivery_timestamp))
    if system.trace_context:
        pairs["TRACE_CONTEXT"] = system.trace_context
    pairs["__BORNHOST"] = system.born_host or client_host
    try:
        properties = encode_properties({name: text for name, text in pairs.items() if text})
    except PropertyError as error:
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error
    body, sys_flag = pack_body(_body(message))
    if is_half:
        sys_flag |= sys_flags.TRANSACTION_PREPARED
    born = system.born_timestamp
    is_born = 0 < born.seconds < TIMESTAMP_S_END
    born_ms = born.seconds * 1000 + born.nanos // 1_000_000 if is_born else now_ms
    return MessageToSend(
        topic, _kind(system), unique_key, system.message_group, body, properties, sys_flag, born_ms
    )


def _kind(system: Any) -> MessageType:
    """Return the kind of a message by what it has, as Apache's proxy finds it out."""
    if system.message_type == MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    return MessageType.FIFO if system.message_group else MessageType.NORMAL


def _labels(message: Any) -> dict[str, str]:
    """Return the application's properties, with tag and keys."""
    system = message.system_properties
    pairs = checks.check_properties(message.user_properties)
    if system.tag:
        pairs["TAGS"] = checks.check_tag(system.tag)
    if system.keys:
        pairs["KEYS"] = " ".join(map(checks.check_key, system.keys))
    size = sum(len(text.encode()) for pair in pairs.items() for text in pair)
    if size > checks.PROPERTIES_BYTES_MAX:
        text = f"properties, tag and keys have {size} bytes, at most {checks.PROPERTIES_BYTES_MAX}"
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return pairs


def _half_properties(system: Any, topic: str) -> dict[str, str]:
    """Return what makes a message a half message; the producers of a topic answer for each other (Apache's proxy)."""
    if system.HasField("delivery_timestamp") or system.message_group:
        text = "a message of a transaction has neither a delivery time nor a message group"
        raise CallRefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    pairs = {"TRAN_MSG": "true", "PGROUP": topic}
    if system.HasField("orphaned_transaction_recovery_duration"):
        seconds = system.orphaned_transaction_recovery_duration.seconds
        if seconds < 0:
            raise CallRefusedError(Code.BAD_REQUEST, f"a check after {seconds} s cannot be")
        pairs["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(seconds)
    return pairs


def _due_ms(due: Any) -> int:
    """Return a due time in ms; how far ahead it may lie is for the brokers to say (`timerMaxDelaySec`)."""
    due_ms = int(due.seconds) * 1000 + int(due.nanos) // 1_000_000
    if not 0 < due_ms < TIMESTAMP_S_END * 1000:
        raise CallRefusedError(
            Code.ILLEGAL_DELIVERY_TIME, f"delivery time {due_ms} ms is no time since 1970"
        )
    return due_ms


def _body(message: Any) -> bytes:
    body: bytes = message.body
    if message.system_properties.body_encoding == Encoding.GZIP:
        body = _unpacked(body)
    if not body:
        raise CallRefusedError(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > BODY_BYTES_MAX:
        text = f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX}"
        raise CallRefusedError(Code.MESSAGE_BODY_TOO_LARGE, text)
    return body


def _unpacked(body: bytes) -> bytes:
    """Return a packed body as it was; no more of it than a body may have, and a byte."""
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        found = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        text = f"the body is said to be packed with gzip, and is not: {error}"
        raise CallRefusedError(Code.MESSAGE_CORRUPTED, text) from error
    if not unpacker.eof and len(found) <= BODY_BYTES_MAX:
        raise CallRefusedError(Code.MESSAGE_CORRUPTED, "the packed body has no end")
    return found
