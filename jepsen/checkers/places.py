"""Judges acknowledgements: exactly the message that was sent stands at the place that its acknowledgement names.

The model. A message is its content (body, tags, keys, properties, flag) and the queue that it was meant for. An
acknowledgement names a queue, an offset in it and an id, which holds the byte of the log at which the message stands.
Whoever looks there finds that message, whatever else was sent under the same UNIQ_KEY, in the same frame or at the
same time. Two messages that differ are never at one place.

    wrong-queue    sent to a queue, and acknowledged in another one
    shared-place   acknowledgements of different messages name one place, or one id
    other-message  another message, or another UNIQ_KEY, was read at the place that an acknowledgement names
    other-content  a message was read with another body, other tags, keys or properties than it was sent with
    wrong-id       the id of an acknowledgement is none, or is that of another byte than the message was read at

A delayed message and that of a transaction are acknowledged where they wait; what is read later stands elsewhere. Of
these only contents, and that no id is answered twice, are judged. That nobody read an acknowledged place is other
checkers' business; where nothing at all could be compared the verdict is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.messages import (
    Place,
    QueueHistory,
    ReadMessage,
    SendOp,
    operations,
    read_queue_history,
)
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op
from jepsen.history.values import TxnAnswer, TxnAsked, shaped

NAME = "places"


@dataclass(slots=True)
class _Claims:
    """The places that acknowledgements name: who stands where, and the operation that says so."""

    places: dict[Place, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    ids: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(slots=True)
class _Reads:
    """The messages that were read, each with the first operation that read it: by place, and by key."""

    places: dict[Place, dict[ReadMessage, int]] = field(default_factory=lambda: defaultdict(dict))
    keys: dict[str, dict[ReadMessage, int]] = field(default_factory=lambda: defaultdict(dict))


def check_places(ops: Sequence[Op]) -> CheckResult:
    """Compare the places that acknowledgements name with the messages that were read there."""
    history = read_queue_history(ops)
    reads = _reads(history)
    claims, contents = _claims(history), _contents(history)
    _add_transactions(ops, claims, contents)
    acknowledged = [send for send in history.sends if send.is_ok]
    compared = [send for send in acknowledged if reads.places.get(_place(send)) is not None]
    anomalies = [
        *_wrong_queues(acknowledged),
        *_shared(claims),
        *(one for send in compared for one in _others(send, reads)),
        *_other_contents(contents, reads),
        *(one for send in acknowledged for one in _wrong_ids(send, reads)),
    ]
    known = sum(message.content is not None for rows in reads.keys.values() for message in rows)
    counts: dict[str, object] = {
        "named": len(claims.places),
        "ids": len(claims.ids),
        "compared": len(compared),
        "contents": known,
    }
    why = "" if compared or known else "nothing was read where an acknowledgement says"
    return judged(NAME, anomalies, counts, why)


def _place(send: SendOp) -> Place:
    return (send.queue or "", QueueOffset(-1) if send.offset is None else send.offset)


def _reads(history: QueueHistory) -> _Reads:
    reads = _Reads()
    for poll in history.polls:
        for message in poll.messages:
            reads.places[message.place].setdefault(message, poll.completion.index)
            reads.keys[message.key].setdefault(message, poll.completion.index)
    return reads


def _claims(history: QueueHistory) -> _Claims:
    claims = _Claims()
    for send in history.sends:
        if not send.is_ok:
            continue
        if send.offset is not None:
            claims.places[_place(send)].setdefault(send.key, send.ops[-1])
        if send.id:
            claims.ids[send.id].setdefault(send.key, send.ops[-1])
    return claims


def _contents(history: QueueHistory) -> dict[str, tuple[str, int]]:
    """Return the content sent under each key, with the operation that sent it."""
    return {
        send.key: (send.content, send.invoke.index)
        for send in history.sends
        if send.content is not None
    }


def _add_transactions(
    ops: Sequence[Op], claims: _Claims, contents: dict[str, tuple[str, int]]
) -> None:
    """Add the half messages of `txn` operations; see `transactions.py`."""
    for pair in operations(ops):
        if pair.invoke.f != "txn":
            continue
        asked = shaped(pair.invoke.value, TxnAsked)
        key, content = asked["key"], asked.get("content")
        if content is not None:
            contents[key] = (content, pair.invoke.index)
        if pair.completion is not None and pair.type == "ok":
            id_ = shaped(pair.completion.value, TxnAnswer).get("id")
            if id_:
                claims.ids[id_].setdefault(key, pair.completion.index)


def _wrong_queues(acknowledged: Sequence[SendOp]) -> Iterator[Anomaly]:
    for send in acknowledged:
        if send.asked is not None and send.queue != send.asked:
            text = f"{send.key} was sent to {send.asked} and acknowledged in {send.queue}"
            yield Anomaly("wrong-queue", text, send.ops)


def _shared(claims: _Claims) -> Iterator[Anomaly]:
    named = [
        *((f"offset {offset} of {queue}", keys) for (queue, offset), keys in claims.places.items()),
        *((f"id {id_}", keys) for id_, keys in claims.ids.items()),
    ]
    for what, keys in named:
        if len(keys) > 1:
            text = f"{what} was answered to the senders of {' and '.join(sorted(keys))}"
            yield Anomaly("shared-place", text, tuple(sorted(keys.values())))


def _others(send: SendOp, reads: _Reads) -> Iterator[Anomaly]:
    """Yield the messages that stand at a place where another send was acknowledged."""
    for message, op in reads.places[_place(send)].items():
        where = f"{message.offset} of {message.queue}"
        if message.key != send.key:
            text = f"{send.key} was acknowledged at {where}, where {message.key} was read"
        elif send.uniq and message.uniq and message.uniq != send.uniq:
            text = f"{send.key} was sent as {send.uniq} and read as {message.uniq} at {where}"
        else:
            continue
        yield Anomaly("other-message", text, (*send.ops, op))


def _other_contents(contents: dict[str, tuple[str, int]], reads: _Reads) -> Iterator[Anomaly]:
    for key, (sent, sent_op) in contents.items():
        for message, op in reads.keys.get(key, {}).items():
            if message.content is not None and message.content != sent:
                where = f"{message.offset} of {message.queue}"
                text = f"{key} was sent as {sent} and read as {message.content} at {where}"
                yield Anomaly("other-content", text, (sent_op, op))


def _wrong_ids(send: SendOp, reads: _Reads) -> Iterator[Anomaly]:
    """Yield the ids that are not those of the message: of the one at the named offset, else of any with that key."""
    if not send.id:
        return
    try:
        _, _, at = parse_offset_msg_id(send.id)
    except MessageIdError as error:
        yield Anomaly("wrong-id", f"{send.key} was acknowledged with no id: {error}", send.ops)
        return
    if send.is_parked:
        return
    rows = reads.keys.get(send.key, {})
    if send.offset is not None:
        rows = {message: op for message, op in rows.items() if message.place == _place(send)}
    found = {message.at: op for message, op in rows.items() if message.at is not None}
    if found and at not in found:
        text = f"{send.key} was acknowledged as {send.id}, byte {at}, and read at byte {sorted(found)[0]}"
        yield Anomaly("wrong-id", text, (*send.ops, next(iter(found.values()))))
