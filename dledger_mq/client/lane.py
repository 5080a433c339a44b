"""The way of sends to one broker group: in order, in batches, over the deaths of leaders.

A lane has one connection, to the node that it takes for the leader, and two lists: *waiting* (to be
transmitted) and *in flight* (transmitted, unanswered). Everything that is queued within one turn of the
event loop leaves in one system call.

Order. Sends are transmitted in the order of their submission. When the connection breaks, or an answer
asks for another try, the lane stops transmitting, collects what is unanswered, puts it back in front of
what waits, in the old order, finds the leader and starts over. The broker group recognises by the UNIQ_KEY
what it has already. Since a leader stores what comes over one connection in its order, and a new leader
knows a prefix of that, sends of one producer to one queue keep their order over failovers. (Only an
overloaded broker that refuses one message and takes the next can change it, and only for sends that were
in flight together.)

Outcome. A send ends as a result, as surely not stored, or as unknown: unknown if any of its tries may
have stored it and none was answered with success before its deadline.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from dledger_mq.client.credentials import Credentials, with_sender
from dledger_mq.client.deadline_watch import DeadlineWatch
from dledger_mq.client.errors import (
    ConnectionLostError,
    SendError,
    SendOutcomeUnknownError,
    SendRefusedError,
)
from dledger_mq.client.messages import SendResult
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.retry import SEND_STATUS, SendVerdict, backoff_s, judge
from dledger_mq.client.send_frames import SendAnswer, SendAnswerFields, decode_answer
from dledger_mq.client.send_notes import SendNote
from dledger_mq.client.wire import Wire, open_wire
from dledger_mq.message.numbers import QueueId
from dledger_mq.net.loop import Event, Loop
from dledger_mq.remoting.codes import is_definite
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import FLAG_RESPONSE

IN_FLIGHT_MAX: Final = 4096  # messages; more would only wait in the broker's queue instead of ours
IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
SETTLE_S: Final = 0.5  # how long the other answers are waited for before sends are repeated
QUIET_S: Final = 0.25  # no answer for so long: ask who leads, again and again
STUCK_S: Final = 3.0  # no answer for so long: try another node
ATTEMPTS_MAX: Final = 2**31  # no bound but the deadline
_NO_QUEUE: Final = QueueId(-1)
IDLE_CLOSE_S: Final = 100.0  # brokers close connections that are silent for 120 s


class PendingSend(msgspec.Struct, eq=False):
    """A send that has been submitted. `wait` returns its result or raises its error.

    Attributes:
        queue: where the message goes.
        unique_key: its UNIQ_KEY, the same in every try.
        frame: the whole request; each further try is the same.
        opaque: the request's number.
        deadline: on the loop's clock.
        is_oneway: no answer is awaited.
        attempts, attempts_max: tries so far, and the bound on them, the first one included.
        new_event: makes the event on which a caller waits.
        sequence: its place in the lane.
        submitted_at: on the loop's clock; only where hooks want to know.
        note: for the trace; only where one is written.
        last_code, last_remark: the last answer that was not a success.
        may_be_stored: some try may have stored it.
        result, error: its end, one of them; None while it has none.
        on_done: called at the end.
    """

    queue: MessageQueue
    unique_key: str
    frame: bytes
    opaque: int
    deadline: float
    is_oneway: bool = False
    attempts_max: int = ATTEMPTS_MAX
    new_event: Callable[[], Event] = anyio.Event
    sequence: int = 0
    submitted_at: float = 0.0
    note: SendNote | None = None
    attempts: int = 0
    last_code: int | None = None
    last_remark: str = ""
    may_be_stored: bool = False
    result: SendResult | None = None
    error: SendError | None = None
    on_done: Callable[[PendingSend], None] | None = None
    _done: Event | None = None

    def __repr__(self) -> str:
        return f"<PendingSend {self.unique_key} to {self.queue}>"

    @property
    def is_done(self) -> bool:
        """True once it has ended, one way or the other."""
        return self.result is not None or self.error is not None

    async def wait(self) -> SendResult:
        """Wait for the end of the send.

        Raises:
            SendRefusedError: surely not stored.
            SendOutcomeUnknownError: may be stored.
        """
        if not self.is_done:
            if self._done is None:
                self._done = self.new_event()
            await self._done.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None, f"the send {self.unique_key} is done without an end"
        return self.result

    def settle(self) -> None:
        """Wake the waiting task. Called by the lane once result or error is set."""
        if self._done is not None:
            self._done.set()
        if self.on_done is not None:
            self.on_done(self)

    def describe_failure(self, why: str) -> SendError:
        """Return the error that its history leads to."""
        code = self.last_code
        said = f"; last answer {code}: {self.last_remark}" if code is not None else ""
        kind: type[SendError] = SendOutcomeUnknownError if self.may_be_stored else SendRefusedError
        stored = "may be stored" if self.may_be_stored else "is not stored"
        return kind(
            f"{why} after {self.attempts} tries: message {self.unique_key} to {self.queue} "
            f"{stored}{said}",
            topic=self.queue.topic,
            unique_key=self.unique_key,
            code=code,
            attempts=self.attempts,
        )


class LeaderFinder(Protocol):
    """The knowledge of leaders that lanes need (`routes.py`)."""

    async def find(self, broker_name: str, *, ask: bool) -> str | None:
        """Return the address to try next; None when no node of the group is known.

        Args:
            broker_name: the group.
            ask: whether to ask the name servers before, because what is known has just failed.
        """
        ...

    def report_failure(self, broker_name: str, address: str) -> None:
        """Take note that a node could not help, so that others are tried before it."""
        ...


class Lane:
    """Sends to one broker name. `run` is its task; `submit` is for everybody."""

    def __init__(
        self,
        broker_name: str,
        finder: LeaderFinder,
        on_settled: Callable[[Sequence[PendingSend]], None],
        loop: Loop,
        *,
        tls: ssl.SSLContext | None = None,
        on_request: Callable[[Wire, Frame], None] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.broker_name = broker_name
        self.failures = 0  # in a row, without a success between
        self.address: str | None = None  # of the node in use
        self._now, self._new_event = loop.now, loop.new_event
        self._tls = tls
        self._credentials = credentials
        self._finder = finder
        self._on_settled = on_settled
        self._on_request = on_request
        self._waiting: deque[PendingSend] = deque()
        self._in_flight: dict[int, PendingSend] = {}
        self._in_flight_bytes = 0
        self._again: list[PendingSend] = []  # answered, to be tried again
        self._must_move = False  # another node is wanted
        self._is_asking = False  # who leads, while a connection is open
        self._has_ended = False
        self._wake = self._new_event()
        self._deadlines = DeadlineWatch(loop, self._expire)
        self._sequence = 0
        self._wire: Wire | None = None
        self._received_at = 0.0

    @property
    def is_healthy(self) -> bool:
        """True unless the last attempt failed."""
        return not self.failures

    @property
    def pending_count(self) -> int:
        """Sends that have not ended."""
        return len(self._waiting) + len(self._in_flight) + len(self._again)

    def submit(self, pending: PendingSend, *, at_once: bool = False) -> None:
        """Queue a send; it leaves with everything else of this turn, or, with `at_once`, now.

        Where others are in flight, more are likely to come in this turn, and a system call for each costs more than
        the turn: then it leaves with them, unless the lane's task asks name servers, which may last.
        """
        self._sequence += 1
        pending.sequence = self._sequence
        self._waiting.append(pending)
        if self._has_ended:  # its producer is being cancelled: nobody would look at it
            self._fail_waiting()
            return
        self._deadlines.set(pending.deadline)
        is_alone = not self._in_flight or self._is_asking
        if at_once and self._wire is not None and is_alone and not self._again:
            self._transmit(self._wire)
        self._wake.set()

    def abandon(self, pending: PendingSend) -> None:
        """Drop a send that was never transmitted; one that was goes on unobserved."""
        if not pending.attempts and not pending.is_done:
            self._waiting.remove(pending)
            self._fail(pending, "the caller gave up")

    async def run(self) -> None:
        """Carry out sends until cancelled; then whatever is unfinished ends in its error."""
        try:
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(self._deadlines.run)
                while True:
                    if self._waiting:
                        await self._use_one_connection(nursery)
                    else:
                        await self._sleep_until_woken(math.inf)
        finally:
            self._has_ended = True
            self._collect()
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        while self._waiting:
            self._fail(self._waiting.popleft(), "the producer was closed")

    async def _sleep_until_woken(self, seconds: float) -> bool:
        """Wait for a submission, an answer that matters, or the time. False: the time is over."""
        with anyio.move_on_after(seconds) as scope:
            await self._wake.wait()
        self._wake = self._new_event()
        return not scope.cancelled_caught

    async def _use_one_connection(self, outer: TaskGroup) -> None:
        """Find the leader, send there until something fails, put back what is unanswered."""
        if self.failures:
            await anyio.sleep(backoff_s(self.failures))
        address = await self._finder.find(self.broker_name, ask=self.failures > 0)
        self.address = address
        if address is None:
            self.failures += 1
            return
        wire: Wire | None = None
        try:
            wire = await open_wire(address, outer, tls=self._tls)
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(wire.serve, self._on_frames)
                self._wire, self._received_at = wire, self._now()
                await self._conduct(wire)
                nursery.cancel_scope.cancel()
        except* ConnectionLostError:
            self._must_move = True
        finally:
            if wire is not None:
                wire.close()
            self._wire = None
            self._collect()
        if self._must_move:
            self._must_move = False
            self.failures += 1
            self._finder.report_failure(self.broker_name, address)

    async def _conduct(self, wire: Wire) -> None:
        """Transmit sends as they come, until another node is wanted or there is nothing to do for long."""
        while True:
            if self._again:
                await self._settle()
                if self._must_move:
                    return
                self._collect()
                self.failures += 1
                await anyio.sleep(backoff_s(self.failures))
            self._transmit(wire)
            if not self._in_flight:
                if not await self._sleep_until_woken(IDLE_CLOSE_S) and not self._waiting:
                    return
            elif not await self._sleep_until_woken(QUIET_S) and await self._is_stuck():
                self._must_move = True
                return

    async def _settle(self) -> None:
        """Wait a little for the other answers on this connection."""
        with anyio.move_on_after(SETTLE_S):
            while self._in_flight:
                self._wake = self._new_event()
                await self._wake.wait()

    async def _is_stuck(self) -> bool:
        """Return whether the silence of this node is a reason to leave it."""
        silence_s = self._now() - self._received_at
        if silence_s < QUIET_S:
            return False
        if silence_s >= STUCK_S:
            return True
        self._is_asking = True
        try:
            leader = await self._finder.find(self.broker_name, ask=True)
        finally:
            self._is_asking = False
        return leader is not None and leader != self.address

    def _transmit(self, wire: Wire) -> None:
        """Put the sends that wait and are not too late on the connection, in one system call, up to the limits."""
        waiting, in_flight = self._waiting, self._in_flight
        frames: list[bytes] = []
        now = self._now()
        while waiting and len(in_flight) < IN_FLIGHT_MAX:
            if self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
                break
            pending = waiting.popleft()
            if pending.deadline <= now:
                self._fail(pending, "the time was over")
                continue
            if pending.attempts >= pending.attempts_max:
                self._fail(pending, f"tried {pending.attempts} times")
                continue
            pending.attempts += 1
            frames.append(pending.frame)
            if pending.is_oneway:
                self._end_stored(pending, "SEND_OK", SendAnswerFields())
                self._on_settled([pending])
                continue
            if not in_flight:
                self._received_at = now
            opaque = pending.opaque
            assert opaque not in in_flight, f"{opaque} is the number of two sends"
            in_flight[opaque] = pending
            self._in_flight_bytes += len(pending.frame)
        if frames:
            wire.send_nowait(frames[0] if len(frames) == 1 else b"".join(frames))

    def _on_frames(self, frames: list[Frame]) -> None:
        """Settle the sends that these frames answer, and wake the lane only if it has something to do (hot path)."""
        self._received_at = self._now()
        was_full = len(self._in_flight) >= IN_FLIGHT_MAX or (
            self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX
        )
        stored: list[PendingSend] = []
        try:
            for frame in frames:
                answer = decode_answer(frame)
                if not answer.flag & FLAG_RESPONSE:
                    if self._on_request is not None and self._wire is not None:
                        self._on_request(self._wire, frame)
                    continue
                pending = self._in_flight.get(answer.opaque)
                if pending is None:
                    continue  # its deadline has passed
                status = SEND_STATUS.get(answer.code)
                is_stored = status is not None and answer.fields is not None
                if is_stored and pending.note is not None:  # may raise: then it is still in flight
                    pending.note.answered(frame.header, self.address or "")
                del self._in_flight[answer.opaque]
                self._in_flight_bytes -= len(pending.frame)
                if status is not None and answer.fields is not None:
                    self._end_stored(pending, status, answer.fields)
                    stored.append(pending)
                else:
                    self._refused(pending, answer)
        finally:
            if stored:
                self.failures = 0
                self._on_settled(stored)
        if self._again or not self._in_flight or was_full:
            self._wake.set()

    def _refused(self, pending: PendingSend, answer: SendAnswer) -> None:
        """Decide on another try, here or elsewhere, or the failure.

        An indefinite code leaves the send as perhaps stored.
        """
        pending.last_code = answer.code
        pending.last_remark = with_sender(answer.remark or "", self._credentials)
        if not is_definite(answer.code):
            pending.may_be_stored = True
        match judge(answer.code, pending.attempts, pending.last_remark):
            case SendVerdict.AGAIN_HERE:
                self._again.append(pending)
            case SendVerdict.AGAIN_ELSEWHERE:
                self._again.append(pending)
                self._must_move = True
            case (
                SendVerdict.GIVE_UP | SendVerdict.DONE
            ):  # done without the fields that would say where
                self._fail(pending, "the broker refused it")

    def _end_stored(self, pending: PendingSend, status: str, fields: SendAnswerFields) -> None:
        """End a send as stored, but for the account of the producer; a send ends once only."""
        assert pending.result is None, f"{pending.unique_key} ends twice"
        assert pending.error is None, f"{pending.unique_key} ends twice"
        queue, queue_id = pending.queue, fields.queue_id
        if queue_id != queue.queue_id and queue_id != _NO_QUEUE:  # the broker chose
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        pending.result = SendResult(
            status,
            pending.unique_key,
            fields.msg_id,
            queue,
            fields.queue_offset,
            fields.transaction_id,
            fields.recall_handle,
            fields.rows_stored,
            fields.newer_batch,
        )
        pending.settle()

    def _fail(self, pending: PendingSend, why: str) -> None:
        assert pending.result is None, f"{pending.unique_key} ends twice"
        assert pending.error is None, f"{pending.unique_key} ends twice"
        pending.error = pending.describe_failure(why)
        pending.settle()
        self._on_settled([pending])

    def _collect(self) -> None:
        """Put everything unfinished back in front of what waits, in the order of submission."""
        for pending in self._in_flight.values():
            pending.may_be_stored = True
        unfinished = sorted(
            [*self._in_flight.values(), *self._again], key=lambda pending: pending.sequence
        )
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._again.clear()
        if unfinished and self._waiting:
            last, first = unfinished[-1].sequence, self._waiting[0].sequence
            assert last < first, f"send {last} was transmitted before send {first}, which waits"
        self._waiting.extendleft(reversed(unfinished))

    def _expire(self, now: float) -> float:
        """End the sends whose deadline has come; return the earliest deadline of the others."""
        late = [p for p in self._in_flight.values() if p.deadline <= now]
        for pending in late:
            del self._in_flight[pending.opaque]
            self._in_flight_bytes -= len(pending.frame)
            pending.may_be_stored = True
        late += [p for p in (*self._again, *self._waiting) if p.deadline <= now]
        self._again = [p for p in self._again if p.deadline > now]
        self._waiting = deque(p for p in self._waiting if p.deadline > now)
        unfinished = (*self._in_flight.values(), *self._again, *self._waiting)
        earliest = min((p.deadline for p in unfinished), default=math.inf)
        for pending in sorted(late, key=lambda pending: pending.sequence):
            self._fail(pending, "no answer in time" if pending.attempts else "no broker in time")
        self._wake.set()
        return earliest
