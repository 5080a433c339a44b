"""Names the node to pull from next: the leader, or a follower for what is far behind the log's end.

Advice only: whoever is asked answers the same (read_points.py). It must not know what is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.server.handlers.followers import Followers
from broker.store.reading import GetLimits
from dledger import LogServer
from dledger_mq.message.numbers import QueueId

LEADER_BROKER_ID: Final = 0
"""Broker id under which routes name the node that leads."""

READER_MS: Final = 60_000
"""A client that was sent here so long ago pulls here no more, or has pulled again."""

NOTHING_IS_COLD: Final = 2**63
"""More bytes than a log has."""


class PullAdvice:
    """Names the broker id for the next pull of a queue.

    Attributes:
        limits: of one read; what counts as in memory stands there.
        cold_bytes: a read that ends farther from the log's end than this is better made from a follower.
        is_leaving: True once this node is to be read from no more.
    """

    def __init__(
        self,
        log: LogServer,
        followers: Followers,
        *,
        own_id: int,
        limits: GetLimits,
        slave_reads: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the advice.

        Args:
            log: says who leads.
            followers: the nodes that may be named.
            own_id: broker id of this node while it does not lead.
            limits: of one read; what is nearer to the log's end than they say counts as in memory.
            slave_reads: False to name the leader always.
            now_ms: a clock that never goes back.
        """
        self._log = log
        self._followers = followers
        self._own_id = own_id
        self._now_ms = now_ms
        self._named_itself_ms: int | None = None
        self.is_leaving = False
        self.adopt(limits, slave_reads=slave_reads)

    def adopt(self, limits: GetLimits, *, slave_reads: bool) -> None:
        """Go by these settings from now on; `__init__` describes them."""
        self.limits = limits
        self.cold_bytes = limits.memory_span_bytes if slave_reads else NOTHING_IS_COLD

    def for_cold_read(self, queue_id: QueueId, bytes_behind: int) -> int:
        """Return the broker id for what follows on a read that ended `bytes_behind` the log's end.

        A follower keeps its reader while it has that much itself. The leader names one that does, another one for
        each queue: so what is read is spread, and the end of one follower concerns few.
        """
        if not self._log.is_serving:
            if self.is_leaving:
                return LEADER_BROKER_ID
            self._named_itself_ms = self._now_ms()
            return self._own_id
        end = self._log.reader.committed_position
        ids = self._followers.broker_ids(end - bytes_behind + self.cold_bytes)
        return ids[queue_id % len(ids)] if ids else LEADER_BROKER_ID

    def leave(self) -> bool:
        """Send readers of backlogs to the leader from now on; return True if some may be here."""
        self.is_leaving = True
        named_ms = self._named_itself_ms
        return named_ms is not None and self._now_ms() - named_ms < READER_MS
