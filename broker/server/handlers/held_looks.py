"""Looks at the queues that pulls wait for, since entries were applied: at some of them in each turn of the loop.

As long as they are few, as nearly always, all are looked at at once, and pulls are answered with the entry that they
waited for. Where pulls wait on ten thousand queues, a look at all takes longer than everything else that an entry
costs; so looks go on in rounds, and entries that are applied during one are seen by the next. It must not know what a
pull is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import trio

QUEUES_MAX: Final = 512
"""At which a turn looks: less than half a millisecond, as long as nothing is found (docs/adr/0271)."""

Q = TypeVar("Q")


class HeldLooks(Generic[Q]):
    """The looks.

    Attributes:
        answered: called after each look of a round; it has to send the answers that there are.
    """

    def __init__(
        self,
        queues: Callable[[], Sequence[Q]],
        count: Callable[[], int],
        look: Callable[[Sequence[Q]], None],
    ) -> None:
        """Start without a round; until `run` runs all queues are looked at at once.

        Args:
            queues: returns those that pulls wait for.
            count: returns how many these are.
            look: answers the pulls on some of them for which there is something.
        """
        self.answered: Callable[[], None] = lambda: None
        self._queues = queues
        self._count = count
        self._look = look
        self._wanted = trio.Event()
        self._is_running = False

    def look(self) -> None:
        """Look at all queues, in the next turns if they are many."""
        if self._is_running and self._count() > QUEUES_MAX:
            self._wanted.set()
        else:
            self._look(self._queues())

    async def run(self) -> None:
        """Make the rounds, until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                queues = self._queues()
                for first in range(0, len(queues), QUEUES_MAX):
                    self._look(queues[first : first + QUEUES_MAX])
                    self.answered()
                    await trio.lowlevel.checkpoint()
        finally:
            self._is_running = False
