"""Time as a machine has it to give: it stands nearly still while others take the processors.

A limit in seconds of the wall means nothing on a machine that does ten other things. This clock does a little piece of
work at each look, compares how long that took with how long it takes on a machine that has nothing else to do, and
lets so much less time pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PIECE: Final = 600_000
PIECE_S: Final = 0.0203
"""Of `_work`, on two quiet cores of 2.5 GHz with Python 3.11: thirty times the best of 900 runs of a thirtieth."""


class MachineClock:
    """Counts seconds, each as long as the machine is slower than the one that `PIECE_S` was measured on.

    Attributes:
        passed_s: of this clock.
        wall_s: of the one on the wall.
    """

    def __init__(
        self,
        work: Callable[[], object] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work or _work
        self._now = now
        self._seen = now()
        self.passed_s = 0.0
        self.wall_s = 0.0

    def look(self) -> float:
        """Do a piece of work, and return the seconds that have passed in all."""
        began = self._now()
        self._work()
        ended = self._now()
        slowness = max((ended - began) / PIECE_S, 1.0)
        self.passed_s += (ended - self._seen) / slowness
        self.wall_s += ended - self._seen
        self._seen = ended
        return self.passed_s

    @property
    def slowness(self) -> float:
        """The factor by which the machine was slower, over all that has passed."""
        return self.wall_s / self.passed_s if self.passed_s else 1.0


def _work() -> int:
    return sum(n * n for n in range(PIECE))
