"""What an application may want to do when a consumer's queues change hands."""

from __future__ import annotations

from dledger_mq.client.queues import MessageQueue


class RebalanceListener:
    """Called at every change, one call at a time; a subclass overrides what it needs.

    The consumer waits for each call, so it should be short. What it raises is written to the log.
    """

    async def acquired(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that these are ours now and are being read."""

    async def released(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that these are not read any more; the handler is done with them, a commit follows."""

    async def lost(self, queues: tuple[MessageQueue, ...]) -> None:
        """Take note that the locks of these ran out (`ordered`): another member may work on them."""
