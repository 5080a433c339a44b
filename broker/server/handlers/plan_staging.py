"""Stages the messages of a send's plan: common to sends, half messages, rows of sinks and sent-back messages."""

from __future__ import annotations

from broker.service.sameness import stored_as
from broker.service.send import SendPlan
from broker.store.staging import Staging


def stage_plan(staging: Staging, plan: SendPlan, born_ms: int, born_host: bytes) -> int:
    """Stage all messages of a plan, one or more; return the place of the first, the others follow it.

    Raises:
        RecordError: a message cannot be stored as it is.
    """
    stage = staging.stage
    topic, queue_id = plan.topic.encode(), plan.queue_id
    waits = plan.is_half or plan.delay_level or plan.due_ms
    first = -1
    for message in plan.messages:
        properties, folded = message.properties, message.folded
        if waits:
            topic, queue_id, properties = stored_as(plan, message)
            folded = None
        place = stage(
            topic,
            queue_id,
            message.body,
            properties,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            sys_flag=plan.sys_flag,
            flag=message.flag,
            reconsume_times=plan.reconsume_times,
            folded=folded,
        )
        first = place if first < 0 else first
    assert first >= 0, f"a plan for {plan.topic} without a message"
    return first
