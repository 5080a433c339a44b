"""The arrival of one record of a message: what kind of step that is, and how it is told. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from broker.story.copies import Copy, CopyRole
from broker.story.steps import StepKind
from dledger_mq.message.hosts import unpack_host

_IS_TIME: Final = re.compile(r"[0-9]{1,18}")


def host_text(host: bytes) -> str:
    """Return an address as people write it."""
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def arrival(
    copy: Copy, *, is_delivery: bool, delay_ms: Callable[[int], int] | None
) -> tuple[StepKind, str, dict[str, object]]:
    """Return the kind of an arrival, its words, and its facts.

    Args:
        copy: the record.
        is_delivery: its entry says that what waited was delivered.
        delay_ms: the delay of a level at that time; None: it is not known.
    """
    message = copy.message
    facts: dict[str, object] = {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": copy.message_id,
        "born_host": host_text(message.born_host),
        "born_ms": message.born_timestamp_ms,
        "store_host": host_text(message.store_host),
        "reconsume_times": message.reconsume_times,
    }
    if copy.role is CopyRole.DELAYED:
        facts["level"] = copy.level
        if delay_ms is not None:
            facts["due_ms"] = message.store_timestamp_ms + delay_ms(copy.level)
    elif copy.role is CopyRole.TIMED and _IS_TIME.fullmatch(copy.due_text):
        facts["due_ms"] = int(copy.due_text)
    if copy.role is CopyRole.HALF:
        facts["producer_group"] = copy.producer_group or None
    if copy.role in {CopyRole.HALF, CopyRole.DELAYED, CopyRole.TIMED}:
        facts["for_topic"], facts["for_queue"] = copy.real_topic, copy.real_queue
    event, text = _in_words(copy, is_delivery=is_delivery)
    return event, text, facts


def _in_words(copy: Copy, *, is_delivery: bool) -> tuple[StepKind, str]:
    """Return the kind of an arrival, and its words."""
    message = copy.message
    where = f"queue {message.queue_id} of {message.topic}, offset {message.queue_offset}"
    goal = f"queue {copy.real_queue} of {copy.real_topic}"
    leader, sender = host_text(message.store_host), host_text(message.born_host)
    back = f"try {message.reconsume_times}: " if copy.is_sent_back else ""
    match copy.role:
        case CopyRole.HALF:
            group = copy.producer_group or "a group that it does not name"
            return StepKind.HALF, (
                f"for {goal}, received by {leader} from a producer of {group} at {sender}"
            )
        case CopyRole.DELAYED:
            event = StepKind.SENT_BACK if back else StepKind.DELAYED
            text = f"waits at delay level {copy.level} for {goal}"
            return event, (back or f"received by {leader} from {sender}: ") + text
        case CopyRole.TIMED:
            return StepKind.TIMED, f"received by {leader} from {sender}: waits for {goal}"
        case CopyRole.GIVEN_UP:
            return StepKind.STORED, f"kept for operators in {where}"
        case CopyRole.DEAD:
            tries = message.reconsume_times - 1
            return StepKind.DEAD, f"sent back {tries} times before: {where}"
        case CopyRole.MESSAGE | CopyRole.RETRY:
            pass
    if is_delivery:
        return StepKind.DELIVERED, f"its time has come: {where}"
    if copy.is_sent_again:
        return StepKind.RESENT, f"received by {leader} from {sender}: {where}"
    if back:
        return StepKind.RETRIED, f"{back}{where}"
    if message.prepared_transaction_offset:
        return StepKind.STORED, f"the message of the transaction: {where}"
    return StepKind.STORED, f"received by {leader} from {sender}: {where}"
