"""Delivers messages at their due times while this node leads, and takes them back (rules N; 370).

The real messages and the record that names them are one entry, so there is no crash between them. What is
being recalled is not delivered until the log has spoken, so a recall that came in time always succeeds, and
one that came too late is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from broker.server.deliveries.deliveries import (
    AGAIN_MS,
    DELIVERIES_MAX,
    Deliverer,
    DeliveryPause,
)
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.service.timers import RecallRules
from broker.store.control import DeliverTimers, RecallTimer
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.timers import PendingTimer, recall_key, timer_of
from dledger import DLedgerError, EntryDamagedError, LogServer
from dledger_mq.message.names import TIMER_TOPIC
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import REAL_TOPIC, TIMER_DEQUEUE_MS, UNIQ_KEY, encode_property
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

CANDIDATES_MAX: Final = 256
"""Messages under one key that a recall looks at, the newest; RocketMQ's clients give each its own."""

_TIME_MAX: Final = 2**62


class TimerDeliveries:
    """Delivers timed messages when they are due, and carries out recalls."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        rules: RecallRules,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the delivery of timed messages; `now_ms` is never before the log's last store time."""
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._rules = rules
        self._now_ms = now_ms
        self._is_waiting = False
        self._pause = DeliveryPause("timed messages")
        self._recalling: dict[PendingTimer, int] = {}

    def wait_ms(self) -> int | None:
        """See `DeliveringTask`."""
        if not self._log.is_serving:
            return None
        if self._is_waiting or self._pause.is_paused:
            return AGAIN_MS
        next_ms = self._state.timers.next_due_ms()
        return None if next_ms is None else next_ms - self._now_ms()

    def tick(self) -> None:
        """Deliver timed messages that are due; one batch at a time, so that what is pending is always the fold's."""
        if self._is_waiting or not self._log.is_serving or self._commits.is_full:
            return
        now_ms = self._now_ms()
        due = self._state.timers.due(now_ms, DELIVERIES_MAX + len(self._recalling))
        if not due:  # what this node waited for, another leader may have delivered
            self._pause.end()
            return
        deliverer = Deliverer(self._log, self._commits)
        more = encode_property(TIMER_DEQUEUE_MS, b"%d" % now_ms)
        delivered: list[tuple[int, PhysicalOffset]] = []
        for timer in due:
            if timer in self._recalling:
                continue
            if deliverer.is_full or len(delivered) == DELIVERIES_MAX:
                break
            assert timer.due_ms <= now_ms, f"{timer} would be delivered at {now_ms} ms"
            assert not delivered or delivered[-1] < timer, f"{timer} comes after {delivered[-1]}"
            try:
                deliverer.stage(timer.physical_offset, more)
            except EntryDamagedError as error:
                self._pause.pause(error)
                break
            self._pause.end()
            delivered.append((timer.due_ms, timer.physical_offset))
        if delivered:
            place = self._commits.stage_control(DeliverTimers(delivered))
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

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        return (
            Handler(RequestCode.RECALL_MESSAGE, self.recall, RequestKind.UPDATE, is_confirmed=True),
        )

    def recall(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out RECALL_MESSAGE: answered with the outcome, once the log has it.

        Raises:
            FieldError: a field is missing.
            EntryDamagedError: what is meant cannot be read now; nothing was done.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        ext = command.ext
        handle = self._rules.decide(fields.text(ext, "topic"), fields.text(ext, "recallHandle"))
        if isinstance(handle, Refusal):
            request.answer(handle.code, handle.remark)
            return
        key = recall_key(handle.topic.encode(), handle.unique_key.encode())
        meant = self._meant(handle)
        # With nothing to take back the log is asked nevertheless: only it knows that a node still leads.
        record = RecallTimer(handle.due_ms, key, [timer.physical_offset for timer in meant])
        place = self._commits.stage_control(record)
        for timer in meant:
            self._recalling[timer] = self._recalling.get(timer, 0) + 1
        self._router.when_committed(
            request,
            place,
            partial(self._recalled, request, handle.unique_key),
            ended=lambda _error: self._release(meant),
        )

    def _meant(self, handle: RecallHandle) -> list[PendingTimer]:
        """Find the messages that a recall handle can mean, newest first; the fold decides if they are still pending."""
        wanted = (handle.topic.encode(), handle.unique_key.encode())
        found = []
        offsets = self._state.key_index.candidates(TIMER_TOPIC, handle.unique_key, 0, _TIME_MAX)
        for offset in islice(offsets, CANDIDATES_MAX):
            try:
                message = read_message(self._log.reader, offset)
            except MessageGoneError:
                continue
            timer = timer_of(message)
            is_meant = (message.find(REAL_TOPIC), message.find(UNIQ_KEY)) == wanted
            if is_meant and timer is not None and timer.due_ms == handle.due_ms:
                found.append(timer)
        return found

    def _recalled(
        self, request: PendingRequest, unique_key: str, staged: StagedEntry, place: int
    ) -> None:
        if self._state.timers.was_recalled(staged.physical_offset(place)):
            request.answer(ResponseCode.SUCCESS, ext={"msgId": unique_key})
        else:
            request.answer(
                ResponseCode.NO_MESSAGE,
                "recall failed, no such message is pending: it was delivered, or never stored",
            )

    def _release(self, meant: list[PendingTimer]) -> None:
        """Let messages be delivered again whose recall is decided, one way or the other."""
        for timer in meant:
            count = self._recalling.pop(timer, 0) - 1
            assert count >= 0, f"{timer} is released, and nobody recalls it"
            if count:
                self._recalling[timer] = count
