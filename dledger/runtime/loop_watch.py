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

PARTS: Final = ("messages, and what they led to", "disk", "state and answers", OUTSIDE)
"""The work of the loop in order, from the beginning of a pass to that of the next one."""


@dataclass(frozen=True, slots=True)
class LoopStall:
    """One standstill of the loop.

    Attributes:
        length_ms: for how long, beyond one pulse.
        doing: the part of the loop in which most of the time went by.
        cpu_ms: what the process has used of processors meanwhile, and up to a pulse before: little means that it did
            not run.
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

    __slots__ = ("_begun_ms", "_cpu_at_ms", "_cpu_ns", "_parts_ms", "_pulse_ms")

    def __init__(self, pulse_ms: int, now_ms: int) -> None:
        self._pulse_ms = pulse_ms
        self._begun_ms = self._cpu_at_ms = now_ms
        self._parts_ms = (now_ms, now_ms, now_ms)
        self._cpu_ns = time.process_time_ns()

    def begin(self, now_ms: int) -> LoopStall | None:
        """Begin a pass; return the stall that preceded it, or None."""
        assert now_ms >= self._begun_ms, f"a pass at {now_ms} ms after one at {self._begun_ms} ms"
        late_ms = now_ms - self._begun_ms - self._pulse_ms
        stall = None
        # The processor's clock is a call of the system, and passes come by the thousand.
        if now_ms - self._cpu_at_ms >= self._pulse_ms:
            cpu_ns = time.process_time_ns()
            if late_ms >= self._pulse_ms:
                stall = LoopStall(
                    late_ms, self._longest_part(now_ms), (cpu_ns - self._cpu_ns) // 1_000_000
                )
            self._cpu_ns, self._cpu_at_ms = cpu_ns, now_ms
        self._begun_ms = now_ms
        self._parts_ms = (now_ms, now_ms, now_ms)
        return stall

    def passed(self, received_ms: int, written_ms: int, ended_ms: int) -> None:
        """Note when the parts of a pass ended; what comes until the next one is none of its."""
        self._parts_ms = (received_ms, written_ms, ended_ms)

    def _longest_part(self, now_ms: int) -> str:
        """Return what took longest since the last pass began."""
        begun_ms, (received_ms, written_ms, ended_ms) = self._begun_ms, self._parts_ms
        took_ms = (
            received_ms - begun_ms,
            written_ms - received_ms,
            ended_ms - written_ms,
            now_ms - ended_ms,
        )
        return PARTS[took_ms.index(max(took_ms))]
