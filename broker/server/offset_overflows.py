"""A consumer asks for messages that its queue never had here: once for each group and queue that is a log line.

A leader with its lease knows the queue's end, so the consumer has seen another past: the group of brokers
was restored from an older backup, or the topic was deleted and made again, or the consumer made the offset
up. Which of them it was nobody here can tell (docs/restoring.md).
"""

from __future__ import annotations

import logging
from typing import Final

from dledger.runtime.events_log import log_event

LINES_MAX: Final = 1000
"""Groups and queues that get a line in the life of a process; clients choose their names."""

_REASON: Final = (
    "the queue ends before that: the brokers may have been restored from an older backup, or the topic "
    "was deleted and made again; the consumer is sent back to the end"
)


class OffsetOverflows:
    """Remembers which groups and queues had their line."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int]] = set()

    def note(
        self,
        node_id: str,
        group: str,
        topic: str,
        queue_id: int,
        *,
        offset: int,
        max_offset: int,
    ) -> None:
        """Log that a pull asked `node_id` for an offset above the queue's end."""
        key = group, topic, queue_id
        if key in self._told or len(self._told) >= LINES_MAX:
            return
        self._told.add(key)
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
