"""Storing messages whose time has come: what delay levels and timers have in common."""

from __future__ import annotations

import logging
from typing import Final, Protocol

import trio

from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.schedule import delivery
from dledger import EntryDamagedError, LogServer
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from dledger_mq.message.record import StoredMessage

_log = logging.getLogger(__name__)

DELIVERIES_MAX: Final = 512
"""Messages delivered with one entry."""

DELIVERY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies and properties delivered with one entry; one message is always taken."""


LOOK_S: Final = 0.02
"""The longest sleep of a delivering task: so late may a message be that came with a shorter delay."""

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
    """Stages messages that fall due; `keep_delivering` drives it."""

    def wait_ms(self) -> int | None:
        """Return the time until something may be due, below 0 if something is; None if that is not known."""
        ...

    def tick(self) -> None:
        """Deliver what is due."""
        ...


async def keep_delivering(task: DeliveringTask, outputs: Outputs) -> None:
    """Let a task deliver whenever something is due; runs until cancelled."""
    while True:
        wait_ms = task.wait_ms()
        wait_s = LOOK_S if wait_ms is None else max(SLEEP_MIN_S, wait_ms / 1000)
        await trio.sleep(min(LOOK_S, wait_s))
        task.tick()
        outputs.flush()


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
