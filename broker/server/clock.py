"""The time that this node writes into the log: the wall clock, but without its jumps.

Due times, store times and lock times all come from the leader's clock. When an operator or a time service
sets that clock, nothing may be delivered early, nor everything at once. So the wall clock is read when the
process starts, and from then on time passes as the machine's steady clock says; what the wall clock
differs is made up for slowly, by at most `SLEW_PER_MILLE` of the time that passed. A clock that was an
hour wrong when the process started is best cured by setting it and restarting the node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SLEW_PER_MILLE: Final = 1
"""Time services slew by half of this; so an ordinary correction is followed completely."""

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """A clock that nobody can set; it runs on while the machine sleeps, where the system has such a one."""
    return time.clock_gettime_ns(_STEADY) // 1_000_000


class SteadyWallClock:
    """Milliseconds since 1970 that never jump. Call it."""

    def __init__(
        self, wall: Callable[[], int] = wall_ms, steady: Callable[[], int] = steady_ms
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset_ms = wall() - steady()
        self._slewed_at_ms = steady()

    def __call__(self) -> int:
        """Now."""
        steady = self._steady()
        step = (steady - self._slewed_at_ms) * SLEW_PER_MILLE // 1000
        if step > 0:
            self._slewed_at_ms = steady
            behind = self._wall() - steady - self._offset_ms
            self._offset_ms += max(-step, min(step, behind))
        return steady + self._offset_ms

    @property
    def error_ms(self) -> int:
        """By how much the wall clock is ahead of this one."""
        return self._wall() - self._steady() - self._offset_ms
