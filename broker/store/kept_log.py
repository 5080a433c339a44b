"""The log as readers may see it: what the group has forgotten is gone, also where a replica still has the bytes.

Whoever reads what a client, or an index, names by its place reads through this; so every replica gives the same answer
however far it is with giving bytes back. Readers of consume queues need it not: queues do not show what is forgotten.
"""

from __future__ import annotations

from broker.store.record_reader import EntrySource
from broker.store.retention import Retention
from dledger.errors import CompactedError
from dledger.raft.entry import BodySpan, Entry
from dledger.raft.ids import Position


class KeptLog:
    """An `EntrySource` that begins where the group says."""

    def __init__(self, log: EntrySource, retention: Retention) -> None:
        self._log = log
        self._retention = retention

    def entry_at(self, position: Position) -> Entry:
        """Return the entry that covers a byte of the log; see `EntrySource`."""
        self._check(position)
        return self._log.entry_at(position)

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        """Return the bytes at a position, with what stands around them; see `EntrySource`."""
        self._check(position)
        return self._log.span_at(position, size_bytes, only_memory=only_memory)

    def _check(self, position: Position) -> None:
        """Refuse a byte that the group has forgotten."""
        first = self._retention.index
        if position < self._retention.position:
            raise CompactedError(first - 1, first)
