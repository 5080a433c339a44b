"""Reads that wait until the leader is sure that it still leads (read index, thesis 6.4).

A read may be answered at the commit index of the moment it came, once a majority has answered an
append request that was sent after that moment. Many reads share such a round: those that come while
one is under way wait for the next.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dledger.raft.ids import Index


class WaitingRead(NamedTuple):
    """A read that is linearizable at `read_index` once a round later than `after_round` is confirmed."""

    token: int
    read_index: Index
    after_round: int


class WaitingReads:
    """Reads that wait for a round, in order of arrival.

    Invariant: indexes and rounds never decrease from front to back, since commit index and round
    counter never do; so only the front needs to be looked at.
    """

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads: deque[WaitingRead] = deque()

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, token: int, *, index: Index, after_round: int) -> None:
        """Keep a read that is linearizable at `index` once a round later than `after_round` is confirmed."""
        reads = self._reads
        assert not reads or (
            reads[-1].read_index <= index and reads[-1].after_round <= after_round
        ), f"a read at entry {index} after round {after_round} follows {reads[-1]}"
        reads.append(WaitingRead(token, index, after_round))

    def take_ready(self, *, confirmed_round: int, commit_index: Index) -> list[tuple[int, Index]]:
        """Remove the reads that may be answered now; return the (token, index) of each.

        Args:
            confirmed_round: a majority has answered this round or a later one.
            commit_index: how far the log is committed.
        """
        ready: list[tuple[int, Index]] = []
        reads = self._reads
        while reads:
            read = reads[0]
            if read.after_round >= confirmed_round or read.read_index > commit_index:
                break
            reads.popleft()
            ready.append((read.token, read.read_index))
        return ready

    def needs_round_after(self, confirmed_round: int) -> bool:
        """Return whether some read waits for a later round than the one that is confirmed."""
        return bool(self._reads) and self._reads[-1].after_round >= confirmed_round

    def take_all(self) -> list[int]:
        """Remove and return all tokens."""
        tokens = [read.token for read in self._reads]
        self._reads.clear()
        return tokens
