"""Messages of the broker group in memory that wait: for a due time, or for the time of their delay level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dledger_mq.message.properties import find_property
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting.requests import SendFields
from dledger_mq.testing.fake_clock import FakeClock

LEVELS_S: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The delay levels 1 to 18."""


class Waiting(NamedTuple):
    """A message that waits."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes


class FakeDelays:
    """Those that wait; they are delivered when the clock comes to their time.

    Attributes:
        timers: messages with a due time, by recall handle.
    """

    def __init__(self, clock: FakeClock, deliver: Callable[[Waiting], None]) -> None:
        self.timers: dict[str, Waiting] = {}
        self._clock = clock
        self._deliver = deliver

    def wait_for_due_time(
        self, fields: SendFields, body: bytes, properties: bytes, *, broker_name: str
    ) -> str | None:
        """Keep a message whose due time lies ahead and return its recall handle; None for any other."""
        delay = find_property(properties, b"TIMER_DELAY_MS")
        due = find_property(properties, b"TIMER_DELIVER_MS")
        due_ms = fields.born_timestamp_ms + int(delay) if delay else int(due or 0)
        if due_ms <= self._clock.now_ms:
            return None
        key = (find_property(properties, b"UNIQ_KEY") or b"").decode()
        handle = RecallHandle(fields.topic, broker_name, due_ms, key).encode()
        self.timers[handle] = Waiting(fields.topic, fields.queue_id, body, properties)
        self._clock.at(due_ms, lambda: self._deliver_timer(handle))
        return handle

    def _deliver_timer(self, handle: str) -> None:
        waiting = self.timers.pop(handle, None)
        if waiting is not None:  # else it was recalled
            self._deliver(waiting)

    def wait_for_level(self, fields: SendFields, body: bytes, properties: bytes) -> bool:
        """Keep a message with a delay level until its time; return whether it has one."""
        level = int(find_property(properties, b"DELAY") or 0)
        if not level:
            return False
        waiting = Waiting(fields.topic, fields.queue_id, body, properties)
        at_ms = self._clock.now_ms + 1000 * LEVELS_S[level - 1]
        self._clock.at(at_ms, lambda: self._deliver(waiting))
        return True

    def recall(self, handle: str) -> bool:
        """Take a message back; return whether it still waited."""
        return self.timers.pop(handle, None) is not None
