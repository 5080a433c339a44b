"""Whether the disk is fast enough to be waited for on the loop."""

from __future__ import annotations

from typing import Final

SLOW_MS: Final = 2.0
FAST_MS: Final = 1.0
"""Above the first (moving average) a thread syncs, below the second the loop does it again. A thread
costs about 0.1 ms for each sync; a sync on the loop delays everything else for as long as it takes.
Both are far below the heartbeat interval."""

WEIGHT: Final = 0.1
"""Of the newest sync in the moving average."""


class SyncPace:
    """Invariant: `is_slow` changes only at the two bounds."""

    __slots__ = ("average_ms", "count", "is_slow")

    def __init__(self) -> None:
        self.average_ms = 0.0
        self.count = 0
        self.is_slow = False

    def add(self, sync_ms: float) -> None:
        """One write with its sync has taken so long."""
        self.count += 1
        self.average_ms += WEIGHT * (sync_ms - self.average_ms)
        if self.average_ms > SLOW_MS:
            self.is_slow = True
        elif self.average_ms < FAST_MS:
            self.is_slow = False
