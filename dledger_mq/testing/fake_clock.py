"""The time of a group in memory: it runs by itself, with the loop's, and a test can move it on."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable

import anyio


class FakeClock:
    """Milliseconds since 1970, and what is to be done at some of them. `run` is its task."""

    def __init__(self) -> None:
        self._start_s = time.time() - anyio.current_time()
        self._ahead_ms = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._changed = anyio.Event()

    @property
    def now_ms(self) -> int:
        """The time; rounded up, so never before the time that a client has read already."""
        return math.ceil(1000 * (self._start_s + anyio.current_time())) + self._ahead_ms

    def at(self, due_ms: int, call: Callable[[], None]) -> None:
        """Call a function at that time; soon, if it is past."""
        heapq.heappush(self._due, (due_ms, next(self._count), call))
        self._changed.set()

    def advance(self, seconds: float) -> None:
        """Let that much time pass at once; what falls due meanwhile is done when this returns."""
        self._ahead_ms += int(1000 * seconds)
        self._call_due()
        self._changed.set()

    async def run(self) -> None:
        """Do what falls due, until cancelled."""
        while True:
            self._call_due()
            self._changed = anyio.Event()
            wait_s = (self._due[0][0] - self.now_ms) / 1000 if self._due else float("inf")
            with anyio.move_on_after(wait_s):
                await self._changed.wait()

    def _call_due(self) -> None:
        now_ms = self.now_ms
        while self._due and self._due[0][0] <= now_ms:
            _, _, call = heapq.heappop(self._due)
            call()
