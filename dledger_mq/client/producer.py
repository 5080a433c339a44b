"""Sending messages: each send ends as stored, surely not stored, or unknown.

    async with Producer(namesrv="127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("Orders", b"one"), key="customer-7")

`send` waits for its own answer. For throughput, `submit` (or `send_nowait`) hands back a `PendingSend` at
once and many are in flight together; everything submitted between two turns of the event loop leaves in
one system call. Sends to one queue keep their order, also over the death of a leader (see `lane.py`).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.arguments import (
    check_callable,
    check_group,
    check_key,
    check_queue,
    check_seconds,
    check_text,
    check_topic,
    wrong_type,
)
from dledger_mq.client.errors import (
    ClientUsageError,
    InvalidMessageError,
    NoReplyError,
    RequestFailedError,
    SendError,
)
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.lane import Lane, PendingSend
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.link import Link
from dledger_mq.client.messages import (
    Message,
    ReceivedMessage,
    SendResult,
    check_message,
)
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.producer_settings import ProducerOptions, ProducerSettings
from dledger_mq.client.queues import (
    MessageQueue,
    QueueSelector,
    RoundRobin,
    queue_for_group,
    queue_for_key,
)
from dledger_mq.client.replies import AwaitedReply, OpenQuestions
from dledger_mq.client.send_maker import SendMaker
from dledger_mq.client.session import Session, raise_for
from dledger_mq.client.trace_writer import (
    TRACE_GROUP,
    TRACE_TIMEOUT_S,
    TraceStatistics,
    TraceWriter,
)
from dledger_mq.client.wire import Wire
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.recall_handle import HandleError, RecallHandle
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command
from dledger_mq.remoting.heartbeat import Heartbeat

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The counts of a producer.

    Attributes:
        pending: sends that have not ended.
        pending_bytes: their frames together.
        succeeded, refused, unknown: ended sends by outcome.
        failures: per broker name, failures in a row just now; 0 means healthy.
        trace: of its trace records; None: it writes none.
    """

    pending: int
    pending_bytes: int
    succeeded: int
    refused: int
    unknown: int
    failures: dict[str, int]
    trace: TraceStatistics | None = None


class Producer(Lifetime):
    """Sends messages to the brokers that the name servers know. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the producer group's name.
        options: `timeout_s`, `pending_max`, `pending_bytes_max`, `instance`, `retries`, `compress_from_bytes`,
            `compress_level`, `message_bytes_max`, `default_queues`, `serializer`, `hooks`, `trace`,
            `trace_topic`, `tls`, `credentials`; see `ProducerSettings`.
    """

    def __init__(self, namesrv: str, group: str, **options: Unpack[ProducerOptions]) -> None:
        self.group = check_group(group)
        self._name_servers = parse_name_servers(namesrv)
        self._settings = settings = ProducerSettings(**options)
        self.timeout_s = settings.timeout_s
        self.pending_max = settings.pending_max
        self._pending_bytes_max = settings.pending_bytes_max
        self._body_bytes_max = settings.message_bytes_max
        self._maker = SendMaker(group, settings)
        self._turn = RoundRobin()
        self._lanes: dict[str, Lane] = {}
        self._questions = OpenQuestions()
        self._pending = 0
        self._pending_bytes = 0
        self._succeeded = self._refused = self._unknown = 0
        self._room: anyio.Event | None = None
        self._drained: anyio.Event | None = None
        self._now: Callable[[], float] = time.monotonic  # the loop's, once it is entered
        self._tracer: TraceWriter | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Open the session for the body; all sends are flushed before it closes, unless the body raised."""
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as nursery:
                self._open(nursery)
                try:
                    yield
                    await self.flush()
                except Exception as error:  # noqa: BLE001 - the caller's own, raised again below without a group around it
                    failure = error
                await self._close()
                nursery.cancel_scope.cancel()
        finally:
            self._maker.session = None  # also of a block that was cancelled: its lanes have ended
        if failure is not None:
            raise failure

    def _open(self, nursery: TaskGroup) -> None:
        """Open a session, the tasks of which run in `nursery`."""
        session = Session(
            self._name_servers,
            nursery,
            instance=self._settings.instance,
            heartbeat=self._make_heartbeat,
            tls=self._settings.tls,
            credentials=self._settings.credentials,
        )
        self._maker.open(session)
        self._now = session.loop.now
        self._lanes = {}  # those of an earlier life have ended
        session.handle(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)
        self._opened(session)
        session.routes.default_queues = self._settings.default_queues
        session.start()
        self._start_trace(nursery)

    async def _close(self) -> None:
        """Say to the brokers that we leave, and take no more sends."""
        if self._tracer is not None:
            await self._tracer.close()
        with anyio.move_on_after(1):
            await self._live().unregister(producer_group=self.group)
        self._maker.session = None

    def _start_trace(self, nursery: TaskGroup) -> None:
        """Let a task write the trace, where one is wanted."""
        settings = self._settings
        self._tracer = None
        if settings.trace:
            self._tracer = writer = TraceWriter(settings.trace_topic)
            make = partial(make_trace_producer, self._name_servers, settings.tls)
            nursery.start_soon(writer.run, make, name="trace")

    def _opened(self, session: Session) -> None:
        """Prepare a session that has not started yet; for subclasses."""

    def _make_heartbeat(self) -> Heartbeat | None:
        session = self._maker.session
        if session is None:
            return None  # it is being closed
        return Heartbeat(client_id=session.client_id, producer_groups=(self.group,))

    def _live(self) -> Session:
        return self._maker.live_session()

    @property
    def client_id(self) -> str:
        """The name by which brokers know this producer."""
        return self._live().client_id

    def statistics(self) -> ProducerStatistics:
        """Return what has been done so far."""
        return ProducerStatistics(
            self._pending,
            self._pending_bytes,
            self._succeeded,
            self._refused,
            self._unknown,
            {name: lane.failures for name, lane in self._lanes.items()},
            None if self._tracer is None else self._tracer.statistics(),
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that take messages, in Java's order.

        Waits up to `timeout_s` for name servers that do not answer yet, and for the first broker.

        Raises:
            NoRouteError: nobody serves the topic, nor may it be created.
            NameServersUnreachableError: no name server answers.
        """
        return await self._publish_queues(check_topic(topic), self.timeout_s)

    def message(
        self,
        topic: str,
        value: object,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_ms: int = 0,
        message_group: str | None = None,
    ) -> Message:
        """Make a message whose body is what the producer's `serializer` makes of a value.

        Raises:
            ClientUsageError: the producer has no serializer.
            InvalidMessageError: the serializer made no bytes, or another argument has a wrong type.
        """
        serializer = self._settings.serializer
        if serializer is None:
            raise ClientUsageError("this producer was given no serializer")
        return Message(
            topic,
            serializer(value),
            tags=tags,
            keys=keys,
            properties=properties or {},
            delay_ms=delay_ms,
            message_group=message_group,
        )

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored.

        The queue is `queue`, or chosen by `selector`, or the one that belongs to `key` (messages of
        one key keep their order), or to its message group, or the next in turn. Cancelling leaves the outcome unknown.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            NoRouteError, NameServersUnreachableError: nothing was sent.
            SendRefusedError: surely not stored.
            SendOutcomeUnknownError: may be stored.
        """
        deadline = self._deadline(timeout_s)
        check_message(message, self._body_bytes_max)
        target = self._choose_at_once(message, queue=queue, key=key, selector=selector)
        if target is None:
            target = await self._choose(
                message, queue=queue, key=key, selector=selector, deadline=deadline
            )
        if self._is_full():
            await self.wait_for_room()
        return await self._carry_out(self._maker.single(message, target, deadline=deadline))

    async def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> PendingSend:
        """Queue one message and return at once, or when there is room for it.

        Raises:
            InvalidMessageError, NoRouteError, NameServersUnreachableError: nothing was sent.
        """
        check_message(message, self._body_bytes_max)
        deadline = self._deadline(timeout_s)
        target = self._choose_at_once(message, queue=queue, key=key, selector=selector)
        if target is None:
            target = await self._choose(
                message, queue=queue, key=key, selector=selector, deadline=deadline
            )
        if self._is_full():
            await self.wait_for_room()
        pending = self._maker.single(message, target, deadline=deadline)
        self._enter(pending, at_once=False)
        return pending

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> PendingSend:
        """Queue one message, now.

        Raises:
            anyio.WouldBlock: too much is pending, or the topic's route is not known yet (`queues`
                fetches it).
            InvalidMessageError: the message breaks a limit.
        """
        check_message(message, self._body_bytes_max)
        known = self._live().routes.known_publish_queues(message.topic)
        if self._is_full() or not known:
            raise anyio.WouldBlock
        if queue is None:
            queue = self._pick(known, key, message.message_group)
        elif not self._can_use(queue, message.topic):
            raise anyio.WouldBlock
        pending = self._maker.single(message, queue, deadline=self._deadline(timeout_s))
        self._enter(pending, at_once=False)
        return pending

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send several messages of one topic as one request; all are stored, or none.

        They get consecutive offsets in one queue, but for those that were sent before under the same
        key; the result is that of the first. Not for delayed messages. All bodies together are bounded as
        one body is.

        Raises:
            InvalidMessageError: empty, more than one topic or message group, a delay, or too large.
            Others as `send`.
        """
        return await self._carry_out(
            await self._make_batch(
                messages, queue=queue, key=key, selector=selector, timeout_s=timeout_s
            )
        )

    async def submit_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> PendingSend:
        """Queue several messages as one request and return at once, or when there is room for it.

        Raises:
            InvalidMessageError, NoRouteError, NameServersUnreachableError: nothing was sent.
        """
        pending = await self._make_batch(
            messages, queue=queue, key=key, selector=selector, timeout_s=timeout_s
        )
        self._enter(pending, at_once=False)
        return pending

    async def _make_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None,
        key: str | bytes | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
    ) -> PendingSend:
        """Check a batch, choose its queue and wait for room, in this order.

        The send's deadline counts from the check on.
        """
        self._live()
        messages = self._checked_batch(messages)
        deadline = self._deadline(timeout_s)
        target = await self._choose(
            messages[0], queue=queue, key=key, selector=selector, deadline=deadline
        )
        await self.wait_for_room()
        return self._maker.batch(messages, target, deadline=deadline)

    def _checked_batch(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the hooks want them; they may stand in one batch."""
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise InvalidMessageError(wrong_type("messages", messages, "a list of Message"))
        batch = list(messages)
        if not batch:
            raise InvalidMessageError("a batch without messages")
        for message in batch:
            check_message(message, self._body_bytes_max)
        if (hooks := self._settings.hooks) is not None:
            batch = [hooks.sending(message) for message in batch]
        for message in batch:
            if message.topic != batch[0].topic or message.is_delayed:
                raise InvalidMessageError("a batch has one topic and no delays")
            if message.message_group != batch[0].message_group:
                raise InvalidMessageError("a batch has one message group, or none")
        if is_retry_topic(batch[0].topic):
            raise InvalidMessageError("a batch cannot go to a retry topic")
        return batch

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Put a message on a connection and ask for no answer: it may get lost.

        Raises:
            InvalidMessageError, NoRouteError, NameServersUnreachableError: nothing was sent.
            SendRefusedError: no broker could be reached in time.
        """
        deadline = self._deadline(None)
        check_message(message, self._body_bytes_max)
        target = await self._choose(
            message, queue=queue, key=key, selector=selector, deadline=deadline
        )
        await self.wait_for_room()
        pending = self._maker.single(message, target, deadline=deadline, is_oneway=True)
        self._enter(pending, at_once=True)
        await pending.wait()

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> ReceivedMessage:
        """Send a message and return the reply of whoever consumes it (`PushConsumer.reply`).

        The queue is chosen as for `send`; `timeout_s` is for all of it. The reply stands in no topic, so its offsets
        are 0. A message that is delivered again, or to several groups, may be replied to several times: the first one
        counts.

        Raises:
            InvalidMessageError, NoRouteError, NameServersUnreachableError: nothing was sent.
            SendRefusedError: surely not stored.
            SendOutcomeUnknownError: may be stored; no reply came.
            NoReplyError: stored, and no reply came in time.
        """
        session = self._live()
        deadline = self._deadline(timeout_s)
        left_s = deadline - self._now()
        check_message(message, self._body_bytes_max)
        target = await self._choose(
            message, queue=queue, key=key, selector=selector, deadline=deadline
        )
        question = self._questions.ask(message, session.client_id, left_s)
        try:
            with anyio.move_on_after(deadline - self._now()):
                await session.make_known(target.broker_name)
            await self.wait_for_room()
            pending = self._maker.single(question.message, target, deadline=deadline)
            return await self._reply_to(question, pending, deadline, left_s)
        finally:
            self._questions.forget(question)

    async def _reply_to(
        self, question: AwaitedReply, pending: PendingSend, deadline: float, timeout_s: float
    ) -> ReceivedMessage:
        """Send a message that asks for a reply, and wait for that; it may come before the send has ended."""

        async def watch_send() -> None:
            try:
                await self._carry_out(pending)
            except SendError as error:
                question.failure = error
                question.ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_send)
            with anyio.move_on_after(deadline - self._now()):
                await question.ended.wait()
            if question.reply is not None or pending.result is not None:
                tasks.cancel_scope.cancel()  # else the send's own deadline ends it now
        if question.reply is not None:
            return question.reply
        if question.failure is not None:
            raise question.failure
        raise NoReplyError(question.message.topic, pending.unique_key, timeout_s)

    def _on_reply(self, link: Link, command: RemotingCommand) -> None:
        link.answer(self._questions.taken(command))

    def _on_lane_request(self, wire: Wire, frame: Frame) -> None:
        """Take what a broker asks over the connection on which messages are sent, which may be all that it knows."""
        try:
            command = decode_command(frame)
        except FrameError as error:
            log.warning("a broker sent a request that cannot be read: %s", error)
            return
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            wire.send_nowait(encode_command(self._questions.taken(command)))

    async def recall(self, handle: str, *, timeout_s: float | None = None) -> bool:
        """Take a message back that waits for its due time (`SendResult.recall_handle`).

        Tried over all nodes and failovers; recalling twice is the same as once.

        Returns:
            True: it will not be delivered. False: it was delivered, or is no longer kept.

        Raises:
            ClientUsageError: the handle is none.
            RequestFailedError: the broker refuses recalls, or this one.
            NoRouteError, NameServersUnreachableError: nobody was asked.
            ConnectionLostError, RequestTimeoutError: nobody answered; the outcome is unknown.
        """
        session = self._live()
        try:
            meant = RecallHandle.decode(check_text("handle", handle))
        except HandleError as error:
            raise ClientUsageError(f"{handle[:200]!r} is no recall handle: {error}") from error
        deadline = self._deadline(timeout_s)
        if not session.routes.knows(meant.broker_name):
            await self._publish_queues(check_topic(meant.topic), deadline - self._now())
        answer = await session.call_group(
            meant.broker_name,
            RequestCode.RECALL_MESSAGE,
            {"producerGroup": self.group, "topic": meant.topic, "recallHandle": handle},
            timeout_s=deadline - self._now(),
        )
        try:
            raise_for(answer)
        except RequestFailedError as error:
            if error.code == ResponseCode.NO_MESSAGE:
                return False
            raise
        return True

    async def flush(self) -> None:
        """Wait until every submitted send has ended, one way or the other."""
        while self._pending:
            if self._drained is None:  # else others wait for it already
                self._drained = anyio.Event()
            await self._drained.wait()

    def _can_use(self, queue: MessageQueue, topic: str) -> bool:
        """Return whether a queue that the caller chose can be sent to without asking for its route."""
        if queue.__class__ is not MessageQueue:
            check_queue(queue)
        if queue.topic != topic:
            raise ClientUsageError(f"{queue} is no queue of topic {topic}")
        return self._live().routes.knows(queue.broker_name)

    def _choose_at_once(
        self,
        message: Message,
        *,
        queue: MessageQueue | None,
        key: str | bytes | None,
        selector: QueueSelector | None,
    ) -> MessageQueue | None:
        """Return what `_choose` would, where nobody has to be asked; else None."""
        if queue is not None:
            return queue if self._can_use(queue, message.topic) else None
        if selector is not None:
            return None
        known = self._live().routes.sure_publish_queues(message.topic)
        return self._pick(known, key, message.message_group) if known else None

    async def _choose(
        self,
        message: Message,
        *,
        queue: MessageQueue | None,
        key: str | bytes | None,
        selector: QueueSelector | None,
        deadline: float,
    ) -> MessageQueue:
        """Return the queue that a message goes to; wait for a route until the deadline."""
        if queue is not None and self._can_use(queue, message.topic):
            return queue
        queues = await self._publish_queues(message.topic, deadline - self._now())
        if queue is not None:
            return queue
        if selector is not None:
            check_callable("selector", selector)
            return check_queue(selector(queues))
        return self._pick(queues, key, message.message_group)

    async def _publish_queues(self, topic: str, timeout_s: float) -> tuple[MessageQueue, ...]:
        """Return the queues of a route; wait for name servers that do not answer yet, and for a leader."""
        routes = self._live().routes
        return await routes.when_there(lambda: routes.publish_queues(topic), timeout_s)

    def _deadline(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._now() + self.timeout_s
        return self._now() + check_seconds("timeout_s", timeout_s)

    def _pick(
        self, queues: tuple[MessageQueue, ...], key: str | bytes | None, message_group: str | None
    ) -> MessageQueue:
        """Choose one of some queues: by key, by message group, else the one whose turn it is."""
        if key is not None:
            if key.__class__ is not str and key.__class__ is not bytes:
                check_key(key)
            return queue_for_key(queues, key)
        if message_group is not None:
            return queue_for_group(queues, message_group)
        for lane in self._lanes.values():
            if lane.failures:
                return self._turn(queues, self._sick())
        return self._turn(queues)

    def _sick(self) -> frozenset[str]:
        """Return the groups that are in trouble."""
        return frozenset(name for name, lane in self._lanes.items() if lane.failures)

    def _is_full(self) -> bool:
        return self._pending >= self.pending_max or self._pending_bytes >= self._pending_bytes_max

    async def wait_for_room(self) -> None:
        """Wait until fewer messages and bytes are pending than there may be: every send does, before it is tried."""
        while self._is_full():
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    async def _carry_out(self, pending: PendingSend) -> SendResult:
        """Send now and wait for the end; a send whose caller gives up before it has left is dropped."""
        lane = self._enter(pending, at_once=True)
        try:
            return await pending.wait()
        except anyio.get_cancelled_exc_class():
            lane.abandon(pending)
            raise

    def _enter(self, pending: PendingSend, *, at_once: bool) -> Lane:
        """Count a send as pending and hand it to the lane of its group.

        Each group has one lane, which keeps the order.
        """
        self._pending += 1
        self._pending_bytes += len(pending.frame)
        lane = self._lanes.get(pending.queue.broker_name)
        if lane is None:
            session = self._live()
            name = pending.queue.broker_name
            lane = self._lanes[name] = Lane(
                name,
                session.routes,
                self._on_settled,
                session.loop,
                tls=session.links.tls,
                on_request=self._on_lane_request,
                credentials=session.links.credentials,
            )
            session.nursery.start_soon(lane.run, name=f"lane {name}")
        if self._settings.hooks is not None:
            pending.submitted_at = self._now()
        lane.submit(pending, at_once=at_once)
        return lane

    def _report_to_hooks(self, hooks: ClientHooks, pending: PendingSend) -> None:
        elapsed_s = self._now() - pending.submitted_at
        try:
            hooks.sent(pending.queue.topic, elapsed_s, pending.error)
        except Exception:  # the application's own
            log.exception("the hooks failed on the end of a send")

    def _on_settled(self, ended: Sequence[PendingSend]) -> None:
        """Uncount sends that ended, each once for its `_enter`, and wake who waits for room or for the last one."""
        self._pending -= len(ended)
        for pending in ended:
            self._pending_bytes -= len(pending.frame)
            if pending.error is None:
                self._succeeded += 1
            elif pending.error.definite:
                self._refused += 1
            else:
                self._unknown += 1
        assert self._pending >= 0, f"{self._pending} sends are pending"
        assert self._pending_bytes >= 0, f"{self._pending_bytes} bytes are pending"
        if (hooks := self._settings.hooks) is not None:
            for pending in ended:
                self._report_to_hooks(hooks, pending)
        if self._tracer is not None:
            for pending in ended:
                if pending.note is not None and pending.result is not None:
                    for record in pending.note.records(pending.result, self.group):
                        self._tracer.add(record)
        # Waiting submitters go on in bursts: a wake-up per message would cost more than the message.
        has_room = self._pending <= self.pending_max - self.pending_max // 4
        if self._room is not None and has_room and not self._is_full():
            self._room.set()
            self._room = None
        if not self._pending and self._drained is not None:
            self._drained.set()
            self._drained = None


def make_trace_producer(name_servers: tuple[str, ...], tls: ssl.SSLContext | None) -> Producer:
    """Return the producer that carries a client's trace, over connections of its own."""
    return Producer(";".join(name_servers), TRACE_GROUP, timeout_s=TRACE_TIMEOUT_S, tls=tls)
