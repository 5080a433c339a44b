"""Reading one queue: pull after pull, from where the group stands, over the deaths of leaders.

A reader knows the next offset itself, so a broken connection costs nothing but time: it asks another
node of the group for exactly the same offset. It never skips on its own account. The broker may say that
an offset lies outside the queue; below its start that is believed at once (retention removed it), beyond
its end only when it is said again and again for a while, since a node that just came up may not have
applied everything yet.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from dledger_mq.client.errors import (
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.group_requests import GroupRequests, PullAnswer
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.process_queue import FlowLimits, ProcessQueue
from dledger_mq.client.rates import Rate
from dledger_mq.client.retry import QuickAnswers, backoff_s
from dledger_mq.client.session import Session, is_transient
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.net.loop import Event
from dledger_mq.remoting.codes import ResponseCode

HOLD_S: Final = 15.0  # what brokers are asked to hold an empty pull; the Java client's
PULL_BATCH: Final = 32
PAUSE_AFTER_REFUSAL_S: Final = 0.5
PAUSE_ON_FLOW_CONTROL_S: Final = 0.02
BEYOND_END_BELIEVED_S: Final = 3.0  # longer than an election with the start of its winner
LOGGED_AGAIN_S: Final = 60.0  # a refusal that stays is one line in so long a time

_NEEDS_HEARTBEAT: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """The settings of pulling: messages in one pull, seconds between pulls, limits at which it pauses."""

    batch: int = PULL_BATCH
    interval_s: float = 0.0
    limits: FlowLimits = FlowLimits()


class QueueReader:
    """The reader of one assigned queue. `run` is its task.

    Attributes:
        held: what was handed out and not finished, and where to go on.
        waiting: messages that an ordered consumer has not begun.
        is_worked_on: a task of the ordered consumer works on `waiting`.
        is_paused: nothing is pulled; what was pulled before is still handed out.
        is_released: the queue belongs to somebody else, or will soon: nothing more is handed out, and
            what waits is not begun.
    """

    def __init__(
        self,
        session: Session,
        requests: GroupRequests,
        subscription: TopicSubscription,
        held: ProcessQueue,
        *,
        pull: PullSettings,
        on_messages: Callable[[QueueReader, tuple[ReceivedMessage, ...]], None],
    ) -> None:
        self.held = held
        self.subscription = subscription
        self.waiting: deque[ReceivedMessage] = deque()
        self.is_worked_on = False
        self.is_released = False
        self.is_paused = False
        self.resets = 0  # how often the broker moved the offset
        self.deleted_unread = 0  # messages that the brokers had deleted when they were to be pulled
        self.pulls = Rate()
        self.pulled_at_ms = self.consumed_at_ms = 0
        self._session = session
        self._requests = requests
        self._pull = pull
        self._on_messages = on_messages
        self._running = 0  # calls of the handler
        self._begun: dict[
            QueueOffset, tuple[ReceivedMessage, float]
        ] = {}  # with the handler, since
        self._changed: Event | None = None  # of a task that waits
        self._now, self._new_event = session.loop.now, session.loop.new_event
        self._scope = anyio.CancelScope()
        self._quick = QuickAnswers()
        self._beyond_end_since: float | None = None
        self._logged: tuple[int, float] | None = None  # the refusal that was logged last, and when

    def begin(self, messages: Iterable[ReceivedMessage]) -> bool:
        """Ask to handle messages now; False when the queue was released meanwhile."""
        if self.is_released:
            return False
        now, begun = self._now(), self._begun
        self._running += 1
        for message in messages:
            begun[message.queue_offset] = (message, now)
        return True

    def end(self, messages: Iterable[ReceivedMessage], finished: Iterable[QueueOffset]) -> None:
        """Say that messages begun before left the handler, and which offsets are finished."""
        self._running -= 1
        assert self._running >= 0, f"a handler of {self.held.queue} ends that never began"
        self.consumed_at_ms = time.time_ns() // 1_000_000
        leave = self._begun.pop
        for message in messages:
            leave(message.queue_offset, None)
        self.held.finish(finished)
        if self._changed is not None:
            self._notify()

    def finish(self, offset: QueueOffset) -> None:
        """Say that a message is finished although the handler still has it."""
        self.held.finish((offset,))
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def _wait_changed(self) -> None:
        if self._changed is None:
            self._changed = self._new_event()
        await self._changed.wait()

    def overdue(self, timeout_s: float, count: int) -> Sequence[ReceivedMessage]:
        """Return the oldest unfinished messages, as far as the handler has them for too long."""
        now = self._now()
        found: list[ReceivedMessage] = []
        for offset in self.held.first_offsets(count):
            message, since = self._begun.get(offset, (None, now))
            if message is None or now - since < timeout_s:
                break
            found.append(message)
        return found

    def pause(self, *, is_paused: bool) -> None:
        """Pause pulling, or resume it."""
        self.is_paused = is_paused
        self._notify()

    def release(self) -> None:
        """Stop pulling, and begin nothing more."""
        self.is_released = True
        self._scope.cancel()

    async def wait_handled(self, timeout_s: float) -> bool:
        """Wait until the handler has nothing of this queue; return whether that came in time."""
        with anyio.move_on_after(timeout_s):
            while self._running:
                await self._wait_changed()
        return not self._running

    async def run(self) -> None:
        """Pull until released."""
        failures = 0
        with self._scope:
            while True:
                await self._wait_for_room()
                address = await self._session.routes.find(
                    self.held.queue.broker_name, ask=failures > 0
                )
                if address is None:
                    failures += 1
                    nobody = NoRouteError(self.held.queue.topic, "no node of its group is known")
                    await self._recover(nobody, None, failures)
                    continue
                asked_at = self._now()
                try:
                    answer = await self._requests.pull(
                        address,
                        self.held.queue,
                        self.held.next_offset,
                        self.subscription,
                        max_messages=self._pull.batch,
                        hold_s=HOLD_S,
                    )
                except (ConnectionLostError, RequestTimeoutError, RequestFailedError) as error:
                    failures += 1
                    await self._recover(error, address, failures)
                else:
                    failures = 0
                    now = self._now()
                    self.pulls.add(now, len(answer.messages), now - asked_at)
                    self.pulled_at_ms = time.time_ns() // 1_000_000
                    place = self.held.next_offset
                    await self._take(answer)
                    if answer.messages or self.held.next_offset != place:
                        self._quick.forget()
                    elif pause_s := self._quick.pause_s(now - asked_at):
                        await anyio.sleep(pause_s)

    async def _wait_for_room(self) -> None:
        while self.is_paused or self.held.is_full(self._pull.limits):
            await self._wait_changed()

    async def _recover(self, error: ClientError, address: str | None, failures: int) -> None:
        """Pause for a time that depends on the failure, and prepare the next try."""
        queue = self.held.queue
        log.debug("pull of %s at %s failed: %s", queue, self.held.next_offset, error)
        code = error.code if isinstance(error, RequestFailedError) else None
        if isinstance(error, RequestFailedError) and not is_transient(error.code):
            self._log_refusal(error)
        if code == ResponseCode.FLOW_CONTROL:
            await anyio.sleep(PAUSE_ON_FLOW_CONTROL_S)
        elif code is None or is_transient(code) or code == ResponseCode.SYSTEM_ERROR:
            if address is not None:
                self._session.routes.report_failure(queue.broker_name, address)
            await anyio.sleep(backoff_s(failures))
        else:
            if code in _NEEDS_HEARTBEAT:
                await self._session.beat()
            await anyio.sleep(PAUSE_AFTER_REFUSAL_S)

    def _log_refusal(self, refusal: RequestFailedError) -> None:
        """Log a refusal, unless the same code was logged lately: nothing else says why no message comes."""
        now = self._now()
        code, logged_at = self._logged or (None, 0.0)
        if code == refusal.code and now - logged_at < LOGGED_AGAIN_S:
            return
        self._logged = (refusal.code, now)
        log.warning("pull of %s refused, tried again: %s", self.held.queue, refusal)

    async def _take(self, answer: PullAnswer) -> None:
        """Take in a pull's answer; messages are noted as held before they are handed on: none is committed early."""
        if self.is_paused:
            return  # while this pull was held; it is repeated
        if answer.is_offset_wrong:
            await self._on_wrong_offset(answer)
            return
        self._beyond_end_since = None
        messages = answer.messages
        self.held.add(
            [message.queue_offset for message in messages],
            [len(message.body) for message in messages],
            answer.next_offset,
        )
        if messages:
            self._on_messages(self, messages)
        # An answer may come without any wait for the network: let others run.
        await anyio.sleep(self._pull.interval_s)

    async def _on_wrong_offset(self, answer: PullAnswer) -> None:
        """Go on where the broker says, but beyond the end only after BEYOND_END_BELIEVED_S of hearing the same."""
        held, now = self.held, self._now()
        # A broker that moves us although our offset is inside was asked to: an operator's reset (E8).
        is_beyond_end = answer.next_offset < held.next_offset > answer.max_offset
        if is_beyond_end:
            if self._beyond_end_since is None:
                self._beyond_end_since = now
            if now - self._beyond_end_since < BEYOND_END_BELIEVED_S:
                await anyio.sleep(backoff_s(4))
                return
        unread = max(0, min(answer.min_offset, answer.next_offset) - held.next_offset)
        log.warning(
            "%s: offset %d is outside the queue (%d to %d), going on at %d%s",
            held.queue,
            held.next_offset,
            answer.min_offset,
            answer.max_offset,
            answer.next_offset,
            f": {unread} messages were deleted before they were read" if unread else "",
        )
        self.deleted_unread += unread
        self._beyond_end_since = None
        self.resets += 1
        self.waiting.clear()
        held.reset(answer.next_offset)
