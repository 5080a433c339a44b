"""Delivers delayed messages while this node leads: messages and progress in one entry (semantics M)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.server.commits import Commits
from broker.store.control import AdvanceSchedule
from broker.store.reading import MessageGoneError, read_message
from broker.store.schedule import DueMessage, delivery
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger import DLedgerError, LogServer

_log = logging.getLogger(__name__)

DELIVERIES_MAX = 512
"""Messages delivered with one entry."""


class Delays:
    """Stages what is due; one batch at a time, so that progress is always that of the fold."""

    def __init__(
        self, log: LogServer, state: BrokerState, commits: Commits, now_ms: Callable[[], int]
    ) -> None:
        self._log = log
        self._state = state
        self._commits = commits
        self._now_ms = now_ms
        self._is_waiting = False

    def tick(self) -> None:
        """Deliver what is due; called every 50 ms or so."""
        if self._is_waiting or not self._log.is_serving or self._commits.is_full:
            return
        due = self._state.schedule.due(self._now_ms(), DELIVERIES_MAX)
        if not due:
            return
        by_level: dict[int, list[DueMessage]] = {}
        for message in due:
            by_level.setdefault(message.level, []).append(message)
        place = -1
        for level, messages in by_level.items():
            for message in messages:
                self._stage(message)
            first, end = messages[0].queue_offset, messages[-1].queue_offset + 1
            place = self._commits.stage_control(AdvanceSchedule(level, first, end))
        self._is_waiting = True
        self._commits.wait(place, self)

    def _stage(self, due: DueMessage) -> None:
        try:
            message = read_message(self._log, due.physical_offset)
        except MessageGoneError as error:
            _log.warning("a delayed message cannot be delivered, it is gone: %s", error)
            return
        target = delivery(message)
        if target is None:
            _log.warning("the delayed message at %d names no topic to go to", due.physical_offset)
            return
        self._commits.staging.stage(
            target.topic,
            target.queue_id,
            message.body,
            target.properties,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            sys_flag=message.sys_flag,
            flag=message.flag,
            reconsume_times=message.reconsume_times,
        )

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`: more may be due already."""
        self._is_waiting = False
        self.tick()

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`: the fold knows what was delivered; whoever leads goes on from there."""
        self._is_waiting = False
