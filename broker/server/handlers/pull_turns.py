"""How much of one turn of the loop pulls may take: readers who ask as fast as they are answered leave room for others.

Whatever is ready in one turn of the loop is done before the next one, and a send takes several turns until it is
answered. A few readers of old messages, each of whom asks again at once, made each turn ten times as long. Pulls that
come beyond their share of a turn wait for the next one, in their order. Those of backlogs have a row of their own, and
pauses while messages come (backlog_share.py). It must not know what a pull is; pops have turns of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final, Generic, Protocol, TypeVar

import trio

from broker.server.handlers.backlog_share import BacklogShare

SHARE_S: Final = 0.0005
"""Of each turn: some newest pulls, or one that is read from the system's memory and verified."""

TURN_S_MAX: Final = 0.005
"""After so long without a pull beyond the share, the turn in which it began is surely over, though nobody said so."""


class Turn(Protocol):
    """Something that was asked for."""

    @property
    def is_closed(self) -> bool:
        """True once its client is gone."""
        ...

    @property
    def is_backlog(self) -> bool:
        """True if it asks, as far as anybody knows, for what is old."""
        ...


Turned = TypeVar("Turned", bound=Turn)


class PullTurns(Generic[Turned]):
    """The pulls that wait for the next turn.

    Invariant: while any waits, each that comes waits behind it; those of backlogs wait for one another only.

    Attributes:
        answered: called after pulls of the rows went on; it has to send the answers that there are.
    """

    def __init__(self, go_on: Callable[[Turned], None]) -> None:
        """Start without any; until `run` runs all go on at once.

        Args:
            go_on: takes what is due.
        """
        self.answered: Callable[[], None] = lambda: None
        self._go_on = go_on
        self._share = BacklogShare()
        self._waiting: deque[Turned] = deque()
        self._backlog: deque[Turned] = deque()
        self._some = trio.Event()
        self._is_running = False
        self._began_s = self._taken_s = 0.0
        self._left_s = SHARE_S

    async def run(self) -> None:
        """Let those that wait go on, some in each turn, until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._wait_for_some()
                now_s = perf_counter()
                self._begin_turn(now_s)
                self._take_while_left(self._waiting)
                if self._backlog and not self._share.wait_s(now_s):
                    self._take_while_left(self._backlog)
                self.answered()
                await trio.lowlevel.checkpoint()
        finally:
            self._is_running = False

    @property
    def waiting_count(self) -> int:
        """The count of those that wait for their turn."""
        return len(self._waiting) + len(self._backlog)

    def take(self, each: Turned) -> None:
        """Let one go on now if the share of this turn is not used up, and otherwise in one of the next turns."""
        if self.may_take(is_backlog=each.is_backlog):
            self._take(each)
        else:
            (self._backlog if each.is_backlog else self._waiting).append(each)
            self._some.set()

    def may_take(self, *, is_backlog: bool) -> bool:
        """Return whether one more may go on now: nothing waits before it, and the share of this turn is not used up.

        Whoever lets it go on by himself says by `taken` that it is done.
        """
        self._taken_s = now_s = perf_counter()
        row, is_due = self._waiting, True
        if is_backlog:
            row, is_due = self._backlog, not self._share.wait_s(now_s)
        if not self._waiting and now_s - self._began_s > TURN_S_MAX:
            self._begin_turn(now_s)
        return not self._is_running or (not row and self._left_s > 0 and is_due)

    def taken(self, *, is_backlog: bool) -> None:
        """Take note that the one is done that might go on; what it took since then is counted."""
        self._spend(self._taken_s, is_backlog=is_backlog)

    def turn_ended(self) -> None:
        """Begin with a new share: the connections' turn of the loop is over, and their next one comes in another.

        While any waits, its own turn comes first, and begins with one.
        """
        if not (self._waiting or self._backlog):
            self._left_s = SHARE_S

    def put_off(self, each: Turned) -> bool:
        """Let one that has more to do go on behind those that wait; return False if it is to go on at once."""
        if not self._is_running:
            return False
        self._waiting.append(each)
        self._some.set()
        return True

    def resume(self, each: Turned, go_on: Callable[[Turned], None]) -> None:
        """Let one go on now that has waited for something else; what it takes is counted."""
        self._take(each, go_on)

    def note_new(self) -> None:
        """Take note that an entry was applied: messages come."""
        self._share.note_new(perf_counter())

    async def _wait_for_some(self) -> None:
        """Wait until something is due."""
        while not self._waiting:
            wait_s = self._share.wait_s(perf_counter()) if self._backlog else math.inf
            if wait_s <= 0:
                return
            self._some = trio.Event()
            if wait_s == math.inf:
                await self._some.wait()
                continue
            with trio.move_on_after(wait_s):
                await self._some.wait()

    def _take_while_left(self, row: deque[Turned]) -> None:
        """Let some of a row go on, one at least if this turn has anything left."""
        while row and self._left_s > 0:
            self._take(row.popleft())

    def _begin_turn(self, now_s: float) -> None:
        self._began_s = now_s
        self._left_s = SHARE_S

    def _take(self, each: Turned, go_on: Callable[[Turned], None] | None = None) -> None:
        """Let one go on, unless its client went meanwhile; what it takes is counted."""
        if each.is_closed:
            return
        began_s = perf_counter()
        (go_on or self._go_on)(each)
        self._spend(began_s, is_backlog=each.is_backlog)

    def _spend(self, began_s: float, *, is_backlog: bool) -> None:
        now_s = perf_counter()
        self._left_s -= now_s - began_s
        if is_backlog:
            self._share.spend(now_s, now_s - began_s)
