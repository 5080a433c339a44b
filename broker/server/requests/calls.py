"""The answers to the requests of one code: how many of each outcome, and how long they took.

Counted where a request is carried out, once for each answer and once for a burst of sends: a clock is read, a bound
looked for, a number added. It must not know what was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.server.requests.put_times import PutTimes
from dledger.runtime.durations import Durations
from dledger_mq.remoting.codes import ResponseCode

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
        longest_ms: the longest time until an answer to a request that was not held.
    """

    __slots__ = ("_put_times", "by_outcome", "longest_ms", "now_ms")

    def __init__(self, put_times: PutTimes | None = None) -> None:
        """Count nothing yet.

        Args:
            put_times: takes the times of successes; None: they are not sends.
        """
        self._put_times = put_times
        self.longest_ms = 0
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
        took_ms = self.now_ms() - arrived_ms
        durations.add(took_ms, count)
        if took_ms > self.longest_ms and not was_held:
            self.longest_ms = took_ms
        if self._put_times is not None and code == ResponseCode.SUCCESS:
            self._put_times.add(took_ms, count)
