"""Rows of sinks: what a send of them asks for, and whether the bounds allow it. Pure.

A send whose header has a sink batch ("17 query-4711": batch id, space, sink id) holds rows, and each of its
messages says which one in its property SINK_ROW: sixteen hex digits of the key, a space, and the header's
text. Only the header makes a row of a message: a copy that is given back for retry, delivered later or
copied by a tool carries the property along, and is stored like any message.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from broker.service.refusal import Refusal
from broker.service.send import SendPlan
from broker.store.sinks import (
    BATCH_KEYS_MAX,
    KEYS_MAX,
    SINKS_MAX,
    Sinks,
)
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.properties import SINK_ROW, find_property
from dledger_mq.message.row_keys import KEY_BYTES, SINK_ID_BYTES_MAX
from dledger_mq.remoting.codes import ResponseCode

_HEX_DIGITS: Final = 2 * KEY_BYTES
_KEY_TEXT: Final = re.compile(rb"[0-9a-fA-F]{%d}" % _HEX_DIGITS)
"""Not left to `bytes.fromhex`, which passes over blanks and then returns a shorter key."""
_BATCH_DIGITS_MAX: Final = 18


class Rows(msgspec.Struct, frozen=True):
    """The rows of one send; `keys` in the order of its messages.

    Invariant: each key has KEY_BYTES.
    """

    sink_id: str
    batch_id: int
    keys: tuple[bytes, ...]


def read_rows(sink_batch: str, plan: SendPlan) -> Rows | Refusal:
    """Read the rows of a send with that header."""
    batch_text, _, sink_id = sink_batch.partition(" ")
    if not (batch_text.isascii() and batch_text.isdigit() and len(batch_text) <= _BATCH_DIGITS_MAX):
        return _illegal(
            f"the batch id in {sink_batch[:200]!r} is not a number of at most {_BATCH_DIGITS_MAX} digits"
        )
    if not 0 < len(sink_id.encode(errors="replace")) <= SINK_ID_BYTES_MAX:
        return _illegal(
            f"the sink id in {sink_batch[:200]!r} does not have 1 to {SINK_ID_BYTES_MAX} bytes"
        )
    if plan.is_half:
        return _illegal("rows of a sink cannot be sent in a transaction")
    if is_retry_topic(plan.topic):
        return _illegal(f"rows of a sink cannot be sent to {plan.topic}")
    keys = []
    ending = b" " + sink_batch.encode(errors="replace")
    for place, message in enumerate(plan.messages):
        text = find_property(message.properties, SINK_ROW) or b""
        if len(text) != _HEX_DIGITS + len(ending) or not text.endswith(ending):
            return _illegal(f"message {place} is no row of batch {sink_batch!r}: {text[:200]!r}")
        key_text = text[:_HEX_DIGITS]
        if not _KEY_TEXT.fullmatch(key_text):
            return _illegal(f"the row key of message {place} is not hexadecimal: {text[:200]!r}")
        keys.append(bytes.fromhex(key_text.decode("ascii")))
    return Rows(sink_id, int(batch_text), tuple(keys))


def new_rows(rows: Rows, sinks: Sinks) -> list[bool]:
    """Decide for each row if it is to be stored; a key twice in one send is one row."""
    assert all(len(key) == KEY_BYTES for key in rows.keys), (
        f"a key of batch {rows.batch_id} of sink {rows.sink_id} does not have {KEY_BYTES} bytes"
    )
    sink = sinks.get(rows.sink_id)
    if sink is not None and rows.batch_id < sink.batch_id:
        return [False] * len(rows.keys)
    taken = sink.keys if sink is not None and rows.batch_id == sink.batch_id else ()
    seen: set[bytes] = set()
    wanted = []
    for key in rows.keys:
        wanted.append(key not in seen and key not in taken)
        seen.add(key)
    return wanted


def newer_batch(rows: Rows, sinks: Sinks) -> int | None:
    """Return the sink's current batch if it lies above that of the rows; they count as done then."""
    sink = sinks.get(rows.sink_id)
    return sink.batch_id if sink is not None and rows.batch_id < sink.batch_id else None


def bounds_problem(rows: Rows, new_count: int, flying_count: int, sinks: Sinks) -> Refusal | None:
    """Refuse rows for which there is no room; None if there is.

    Args:
        rows: the send.
        new_count: how many of them are to be stored.
        flying_count: rows of all sinks that are on their way.
        sinks: what is taken.
    """
    assert 0 <= new_count <= len(rows.keys), f"{new_count} of {len(rows.keys)} rows are new"
    assert flying_count >= 0, f"{flying_count} rows are on their way"
    sink = sinks.get(rows.sink_id)
    if sink is None and len(sinks) >= SINKS_MAX:
        return _illegal(
            f"there are {len(sinks)} sinks, at most {SINKS_MAX}; idle ones go after 7 days"
        )
    held = len(sink.keys) if sink is not None else 0
    is_current = sink is not None and sink.batch_id == rows.batch_id
    in_batch = held if is_current else 0
    if in_batch + new_count > BATCH_KEYS_MAX:
        return _illegal(
            f"batch {rows.batch_id} of sink {rows.sink_id} has {in_batch} rows, at most "
            f"{BATCH_KEYS_MAX} fit: make its batches smaller"
        )
    if sinks.key_count - held + in_batch + flying_count + new_count > KEYS_MAX:
        return _illegal(
            f"the current batches of {len(sinks)} sinks have {sinks.key_count} rows, at most {KEYS_MAX} "
            "fit together: end batches that are done, or make them smaller"
        )
    return None


def _illegal(remark: str) -> Refusal:
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{remark}; nothing was stored")
