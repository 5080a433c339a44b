"""The schedule of faults: what it does when there is none, and when one crashes."""

import random
from typing import Any

import trio

from jepsen.history.ops import OpLog
from jepsen.nemeses.api import Fault
from jepsen.nemeses.schedule import FaultSchedule, Pace


class Crashing(Fault):
    name = "crashing"

    async def inject(self, system: Any, chance: random.Random) -> str:
        raise OSError("no such thing")

    async def cure(self, system: Any) -> str:
        return ""


class WholeSystem:
    async def wait_whole(self, timeout_s: float) -> bool:
        return True


async def lasts(faults: list[Fault]) -> FaultSchedule:
    """Return whether the schedule is still at it after ten minutes."""
    pace = Pace(hold_s=(0.0, 0.0), quiet_s=(0.0, 0.0))
    schedule = FaultSchedule(faults, WholeSystem(), OpLog(), seed=1, pace=pace)  # type: ignore[arg-type]
    with trio.move_on_after(600) as scope:
        await schedule.run()
    assert scope.cancelled_caught, "the run would have ended with its faults"
    return schedule


async def test_a_run_without_faults_goes_on_until_its_time_is_over(autojump_clock: Any) -> None:
    await lasts([])


async def test_a_fault_that_crashes_does_not_end_the_run(autojump_clock: Any) -> None:
    schedule = await lasts([Crashing()])
    assert schedule.crashes == ["crashing, inject: OSError: no such thing"]
