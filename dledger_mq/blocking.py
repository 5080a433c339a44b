"""The clients for code without async: scripts, notebooks, workers of a cluster.

    with Producer(namesrv="127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"one"))

Each object runs its trio client in a thread of its own; calls may come from any thread and block until
the answer is there. What the methods do, take and raise is said at the async clients.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

import trio

from dledger_mq.client import idempotent_producer as async_idempotent_producer
from dledger_mq.client import producer as async_producer
from dledger_mq.client import pull_consumer as async_pull_consumer
from dledger_mq.client import push_consumer as async_push_consumer
from dledger_mq.client import transaction_producer as async_transaction_producer
from dledger_mq.client.assignment import StartFrom
from dledger_mq.client.consume_results import (
    BROKER_DECIDES,
    CONCURRENCY,
    CONSUME_TIMEOUT_S,
    SUSPEND_S,
    Result,
)
from dledger_mq.client.errors import ClientClosedError, ClosedMeanwhileError, SendError
from dledger_mq.client.group_requests import PULL_GRACE_S, PullAnswer, PulledRecords
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.idempotent_producer import Row, RowsResult
from dledger_mq.client.local_offsets import DEFAULT_FOLDER
from dledger_mq.client.messages import Message, ReceivedMessage, SendResult
from dledger_mq.client.outbox import Outbox
from dledger_mq.client.process_queue import FlowLimits
from dledger_mq.client.queue_reader import PULL_BATCH
from dledger_mq.client.queues import MessageQueue, QueueSelector
from dledger_mq.client.rebalance import Strategy, allocate_average
from dledger_mq.client.rebalance_listener import RebalanceListener
from dledger_mq.client.send_settings import SendOptions
from dledger_mq.client.subscriptions import EVERYTHING
from dledger_mq.client.transaction_producer import TransactionResult, TransactionState

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_Client = TypeVar("_Client", bound=AbstractAsyncContextManager[object])


class _Runner(Generic[_Client]):
    """Keeps an async client open in a trio thread and carries calls there."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> Self:
        """Start the thread and wait until the client is open; raises what opening raised."""
        self._thread = threading.Thread(
            target=self._run, name=type(self._client).__name__, daemon=True
        )
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Leave the client in order and end the thread; raises what leaving raised."""
        if self._thread is None or self._token is None or self._stop is None:
            return
        thread, self._thread = self._thread, None
        with suppress(trio.RunFinishedError):  # it ended by itself; why, is raised below
            trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        thread.join()
        self._token = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - the root of this thread; raised in the caller's
            self._failure = error
        finally:
            self._opened.set()

    async def _main(self) -> None:
        async with self._client:
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            await self._work(self._stop)

    async def _work(self, stop: trio.Event) -> None:
        """What goes on while the client is open; ends soon after `stop`."""
        self._opened.set()
        await stop.wait()

    def call(
        self, function: Callable[_P, Awaitable[_R]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Run an async function in the client's thread and return its result."""
        if self._token is None or self._thread is None:
            raise ClientClosedError("not open; use it in a `with` block")

        async def run() -> _R:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise ClientClosedError("the client has ended") from error
        except trio.Cancelled as error:
            raise ClosedMeanwhileError("the client ended during the call") from error

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Producer(_Runner[async_producer.Producer]):
    """Sends messages; arguments as `dledger_mq.Producer`."""

    _outbox: Outbox | None = None

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = async_producer.SEND_TIMEOUT_S,
        pending_max: int = async_producer.PENDING_MAX,
        pending_bytes_max: int = async_producer.PENDING_BYTES_MAX,
        instance: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(
            async_producer.Producer(
                namesrv,
                group,
                timeout_s=timeout_s,
                pending_max=pending_max,
                pending_bytes_max=pending_bytes_max,
                instance=instance,
                **options,
            )
        )

    async def _work(self, stop: trio.Event) -> None:
        assert self._token is not None
        token = self._token

        def wake(function: Callable[[], None]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(function, idempotent=True)

        self._outbox = Outbox(self._client, wake, self._client.pending_max)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.run)
            await super()._work(stop)
            await self._outbox.flush()
            nursery.cancel_scope.cancel()

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Hand one message over and return at once, or when there is room for it.

        Messages leave in the order of the calls. The future ends with the result, or with the error that
        `send` would have raised; its callbacks run in the client's thread and must not block.

        Raises:
            ClientClosedError: not open.
        """
        if self._outbox is None or self._thread is None:
            raise ClientClosedError("not open; use it in a `with` block")
        return self._outbox.put((message, queue, key, timeout_s))

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
        """Make a message whose body is what the producer's `serializer` makes of a value."""
        return self._client.message(
            topic, value, tags=tags, keys=keys, properties=properties, delay_ms=delay_ms
        )

    def flush(self) -> None:
        """Wait until everything that was handed over before has ended, one way or the other."""

        async def flush() -> None:
            if self._outbox is not None:
                await self._outbox.flush()
            await self._client.flush()

        self.call(flush)

    def statistics(self) -> async_producer.ProducerStatistics:
        """Return what has been done so far."""

        async def read() -> async_producer.ProducerStatistics:
            return self._client.statistics()

        return self.call(read)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored."""
        return self.call(
            self._client.send,
            message,
            queue=queue,
            key=key,
            selector=selector,
            timeout_s=timeout_s,
        )

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult | SendError]:
        """Send messages without waiting for each answer; return how each one ended, in order.

        Much faster than `send` in a loop. A message that fails does not stop the others.
        """

        async def send_all() -> list[SendResult | SendError]:
            pending = [
                await self._client.submit(message, key=key, timeout_s=timeout_s)
                for message in messages
            ]
            await self._client.flush()
            ended = [one.error or one.result for one in pending]
            return [end for end in ended if end is not None]

        return self.call(send_all)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send several messages of one topic as one request; all are stored, or none."""
        return self.call(
            self._client.send_batch, messages, queue=queue, key=key, timeout_s=timeout_s
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
    ) -> None:
        """Put a message on a connection and ask for no answer: it may get lost."""
        self.call(self._client.send_oneway, message, queue=queue, key=key)

    def recall(self, handle: str, *, timeout_s: float | None = None) -> bool:
        """Take a message back that waits for its due time; False: it is too late."""
        return self.call(self._client.recall, handle, timeout_s=timeout_s)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that take messages."""
        return self.call(self._client.queues, topic)


class IdempotentProducer(Producer):
    """Sends rows that are stored once; arguments as `dledger_mq.IdempotentProducer`."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = async_producer.SEND_TIMEOUT_S,
        pending_max: int = async_producer.PENDING_MAX,
        pending_bytes_max: int = async_producer.PENDING_BYTES_MAX,
        instance: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        self._rows = async_idempotent_producer.IdempotentProducer(
            namesrv,
            group,
            timeout_s=timeout_s,
            pending_max=pending_max,
            pending_bytes_max=pending_bytes_max,
            instance=instance,
            **options,
        )
        _Runner.__init__(self, self._rows)

    def send_rows(
        self,
        rows: Sequence[Row],
        *,
        sink_id: str,
        batch_id: int,
        queue: MessageQueue,
        timeout_s: float | None = None,
    ) -> RowsResult:
        """Send rows of one batch to one queue; those that are not there yet are stored."""
        return self.call(
            self._rows.send_rows,
            rows,
            sink_id=sink_id,
            batch_id=batch_id,
            queue=queue,
            timeout_s=timeout_s,
        )


class TransactionProducer(Producer):
    """Sends in transactions; local transactions and the checker are ordinary functions.

    They run in worker threads, several at a time. Arguments as `dledger_mq.TransactionProducer`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        checker: Callable[[ReceivedMessage], TransactionState | None],
        timeout_s: float = async_producer.SEND_TIMEOUT_S,
        pending_max: int = async_producer.PENDING_MAX,
        pending_bytes_max: int = async_producer.PENDING_BYTES_MAX,
        instance: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        async def check(message: ReceivedMessage) -> TransactionState | None:
            return await trio.to_thread.run_sync(checker, message)

        self._transactions = async_transaction_producer.TransactionProducer(
            namesrv,
            group,
            checker=check,
            timeout_s=timeout_s,
            pending_max=pending_max,
            pending_bytes_max=pending_bytes_max,
            instance=instance,
            **options,
        )
        _Runner.__init__(self, self._transactions)

    def send_in_transaction(
        self,
        message: Message,
        local: Callable[[Message, str], TransactionState | None],
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
        check_after_s: int | None = None,
    ) -> TransactionResult:
        """Store a message, run the local transaction, and make the message visible if it committed."""

        async def run(message: Message, transaction_id: str) -> TransactionState | None:
            return await trio.to_thread.run_sync(local, message, transaction_id)

        return self.call(
            self._transactions.send_in_transaction,
            message,
            run,
            queue=queue,
            key=key,
            timeout_s=timeout_s,
            check_after_s=check_after_s,
        )


class PullConsumer(_Runner[async_pull_consumer.PullConsumer]):
    """Reads queues of the caller's choice; arguments as `dledger_mq.PullConsumer`."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = async_pull_consumer.PULL_TIMEOUT_S,
        instance: str | None = None,
    ) -> None:
        super().__init__(
            async_pull_consumer.PullConsumer(namesrv, group, timeout_s=timeout_s, instance=instance)
        )

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that can be read."""
        return self.call(self._client.queues, topic)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset, None when it has none."""
        return self.call(self._client.committed, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset: everything below it is finished."""
        self.call(self._client.commit, queue, offset)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is kept."""
        return self.call(self._client.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the next offset to be written."""
        return self.call(self._client.max_offset, queue)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time (ms since 1970)."""
        return self.call(self._client.offset_at, queue, timestamp_ms)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = EVERYTHING,
        hold_s: float = 0.0,
    ) -> PullAnswer:
        """Read from a queue, starting at an offset."""
        return self.call(
            self._client.pull,
            queue,
            offset,
            max_messages=max_messages,
            expression=expression,
            hold_s=hold_s,
        )

    def pull_records(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = EVERYTHING,
        node: int | None = None,
        answer_within_s: float = PULL_GRACE_S,
    ) -> PulledRecords:
        """Read from a queue, with the records as the broker sent them."""
        return self.call(
            self._client.pull_records,
            queue,
            offset,
            max_messages=max_messages,
            expression=expression,
            node=node,
            answer_within_s=answer_within_s,
        )

    def assign(self, queues: Iterable[MessageQueue] | Mapping[MessageQueue, int]) -> None:
        """Let `poll` read these queues, and no others; from given offsets, or where the group has committed."""
        self.call(self._client.assign, queues)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that `poll` reads."""
        return self._client.assigned

    def poll(
        self, timeout_s: float = 1.0, *, max_messages: int = 32
    ) -> tuple[ReceivedMessage, ...]:
        """Return the next messages of one of the assigned queues, none when none came in time."""
        return self.call(self._client.poll, timeout_s, max_messages=max_messages)

    def position(self, queue: MessageQueue) -> int:
        """Return the next offset that `poll` reads of an assigned queue."""
        return self._client.position(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let `poll` go on at another offset of an assigned queue."""
        self._client.seek(queue, offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` pass over some of the assigned queues."""
        self._client.pause(*queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Let `poll` read queues again that were paused."""
        self._client.resume(*queues)

    def commit_positions(self) -> None:
        """Store the positions of all assigned queues as the group's offsets."""
        self.call(self._client.commit_positions)

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics that the name servers know."""
        return self.call(self._client.topics)

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return min and max offset of queues."""
        return self.call(self._client.bounds, queues)

    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the group's offsets of several queues."""
        self.call(self._client.commit_all, offsets)


class PushConsumer(_Runner[async_push_consumer.PushConsumer]):
    """A member of a consumer group whose handler is an ordinary function.

    The handler runs in worker threads, up to `concurrency` at a time. Without one, messages are taken
    by `for message in consumer`. Other arguments as `dledger_mq.PushConsumer`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: Callable[[ReceivedMessage], Result] | None = None,
        *,
        subscriptions: Mapping[str, str],
        batch_handler: Callable[[tuple[ReceivedMessage, ...]], Result] | None = None,
        consume_batch_max: int = 1,
        ordered: bool = False,
        broadcast: bool = False,
        allocation: Strategy = allocate_average,
        concurrency: int = CONCURRENCY,
        start_from: StartFrom = "last",
        commit_interval_s: float = async_push_consumer.COMMIT_S,
        max_reconsume_times: int | None = None,
        retry_delay_level: int = BROKER_DECIDES,
        suspend_s: float = SUSPEND_S,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        pull_batch: int = PULL_BATCH,
        pull_interval_s: float = 0.0,
        limits: FlowLimits | None = None,
        offsets_folder: str | Path = DEFAULT_FOLDER,
        listener: RebalanceListener | None = None,
        deserializer: Callable[[bytes], Any] | None = None,
        hooks: ClientHooks | None = None,
        instance: str | None = None,
    ) -> None:
        super().__init__(
            async_push_consumer.PushConsumer(
                namesrv,
                group,
                handler,
                subscriptions=subscriptions,
                batch_handler=batch_handler,
                consume_batch_max=consume_batch_max,
                ordered=ordered,
                broadcast=broadcast,
                allocation=allocation,
                concurrency=concurrency,
                start_from=start_from,
                commit_interval_s=commit_interval_s,
                max_reconsume_times=max_reconsume_times,
                retry_delay_level=retry_delay_level,
                suspend_s=suspend_s,
                consume_timeout_s=consume_timeout_s,
                pull_batch=pull_batch,
                pull_interval_s=pull_interval_s,
                limits=limits,
                offsets_folder=offsets_folder,
                listener=listener,
                deserializer=deserializer,
                hooks=hooks,
                instance=instance,
            )
        )

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages; each counts as consumed when the next one is asked for."""
        with suppress(StopAsyncIteration):
            while True:
                yield self.call(self._client.__anext__)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads now."""

        async def read() -> tuple[MessageQueue, ...]:
            return self._client.assigned

        return self.call(read)

    def wait_assigned(self) -> tuple[MessageQueue, ...]:
        """Wait until this member has its share of the queues for the first time."""
        return self.call(self._client.wait_assigned)

    def subscribe(self, topic: str, expression: str = EVERYTHING) -> None:
        """Read another topic, or another selection of one, from now on."""
        self.call(self._client.subscribe, topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self.call(self._client.unsubscribe, topic)

    def pause(self, *queues: MessageQueue) -> None:
        """Pull nothing more of these queues."""

        async def pause() -> None:
            self._client.pause(*queues)

        self.call(pause)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""

        async def resume() -> None:
            self._client.resume(*queues)

        self.call(resume)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of a queue of ours, and commit it."""
        self.call(self._client.seek, queue, offset)

    def statistics(self) -> async_push_consumer.ConsumerStatistics:
        """Return what has been done so far."""

        async def read() -> async_push_consumer.ConsumerStatistics:
            return self._client.statistics()

        return self.call(read)

    def commit(self) -> None:
        """Commit what is consumed now, without waiting for the interval."""
        self.call(self._client.commit)
