"""What a dead letter says of where it comes from, under the names that clients of RocketMQ 5 read. Pure."""

from __future__ import annotations

from typing import Final

from dledger_mq.message.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    NAME_VALUE_SEPARATOR,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    RETRY_TOPIC,
    find_property,
    set_property,
)

_NAMES: Final = ((DLQ_ORIGIN_TOPIC, RETRY_TOPIC), (DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID))


def with_origin(properties: bytes, bytes_max: int = PROPERTIES_BYTES_MAX) -> bytes:
    """Return the properties of a dead letter with the topic and the id that the message had at first.

    Both are those that the properties of a retry tell of already; what these do not say is not said, nor where there is
    no room for it.
    """
    named = properties
    for name, source in _NAMES:
        value = find_property(properties, source)
        if value and NAME_VALUE_SEPARATOR not in value:
            named = set_property(named, name, value)
    return named if len(named) <= bytes_max else properties
