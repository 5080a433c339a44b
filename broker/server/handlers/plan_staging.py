"""Stages the messages of a send's plan: common to sends, half messages, rows of sinks and sent-back messages."""

from __future__ import annotations

from functools import partial

from broker.service.plain_batches import PlainBatch
from broker.service.sameness import stored_as
from broker.service.send import MessagePlan, SendPlan
from broker.store.entry_bodies import EncodedRun, QueueEnd, StagedMessage
from broker.store.staging import Staging
from dledger_mq.message import compiled
from dledger_mq.message.hashes import crc32
from dledger_mq.message.record import BODY_BYTES_MAX


def stage_plan(staging: Staging, plan: SendPlan, born_ms: int, born_host: bytes) -> int:
    """Stage all messages of a plan, one or more; return the place of the first, the others follow it.

    Raises:
        RecordError: a message cannot be stored as it is.
    """
    topic, queue_id = plan.topic.encode(), plan.queue_id
    if plan.is_half or plan.delay_level or plan.due_ms:
        messages = []
        for each in plan.messages:
            topic, queue_id, kept = stored_as(plan, each)
            end = staging.queue_end((topic, queue_id))
            messages.append(_message(plan, each, end, kept, born_ms=born_ms, born_host=born_host))
        return staging.stage_checked(messages)
    end = staging.queue_end((topic, queue_id))
    if isinstance(plan.messages, PlainBatch):
        records = _encoded(
            plan, plan.messages, end, staging.store_host, born_ms=born_ms, born_host=born_host
        )
        if records is not None:
            one_by_one = partial(_messages, plan, end, born_ms, born_host)
            return staging.stage_run(EncodedRun(end, records, len(plan.messages), one_by_one))
    return staging.stage_checked(_messages(plan, end, born_ms, born_host))


def _encoded(
    plan: SendPlan,
    batch: PlainBatch[MessagePlan],
    end: QueueEnd,
    store_host: bytes,
    *,
    born_ms: int,
    born_host: bytes,
) -> bytes | None:
    """Return the records of a plain batch, but for places and store time; None: they are staged one by one."""
    if plan.reconsume_times or len(batch.data) > BODY_BYTES_MAX:
        return None
    return compiled.batch_records(
        batch.data,
        batch.shapes.find,
        plan.queue_id,
        end.topic_field,
        plan.sys_flag,
        born_ms,
        born_host,
        store_host,
        crc32,
    )


def _messages(plan: SendPlan, end: QueueEnd, born_ms: int, born_host: bytes) -> list[StagedMessage]:
    """Return the messages of a plan that wait for nothing, as they are staged one by one."""
    flags, times = plan.sys_flag, plan.reconsume_times
    return [
        (
            end,
            each.body,
            each.properties,
            flags,
            born_ms,
            born_host,
            each.flag,
            times,
            0,
            each.folded,
        )
        for each in plan.messages
    ]


def _message(
    plan: SendPlan, each: MessagePlan, end: QueueEnd, kept: bytes, *, born_ms: int, born_host: bytes
) -> StagedMessage:
    """Return a message that waits, as it is staged, with the properties with which it is kept."""
    flags, times = plan.sys_flag, plan.reconsume_times
    return (end, each.body, kept, flags, born_ms, born_host, each.flag, times, 0, None)
