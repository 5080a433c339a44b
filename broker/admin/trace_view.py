"""The trace of a message as steps for people, and as JSON for scripts. Pure; it must not know how a trace is read.

Whatever clients have written stands in it: the names, addresses and times are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger_mq.client.trace_reader import (
    ClientTrace,
    TracedDelivery,
    TracedEnd,
    TracedRecall,
    TracedSend,
)
from dledger_mq.message.trace_records import ConsumeEnd, TracedKind

_SENT: Final[dict[int, str]] = {
    TracedKind.HALF: "sent in a transaction",
    TracedKind.COMMIT: "sent, committed",
    TracedKind.DELAY: "sent with a delay",
    TracedKind.ORDER: "sent in order",
}
_STATES: Final = {
    "COMMIT_MESSAGE": "committed",
    "ROLLBACK_MESSAGE": "rolled back",
    "UNKNOW": "not known yet",
}
_ENDS: Final[dict[int, str]] = {
    ConsumeEnd.TIME_OUT: "took too long",
    ConsumeEnd.EXCEPTION: "handler raised an error",
    ConsumeEnd.RETURNED_NULL: "handler returned nothing",
    ConsumeEnd.FAILED: "to come again",
}


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One thing that a client tells of a message.

    Attributes:
        at_ms: by the client's clock, ms since 1970; 0: not known.
        what: in words, as are `outcome` and `more`.
        group: of producers or consumers; empty: not told.
        client: its address.
        cost_ms: how long it took; None: not told.
        is_good: False: the outcome is a reason to look closer.
    """

    at_ms: int
    what: str
    group: str
    client: str
    cost_ms: int | None
    outcome: str
    more: str = ""
    is_good: bool = True


def trace_steps(trace: ClientTrace) -> list[TraceStep]:
    """Return what is known of a message, in the order of the clients' clocks."""
    return sorted(_steps(trace), key=lambda step: step.at_ms)


def _steps(trace: ClientTrace) -> Iterator[TraceStep]:
    yield from map(_send_step, trace.sends)
    yield from map(_end_step, trace.ends)
    yield from map(_recall_step, trace.recalls)
    yield from map(_delivery_step, trace.deliveries)


def _send_step(send: TracedSend) -> TraceStep:
    told = send.told
    return TraceStep(
        told.at_ms,
        _SENT.get(told.kind, "sent"),
        told.group,
        told.client_host or send.client,
        told.cost_ms,
        "stored" if told.is_success else "stored, with less certainty",
        f"{told.body_bytes} bytes to {told.topic} at {told.store_host}",
        told.is_success,
    )


def _end_step(end: TracedEnd) -> TraceStep:
    told = end.told
    return TraceStep(
        told.at_ms,
        "transaction ended",
        told.group,
        end.client,
        None,
        _STATES.get(told.state, told.state),
        "the broker had asked" if told.is_from_check else "",
        told.state in _STATES and told.state != "UNKNOW",
    )


def _recall_step(recall: TracedRecall) -> TraceStep:
    told = recall.told
    outcome = "recalled" if told.is_success else "not recalled"
    return TraceStep(
        told.at_ms, "recall", told.group, recall.client, None, outcome, "", told.is_success
    )


def _delivery_step(delivery: TracedDelivery) -> TraceStep:
    """Return the step of a call of a handler."""
    after = delivery.after
    times = delivery.before.retry_times if delivery.before is not None else 0
    return TraceStep(
        delivery.began_ms,
        "delivered",
        delivery.group,
        delivery.client,
        None if after is None else after.cost_ms,
        outcome_of(delivery),
        f"sent back {times} times before" if times else "",
        after is not None and after.is_success,
    )


def outcome_of(delivery: TracedDelivery) -> str:
    """Return what came of a delivery, in words."""
    after = delivery.after
    if after is None:
        return "no end is told"
    if after.is_success:
        return "consumed"
    return _ENDS.get(after.end, "failed")


def trace_json(trace: ClientTrace, trace_topic: str) -> dict[str, object]:
    """Return a trace as scripts read it; what was not told is null."""
    return {
        "message_id": trace.message_id,
        "trace_topic": trace_topic,
        "sends": [_send_json(each) for each in trace.sends],
        "transactions": [_end_json(each) for each in trace.ends],
        "recalls": [
            {
                "at_ms": each.told.at_ms,
                "group": each.told.group,
                "client": each.client,
                "success": each.told.is_success,
            }
            for each in trace.recalls
        ],
        "deliveries": [_delivery_json(each) for each in trace.deliveries],
        "unreadable": trace.unreadable,
        "cut": trace.is_cut,
    }


def _send_json(send: TracedSend) -> dict[str, object]:
    """Return a send as scripts read it."""
    told = send.told
    return {
        "at_ms": told.at_ms,
        "group": told.group,
        "client": told.client_host or send.client,
        "topic": told.topic,
        "tags": told.tags or None,
        "keys": told.keys.split(),
        "store_host": told.store_host,
        "body_bytes": told.body_bytes,
        "cost_ms": told.cost_ms,
        "kind": told.kind,
        "message_id": told.offset_message_id or None,
        "success": told.is_success,
    }


def _end_json(end: TracedEnd) -> dict[str, object]:
    told = end.told
    return {
        "at_ms": told.at_ms,
        "group": told.group,
        "client": end.client,
        "state": told.state,
        "from_check": told.is_from_check,
        "transaction_id": told.transaction_id,
    }


def _delivery_json(delivery: TracedDelivery) -> dict[str, object]:
    """Return a call of a handler as scripts read it."""
    before, after = delivery.before, delivery.after
    return {
        "group": delivery.group or None,
        "client": delivery.client,
        "began_ms": None if before is None else before.at_ms,
        "ended_ms": None if after is None else after.at_ms or None,
        "cost_ms": None if after is None else after.cost_ms,
        "retry_times": None if before is None else before.retry_times,
        "success": None if after is None else after.is_success,
        "end": None if after is None else after.end,
    }
