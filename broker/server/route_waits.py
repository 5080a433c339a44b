"""Answers that wait until the name servers know what they say: whoever is told of a topic looks for its route next.

Bounded in time and number. It must not know what is waited for, nor how name servers are told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

_log = logging.getLogger(__name__)

ROUTE_WAIT_S: Final = 1.0
"""The longest time that an answer waits for name servers."""

WAITS_MAX: Final = 10_000
"""Answers that wait; one more is given at once, and a look-up right after it may be too early."""


class _Wait(NamedTuple):
    """An answer that waits.

    Attributes:
        numbers: the registration that each name server has to have taken.
        then: gives the answer.
    """

    numbers: tuple[int, ...]
    deadline_s: float
    then: Callable[[], None]


class RouteWaits:
    """The answers of one broker that wait.

    Invariant: they wait in the order in which they came, so neither the numbers nor the deadlines fall.
    """

    def __init__(
        self, has_taken: Callable[[tuple[int, ...]], bool], *, waits_max: int = WAITS_MAX
    ) -> None:
        """Begin with none; `has_taken` returns True if no name server is left to wait for."""
        self._has_taken = has_taken
        self._waits_max = waits_max
        self._waits: deque[_Wait] = deque()
        self._added = trio.Event()
        self._is_full = False

    def __len__(self) -> int:
        """Return the count of answers that wait."""
        return len(self._waits)

    def add(self, numbers: tuple[int, ...], then: Callable[[], None]) -> None:
        """Call `then` when these registrations are taken, after ROUTE_WAIT_S, or at once if too many wait."""
        if len(self._waits) >= self._waits_max:
            if not self._is_full:
                _log.warning(
                    "%d answers wait for name servers, the most that may: others are given before the routes are known",
                    len(self._waits),
                )
            self._is_full = True
            then()
            return
        last = self._waits[-1].numbers if self._waits else numbers
        assert all(map(int.__le__, last, numbers)), f"{numbers} are waited for after {last}"
        self._waits.append(_Wait(numbers, trio.current_time() + ROUTE_WAIT_S, then))
        self._added.set()
        self.look()

    def look(self) -> None:
        """Give the answers that need not wait any longer."""
        while self._waits and self._is_over(self._waits[0]):
            self._waits.popleft().then()
        if not self._waits:
            self._is_full = False

    def _is_over(self, wait: _Wait) -> bool:
        return wait.deadline_s <= trio.current_time() or self._has_taken(wait.numbers)

    async def run(self) -> None:
        """Give answers whose time is over, until cancelled."""
        while True:
            while self._waits:
                await trio.sleep_until(self._waits[0].deadline_s)
                self.look()
            self._added = trio.Event()
            await self._added.wait()
