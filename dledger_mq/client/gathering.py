"""Requests of many callers over one connection that wait for each other a little, so that one write carries several.

A broker that is woken by each request writes, syncs and replicates an entry for each. So a request that finds none of
its kind under way leaves at once; one that finds some is held until the next answers come, HOLD_S at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from dledger_mq.client.deadline_watch import DeadlineWatch
from dledger_mq.net.loop import Loop

HOLD_S: Final = 0.002
"""About as long as a group takes for an entry: callers of a broker far away need not wait for its answers."""

HELD_BYTES_MAX: Final = 128 * 1024
"""More is sent at once: the bytes cost more than the wake-up then."""


class RequestGathering:
    """Holds and sends the requests of one connection. `run` is its task.

    Args:
        loop: in which the connection is served.
        send: writes bytes at once.
    """

    __slots__ = ("_alarm", "_due_at", "_held", "_held_bytes", "_now", "_send", "_under_way", "run")

    def __init__(self, loop: Loop, send: Callable[[bytes], None]) -> None:
        self._now = loop.now
        self._send = send
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._due_at = math.inf
        self._under_way: set[int] = set()
        self._alarm = DeadlineWatch(loop, self._on_due)
        self.run = self._alarm.run

    def put(self, opaque: int, frame: bytes) -> None:
        """Send a request now or soon; `ended` has to be called of each."""
        self._held[opaque] = frame
        self._held_bytes += len(frame)
        if not self._under_way or self._held_bytes >= HELD_BYTES_MAX:
            self._send_held()
        elif len(self._held) == 1:
            self._due_at = self._now() + HOLD_S
            self._alarm.set(self._due_at)

    def ended(self, opaques: Iterable[int]) -> None:
        """Take note that requests were answered, or nobody waits for that any more: one that is held is not sent."""
        for opaque in opaques:
            frame = self._held.pop(opaque, None)
            if frame is None:
                self._under_way.discard(opaque)
            else:
                self._held_bytes -= len(frame)
        self._send_held()

    def _send_held(self) -> None:
        held = self._held
        if not held:
            return
        self._under_way.update(held)
        data = b"".join(held.values())
        held.clear()
        self._held_bytes = 0
        self._due_at = math.inf
        self._send(data)

    def _on_due(self, now: float) -> float:
        """Send what has been held for long enough; return when that is due which has not."""
        if self._due_at <= now:
            self._send_held()
        return self._due_at
