"""Sending messages: each send ends as stored, surely not stored, or unknown.

    async with Producer(namesrv="127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("Orders", b"one"), key="customer-7")

`send` waits for its own answer. For throughput, `submit` (or `send_nowait`) hands back a `PendingSend` at
once and many are in flight together; everything submitted between two turns of the event loop leaves in
one system call. Sends to one queue keep their order, also over the death of a leader (see `lane.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Unpack

import anyio

from dledger_mq.client.errors import (
    ClientClosedError,
    ClientUsageError,
    InvalidMessageError,
    NameServersUnreachableError,
    NoRouteError,
    RequestFailedError,
)
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.lane import Lane, PendingSend
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.messages import (
    Message,
    SendResult,
    check_message,
    check_not_too_far,
    message_properties,
    pack_body,
)
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.queues import MessageQueue, QueueSelector, RoundRobin, queue_for_key
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.client.send_settings import SendOptions, SendSettings
from dledger_mq.client.session import Session, raise_for
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.names import group_problem, is_retry_topic
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX
from dledger_mq.message.recall_handle import HandleError, RecallHandle
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.heartbeat import Heartbeat

SEND_TIMEOUT_S: Final = 10.0  # a failover takes one to three seconds; a send should outlive it
PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done so far.

    Attributes:
        pending: sends that have not ended.
        pending_bytes: their frames together.
        succeeded, refused, unknown: ended sends by outcome.
        failures: per broker name, failures in a row just now; 0 means healthy.
    """

    pending: int
    pending_bytes: int
    succeeded: int
    refused: int
    unknown: int
    failures: dict[str, int]


class Producer(Lifetime):
    """Sends messages to the brokers that the name servers know. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the producer group's name.
        timeout_s: how long a send is tried, over all nodes and failovers.
        pending_max: bound on sends without an answer; `send` and `submit` wait at it.
        pending_bytes_max: the same in bytes.
        instance: the part of the client id that tells producers of one machine apart; made up when
            not given.
        options: `retries`, `compress_from_bytes`, `compress_level`, `message_bytes_max`,
            `default_queues`, `serializer`, `hooks`; see `SendSettings`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        pending_max: int = PENDING_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        instance: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ClientUsageError(problem)
        if timeout_s <= 0 or pending_max < 1 or pending_bytes_max < 1:
            raise ClientUsageError(
                f"timeout_s {timeout_s}, pending_max {pending_max} and pending_bytes_max "
                f"{pending_bytes_max} must be above 0"
            )
        self._name_servers = parse_name_servers(namesrv)
        self.group = group
        self.timeout_s = timeout_s
        self.pending_max = pending_max
        self._pending_bytes_max = pending_bytes_max
        self._instance = instance
        self._settings = SendSettings(**options)
        self._templates = SendTemplates(group, self._settings.default_queues)
        self._turn = RoundRobin()
        self._lanes: dict[str, Lane] = {}
        self._pending = 0
        self._pending_bytes = 0
        self._succeeded = self._refused = self._unknown = 0
        self._room: anyio.Event | None = None
        self._drained: anyio.Event | None = None
        self._session: Session | None = None
        self._now: Callable[[], float] = time.monotonic  # the loop's, once it is entered

    # --- life

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        async with anyio.create_task_group() as nursery:
            self._session = Session(
                self._name_servers, nursery, instance=self._instance, heartbeat=self._tell
            )
            self._now = self._session.loop.now
            self._lanes = {}  # those of an earlier life have ended
            self._opened(self._session)
            self._session.routes.default_queues = self._settings.default_queues
            self._session.start()
            try:
                yield
                await self.flush()
            except Exception as error:  # noqa: BLE001 - the caller's own, raised again below without a group around it
                failure = error
            with anyio.move_on_after(1):
                await self._session.say_goodbye(producer_group=self.group)
            self._session = None
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _opened(self, session: Session) -> None:
        """For subclasses: the session is there and has not started yet."""

    def _tell(self) -> Heartbeat | None:
        if self._session is None:
            return None  # it is being closed
        return Heartbeat(client_id=self._session.client_id, producer_groups=(self.group,))

    def _live(self) -> Session:
        if self._session is None:
            raise ClientClosedError("the producer is not open; use `async with Producer(...)`")
        return self._session

    @property
    def client_id(self) -> str:
        """How brokers know this producer."""
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
        )

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that take messages, in Java's order.

        Waits up to `timeout_s` for name servers that do not answer yet, and for the first broker.

        Raises:
            NoRouteError: nobody serves the topic, nor may it be created.
            NameServersUnreachableError: no name server answers.
        """
        return await self._publish_queues(topic, self.timeout_s)

    def message(
        self,
        topic: str,
        value: object,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_ms: int = 0,
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
        )

    # --- sending

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
        one key keep their order), or the next in turn. Cancelling leaves the outcome unknown.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            NoRouteError, NameServersUnreachableError: nothing was sent.
            SendRefusedError: surely not stored.
            SendOutcomeUnknownError: may be stored.
        """
        deadline = self._deadline(timeout_s)
        self._check_message(message)
        target = await self._choose(message.topic, queue, key, selector, deadline)
        await self._wait_for_room()
        pending = self._prepare(message, target, deadline)
        lane = self._enter(pending, at_once=True)
        try:
            return await pending.wait()
        except anyio.get_cancelled_exc_class():
            lane.abandon(pending)
            raise

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
        self._check_message(message)
        deadline = self._deadline(timeout_s)
        if queue is None or not self._can_use(queue, message.topic):
            queue = await self._choose(message.topic, queue, key, selector, deadline)
        if self._is_full():
            await self._wait_for_room()
        pending = self._prepare(message, queue, deadline)
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
        self._check_message(message)
        known = self._live().routes.known_publish_queues(message.topic)
        if self._is_full() or not known:
            raise anyio.WouldBlock
        if queue is None:
            queue = self._pick(known, key)
        elif not self._can_use(queue, message.topic):
            raise anyio.WouldBlock
        pending = self._prepare(message, queue, self._deadline(timeout_s))
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
        key; the result tells the first. Not for delayed messages. All bodies together are bounded as
        one body is.

        Raises:
            InvalidMessageError: empty, more than one topic, a delay, or too large.
            Others as `send`.
        """
        pending = await self._prepare_batch(messages, queue, key, selector, timeout_s)
        lane = self._enter(pending, at_once=True)
        try:
            return await pending.wait()
        except anyio.get_cancelled_exc_class():
            lane.abandon(pending)
            raise

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
        pending = await self._prepare_batch(messages, queue, key, selector, timeout_s)
        self._enter(pending, at_once=False)
        return pending

    async def _prepare_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        key: str | bytes | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
    ) -> PendingSend:
        session = self._live()
        if not messages:
            raise InvalidMessageError("a batch without messages")
        if (hooks := self._settings.hooks) is not None:
            messages = [hooks.sending(message) for message in messages]
        for message in messages:
            self._check_message(message)
            if message.topic != messages[0].topic or message.is_delayed:
                raise InvalidMessageError("a batch has one topic and no delays")
        if is_retry_topic(messages[0].topic):
            raise InvalidMessageError("a batch cannot go to a retry topic")
        deadline = self._deadline(timeout_s)
        target = await self._choose(messages[0].topic, queue, key, selector, deadline)
        await self._wait_for_room()
        now_ms = time.time_ns() // 1_000_000
        keys = [one.unique_key or session.unique_keys.next_key(now_ms) for one in messages]
        body = encode_batch(
            BatchItem(message.flag, message.body, message_properties(message, unique_key))
            for message, unique_key in zip(messages, keys, strict=True)
        )
        bytes_max = self._settings.message_bytes_max
        if len(body) > bytes_max:
            raise InvalidMessageError(f"the batch has {len(body)} bytes, at most {bytes_max}")
        opaque = session.opaques.take()
        frame = self._templates.frame(
            target, body, b"", opaque=opaque, born_timestamp_ms=now_ms, is_batch=True
        )
        return PendingSend(
            target,
            ",".join(keys),
            frame,
            opaque,
            deadline=deadline,
            is_oneway=False,
            attempts_max=self._settings.attempts_max,
            new_event=session.loop.new_event,
        )

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
        self._check_message(message)
        target = await self._choose(message.topic, queue, key, selector, deadline)
        await self._wait_for_room()
        pending = self._prepare(message, target, deadline, is_oneway=True)
        self._enter(pending, at_once=True)
        await pending.wait()

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
            meant = RecallHandle.decode(handle)
        except HandleError as error:
            raise ClientUsageError(f"{handle[:200]!r} is no recall handle: {error}") from error
        if not session.routes.knows(meant.broker_name):
            await self.queues(meant.topic)
        answer = await session.call_group(
            meant.broker_name,
            RequestCode.RECALL_MESSAGE,
            {"producerGroup": self.group, "topic": meant.topic, "recallHandle": handle},
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
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
            self._drained = anyio.Event()
            await self._drained.wait()

    # --- inside

    def _can_use(self, queue: MessageQueue, topic: str) -> bool:
        """Whether a queue that the caller chose can be sent to without asking for its route."""
        if queue.topic != topic:
            raise ClientUsageError(f"{queue} is no queue of topic {topic}")
        return self._live().routes.knows(queue.broker_name)

    async def _choose(
        self,
        topic: str,
        queue: MessageQueue | None,
        key: str | bytes | None,
        selector: QueueSelector | None,
        deadline: float,
    ) -> MessageQueue:
        if queue is not None and self._can_use(queue, topic):
            return queue
        try:
            queues = await self._live().routes.publish_queues(topic)
        except (NameServersUnreachableError, NoRouteError):
            queues = await self._publish_queues(topic, deadline - self._now())
        if queue is not None:
            return queue
        if selector is not None:
            return selector(queues)
        return self._pick(queues, key)

    async def _publish_queues(self, topic: str, timeout_s: float) -> tuple[MessageQueue, ...]:
        """As routes tell, but for waiting: for name servers, and for somebody who leads."""
        routes = self._live().routes
        return await routes.when_there(lambda: routes.publish_queues(topic), timeout_s)

    def _deadline(self, timeout_s: float | None) -> float:
        return self._now() + (self.timeout_s if timeout_s is None else timeout_s)

    def _pick(self, queues: tuple[MessageQueue, ...], key: str | bytes | None) -> MessageQueue:
        if key is not None:
            return queue_for_key(queues, key)
        sick = frozenset(name for name, lane in self._lanes.items() if lane.failures)
        return self._turn(queues, sick)

    def _check_message(self, message: Message) -> None:
        check_message(message, self._settings.message_bytes_max)

    def _is_full(self) -> bool:
        return self._pending >= self.pending_max or self._pending_bytes >= self._pending_bytes_max

    async def _wait_for_room(self) -> None:
        while self._is_full():
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    def _prepare(
        self,
        message: Message,
        queue: MessageQueue,
        deadline: float,
        *,
        is_oneway: bool = False,
        half_properties: bytes = b"",
    ) -> PendingSend:
        session = self._live()
        now_ms = time.time_ns() // 1_000_000
        check_not_too_far(message, now_ms)
        settings = self._settings
        if settings.hooks is not None:
            message = settings.hooks.sending(message)
        unique_key = message.unique_key or session.unique_keys.next_key(now_ms)
        body, sys_flag = pack_body(
            message.body, settings.compress_from_bytes, settings.compress_level
        )
        properties = message_properties(message, unique_key)
        if half_properties:
            properties += half_properties
            sys_flag |= TRANSACTION_PREPARED
            if len(properties) > PROPERTIES_BYTES_MAX:
                raise InvalidMessageError(
                    f"properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX}"
                )
        opaque = session.opaques.take()
        frame = self._templates.frame(
            queue,
            body,
            properties,
            opaque=opaque,
            born_timestamp_ms=now_ms,
            sys_flag=sys_flag,
            flag=message.flag,
            is_oneway=is_oneway,
        )
        return PendingSend(
            queue,
            unique_key,
            frame,
            opaque,
            deadline=deadline,
            is_oneway=is_oneway,
            attempts_max=settings.attempts_max,
            new_event=session.loop.new_event,
        )

    def _enter(self, pending: PendingSend, *, at_once: bool) -> Lane:
        self._pending += 1
        self._pending_bytes += len(pending.frame)
        lane = self._lanes.get(pending.queue.broker_name)
        if lane is None:
            session = self._live()
            name = pending.queue.broker_name
            lane = self._lanes[name] = Lane(name, session.routes, self._on_settled, session.loop)
            session.nursery.start_soon(lane.run, name=f"lane {name}")
        if self._settings.hooks is not None:
            pending.submitted_at = self._now()
        lane.submit(pending, at_once=at_once)
        return lane

    def _tell_hooks(self, hooks: ClientHooks, pending: PendingSend) -> None:
        elapsed_s = self._now() - pending.submitted_at
        try:
            hooks.sent(pending.queue.topic, elapsed_s, pending.error)
        except Exception:  # the application's own
            log.exception("the hooks failed on the end of a send")

    def _on_settled(self, pending: PendingSend) -> None:
        self._pending -= 1
        self._pending_bytes -= len(pending.frame)
        if pending.error is None:
            self._succeeded += 1
        elif pending.error.definite:
            self._refused += 1
        else:
            self._unknown += 1
        if self._settings.hooks is not None:
            self._tell_hooks(self._settings.hooks, pending)
        # Waiting submitters go on in bursts: a wake-up per message would cost more than the message.
        has_room = self._pending <= self.pending_max - self.pending_max // 4
        if self._room is not None and has_room and not self._is_full():
            self._room.set()
            self._room = None
        if not self._pending and self._drained is not None:
            self._drained.set()
            self._drained = None
