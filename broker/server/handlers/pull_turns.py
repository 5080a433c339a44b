"""How much of one turn of the loop pulls may take: readers who ask as fast as they are answered leave room for others.

Whatever is ready in one turn of the loop is done before the next one, and a send takes several turns until it is
answered. A few readers of old messages, each of whom asks again at once, made each turn ten times as long. Pulls that
come beyond their share of a turn wait for the next one, in their order. It must not know what a pull is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, Protocol, TypeVar

import trio

SHARE_S: Final = 0.0005
"""Of each turn: some newest pulls, or one that is read from the system's memory and verified."""

TURN_S_MAX: Final = 0.005
"""After so long without a pull beyond the share, the turn in which it began is surely over."""


class Closing(Protocol):
    """Something that nobody waits for any more, perhaps."""

    @property
    def is_closed(self) -> bool:
        """True once its client is gone."""
        ...


Turned = TypeVar("Turned", bound=Closing)


class PullTurns(Generic[Turned]):
    """The pulls that wait for the next turn.

    Invariant: while any waits, each that comes waits behind it.

    Attributes:
        answered: called after pulls of the row went on; it has to send the answers that there are.
    """

    def __init__(self, go_on: Callable[[Turned], None]) -> None:
        """Start without any; until `run` runs all go on at once.

        Args:
            go_on: takes what is due.
        """
        self.answered: Callable[[], None] = lambda: None
        self._go_on = go_on
        self._waiting: deque[Turned] = deque()
        self._some = trio.Event()
        self._is_running = False
        self._began_s = 0.0
        self._left_s = SHARE_S

    async def run(self) -> None:
        """Let those that wait go on, some in each turn, until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._some.wait()
                self._begin_turn(perf_counter())
                while self._waiting and self._left_s > 0:
                    self._take(self._waiting.popleft())
                self.answered()
                if not self._waiting:
                    self._some = trio.Event()
                await trio.lowlevel.checkpoint()
        finally:
            self._is_running = False

    def take(self, each: Turned) -> None:
        """Let one go on now if the share of this turn is not used up, and otherwise in one of the next turns."""
        now_s = perf_counter()
        if not self._waiting and now_s - self._began_s > TURN_S_MAX:
            self._begin_turn(now_s)
        if self._is_running and (self._waiting or self._left_s <= 0):
            self._waiting.append(each)
            self._some.set()
        else:
            self._take(each)

    def _begin_turn(self, now_s: float) -> None:
        self._began_s = now_s
        self._left_s = SHARE_S

    def _take(self, each: Turned) -> None:
        """Let one go on, unless its client went meanwhile; what it takes is counted."""
        if each.is_closed:
            return
        began_s = perf_counter()
        self._go_on(each)
        self._left_s -= perf_counter() - began_s
