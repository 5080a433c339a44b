"""Virtual time and the heap of scheduled calls of a simulated run, without knowledge of what they do.

Each event is one call at one moment. Events of the same moment run in the order in which they were
scheduled, so a run is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeVarTuple

Args = TypeVarTuple("Args")

STEPS_MAX = 200_000
"""A run with more steps than this is caught in a loop (usual runs have about a thousand)."""


class StuckError(Exception):
    """The group makes no progress although no fault is in force any more."""


class _Scheduled(NamedTuple):
    """A call to come. They are ordered by their moment, then by their number, which no two share."""

    time_ms: int
    number: int
    call: partial[object]


class SimLoop:
    """The clock and the heap.

    Attributes:
        now_ms: true time; members have clocks of their own.
        step_count: events that members saw; who lets them see one counts it.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.step_count = 0
        self._heap: list[_Scheduled] = []
        self._scheduled_count = 0

    def at(self, time_ms: int, action: Callable[[*Args], object], *args: *Args) -> None:
        """Call `action` at a moment of virtual time (at once, but not nested, when it has passed)."""
        self._scheduled_count += 1
        call = partial(action, *args)
        heappush(self._heap, _Scheduled(max(time_ms, self.now_ms), self._scheduled_count, call))

    def hurry(self, first_arg: object, actions: Collection[object]) -> None:
        """Reschedule to now the calls of these actions with this first argument, keeping their order."""
        for place, (_, number, call) in enumerate(self._heap):
            if call.args and call.args[0] is first_arg and call.func in actions:
                self._heap[place] = _Scheduled(self.now_ms, number, call)
        heapify(self._heap)

    def run_until(self, end_ms: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Run events until `is_done` or a moment.

        Returns:
            What `is_done` says at the end; False without it.

        Raises:
            StuckError: the group steps on and on without time passing.
        """
        heap = self._heap
        while heap and heap[0].time_ms <= end_ms:
            time_ms, _, call = heappop(heap)
            assert time_ms >= self.now_ms, f"{call} at {time_ms} ms, and it is {self.now_ms} ms"
            self.now_ms = time_ms
            call()
            if is_done is not None and is_done():
                return True
            if self.step_count > STEPS_MAX:
                raise StuckError(f"more than {STEPS_MAX} steps by {self.now_ms} ms")
        self.now_ms = max(self.now_ms, end_ms)
        return is_done is not None and is_done()
