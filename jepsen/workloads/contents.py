"""The messages that workloads send, and their recognition when they are read. Pure.

A message's name (`key`) is its body, padded. Tags, keys, a property and a flag go with it, which follow from the name,
so that an answer with another message's is recognised; `content` puts all of that into one short text for the history.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict, Unpack

from dledger_mq import Message, ReceivedMessage

BODY_PADDING: Final = 3000
"""A run of half a minute must fill segments: a full disk is felt only where a file is made."""

TAGS: Final = (None, "created", "paid")
OWN: Final = "chaos-"
"""Begins the names of properties that workloads set; others are the broker's business."""
STEP: Final = f"{OWN}step"


def body_of(key: str) -> bytes:
    """Return the body of a message: its key, padded."""
    return key.encode().ljust(BODY_PADDING)


def key_of(body: bytes) -> str:
    """Return the key that a body carries."""
    return body.decode(errors="replace").rstrip()


class DueBy(TypedDict, total=False):
    """The field of a `Message` that makes it fall due later; at most one is set."""

    delay_level: int
    delay_ms: int
    deliver_at_ms: int


def message_of(topic: str, key: str, **due: Unpack[DueBy]) -> Message:
    """Return the message of that name; `due` says when it falls due."""
    number = zlib.crc32(key.encode())
    return Message(
        topic,
        body_of(key),
        tags=TAGS[number % len(TAGS)],
        keys=key,
        properties={STEP: str(number % 7)},
        flag=number % 5,
        **due,
    )


def content(
    body: bytes, tags: str | None, *, keys: Sequence[str], properties: Mapping[str, str], flag: int
) -> str:
    """Return a text that is the same for messages that are the same in all of this."""
    own = sorted((name, text) for name, text in properties.items() if name.startswith(OWN))
    digest = zlib.crc32(repr((body, tags, tuple(keys), own, flag)).encode())
    return f"{tags or '-'} {digest:08x}"


def content_sent(message: Message) -> str:
    """Return the content of a message that is about to be sent."""
    keys = message.keys.split() if isinstance(message.keys, str) else message.keys
    return content(
        message.body, message.tags, keys=keys, properties=message.properties, flag=message.flag
    )


def content_read(message: ReceivedMessage) -> str:
    """Return the content of a message that was read."""
    return content(
        message.body,
        message.tags,
        keys=message.keys,
        properties=message.properties,
        flag=message.flag,
    )


def row_of(message: ReceivedMessage) -> list[object]:
    """Return the history's row for a message that was read; see `jepsen.checkers.messages`."""
    return [
        message.queue_offset,
        key_of(message.body),
        message.unique_key,
        message.physical_offset,
        content_read(message),
    ]
