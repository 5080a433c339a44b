"""Consumer offsets are answered from a copy that is one message behind, as after a failover to an older file."""

from broker.store.offsets import ConsumerOffsets
from dledger_mq.message.numbers import QueueId, QueueOffset

_get = ConsumerOffsets.get


def get(self: ConsumerOffsets, group: str, topic: str, queue_id: QueueId) -> QueueOffset | None:
    offset = _get(self, group, topic, queue_id)
    return QueueOffset(offset - 1) if offset else offset


ConsumerOffsets.get = get  # type: ignore[method-assign]
