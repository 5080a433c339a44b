"""The end of several children: stage after stage, each within its time, and sooner when a second signal asks for it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from broker.processes.child import Child

KILL_S: Final = 1.0
"""A process that was killed has ended within this time, unless its disk hangs."""


@dataclass(frozen=True, slots=True)
class StopStage:
    """Children that stop side by side.

    Attributes:
        children: of this stage.
        within_s: what is left of them after that is killed.
    """

    children: Sequence[Child]
    within_s: float


class StagedStop:
    """Stops children in order once a signal asks for it.

    The first signal begins it; a child that was asked to stop before is not asked again. Each further signal is passed
    on to the children that are being stopped, which may then leave out what they would still wait for, and leaves every
    stage `hurry_s` at most.
    """

    def __init__(
        self, stages: Sequence[StopStage], report: Callable[[str], None], *, hurry_s: float
    ) -> None:
        """Stop nothing yet; `report` takes a line for each child that has to be killed."""
        self.wanted = trio.Event()
        self._stages = stages
        self._report = report
        self._hurry_s = hurry_s
        self._is_hurried = False
        self._stopping: Sequence[Child] = ()
        self._waiting = trio.CancelScope()

    @property
    def s_max(self) -> float:
        """The longest time from the first signal to the end of the last child."""
        return sum(stage.within_s + KILL_S for stage in self._stages)

    @property
    def hurried_s_max(self) -> float:
        """The longest time from the second signal to the end of the last child."""
        return sum(min(stage.within_s, self._hurry_s) + KILL_S for stage in self._stages)

    def take(self, number: signal.Signals) -> None:
        """Take a signal: the first one asks for the stop, each further one for haste. Neither blocks nor raises."""
        if self.wanted.is_set():
            self._is_hurried = True
            for child in self._stopping:
                child.send_signal(number)
            soonest = trio.current_time() + self._hurry_s
            self._waiting.deadline = min(self._waiting.deadline, soonest)
        self.wanted.set()

    async def run(self) -> None:
        """Stop all children. Nobody else waits for one of them meanwhile."""
        for stage in self._stages:
            await self._stop(stage)

    async def _stop(self, stage: StopStage) -> None:
        """Ask all children of a stage to stop that were not asked before, and kill those that do not in time."""
        within_s = min(stage.within_s, self._hurry_s) if self._is_hurried else stage.within_s
        begun = trio.current_time()
        self._stopping = stage.children
        for child in stage.children:
            child.ask_to_stop(again=self._is_hurried)
        with trio.move_on_after(within_s) as self._waiting:
            for child in stage.children:
                await child.wait_ended()
        for child in stage.children:
            if child.is_running:
                waited_s = trio.current_time() - begun
                self._report(f"{child.program.name} did not stop within {waited_s:.0f} s: killed")
                child.send_signal(signal.SIGKILL)
        for child in stage.children:
            await child.wait_ended()
