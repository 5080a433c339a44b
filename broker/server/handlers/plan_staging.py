"""Stages the messages of a send's plan: common to sends, half messages, rows of sinks and sent-back messages."""

from __future__ import annotations

from broker.service.sameness import stored_as
from broker.service.send import SendPlan
from broker.store.entry_bodies import StagedMessage
from broker.store.staging import Staging


def stage_plan(staging: Staging, plan: SendPlan, born_ms: int, born_host: bytes) -> int:
    """Stage all messages of a plan, one or more; return the place of the first, the others follow it.

    Raises:
        RecordError: a message cannot be stored as it is.
    """
    topic, queue_id = plan.topic.encode(), plan.queue_id
    flags, times = plan.sys_flag, plan.reconsume_times
    messages: list[StagedMessage]
    if plan.is_half or plan.delay_level or plan.due_ms:
        messages = []
        for each in plan.messages:
            topic, queue_id, kept = stored_as(plan, each)
            end = staging.queue_end((topic, queue_id))
            messages.append(
                (end, each.body, kept, flags, born_ms, born_host, each.flag, times, 0, None)
            )
    else:
        end = staging.queue_end((topic, queue_id))
        messages = [
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
    return staging.stage_checked(messages)
