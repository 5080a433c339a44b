"""Delivers delayed messages while this node leads: messages and progress in one entry (rules M)."""

from __future__ import annotations

from collections.abc import Callable

from broker.server.deliveries.deliveries import (
    AGAIN_MS,
    DELIVERIES_MAX,
    Deliverer,
    DeliveryPause,
)
from broker.server.requests.commits import Commits
from broker.store.control import AdvanceSchedule
from broker.store.schedule import DueMessage
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger import DLedgerError, EntryDamagedError, LogServer
from dledger_mq.message.numbers import QueueOffset


class Delays:
    """Stages delayed messages that are due; one batch at a time, so that progress is always that of the fold."""

    def __init__(
        self, log: LogServer, state: BrokerState, commits: Commits, now_ms: Callable[[], int]
    ) -> None:
        """Set up the delivery of delayed messages; `now_ms` is never before the log's last store time."""
        self._log = log
        self._state = state
        self._commits = commits
        self._now_ms = now_ms
        self._is_waiting = False
        self._pause = DeliveryPause("delayed messages")

    def wait_ms(self) -> int | None:
        """See `DeliveringTask`."""
        if not self._log.is_serving:
            return None
        if self._is_waiting or self._pause.is_paused:
            return AGAIN_MS
        try:
            next_ms = self._state.schedule.next_due_ms()
        except EntryDamagedError as error:
            self._pause.pause(error)
            return AGAIN_MS
        return None if next_ms is None else next_ms - self._now_ms()

    def tick(self) -> None:
        """Deliver what is due."""
        if self._is_waiting or not self._log.is_serving or self._commits.is_full:
            return
        schedule, now_ms = self._state.schedule, self._now_ms()
        try:
            due = schedule.due(now_ms, DELIVERIES_MAX)
        except EntryDamagedError as error:  # where they stand cannot be read now
            self._pause.pause(error)
            return
        if not due:
            self._pause.end()
            return
        deliverer = Deliverer(self._log, self._commits)
        by_level: dict[int, list[DueMessage]] = {}
        for message in due:
            if deliverer.is_full:
                break
            # Its time has come, or no clock of today can have given it that time (M6).
            assert not now_ms < message.due_ms <= now_ms + schedule.delay_ms(message.level), (
                f"{message} would be delivered at {now_ms} ms, before it is due"
            )
            try:
                deliverer.stage(message.physical_offset)
            except EntryDamagedError as error:
                self._pause.pause(error)
                break
            self._pause.end()
            by_level.setdefault(message.level, []).append(message)
        if not by_level:
            return
        place = -1
        for level, messages in by_level.items():
            first, end = messages[0].queue_offset, QueueOffset(messages[-1].queue_offset + 1)
            assert end - first == len(messages), (
                f"level {level}: progress from {first} to {end} for {len(messages)} messages"
            )
            place = self._commits.stage_control(AdvanceSchedule(level, first, end))
        self._is_waiting = True
        self._commits.wait(place, self)

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`: more may be due already."""
        assert self._is_waiting, f"entry of {staged.physical_offset(place)} was not waited for"
        self._is_waiting = False
        self.tick()

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`: the fold knows what was delivered; whoever leads goes on from there."""
        assert self._is_waiting, f"nothing was delivered that could fail: {error}"
        self._is_waiting = False
