"""A consumer asks for messages that its queue never had here: once for each group and queue that is a log line.

A leader with its lease knows the queue's end, so the consumer has seen another past: the group of brokers
was restored from an older backup, or the topic was deleted and made again, or the consumer made the offset
up. This node cannot find out which of them it was (docs/restoring.md).
"""

from __future__ import annotations

import logging
from typing import Final

from dledger import NodeId
from dledger.runtime.events_log import log_event
from dledger_mq.message.numbers import QueueId, QueueOffset

LINES_MAX: Final = 1000
"""Groups and queues that get a line in the life of a process; clients choose their names."""

_REASON: Final = (
    "the queue ends before that: the brokers may have been restored from an older backup, or the topic "
    "was deleted and made again; the consumer is sent back to the end"
)


class OffsetOverflows:
    """The groups and queues that had their line."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str, QueueId]] = set()

    def note(
        self,
        node_id: NodeId,
        group: str,
        topic: str,
        queue_id: QueueId,
        *,
        offset: QueueOffset,
        max_offset: int,
    ) -> None:
        """Log that a pull asked `node_id` for an offset above the queue's end."""
        assert offset > max_offset, f"offset {offset} is not above the queue's end, {max_offset}"
        key = group, topic, queue_id
        if key in self._logged or len(self._logged) >= LINES_MAX:
            return
        self._logged.add(key)
        log_event(
            logging.WARNING,
            "offset-beyond-end",
            node=node_id,
            group=group,
            topic=topic,
            queue=queue_id,
            offset=offset,
            end=max_offset,
            reason=_REASON,
        )
