"""Consuming as a member of a group: messages are handed to a function, queues are shared out.

    async def handle(message: ReceivedMessage) -> None:
        print(message.body)

    async with PushConsumer(
        namesrv="127.0.0.1:9876", group="billing", subscriptions={"Orders": "*"}, handler=handle
    ) as consumer:
        await anyio.sleep_forever()

or, without a handler, in a loop (`message_loop.py`):

    async with PushConsumer("127.0.0.1:9876", "billing", subscriptions={"Orders": "*"}) as consumer:
        async for message in consumer:
            print(message.body)

Delivery is at least once: a message counts as consumed when the handler returns, and the offset that is
committed is the lowest one not consumed. A handler that raises, or returns ConsumeResult.LATER, gives
its message back to the broker, which delivers it again later (ordered consumers try again themselves
and keep the rest of the queue waiting).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self, Unpack

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.arguments import (
    check_group,
    check_instance,
    check_queue,
    check_seconds,
    check_text,
    queue_list,
    queue_offset,
)
from dledger_mq.client.assignment import Assignment
from dledger_mq.client.consume_results import (
    AnyHandler,
    BatchHandler,
    decoded,
    observed,
    one_by_one,
)
from dledger_mq.client.consume_tracing import TracedHandler
from dledger_mq.client.consumer_settings import ConsumerOptions, ConsumerSettings
from dledger_mq.client.dispatch import Dispatcher
from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    ClientUsageError,
    RequestFailedError,
)
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.handler_threads import HandlerThreads, awaited
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.local_offsets import LocalOffsets
from dledger_mq.client.message_loop import MessageLoop
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.operator_requests import OperatorRequests
from dledger_mq.client.producer import make_trace_producer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.replies import REPLY_TIMEOUT_S, send_reply
from dledger_mq.client.service import open_service_nursery
from dledger_mq.client.session import Session, is_transient, make_client_id
from dledger_mq.client.subscriptions import (
    EVERYTHING,
    BySql,
    TopicSubscription,
    subscribe,
    subscribe_all,
)
from dledger_mq.client.trace_writer import TraceStatistics, TraceWriter
from dledger_mq.message.names import retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import (
    EXPRESSION_TAG,
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
)

log = logging.getLogger(__name__)

CLOSE_COMMIT_S: Final = 5.0  # how long the last commit may take; a group without leader takes none
BROADCAST_INSTANCE: Final = "DEFAULT"  # Java's: the same after a restart, so that offsets are found

_FROM_WHERE: Final[Mapping[object, ConsumeFromWhere]] = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
}


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """The counts of a consumer.

    Attributes:
        consumed: messages whose handler succeeded.
        given_back: messages that go through the retry topic.
        next_offsets: per owned queue, the offset to be pulled next.
        unfinished: messages pulled and not finished.
        offset_resets: how often a broker moved an offset of ours into the queue.
        deleted_unread: messages of the owned queues that the brokers had deleted before they were pulled.
        trace: of its trace records; None: it writes none.
    """

    consumed: int
    given_back: int
    next_offsets: dict[MessageQueue, QueueOffset]
    unfinished: int
    offset_resets: int
    deleted_unread: int = 0
    trace: TraceStatistics | None = None


class PushConsumer(Lifetime):
    """A member of a consumer group. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the consumer group; its members share the queues and must subscribe alike.
        handler: function that consumes one message; one without `async` runs in a worker thread, up to
            `concurrency` at a time. Without any handler messages are taken by `async for`.
        subscriptions: topic -> "*", tags joined with "||", or `BySql` with a condition on properties.
        options: `batch_handler`, `consume_batch_max`, `ordered`, `broadcast`, `allocation`, `concurrency`,
            `start_from`, `commit_interval_s`, `max_reconsume_times`, `retry_delay_level`, `suspend_s`,
            `consume_timeout_s`, `close_timeout_s`, `pull_batch`, `pull_interval_s`, `limits`, `offsets_folder`,
            `listener`, `deserializer`, `hooks`, `trace`, `trace_topic`, `instance`, `tls`, `credentials`; see
            `ConsumerSettings`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: AnyHandler | None = None,
        *,
        subscriptions: Mapping[str, str | BySql],
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_group(group)
        settings = ConsumerSettings(**options)
        self._loop: MessageLoop | None = None
        if handler is None and settings.batch_handler is None:
            self._loop = MessageLoop()
            settings = replace(settings, concurrency=1)
        self._settings = settings
        self._threads = HandlerThreads(settings.concurrency)
        self._handler: BatchHandler = self._loop or _batches(handler, settings, self._threads)
        if settings.deserializer is not None:
            self._handler = decoded(self._handler, settings.deserializer)
        if settings.hooks is not None:
            self._handler = observed(self._handler, settings.hooks)
        self._traced: TracedHandler | None = None
        if settings.trace:
            self._handler = self._traced = TracedHandler(self._handler, group)
        self.group = group
        self.subscriptions = subscribe_all(
            group, subscriptions, with_retries=not settings.broadcast
        )
        self._name_servers = parse_name_servers(namesrv)
        instance = settings.instance
        self._instance = BROADCAST_INSTANCE if settings.broadcast and instance is None else instance
        self._session: Session | None = None
        self._assignment: Assignment | None = None
        self._dispatcher: Dispatcher | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Run the member for the body.

        At the end offsets are committed and locks released while the session still lives.
        """
        failure: Exception | None = None
        self._threads.begin()
        if self._loop is not None:
            self._loop.begin()
        local = await self._local_offsets()
        async with open_service_nursery() as service:
            session = Session(
                self._name_servers,
                service,
                instance=self._instance,
                heartbeat=self._make_heartbeat,
                tls=self._settings.tls,
                credentials=self._settings.credentials,
            )
            self._session = session
            assignment = self._open(session, local)
            session.handle(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_notice)
            session.start()
            writer = self._start_trace(service)
            try:
                async with anyio.create_task_group() as nursery:
                    failure = await self._refused(session, *self.subscriptions.values())
                    if failure is None:
                        await self._start_tasks(nursery, assignment)
                        try:
                            yield
                        except Exception as error:  # noqa: BLE001 - the caller's own, raised again below without a group around it
                            failure = error
                    if self._loop is not None:
                        self._loop.end(is_consumed=failure is None)
                    self._on_end(assignment)
                    await assignment.stop(self._settings.close_timeout_s)
                    nursery.cancel_scope.cancel()
            finally:
                assignment.close()
                if self._loop is not None:
                    self._loop.end(is_consumed=False)
                with anyio.CancelScope(shield=True):
                    await self._leave(session, assignment, writer)
                self._session = self._assignment = self._dispatcher = None
        if failure is not None:
            raise failure

    async def _leave(
        self, session: Session, assignment: Assignment, writer: TraceWriter | None
    ) -> None:
        """Tell the brokers what is consumed, and that we leave; each of it in a bounded time."""
        with anyio.move_on_after(CLOSE_COMMIT_S):
            await assignment.commit_all()
            if assignment.locks is not None:
                for message in self._threads.left_behind:
                    assignment.locks.forget(message.queue)  # it is still worked on
                await assignment.locks.release_all()
        if writer is not None:
            await writer.close()
        await session.unregister(consumer_group=self.group)

    def _on_end(self, assignment: Assignment) -> None:
        """Give what runs its last time, also where the block is cancelled."""
        assignment.close()
        self._threads.end_in(self._settings.close_timeout_s)

    def _start_trace(self, service: TaskGroup) -> TraceWriter | None:
        """Let a task write the trace, where one is wanted."""
        settings, traced = self._settings, self._traced
        if traced is None:
            return None
        traced.writer = writer = TraceWriter(settings.trace_topic)
        make = partial(make_trace_producer, self._name_servers, settings.tls)
        service.start_soon(writer.run, make, name="trace")
        return writer

    async def _local_offsets(self) -> LocalOffsets | None:
        if not self._settings.broadcast:
            return None
        assert self._instance is not None, "broadcast members have one"
        client_id = make_client_id(self._name_servers, self._instance)
        local = LocalOffsets(self._settings.offsets_folder, client_id, self.group)
        await anyio.to_thread.run_sync(local.load)
        return local

    def _open(self, session: Session, local: LocalOffsets | None) -> Assignment:
        """Build assignment and dispatcher, which need each other, so that lambdas look the other one up late."""
        requests = GroupRequests(session, self.group)
        assignment = Assignment(
            session,
            requests,
            self.subscriptions,
            start_from=self._settings.start_from,
            pull=self._settings.pull,
            on_messages=lambda reader, messages: dispatcher.take(reader, messages),
            allocation=self._settings.allocation,
            is_ordered=self._settings.ordered,
            local=local,
            listener=self._settings.listener,
        )
        # Nothing stands between what was pulled and the application's loop.
        is_bare = self._handler is self._loop and not self._settings.ordered
        dispatcher = Dispatcher(
            self._handler,
            self._settings,
            requests,
            readers=lambda: assignment.readers.values(),
            wait_held=assignment.locks.wait_held if assignment.locks is not None else None,
            on_work=self._loop.notice if self._loop is not None and is_bare else None,
            on_end=lambda: self._on_end(assignment),
        )
        if self._loop is not None:
            self._loop.source = dispatcher if is_bare else None
        self._assignment, self._dispatcher = assignment, dispatcher
        return assignment

    async def _refused(
        self, session: Session, *wanted: TopicSubscription
    ) -> RequestFailedError | None:
        """Ask the brokers of each topic whether they take a choice by properties; return the first refusal.

        A refused pull alone would be a line in a log. Brokers that cannot be asked now say it then.
        """
        requests = GroupRequests(session, self.group)
        for item in wanted:
            if item.expression_type == EXPRESSION_TAG:
                continue
            try:
                queues = await session.routes.read_queues(item.topic)
                for broker_name in sorted({queue.broker_name for queue in queues}):
                    await requests.check(broker_name, item)
            except RequestFailedError as error:
                if not is_transient(error.code):
                    return error
            except ClientError as error:
                log.debug("nobody could be asked about the filter of %s: %s", item.topic, error)
        return None

    async def _start_tasks(self, nursery: TaskGroup, assignment: Assignment) -> None:
        assert self._dispatcher is not None, f"{self.group}: tasks start before the dispatcher"
        await nursery.start(self._dispatcher.run, name="dispatcher")
        self._listen(assignment, self._dispatcher, nursery)
        nursery.start_soon(assignment.run, name="rebalance")
        nursery.start_soon(self._commit_forever, name="commits")
        if assignment.locks is not None:
            nursery.start_soon(assignment.locks.run, name="locks")

    def _listen(self, assignment: Assignment, dispatcher: Dispatcher, nursery: TaskGroup) -> None:
        assert self._session is not None, f"{self.group}: requests are heard without a session"
        OperatorRequests(
            self.group,
            self._session,
            assignment,
            dispatcher,
            self._handler,
            self._settings,
            self.subscriptions,
            time.time_ns() // 1_000_000,
        ).listen(nursery)

    def _make_heartbeat(self) -> Heartbeat | None:
        """Build the heartbeat, which goes to every known node: each of them keeps its own clients."""
        session = self._session
        if session is None:
            return None  # it is being closed
        entry = ConsumerEntry(
            self.group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.BROADCASTING if self._settings.broadcast else MessageModel.CLUSTERING,
            _FROM_WHERE.get(self._settings.start_from, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
            tuple(item.reported() for item in self.subscriptions.values()),
        )
        return Heartbeat(client_id=session.client_id, consumers=(entry,))

    def _on_notice(self, _link: object, command: RemotingCommand) -> None:
        if command.ext.get("consumerGroup") == self.group and self._assignment is not None:
            self._assignment.rebalance_soon()

    def _owned(self) -> Assignment:
        if self._assignment is None:
            raise ClientClosedError("the consumer is not open; use `async with PushConsumer(...)`")
        return self._assignment

    def __aiter__(self) -> Self:
        """Take messages in a loop; see `message_loop.py`."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message; the one before counts as consumed."""
        if self._loop is None:
            raise ClientUsageError("this consumer gives its messages to a handler")
        self._owned()
        return await self._loop.take()

    @property
    def client_id(self) -> str:
        """The name by which brokers know this consumer."""
        self._owned()
        assert self._session is not None, f"{self.group} owns queues without a session"
        return self._session.client_id

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads now, those of the retry topic included."""
        return tuple(sorted(self._owned().readers))

    async def wait_assigned(self) -> tuple[MessageQueue, ...]:
        """Wait until this member has its share of the queues for the first time.

        Raises:
            ClientClosedError: the consumer is not open, or is left meanwhile.
        """
        assignment = self._owned()
        await assignment.balanced.wait()
        if assignment.is_closing:
            raise ClientClosedError("the consumer was left")
        return tuple(sorted(assignment.readers))

    async def subscribe(self, topic: str, expression: str | BySql = EVERYTHING) -> None:
        """Read another topic, or another selection of one, from now on.

        The members of a group must subscribe alike, so call it on each.

        Args:
            topic: which one.
            expression: "*", tags joined with "||", or a choice by properties.

        Raises:
            ClientUsageError: the topic's name is invalid, or the expression holds no tag.
            RequestFailedError: a broker does not take the choice by properties.
        """
        assignment = self._owned()
        wanted = subscribe(topic, expression, time.time_ns() // 1_000_000)
        assert self._session is not None, f"{self.group} owns queues without a session"
        refused = await self._refused(self._session, wanted)
        if refused is not None:
            raise refused
        self.subscriptions[topic] = wanted
        await assignment.subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more; its queues are finished, committed and given up soon.

        Raises:
            ClientUsageError: it is not subscribed to, or nothing would be left.
        """
        assignment = self._owned()
        check_text("topic", topic)
        others = [one for one in self.subscriptions if one not in (topic, retry_topic(self.group))]
        if topic not in self.subscriptions or not others:
            raise ClientUsageError(f"{topic} is not one of several topics that are subscribed to")
        del self.subscriptions[topic]
        await assignment.subscriptions_changed()

    def pause(self, *queues: MessageQueue) -> None:
        """Pull nothing more of these queues; what was pulled before is still handled."""
        self._owned().pause(queue_list(queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""
        self._owned().resume(queue_list(queues))

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues that are paused, owned or not."""
        return frozenset(self._owned().paused)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of a queue of ours, backwards or forwards, and commit it.

        What was pulled and not handled is dropped; a handler that is at work on the queue is waited for.

        Raises:
            ClientUsageError: the queue is not ours now, or the offset is negative.
        """
        assignment = self._owned()
        place = queue_offset("offset", offset)
        if check_queue(queue) not in assignment.readers or place < 0:
            raise ClientUsageError(f"{queue} is not ours to go to {offset}")
        await assignment.move({queue: place})

    async def reply(
        self, message: ReceivedMessage, body: bytes, *, timeout_s: float = REPLY_TIMEOUT_S
    ) -> None:
        """Reply to a message that asks for it (`Producer.request`); returns when the requester has the reply.

        Nothing is stored. Replying twice is harmless: the requester takes the first.

        Raises:
            ClientUsageError: the message asks for no reply.
            InvalidMessageError: the body is too large.
            RequestFailedError: the requester is gone, or has not confirmed it; the remark says which.
            NoRouteError, ConnectionLostError, RequestTimeoutError: nobody answered; the requester may have it.
        """
        self._owned()
        assert self._session is not None, f"{self.group} owns queues without a session"
        check_instance("message", message, ReceivedMessage)
        check_instance("body", body, bytes)
        await send_reply(
            self._session,
            self.group,
            message,
            body,
            timeout_s=check_seconds("timeout_s", timeout_s),
        )

    async def commit(self) -> None:
        """Commit what is consumed now, without waiting for the interval."""
        await self._owned().commit_all()

    def statistics(self) -> ConsumerStatistics:
        """Return what has been done so far."""
        readers = self._owned().readers.values()
        assert self._dispatcher is not None, f"{self.group} owns queues without a dispatcher"
        return ConsumerStatistics(
            self._dispatcher.consumed,
            self._dispatcher.given_back,
            {reader.held.queue: reader.held.next_offset for reader in readers},
            sum(reader.held.message_count for reader in readers),
            sum(reader.resets for reader in readers),
            sum(reader.deleted_unread for reader in readers),
            self._traced.writer.statistics() if self._traced and self._traced.writer else None,
        )

    async def _commit_forever(self) -> None:
        while True:
            await anyio.sleep(self._settings.commit_interval_s)
            await self._owned().commit_all()


def _batches(
    handler: AnyHandler | None, settings: ConsumerSettings, threads: HandlerThreads
) -> BatchHandler:
    batch_handler = settings.batch_handler
    if handler is None:
        assert batch_handler is not None, "without both, messages are taken in a loop"
        return awaited(batch_handler, threads)
    if batch_handler is not None:
        raise ClientUsageError("a consumer has either a handler or a batch_handler, not both")
    if settings.consume_batch_max != 1:
        raise ClientUsageError("consume_batch_max is for a batch_handler")
    return one_by_one(awaited(handler, threads))
