"""Storing messages whose time has come: what delay levels and timers have in common."""

from __future__ import annotations

import logging
import math
from typing import Final, Protocol

import trio

from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.schedule import delivery
from dledger import EntryDamagedError, LogServer
from dledger.runtime.alarm import Alarm
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from dledger_mq.message.record import StoredMessage

_log = logging.getLogger(__name__)

DELIVERIES_MAX: Final = 512
"""Messages delivered with one entry."""

DELIVERY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies and properties delivered with one entry; one message is always taken."""


LOOK_S: Final = 0.02
"""So late may a message be that came with a shorter delay than all others."""

CLOCK_LOOK_S: Final = 0.5
"""The longest sleep while something waits: the clock that says when it is due may be set, or delays changed."""

AGAIN_MS: Final = 20
"""Until a task looks again at what it could not deliver, or does not know yet whether it has."""

SLEEP_MIN_S: Final = 0.001


class DeliveryPause:
    """A delivery that waits for a damaged entry: what falls due after it waits too, so that order is kept.

    The log asks the other nodes for it. If it does not come, this node ceases to lead (dledger's
    `HAND_OVER_MS`), and whoever leads then delivers.
    """

    def __init__(self, what: str) -> None:
        """Start unpaused; `what` names the delayed messages in the log line."""
        self._what = what
        self.is_paused = False

    def pause(self, error: EntryDamagedError) -> None:
        """Pause: the next message cannot be read now."""
        if not self.is_paused:
            self.is_paused = True
            _log.warning("%s wait: %s", self._what, error)

    def end(self) -> None:
        """Resume: the message could be read."""
        if self.is_paused:
            self.is_paused = False
            _log.warning("%s go on", self._what)


class DeliveringTask(Protocol):
    """Stages messages that fall due; `DeliveryAlarm` drives it."""

    def wait_ms(self) -> int | None:
        """Return the time until there may be something to do, below 0 if there is.

        None if there is nothing to wait for, before an entry is applied or the role changes.
        """
        ...

    def tick(self) -> None:
        """Deliver what is due."""
        ...


class DeliveryAlarm:
    """Lets a task deliver when something is due, and sleeps while nothing is."""

    def __init__(self, task: DeliveringTask, outputs: Outputs) -> None:
        self._task = task
        self._outputs = outputs
        self._alarm = Alarm()
        self._looked_s = -math.inf
        self._is_looking = False

    def look(self) -> None:
        """Look at the task again, within LOOK_S: something may be due earlier than it was said to be.

        At once if that was not done lately: mostly there is nothing, and nobody need wake.
        """
        if self._is_looking:
            return  # it goes off within that time already
        now_s = trio.current_time()
        if now_s < self._looked_s + LOOK_S:
            self._alarm.set_within(LOOK_S)
            self._is_looking = True
            return
        self._looked_s = now_s
        self._alarm.set_within(self._wait_s())

    async def run(self) -> None:
        """Deliver until cancelled."""
        self._alarm.set_to(LOOK_S)
        await self._alarm.run(self._deliver)

    def _deliver(self) -> None:
        self._is_looking = False
        self._task.tick()
        self._outputs.flush()
        self._alarm.set_to(self._wait_s())

    def _wait_s(self) -> float:
        wait_ms = self._task.wait_ms()
        if wait_ms is None:
            return math.inf
        return min(CLOCK_LOOK_S, max(SLEEP_MIN_S, wait_ms / 1000))


class Deliverer:
    """Stages the messages to be stored in place of waiting ones, for one entry.

    Attributes:
        staged_bytes: of the messages staged so far.
    """

    def __init__(self, log: LogServer, commits: Commits) -> None:
        self._reader = RecordReader(log.reader)  # what was sent together often falls due together
        self._commits = commits
        self.staged_bytes = 0

    @property
    def is_full(self) -> bool:
        """True once the entry has enough."""
        return self.staged_bytes >= DELIVERY_BYTES_MAX

    def stage(self, physical_offset: PhysicalOffset, more_properties: bytes = b"") -> None:
        """Stage one message; log and skip one that can never be delivered (M8).

        Raises:
            EntryDamagedError: it cannot be read now; nothing was staged.
        """
        assert not self.is_full, f"{self.staged_bytes} bytes are staged, that is enough"
        try:
            message = self._reader.message_at(physical_offset)
        except MessageGoneError as error:
            _log.warning("a delayed message cannot be delivered, it is gone: %s", error)
            return
        target = delivery(message)
        if target is None:
            _log.warning("the delayed message at %d names no topic to go to", physical_offset)
            return
        properties = target.properties + more_properties
        try:
            self._stage(message, target.topic, target.queue_id, properties)
        except RecordError as error:
            _log.warning("the delayed message at %d cannot be stored: %s", physical_offset, error)
            return
        self.staged_bytes += len(message.body) + len(properties)

    def _stage(
        self, message: StoredMessage, topic: bytes, queue_id: QueueId, properties: bytes
    ) -> None:
        """Stage a message as its producer sent it: host, time and flags stay those of the first send."""
        self._commits.staging.stage(
            topic,
            queue_id,
            message.body,
            properties,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            sys_flag=message.sys_flag,
            flag=message.flag,
            reconsume_times=message.reconsume_times,
        )
