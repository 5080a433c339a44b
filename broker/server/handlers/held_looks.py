"""Looks at what pulls wait for, since something changed: at some of it in each turn of the loop.

As long as it is little, as nearly always, all is looked at at once, and pulls are answered with the entry that they
waited for. Where pulls wait on ten thousand queues, a look at all takes longer than everything else that an entry
costs; so looks go on in rounds, and what changes during one is seen by the next. It must not know what a pull is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import trio

AT_ONCE_MAX: Final = 512
"""Queues or pulls at which a turn looks: less than half a millisecond, as long as nothing is found (docs/adr/0271)."""

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True, eq=False)
class HeldLook(Generic[Q]):
    """One way to look at all that there is.

    Attributes:
        everything: returns what there is.
        count: returns how much that is.
        look: looks at some of it, by what holds then, and does what is to be done; some may be gone meanwhile.
        at_once_max: a turn looks at so many, at most.
    """

    everything: Callable[[], Sequence[Q]]
    count: Callable[[], int]
    look: Callable[[Sequence[Q]], None]
    at_once_max: int = AT_ONCE_MAX


class HeldLooks:
    """The looks that go on.

    Attributes:
        answered: called after each turn of a round; it has to send the answers that there are.
    """

    def __init__(self) -> None:
        """Start without a round; until `run` runs everything is looked at at once."""
        self.answered: Callable[[], None] = lambda: None
        self._wanted: dict[HeldLook[Any], None] = {}
        self._some = trio.Event()
        self._is_running = False

    def begin(self, look: HeldLook[Any]) -> None:
        """Look at everything in one way, in the next turns if it is much."""
        if self._is_running and look.count() > look.at_once_max:
            self._wanted[look] = None
            self._some.set()
        else:
            look.look(look.everything())

    async def run(self) -> None:
        """Make the rounds, one after the other, until cancelled."""
        self._is_running = True
        try:
            while True:
                await self._some.wait()
                self._some = trio.Event()
                wanted, self._wanted = self._wanted, {}
                for look in wanted:
                    await self._make_round(look)
        finally:
            self._is_running = False

    async def _make_round(self, look: HeldLook[Any]) -> None:
        everything = look.everything()
        for first in range(0, len(everything), look.at_once_max):
            look.look(everything[first : first + look.at_once_max])
            self.answered()
            await trio.lowlevel.checkpoint()
