"""How many keys messages may have: what one request makes every replica do in one piece is bounded.

The index takes each key of KEYS by itself, in half a microsecond and more, and a key takes two bytes. So the bytes of
a request bound its keys badly: a batch of 4 MiB may have two million, and all that a replica does waits while they are
folded. Single messages share entries of 1 MiB at most, in which half a million fit; a batch stands in one entry,
whatever its size, and is bounded by the sum of its keys.

Only what clients send is looked at. What is stored already is given back, delivered and committed as it is, and folded
as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.service.refusal import Refusal
from dledger_mq.remoting.codes import ResponseCode

KEYS_MAX: Final = 4096
"""Of one message. Users have tens to a hundred; a trace message has those of a hundred messages."""

BATCH_KEYS_MAX: Final = 1 << 18
"""Of all messages of a batch: sixteen bytes of the largest one for each."""

_KEY_BYTES_MIN: Final = 2
"""A key, and what parts it from the one before."""


def count_keys(keys: bytes | None) -> int:
    """Return how many keys a value of KEYS has; empty ones count, as they have to be looked at, too."""
    return keys.count(b" ") + 1 if keys else 0


def keys_refusal(keys: bytes | None) -> Refusal | None:
    """Refuse a message with too many keys."""
    count = count_keys(keys)
    if count <= KEYS_MAX:
        return None
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: KEYS has {count} keys, at most {KEYS_MAX}; nothing was stored",
    )


def batch_refusal(batch_bytes: int, keys: Iterable[bytes | None]) -> Refusal | None:
    """Refuse a batch with too many keys in all.

    Args:
        batch_bytes: of the whole batch; one in which so many keys have no room is not looked at.
        keys: the value of KEYS of each message.
    """
    if batch_bytes <= BATCH_KEYS_MAX * _KEY_BYTES_MIN:
        return None
    count = sum(map(count_keys, filter(None, keys)))
    if count <= BATCH_KEYS_MAX:
        return None
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the batch is illegal: its messages have {count} keys in all, at most {BATCH_KEYS_MAX}: divide it; "
        "nothing was stored",
    )
