"""Turns at checking who registers: each makes the name server connect to an address that a stranger may have named.

What a host has checked in vain is bounded by the second. A check that showed who its sender is costs nothing, so that
all brokers of a machine register at once when a name server was restarted. What is under way may turn out to be in
vain, so it counts as such, and who comes later waits for it.

It must not know what is checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from broker.namesrv.errors import NotYetError

VAIN_CHECKS_MAX: Final = 32
"""Checks of one host at once, and in vain within a second."""

WAITING_MAX: Final = 256
"""Checks of one host that wait for those under way; each of these is bounded in time."""


@dataclass(slots=True)
class CheckTurn:
    """A check under way.

    Attributes:
        is_in_vain: whether it is to count against its host.
    """

    is_in_vain: bool = True


@dataclass(slots=True)
class _Host:
    """Invariant: nobody waits while nothing is under way."""

    under_way: int = 0
    waiting: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)


class CheckTurns:
    """Gives hosts their turns."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Begin without any.

        Args:
            now_ms: a clock that does not go back.
        """
        self._now_ms = now_ms
        self._hosts: dict[str, _Host] = {}
        self._second = 0
        self._in_vain: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncGenerator[CheckTurn]:
        """Wait for a turn, and hold it: it was in vain unless the caller says otherwise.

        Raises:
            NotYetError: the host has no turn left in this second, or too many wait for theirs.
        """
        while (state := self._state(host)).under_way + self._count(host) >= VAIN_CHECKS_MAX:
            if not state.under_way or len(state.waiting) >= WAITING_MAX:
                self._forget_idle(host, state)
                raise NotYetError(
                    f"{self._count(host)} registrations of {host} were checked in vain within a second, "
                    f"{state.under_way} are being checked and {len(state.waiting)} wait; try again"
                )
            await state.waiting.park()
        state.under_way += 1
        turn = CheckTurn()
        try:
            yield turn
        finally:
            state.under_way -= 1
            if turn.is_in_vain:
                self._in_vain[host] = self._count(host) + 1
            state.waiting.unpark_all()
            self._forget_idle(host, state)

    def _state(self, host: str) -> _Host:
        return self._hosts.setdefault(host, _Host())

    def _count(self, host: str) -> int:
        """Return how many checks of a host were in vain within this second."""
        second = self._now_ms() // 1000
        if second != self._second:
            self._second = second
            self._in_vain.clear()
        return self._in_vain.get(host, 0)

    def _forget_idle(self, host: str, state: _Host) -> None:
        if not state.under_way and self._hosts.get(host) is state:
            del self._hosts[host]
