"""The pace of syncs: whether the loop can wait for them, and what is wrong with the disk, in words.

What the group makes of a leader with a slow disk is decided by the core (dledger/raft/slow_disk.py), which
sees more than one disk. This is one member's own measure, and shown whatever its role is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dledger.raft.slow_disk import SLOW_COUNT, STUCK_TIMES
from dledger.runtime.durations import Durations

SLOW_MS: Final = 2.0
FAST_MS: Final = 1.0
"""Above the first (moving average) a thread syncs, below the second the loop does it again. A thread
costs about 0.1 ms for each sync; a sync on the loop delays everything else for as long as it takes.
Both are far below the heartbeat interval."""

WEIGHT: Final = 0.1
"""Of the newest sync in the moving average."""

BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
"""From a disk with a cache that outlives a power cut to one that is about to fail."""


class SyncPace:
    """The pace of the own syncs.

    Invariant: `is_slow` changes only at the two bounds.

    Args:
        slow_disk_ms: a sync that takes so long is one of a slow disk.
    """

    __slots__ = (
        "_begun_ms",
        "_latest_ms",
        "_slow_disk_ms",
        "average_ms",
        "count",
        "durations",
        "is_slow",
    )

    def __init__(self, slow_disk_ms: int) -> None:
        self.average_ms = 0.0
        self.count = 0
        self.durations = Durations(BOUNDS_MS)
        self.is_slow = False
        self._slow_disk_ms = slow_disk_ms
        self._latest_ms: deque[float] = deque(maxlen=SLOW_COUNT)
        self._begun_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Note that a write with its sync has begun on another thread; `add` or `failed` ends it."""
        self._begun_ms = now_ms

    def failed(self) -> None:
        """Forget the write that runs: it has failed, and took no time that means anything."""
        self._begun_ms = None

    def add(self, sync_ms: float) -> None:
        """Measure one write with its sync."""
        self._begun_ms = None
        self._latest_ms.append(sync_ms)
        self.count += 1
        self.durations.add(sync_ms)
        self.average_ms += WEIGHT * (sync_ms - self.average_ms)
        if self.average_ms > SLOW_MS:
            self.is_slow = True
        elif self.average_ms < FAST_MS:
            self.is_slow = False

    def trouble(self, now_ms: int) -> str:
        """Return what is wrong with the disk, for people; empty when nothing is."""
        runs_ms = 0 if self._begun_ms is None else now_ms - self._begun_ms
        if runs_ms >= STUCK_TIMES * self._slow_disk_ms:
            return f"slow: a sync has been running for {runs_ms} ms"
        latest_ms = self._latest_ms
        if len(latest_ms) == SLOW_COUNT and min(latest_ms) >= self._slow_disk_ms:
            return f"slow: the last {SLOW_COUNT} syncs took {min(latest_ms):.0f} to {max(latest_ms):.0f} ms"
        return ""
