"""The properties of a message: `name 0x01 value 0x02`, again and again, in UTF-8.

The bytes are kept as they came wherever possible, because unknown properties must survive and because
most work needs one or two properties only: `find_property` looks one up without building a map.
A name that stands twice means its last value, as in the Java map it is read into.

Reading rules (RocketMQ common/message/MessageDecoder.java string2messageProperties): pairs shorter than
three characters and pairs with an empty name or value are dropped; the first 0x01 of a pair separates;
a missing final 0x02 is tolerated, because old writers omit it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dledger_mq.message.errors import PropertyError

NAME_VALUE_SEPARATOR: Final = b"\x01"
PAIR_SEPARATOR: Final = b"\x02"

PROPERTIES_BYTES_MAX: Final = 32_767
"""The length field is an int16."""

KEYS: Final = b"KEYS"
TAGS: Final = b"TAGS"
WAIT: Final = b"WAIT"
DELAY: Final = b"DELAY"
RETRY_TOPIC: Final = b"RETRY_TOPIC"
REAL_TOPIC: Final = b"REAL_TOPIC"
REAL_QID: Final = b"REAL_QID"
TRAN_MSG: Final = b"TRAN_MSG"
PGROUP: Final = b"PGROUP"
MIN_OFFSET: Final = b"MIN_OFFSET"
MAX_OFFSET: Final = b"MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = b"ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = b"RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = b"MAX_RECONSUME_TIMES"
MSG_REGION: Final = b"MSG_REGION"
TRACE_ON: Final = b"TRACE_ON"
UNIQ_KEY: Final = b"UNIQ_KEY"
CLUSTER: Final = b"CLUSTER"
INNER_NUM: Final = b"INNER_NUM"
INNER_BASE: Final = b"INNER_BASE"
INNER_MULTI_DISPATCH: Final = b"INNER_MULTI_DISPATCH"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = b"__transactionId__"
TRANSACTION_CHECK_TIMES: Final = b"TRANSACTION_CHECK_TIMES"
CORRELATION_ID: Final = b"CORRELATION_ID"
REPLY_TO_CLIENT: Final = b"REPLY_TO_CLIENT"
TTL: Final = b"TTL"
MSG_TYPE: Final = b"MSG_TYPE"
PUSH_REPLY_TIME: Final = b"PUSH_REPLY_TIME"
POP_CK: Final = b"POP_CK"
SHARDING_KEY: Final = b"__SHARDINGKEY"
TIMER_DELAY_SEC: Final = b"TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = b"TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = b"TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = b"TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = b"TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = b"TIMER_DEQUEUE_MS"
SINK_ROW: Final = b"SINK_ROW"
DLQ_ORIGIN_TOPIC: Final = b"DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = b"DLQ_ORIGIN_MESSAGE_ID"

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def has_control_character(text: str) -> bool:
    """Return whether a text holds one of U+0000 to U+001F or U+007F to U+009F; two of them separate properties."""
    return _CONTROL.search(text) is not None


def decode_properties(properties: bytes) -> dict[str, str]:
    """Read all properties.

    Text that is not UTF-8 is read with replacement characters: the stored bytes stay what they are,
    and one bad property must not hide the others.
    """
    result: dict[str, str] = {}
    for pair in properties.split(PAIR_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            result[name.decode(errors="replace")] = value.decode(errors="replace")
    return result


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Write properties in the order of the mapping, each pair with its final 0x02.

    Raises:
        PropertyError: a name or value is empty or holds a separator, or all together are longer
            than PROPERTIES_BYTES_MAX.
    """
    data = b"".join(
        encode_property(name.encode(), value.encode()) for name, value in properties.items()
    )
    if len(data) > PROPERTIES_BYTES_MAX:
        raise PropertyError(f"properties have {len(data)} bytes, at most {PROPERTIES_BYTES_MAX}")
    return data


def encode_property(name: bytes, value: bytes) -> bytes:
    """Write one pair.

    Raises:
        PropertyError: name or value is empty or holds a separator.
    """
    for text in (name, value):
        if not text:
            raise PropertyError(f"property {name!r} has an empty name or value")
        if NAME_VALUE_SEPARATOR in text or PAIR_SEPARATOR in text:
            raise PropertyError(f"property {name!r} holds a separator byte (0x01 or 0x02)")
    return b"%b\x01%b\x02" % (name, value)


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of one property, without reading the others; None when there is none."""
    needle = b"\x02%b\x01" % name
    stop = len(properties)
    # Pairs without a value do not count, and a client may send thousands: each is one step here, and no call.
    while (found := properties.rfind(needle, 0, stop)) >= 0:
        value = _value_at(properties, found + len(needle))
        if value:
            return value
        stop = found + 1  # the separator may be the end of an earlier pair
    if properties.startswith(needle[1:]):
        return _value_at(properties, len(needle) - 1) or None
    return None


def _value_at(properties: bytes, start: int) -> bytes:
    """Return the value that begins at a place, up to the end of its pair."""
    end = properties.find(PAIR_SEPARATOR, start)
    return properties[start:] if end < 0 else properties[start:end]


def remove_property(properties: bytes, *names: bytes) -> bytes:
    """Return the properties without those names; the others keep their bytes and order."""
    if not any(name + NAME_VALUE_SEPARATOR in properties for name in names):
        return properties
    kept = [
        pair
        for pair in properties.split(PAIR_SEPARATOR)
        if pair and pair.partition(NAME_VALUE_SEPARATOR)[0] not in names
    ]
    return b"".join(pair + PAIR_SEPARATOR for pair in kept)


def terminated(properties: bytes) -> bytes:
    """Return the properties with a final 0x02, so that more can be appended."""
    if not properties or properties.endswith(PAIR_SEPARATOR):
        return properties
    return properties + PAIR_SEPARATOR


def set_property(properties: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with exactly one pair of that name, at the end.

    Raises:
        PropertyError: name or value is empty or holds a separator.
    """
    return terminated(remove_property(properties, name)) + encode_property(name, value)


def split_keys(keys: bytes) -> list[bytes]:
    """Return the single keys of a KEYS value: parts between spaces, empty ones dropped."""
    return [key for key in keys.split(b" ") if key]
