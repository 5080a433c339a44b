"""What an application may want to do when a consumer's queues change hands."""

from __future__ import annotations

from dledger_mq.client.queues import MessageQueue


class RebalanceListener:
    """Called at every change, one call at a time; a subclass overrides what it needs.

    The consumer waits for each call, so it should be short. What it raises is written to the log.
    """

    async def acquired(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that this member now owns these queues and reads them."""

    async def released(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that these queues are read no more; the handler is done with them, a commit follows."""

    async def lost(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that the locks of these queues ran out (`ordered`): another member may work on them."""
