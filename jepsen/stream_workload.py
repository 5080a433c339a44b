"""Transactions, messages with due times and an ordered stream at work, for the rules in `promises.py`.

Each stream is opened, runs its senders until told to stop, and then `missing` falls to zero as its
consumers receive what they must.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal

import trio

from broker.client import (
    ClientError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendOutcomeUnknownError,
    TransactionProducer,
    TransactionState,
)
from broker.client.consume_results import Handler
from broker.client.queues import MessageQueue, queue_for_key
from jepsen.cpp_client import make_body, read_body
from jepsen.history import Recorder, Stream
from jepsen.workload import name_of, wait_for_queues, watch_offsets

BROKER_CONF: Final = """transactionTimeOut=1000
transactionCheckInterval=500
transactionCheckMax=1000
mappedFileSizeCommitLog=16777216
"""
"""Checks come soon, and nobody is given up while its leaders die."""

START_TIMEOUT_S: Final = 20.0
ORDERED_GROUP: Final = "demo-ordered"
TRANSACTION_WORKERS: Final = 4
TRANSACTION_PAUSE_S: Final = 0.03
LOCAL_S: Final = 0.02  # the longest local transaction
COMMIT_SHARE, SILENT_SHARE = 0.6, 0.2
TIMER_PAUSE_S: Final = 0.03
TIMER_MS: Final = (1000, 8000)
LEVEL_MS: Final = {1: 1000, 2: 5000}  # semantics.md M1
KEYS: Final = 8
KEY_PAUSE_S: Final = 0.02
MEMBERS: Final = 2


class StreamWorkload(ABC):
    """What the demo needs of a stream.

    Attributes:
        name: of the stream, in events and reports.
    """

    name: Stream

    def __init__(self, namesrv: str, history: Recorder, chance: random.Random) -> None:
        self._namesrv = namesrv
        self._history = history
        self._chance = chance
        self._expected: set[str] = set()
        self._received: set[str] = set()

    @property
    def missing(self) -> int:
        """How much must still be received."""
        return len(self._expected - self._received)

    @property
    def topic(self) -> str:
        """The topic of the stream."""
        return f"Demo-{self.name}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold producers and consumers open."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            yield

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None: ...

    @abstractmethod
    async def run(self, stop: trio.Event) -> None:
        """Send until told to stop, and wait for the last answers."""

    def _consumer(self, group: str, handler: Handler, *, ordered: bool = False) -> PushConsumer:
        return PushConsumer(
            self._namesrv,
            group,
            handler,
            subscriptions={self.topic: "*"},
            ordered=ordered,
            start_from="first",
            commit_interval_s=1.0,
        )

    def _place_of(self, queue: MessageQueue) -> str:
        return f"{self.topic}/{name_of(queue)}"


class TransactionStream(StreamWorkload):
    """Two producers of one group; some of their local transactions leave the end to a check."""

    name: Stream = "transactions"

    async def _open(self, stack: AsyncExitStack) -> None:
        self._decided: dict[str, TransactionState] = {}
        self._running: set[str] = set()
        self._producers = [
            await stack.enter_async_context(
                TransactionProducer(self._namesrv, "demo-bank", checker=self._look_up)
            )
            for _ in range(2)
        ]
        await wait_for_queues(self._producers[0], self.topic, START_TIMEOUT_S)
        await stack.enter_async_context(self._consumer("demo-transactions", self._note))

    async def run(self, stop: trio.Event) -> None:
        """Run transactions, a few at a time."""
        async with trio.open_nursery() as nursery:
            for number in range(TRANSACTION_WORKERS):
                producer = self._producers[number % len(self._producers)]
                nursery.start_soon(self._work, f"tx{number}", producer, stop)

    async def _work(self, name: str, producer: TransactionProducer, stop: trio.Event) -> None:
        number = 0
        while not stop.is_set():
            await self._one(producer, f"{name}-{number}")
            number += 1
            await trio.sleep(TRANSACTION_PAUSE_S)

    async def _one(self, producer: TransactionProducer, key: str) -> None:
        add = self._history.add
        add("send", stream=self.name, key=key)
        self._running.add(key)
        try:
            result = await producer.send_in_transaction(
                Message(self.topic, key.encode(), unique_key=key), self._local
            )
        except SendOutcomeUnknownError as error:
            add("unknown", stream=self.name, key=key, text=str(error))
        except ClientError as error:  # the half message is not stored, or its end was refused
            add("refused", stream=self.name, key=key, text=str(error))
        else:
            if result.is_confirmed:
                add("ack", stream=self.name, key=key, text=result.state.name)
        finally:
            self._running.discard(key)

    async def _local(self, _message: Message, key: str) -> TransactionState:
        await trio.sleep(self._chance.uniform(0, LOCAL_S))
        is_committed = self._chance.random() < COMMIT_SHARE
        state = TransactionState.COMMIT if is_committed else TransactionState.ROLLBACK
        self._history.add("decided", stream=self.name, key=key, text=state.name)
        self._decided[key] = state
        self._running.discard(key)
        if is_committed:
            self._expected.add(key)
        return TransactionState.UNKNOWN if self._chance.random() < SILENT_SHARE else state

    async def _look_up(self, message: ReceivedMessage) -> TransactionState:
        """The checker of both producers: what never ran is rolled back."""
        key = message.unique_key
        self._history.add("checked", stream=self.name, key=key)
        if key in self._running:
            return TransactionState.UNKNOWN
        return self._decided.get(key, TransactionState.ROLLBACK)

    async def _note(self, message: ReceivedMessage) -> None:
        key = message.body.decode(errors="replace")
        self._received.add(key)
        self._history.add(
            "receive",
            stream=self.name,
            queue=self._place_of(message.queue),
            offset=message.queue_offset,
            key=key,
        )


class TimerStream(StreamWorkload):
    """Levels 1 and 2, times and delays of one to eight seconds, in turn."""

    name: Stream = "timers"

    async def _open(self, stack: AsyncExitStack) -> None:
        self._producer = await stack.enter_async_context(Producer(self._namesrv, "demo-alarm"))
        await wait_for_queues(self._producer, self.topic, START_TIMEOUT_S)
        await stack.enter_async_context(self._consumer("demo-timers", self._note))

    async def run(self, stop: trio.Event) -> None:
        """Send one now and then, without waiting for the one before."""
        number = 0
        async with trio.open_nursery() as nursery:
            while not stop.is_set():
                nursery.start_soon(self._one, number)
                number += 1
                await trio.sleep(TIMER_PAUSE_S)

    async def _one(self, number: int) -> None:
        message, delay_ms = self._message(number)
        began_ms = self._history.now_ms()
        self._add("send", number, due_ms=began_ms + delay_ms)
        try:
            await self._producer.send(message)
        except SendOutcomeUnknownError as error:
            self._add("unknown", number, text=str(error))
        except ClientError as error:  # every other one is definite: not stored
            self._add("refused", number, text=str(error))
        else:
            now_ms = self._history.now_ms()
            is_time = message.deliver_at_ms is not None
            due_ms = max(now_ms, began_ms + delay_ms) if is_time else now_ms + delay_ms
            self._add("ack", number, due_ms=due_ms)
            self._expected.add(str(number))

    def _message(self, number: int) -> tuple[Message, float]:
        """Return a message, and from now how many ms it must wait at least."""
        body = make_body(self.name, 0, number)
        way = number % 4
        if way < 2:
            level = way + 1
            return Message(self.topic, body, delay_level=level), LEVEL_MS[level]
        delay_ms = self._chance.randint(*TIMER_MS)
        if way == 2:
            return Message(self.topic, body, delay_ms=delay_ms), delay_ms
        now_ns = time.time_ns()
        deliver_at_ms = now_ns // 1_000_000 + delay_ms
        wait_ms = deliver_at_ms - now_ns / 1_000_000
        return Message(self.topic, body, deliver_at_ms=deliver_at_ms), wait_ms

    async def _note(self, message: ReceivedMessage) -> None:
        _, number = read_body(message.body)
        self._received.add(str(number))
        self._history.add(
            "receive",
            stream=self.name,
            producer=self.name,
            number=number,
            queue=self._place_of(message.queue),
            offset=message.queue_offset,
        )

    def _add(
        self,
        kind: Literal["send", "ack", "unknown", "refused"],
        number: int,
        *,
        due_ms: float = -1,
        text: str = "",
    ) -> None:
        self._history.add(
            kind, stream=self.name, producer=self.name, number=number, due_ms=due_ms, text=text
        )


class OrderedStream(StreamWorkload):
    """Keys that each have their queue; two members that lock theirs."""

    name: Stream = "ordered"

    async def _open(self, stack: AsyncExitStack) -> None:
        self._producer = await stack.enter_async_context(Producer(self._namesrv, "demo-keys"))
        await wait_for_queues(self._producer, self.topic, START_TIMEOUT_S)
        self._queues = await self._producer.queues(self.topic)
        self._reader = await stack.enter_async_context(
            PullConsumer(self._namesrv, ORDERED_GROUP, timeout_s=1.0)
        )
        for _ in range(MEMBERS):
            consumer = self._consumer(ORDERED_GROUP, self._note, ordered=True)
            await stack.enter_async_context(consumer)

    async def run(self, stop: trio.Event) -> None:
        """Send number after number of each key, and watch the group's offsets."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as sending:
                for number in range(KEYS):
                    sending.start_soon(self._work, f"key{number}", stop)
                nursery.start_soon(self._watch)
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        await watch_offsets(
            self._reader, self._queues, self._history, group=ORDERED_GROUP, stream=self.name
        )

    async def _work(self, key: str, stop: trio.Event) -> None:
        queue = queue_for_key(self._queues, key)
        number = 0
        while not stop.is_set():
            await self._one(key, queue, number)
            number += 1
            await trio.sleep(KEY_PAUSE_S)

    async def _one(self, key: str, queue: MessageQueue, number: int) -> None:
        history, name = self._history, name_of(queue)
        history.add("send", stream=self.name, queue=name, producer=key, number=number)
        body = make_body(key, queue.queue_id, number)
        try:
            result = await self._producer.send(Message(self.topic, body), queue=queue)
        except ClientError as error:
            is_unknown = isinstance(error, SendOutcomeUnknownError)  # every other one: not stored
            history.add(
                "unknown" if is_unknown else "refused",
                stream=self.name,
                queue=name,
                producer=key,
                number=number,
                text=str(error),
            )
        else:
            history.add(
                "ack",
                stream=self.name,
                queue=name,
                producer=key,
                number=number,
                offset=result.queue_offset,
                key=result.unique_key,
            )
            self._expected.add(f"{key}-{number}")

    async def _note(self, message: ReceivedMessage) -> None:
        key, number = read_body(message.body)
        self._received.add(f"{key}-{number}")
        self._history.add(
            "receive",
            stream=self.name,
            queue=name_of(message.queue),
            producer=key,
            number=number,
            offset=message.queue_offset,
            consumer=ORDERED_GROUP,
            key=message.unique_key,
        )


def all_streams(namesrv: str, history: Recorder, seed: int) -> list[StreamWorkload]:
    """Return one of each."""
    chance = random.Random(seed)
    return [
        TransactionStream(namesrv, history, chance),
        TimerStream(namesrv, history, chance),
        OrderedStream(namesrv, history, chance),
    ]
