"""Why tests of RocketMQ's do not pass here, each in a sentence, for docs/rocketmq-tests.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Whose(Enum):
    """Whose a failure is."""

    OURS = "ours"
    THEIRS = "theirs"
    DIVERGENCE = "stated divergence"


@dataclass(frozen=True, slots=True)
class Cause:
    """Whose a failure is, and why it is there."""

    whose: Whose
    sentence: str


_UNKNOWN_THERE = (
    "a recall of a message that does not wait is answered with 208, not with success (N13, N16)"
)
_NOT_AGAIN = "in order, only what was not acknowledged is handed out again, and nothing new before that (R20)"

CAUSES: dict[str, Cause] = {
    "client.producer.batch.BatchSendIT.testBatchSend_SysInnerBatch": Cause(
        Whose.DIVERGENCE, "queues of batches are not supported, and the attribute is refused"
    ),
    "client.producer.batch.BatchSendIT.testBatchSend_SysOuterBatch": Cause(
        Whose.THEIRS,
        "it needs `maxTransferCountOnMessageInMemory=1024`, with which their base starts brokers; a pull is given 32, "
        "as by RocketMQ's default",
    ),
    "statictopic.StaticTopicIT": Cause(
        Whose.DIVERGENCE, "static topics are not supported, and refused"
    ),
    "client.consumer.pop.BatchAckIT.testBatchAckOrderly": Cause(Whose.DIVERGENCE, _NOT_AGAIN),
    "client.consumer.pop.PopOrderlyIT.testPopMessageOrderlyThenChangeInvisibleTimeMidMessage": Cause(
        Whose.DIVERGENCE, _NOT_AGAIN
    ),
    "client.consumer.pop.PopPriorityIT": Cause(
        Whose.DIVERGENCE, "priority topics are not known, and the attribute is refused"
    ),
    "recall.RecallWithTraceIT.testRecallTrace": Cause(Whose.DIVERGENCE, _UNKNOWN_THERE),
    "recall.SendAndRecallDelayMessageIT.testSendAndRecall_ukCollision": Cause(
        Whose.DIVERGENCE, _UNKNOWN_THERE
    ),
}
"""By test, or by class, both without the package that all have."""
