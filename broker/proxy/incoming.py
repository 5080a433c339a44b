"""A message of a broker, as a consumer gets it. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from broker.proxy import checks
from broker.proxy.protocol import Message
from broker.proxy.protocol.numbers import DigestType, Encoding, MessageType
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.message.ids import parse_offset_msg_id

_DELAYS: Final = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_OUT_MS")


def incoming(
    message: ReceivedMessage, *, handle: str = "", invisible_ms: int = 0, namespace: str = ""
) -> Any:
    """Return a message; with a handle it is one that is to be acknowledged.

    `namespace` is that in which its receiver names topics: its topic is named so again.
    """
    properties = message.properties
    found = Message(body=message.body)
    checks.name_topic(found.topic, message.topic, namespace)
    found.user_properties.update(
        (name, text) for name, text in properties.items() if name not in checks.SYSTEM_PROPERTIES
    )
    system = found.system_properties
    if message.tags:
        system.tag = message.tags
    system.keys.extend(message.keys)
    system.message_id = message.unique_key
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = (
        hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    )
    system.body_encoding = Encoding.IDENTITY
    system.message_type = _kind(properties)
    set_time(system.born_timestamp, message.born_timestamp_ms)
    set_time(system.store_timestamp, message.store_timestamp_ms)
    if born_host := properties.get("__BORNHOST"):
        system.born_host = born_host
    system.store_host = _store_host(message.message_id)
    due = properties.get("TIMER_DELIVER_MS") or properties.get("TIMER_OUT_MS", "")
    if due.isascii() and due.isdigit() and len(due) < 17:
        set_time(system.delivery_timestamp, int(due))
    if group := properties.get("__SHARDINGKEY"):
        system.message_group = group
    system.queue_id = message.queue.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = message.reconsume_times + 1
    if context := properties.get("TRACE_CONTEXT"):
        system.trace_context = context
    if handle:
        system.receipt_handle = handle
        system.invisible_duration.seconds, rest_ms = divmod(invisible_ms, 1000)
        system.invisible_duration.nanos = rest_ms * 1_000_000
    origin, origin_id = properties.get("DLQ_ORIGIN_TOPIC"), properties.get("DLQ_ORIGIN_MESSAGE_ID")
    if origin and origin_id:
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = origin_id
    return found


def set_time(field: Any, at_ms: int) -> None:
    """Write a time into a `Timestamp`."""
    field.seconds, rest_ms = divmod(at_ms, 1000)
    field.nanos = rest_ms * 1_000_000


def _kind(properties: dict[str, str]) -> MessageType:
    if properties.get("TRAN_MSG") == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in _DELAYS):
        return MessageType.DELAY
    return MessageType.FIFO if "__SHARDINGKEY" in properties else MessageType.NORMAL


def _store_host(message_id: str) -> str:
    address, port, _ = parse_offset_msg_id(message_id)
    return f"{address}:{port}"
