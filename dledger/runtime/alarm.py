"""An alarm: what a task waits for that has something to do now and then, and sleeps in between.

It goes off when somebody rings it, and when its time has come. The time is moved while the task waits or works; a
timeout of its own for each wait, and an event, cost four times as much (docs/adr/0200). Knows nothing of what is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Alarm:
    """One alarm, for one task. All calls are made in the trio thread.

    Invariant: what was rung for is acted on later, however often it was rung before that.
    """

    __slots__ = ("_due_s", "_is_rung", "_scope", "_waiting")

    def __init__(self) -> None:
        self._due_s = math.inf
        self._is_rung = False
        self._scope: trio.CancelScope | None = None
        self._waiting: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        """Let it go off with the task's next turn."""
        self._is_rung = True
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def set_to(self, wait_s: float) -> None:
        """Let it go off after so long, instead of the time that it was set to before."""
        self._due_s = trio.current_time() + wait_s
        if self._scope is not None:
            self._scope.deadline = self._due_s

    def set_within(self, wait_s: float) -> None:
        """Let it go off after so long, or before that if it is set so."""
        if trio.current_time() + wait_s < self._due_s:
            self.set_to(wait_s)

    async def run(self, act: Callable[[], None]) -> None:
        """Call `act` whenever it goes off, with a turn for all others in between, until cancelled.

        `act` sets it to another time when this one has come: else it goes off again.
        """
        while True:
            with trio.CancelScope(deadline=self._due_s) as self._scope:
                while True:
                    await self._wait_rung()
                    act()
            # Rung or moved on in the same moment it may be, too; the next scope is as the last call has set it.
            self._scope = None
            self._is_rung = False
            act()

    async def _wait_rung(self) -> None:
        if self._is_rung:
            await trio.lowlevel.checkpoint()
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)
        self._is_rung = False

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED
