"""One task that looks after the deadlines of many waiters, so that each of them needs no timer of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from dledger_mq.net.loop import Loop


class DeadlineWatch:
    """Calls a function when the earliest deadline has come. `run` is its task.

    Args:
        loop: deadlines are on its clock.
        on_due: ends what is due, and returns the earliest deadline of the rest; infinite when there is none.
    """

    __slots__ = ("_earliest", "_moved", "_new_event", "_now", "_on_due")

    def __init__(self, loop: Loop, on_due: Callable[[float], float]) -> None:
        self._now, self._new_event = loop.now, loop.new_event
        self._on_due = on_due
        self._earliest = math.inf
        self._moved = self._new_event()

    def set(self, deadline: float) -> None:
        """Take note of another deadline; one that is not needed any more costs a look when it comes."""
        if deadline < self._earliest:
            self._earliest = deadline
            self._moved.set()

    async def run(self) -> None:
        """Call the function at each deadline until cancelled."""
        while True:
            self._moved = self._new_event()
            with anyio.CancelScope(deadline=self._earliest):
                await self._moved.wait()
                continue
            self._earliest = math.inf  # what is set from now on counts
            left = self._on_due(self._now())
            self._earliest = min(self._earliest, left)
