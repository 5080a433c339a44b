"""The parts from which answers to sends are made: message ids, recall handles, and the frame around them.

It knows where a message stands, and nothing of who asked or why.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.service.repeats import EarlierSend
from broker.service.send import SendPlan
from broker.store.staging import StagedEntry
from dledger_mq.message.ids import OffsetIdMaker
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting.replies import SendReplies


@dataclass(frozen=True, slots=True)
class SendAnswers:
    """The answers to sends of one broker.

    Attributes:
        replies: encodes the frames.
        ids: makes the message ids.
        broker_name: the name in recall handles.
    """

    replies: SendReplies
    ids: OffsetIdMaker
    broker_name: str

    def place_of(self, plan: SendPlan, staged: StagedEntry, place: int) -> EarlierSend:
        """Return where the message of `plan` stands that was staged at `place`, as its producer is told."""
        offset = staged.physical_offset(place)
        queue_offset = staged.queue_offset(place)
        return EarlierSend(offset, plan.queue_id, queue_offset, self.ids(offset), plan.due_ms)

    def recall_handle(self, plan: SendPlan, due_ms: int) -> str:
        """Return the handle by which the producer can recall a message with this due time."""
        assert due_ms > 0, f"a message that is due at {due_ms} cannot be recalled"
        unique_key = plan.messages[0].uniq_key.decode()
        return RecallHandle(plan.topic, self.broker_name, due_ms, unique_key).encode()
