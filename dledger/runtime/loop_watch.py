"""A watch that detects stalls of the event loop: how long, and in which part of a pass.

A pass begins at least every heartbeat interval while the loop runs. Where one comes much later, the loop was busy
with something that should have waited, or the whole process did not run: it was stopped, had no processor, or
waited for memory or a disk. Then this node has heard nobody, and cannot blame others for their silence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

LOGGED_MS: Final = 250
"""From this length on a stall is logged: it is most of a lease."""

OUTSIDE: Final = "other tasks of the loop, or nothing: the process did not run"


@dataclass(frozen=True, slots=True)
class LoopStall:
    """One standstill of the loop.

    Attributes:
        length_ms: for how long, beyond one pulse.
        doing: the part of the loop in which most of the time went by.
        cpu_ms: what the process has used of processors meanwhile: little means that it did not run.
    """

    length_ms: int
    doing: str
    cpu_ms: int


class LoopWatch:
    """The watch of one loop.

    Args:
        pulse_ms: a pass is due so long after the beginning of the one before, at the latest; one that comes later
            than twice that is a stall.
        now_ms: the time of the first pass.
    """

    __slots__ = ("_begun_ms", "_cpu_ns", "_doing", "_longest_ms", "_marked_ms", "_pulse_ms")

    def __init__(self, pulse_ms: int, now_ms: int) -> None:
        self._pulse_ms = pulse_ms
        self._begun_ms = self._marked_ms = now_ms
        self._cpu_ns = time.process_time_ns()
        self._longest_ms = -1
        self._doing = OUTSIDE

    def begin(self, now_ms: int) -> LoopStall | None:
        """Begin a pass; return the stall that preceded it, or None."""
        assert now_ms >= self._begun_ms, f"a pass at {now_ms} ms after one at {self._begun_ms} ms"
        self.mark(OUTSIDE, now_ms)
        cpu_ns = time.process_time_ns()
        late_ms = now_ms - self._begun_ms - self._pulse_ms
        stall = None
        if late_ms >= self._pulse_ms:
            stall = LoopStall(late_ms, self._doing, (cpu_ns - self._cpu_ns) // 1_000_000)
        self._begun_ms = now_ms
        self._cpu_ns = cpu_ns
        self._longest_ms = -1
        return stall

    def mark(self, done: str, now_ms: int) -> None:
        """Attribute the time since the last mark to the work that was `done`."""
        took_ms = now_ms - self._marked_ms
        if took_ms > self._longest_ms:
            self._longest_ms = took_ms
            self._doing = done
        self._marked_ms = now_ms
