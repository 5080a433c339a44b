"""Consuming as a member of a group: messages are handed to a function, queues are shared out.

    async def handle(message: ReceivedMessage) -> None:
        print(message.body)

    async with PushConsumer(
        namesrv="127.0.0.1:9876", group="billing", subscriptions={"Orders": "*"}, handler=handle
    ) as consumer:
        await trio.sleep_forever()

Delivery is at least once: a message counts as consumed when the handler returns, and the offset that is
committed is the lowest one not consumed. A handler that raises, or returns ConsumeResult.LATER, gives
its message back to the broker, which delivers it again later (ordered consumers try again themselves
and keep the rest of the queue waiting).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final

import msgspec
import trio

from broker.client.assignment import Assignment, StartFrom
from broker.client.errors import ClientClosedError, ClientError, ClientUsageError
from broker.client.group_requests import GroupRequests
from broker.client.messages import ReceivedMessage
from broker.client.name_servers import parse_name_servers
from broker.client.process_queue import FlowLimits
from broker.client.queue_reader import QueueReader
from broker.client.queues import MessageQueue
from broker.client.service import open_service_nursery
from broker.client.session import Session
from broker.client.subscriptions import EVERYTHING, TopicSubscription, subscribe
from broker.remoting.codes import RequestCode
from broker.remoting.header import RemotingCommand
from broker.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)
from broker.store.names import group_problem, retry_topic

CONCURRENCY: Final = 20  # Java's threads
COMMIT_S: Final = 5.0
RECONSUME_MAX: Final = 16
DEAD_LETTER_LEVEL: Final = -1  # semantics.md L6
SUSPEND_S: Final = 1.0  # an ordered queue waits this long after a failure of its handler
CLOSE_COMMIT_S: Final = 5.0  # how long the last commit may take; a group without leader takes none
LOCAL_RETRY_S: Final = 5.0  # a message that could not be given back is tried again here

log = logging.getLogger(__name__)


class ConsumeResult(Enum):
    """What a handler may return; None counts as SUCCESS."""

    SUCCESS = "consumed"
    LATER = "deliver it again later"


Handler = Callable[[ReceivedMessage], Awaitable[ConsumeResult | None]]


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a consumer has done so far.

    Attributes:
        consumed: messages whose handler succeeded.
        given_back: messages that go through the retry topic.
        next_offsets: per owned queue, the offset to be pulled next.
        unfinished: messages pulled and not finished.
        offset_resets: how often a broker moved an offset of ours into the queue.
    """

    consumed: int
    given_back: int
    next_offsets: dict[MessageQueue, int]
    unfinished: int
    offset_resets: int


class PushConsumer:
    """A member of a consumer group. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the consumer group; its members share the queues and must subscribe alike.
        handler: async function that consumes one message.
        subscriptions: topic -> "*" or tags joined with "||".
        ordered: handle the messages of a queue one after the other, in queue order; each queue is locked,
            so that no other member works on it at the same time.
        concurrency: how many messages are handled at the same time (not for `ordered`).
        start_from: where a group without a stored offset begins: "last" (only what comes), "first"
            (everything that is kept), or a time in ms since 1970. Brokers that still hold the first
            message of a queue begin there all the same.
        commit_interval_s: how often offsets are committed.
        max_reconsume_times: after so many deliveries a message goes to the dead letter topic. Default:
            16; `ordered` consumers try without end, since what comes later must not overtake.
        limits: when pulling pauses because the handler does not keep up.
        instance: the part of the client id that tells members on one machine apart.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: Handler,
        *,
        subscriptions: Mapping[str, str],
        ordered: bool = False,
        concurrency: int = CONCURRENCY,
        start_from: StartFrom = "last",
        commit_interval_s: float = COMMIT_S,
        max_reconsume_times: int | None = None,
        limits: FlowLimits | None = None,
        instance: str | None = None,
    ) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ClientUsageError(problem)
        if not subscriptions:
            raise ClientUsageError("a consumer needs at least one subscription")
        if concurrency < 1 or commit_interval_s <= 0:
            raise ClientUsageError("concurrency and commit_interval_s must be above 0")
        version = time.time_ns() // 1_000_000
        wanted = [subscribe(topic, text, version) for topic, text in subscriptions.items()]
        wanted.append(subscribe(retry_topic(group), EVERYTHING, version))
        self.group = group
        self.subscriptions: dict[str, TopicSubscription] = {item.topic: item for item in wanted}
        self._name_servers = parse_name_servers(namesrv)
        self._handler = handler
        self._is_ordered = ordered
        self._concurrency = concurrency
        self._start_from = start_from
        self._commit_interval_s = commit_interval_s
        self._max_reconsume_times = max_reconsume_times
        if max_reconsume_times is None and not ordered:
            self._max_reconsume_times = RECONSUME_MAX
        self._limits = limits or FlowLimits()
        self._instance = instance
        self._consumed = self._given_back = 0
        self._session: Session | None = None
        self._assignment: Assignment | None = None
        self._nursery: trio.Nursery | None = None
        # Unbounded on purpose: the flow limits bound what readers put in.
        self._send_work, self._work = trio.open_memory_channel[tuple[QueueReader, ReceivedMessage]](
            float("inf")
        )
        self._running: AbstractAsyncContextManager[None] | None = None

    # --- life

    async def __aenter__(self) -> PushConsumer:
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        async with open_service_nursery() as service:
            session = Session(
                self._name_servers, service, instance=self._instance, heartbeat=self._tell
            )
            self._session = session
            self._assignment = assignment = Assignment(
                session,
                GroupRequests(session, self.group),
                self.subscriptions,
                start_from=self._start_from,
                limits=self._limits,
                on_messages=self._on_messages,
                is_ordered=self._is_ordered,
            )
            session.handle(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_notice)
            session.start()
            try:
                async with trio.open_nursery() as nursery:
                    self._start_tasks(nursery, assignment)
                    try:
                        yield
                    except Exception as error:  # noqa: BLE001 - the caller's own, raised again below without a group around it
                        failure = error
                    await assignment.stop()
                    nursery.cancel_scope.cancel()
            finally:
                with trio.CancelScope(shield=True):
                    with trio.move_on_after(CLOSE_COMMIT_S):
                        await assignment.commit_all()
                        if assignment.locks is not None:
                            await assignment.locks.give_all()
                    await session.say_goodbye(consumer_group=self.group)
        self._session = self._assignment = self._nursery = None
        if failure is not None:
            raise failure

    def _start_tasks(self, nursery: trio.Nursery, assignment: Assignment) -> None:
        self._nursery = nursery
        nursery.start_soon(assignment.run, name="rebalance")
        nursery.start_soon(self._commit_forever, name="commits")
        if assignment.locks is not None:
            nursery.start_soon(assignment.locks.run, name="locks")
        else:
            for number in range(self._concurrency):
                nursery.start_soon(self._consume_forever, name=f"consumer {number}")

    def _tell(self) -> Heartbeat:
        assert self._session is not None
        entry = ConsumerEntry(
            self.group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            if self._start_from == "first"
            else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            tuple(
                Subscription(
                    item.topic, item.expression, tags=tuple(sorted(item.tags)), version=item.version
                )
                for item in self.subscriptions.values()
            ),
        )
        return Heartbeat(client_id=self._session.client_id, consumers=(entry,))

    def _on_notice(self, _link: object, command: RemotingCommand) -> None:
        if command.ext.get("consumerGroup") == self.group and self._assignment is not None:
            self._assignment.rebalance_soon()

    def _owned(self) -> Assignment:
        if self._assignment is None:
            raise ClientClosedError("the consumer is not open; use `async with PushConsumer(...)`")
        return self._assignment

    # --- for the application

    @property
    def client_id(self) -> str:
        """How brokers know this consumer."""
        self._owned()
        assert self._session is not None
        return self._session.client_id

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads now, those of the retry topic included."""
        return tuple(sorted(self._owned().readers))

    async def wait_assigned(self) -> tuple[MessageQueue, ...]:
        """Wait until this member has its share of the queues for the first time."""
        await self._owned().balanced.wait()
        return self.assigned

    async def commit(self) -> None:
        """Commit what is consumed now, without waiting for the interval."""
        await self._owned().commit_all()

    def statistics(self) -> ConsumerStatistics:
        """Return what has been done so far."""
        readers = self._owned().readers.values()
        return ConsumerStatistics(
            self._consumed,
            self._given_back,
            {reader.held.queue: reader.held.next_offset for reader in readers},
            sum(reader.held.message_count for reader in readers),
            sum(reader.resets for reader in readers),
        )

    # --- consuming

    def _on_messages(self, reader: QueueReader, messages: tuple[ReceivedMessage, ...]) -> None:
        if self._is_ordered:
            assert self._nursery is not None
            reader.waiting.extend(messages)
            if not reader.is_worked_on:
                reader.is_worked_on = True
                self._nursery.start_soon(
                    self._consume_in_order, reader, name=f"consumer {reader.held.queue}"
                )
            return
        for message in messages:
            self._send_work.send_nowait((reader, message))

    async def _consume_forever(self) -> None:
        async for reader, message in self._work:
            if not reader.begin():
                continue
            is_finished = False
            try:
                is_finished = await self._consume(message)
            finally:
                reader.end(message.queue_offset, is_finished=is_finished)
            if not is_finished and self._nursery is not None:
                self._nursery.start_soon(self._again_later, reader, message)

    async def _again_later(self, reader: QueueReader, message: ReceivedMessage) -> None:
        await trio.sleep(LOCAL_RETRY_S)
        self._send_work.send_nowait((reader, message))

    async def _consume(self, message: ReceivedMessage) -> bool:
        """Handle one message; False when neither the handler nor the broker took it."""
        return await self._handled(message) or await self._give_back(message, delay_level=0)

    async def _give_back(self, message: ReceivedMessage, *, delay_level: int) -> bool:
        """Give a message to the broker; it comes again, or goes to the dead letter topic."""
        limit = self._max_reconsume_times
        try:
            await self._owned().requests.send_back(
                message,
                delay_level=delay_level,
                max_reconsume_times=RECONSUME_MAX if limit is None else limit,
            )
        except ClientError as error:
            log.warning("%s was not given back: %s", message.message_id, error)
            return False
        self._given_back += 1
        return True

    async def _handled(self, message: ReceivedMessage) -> bool:
        try:
            result = await self._handler(message)
        except Exception:  # the handler's failure is a result: the message comes again
            log.exception("the handler failed on %s of %s", message.unique_key, message.queue)
            return False
        if result is ConsumeResult.LATER:
            return False
        self._consumed += 1
        return True

    async def _consume_in_order(self, reader: QueueReader) -> None:
        """Handle what waits of one queue, one after the other; a failure holds the queue up (L17)."""
        waiting, locks = reader.waiting, self._owned().locks
        while waiting:
            if locks is not None:
                await locks.wait_held(reader.held.queue)
            if not (waiting and reader.begin()):
                break
            message = waiting[0]
            is_finished = False
            try:
                is_finished = await self._handled(message) or await self._buried(message)
            finally:
                reader.end(message.queue_offset, is_finished=is_finished)
            is_first = bool(waiting) and waiting[0] is message  # else the broker moved the offset
            if is_finished:
                if is_first:
                    waiting.popleft()
                continue
            if is_first:
                times = message.reconsume_times + 1
                waiting[0] = msgspec.structs.replace(message, reconsume_times=times)
            await trio.sleep(SUSPEND_S)
        reader.is_worked_on = False

    async def _buried(self, message: ReceivedMessage) -> bool:
        """Give up a message of an ordered queue that failed too often: straight to the dead letters."""
        limit = self._max_reconsume_times
        if limit is None or message.reconsume_times < limit:
            return False
        return await self._give_back(message, delay_level=DEAD_LETTER_LEVEL)

    async def _commit_forever(self) -> None:
        while True:
            await trio.sleep(self._commit_interval_s)
            await self._owned().commit_all()
