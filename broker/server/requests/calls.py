"""The answers to the requests of one code: how many of each outcome, and how long they took.

Counted where a request is carried out, once for each answer and once for a burst of sends: a clock is read, a bound
looked for, a number added. It must not know what was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.runtime.durations import Durations

BOUNDS_MS: Final = (1, 3, 5, 10, 100, 1000, 3000)
"""Those of RocketMQ's `rocketmq_rpc_latency`."""


def no_time() -> int:
    """Return 0: nobody measures yet."""
    return 0


class Calls:
    """The answers to one code, since the start.

    Attributes:
        now_ms: the clock by which requests arrive; set by whoever takes them.
        by_outcome: by response code, and by whether the request was held until there was something to answer.
    """

    __slots__ = ("by_outcome", "now_ms")

    def __init__(self) -> None:
        self.now_ms: Callable[[], int] = no_time
        self.by_outcome: dict[tuple[int, bool], Durations] = {}

    def answered(
        self, code: int, arrived_ms: int, count: int = 1, *, was_held: bool = False
    ) -> None:
        """Count answers to requests that arrived together."""
        outcome = (code, was_held)
        durations = self.by_outcome.get(outcome)
        if durations is None:
            durations = self.by_outcome[outcome] = Durations(BOUNDS_MS)
        durations.add(self.now_ms() - arrived_ms, count)
