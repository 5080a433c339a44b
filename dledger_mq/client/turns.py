"""Sharing the event loop: a task that could go on for long lets others have their turn now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio.lowlevel

TURN_S: Final = 0.001
"""Some hundred messages; a heartbeat or an answer that comes meanwhile waits no longer."""


class TaskTurns:
    """The turns of one task, or of several that do the same work, by the loop's clock.

    Attributes:
        is_over: a task lets others go on now.
    """

    __slots__ = ("_ends_at", "_now", "is_over")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ends_at = now() + TURN_S
        self.is_over = False

    async def share(self) -> None:
        """Let other tasks run, and this one be cancelled, if its turn has lasted for TURN_S."""
        if self._now() >= self._ends_at:
            self.is_over = True
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                self.is_over = False
            self._ends_at = self._now() + TURN_S
