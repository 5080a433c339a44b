"""Messages with due times: by level, by delay, by the clock.

The model. A message with a due time is in its queue once, and not before that time. The due time of a level or a delay
counts from the moment at which the broker stores the message, which lies between the send and its answer; a
message that names its time is due then. Nothing acknowledged is lost, however many leaders die meanwhile, and
nothing comes twice: the move from the timer into the queue happens once, whoever leads.

What is done. Each process has a producer and a consumer. Delays of one to eight seconds, so that many faults
strike while messages wait. In the end everything that was acknowledged must come.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NotRequired

from dledger_mq import ClientError, Message, MessageQueue, Producer, PullConsumer
from jepsen.checkers.delay import LATE_NS, check_delay
from jepsen.checkers.places import check_places
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.clients.topics import open_topics, queue_name
from jepsen.generators import MILLISECOND_NS, SECOND_NS, Generator, Invocation
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import SendAsked, shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import content_sent, message_of
from jepsen.workloads.reading import (
    READS,
    PollingReader,
    Reader,
    drain,
    mixed_with_polls,
    share_out,
)

TOPIC: Final = "ChaosTimers"
QUEUES: Final = 4
LEVEL_MS: Final = {1: 1000, 2: 5000}  # rule M1
DELAY_MS: Final = (1000, 8000)
WAYS: Final = ("level", "delay", "time")
TIMEOUT_S: Final = 6.0
SETTLE_NS: Final = 45 * SECOND_NS


class DelaySend(SendAsked):
    """A message that falls due later: by level, after a delay, or at a time."""

    way: str
    level: NotRequired[int]
    delay_ms: int


class DelayWorkload(Workload):
    """The workload of messages with due times."""

    name = "delay"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._queues: dict[str, MessageQueue] = {}
        self._readers: list[Reader] = []
        self._numbers = itertools.count()
        self._owed: set[str] = set()
        self._read: set[str] = set()
        self._last_due_ns = 0
        self._final_ns = 0

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topic and share out its queues."""
        self._queues = await open_topics(brokers(system), [TOPIC], queues=QUEUES)
        self._readers = share_out(list(self._queues), self._workers)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a producer and a consumer."""
        namesrv = brokers(system).namesrv
        slot = process % self._workers
        async with (
            Producer(namesrv, "chaos-alarm", timeout_s=TIMEOUT_S) as producer,
            PullConsumer(namesrv, f"chaos-alarm-{slot}", timeout_s=TIMEOUT_S) as consumer,
        ):
            reader = PollingReader(
                self._readers[slot], consumer, self._queues, on_read=self._note_read
            )
            yield DelayClient(self, producer, reader)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate sends in three ways, and polls beside them: arrivals are timed by the clock of the run."""
        return mixed_with_polls(self._readers, partial(self._send, chance), 1, chance)

    def _send(self, chance: random.Random) -> Invocation:
        number = next(self._numbers)
        way = WAYS[number % len(WAYS)]
        level = 1 + number // len(WAYS) % len(LEVEL_MS)
        delay_ms = LEVEL_MS[level] if way == "level" else chance.randint(*DELAY_MS)
        due_ns = self.log.now_ns() + delay_ms * MILLISECOND_NS
        key = f"d{number}"
        content = content_sent(message_of(TOPIC, key))
        value: dict[str, object] = {"key": key, "queue": None, "way": way, "content": content}
        if way == "level":
            value["level"] = level
        return Invocation("send", {**value, "delay_ms": delay_ms, "due_ns": due_ns})

    async def send(self, producer: Producer, value: DelaySend) -> Outcome:
        """Send one message."""
        message = self._message(value)
        result = await producer.send(message)
        now_ns, due_ns = self.log.now_ns(), value["due_ns"]
        # The latest moment at which it falls due: the broker has stored it by now.
        latest_ns = due_ns if value["way"] == "time" else now_ns
        if value["way"] != "time":
            latest_ns += value["delay_ms"] * MILLISECOND_NS
        answer = {
            **value,
            "queue": queue_name(result.queue),
            "uniq": result.unique_key,
            "id": result.message_id,
            "due_ns": max(latest_ns, now_ns),
        }
        self._last_due_ns = max(self._last_due_ns, latest_ns, now_ns)
        if value["key"] not in self._read:
            self._owed.add(value["key"])
        return Outcome("ok", answer)

    def _message(self, value: DelaySend) -> Message:
        key = value["key"]
        match value["way"]:
            case "level":
                return message_of(TOPIC, key, delay_level=value["level"])
            case "delay":
                return message_of(TOPIC, key, delay_ms=value["delay_ms"])
            case _:
                # Rounded up: the broker's milliseconds must not make it due before its time.
                wall_ns = time.time_ns() + value["due_ns"] - self.log.now_ns()
                return message_of(TOPIC, key, deliver_at_ms=-(-wall_ns // MILLISECOND_NS))

    def _note_read(self, key: str) -> None:
        self._read.add(key)
        self._owed.discard(key)

    def final(self, workers: int) -> Generator:
        """Read everything, until all that was acknowledged has come."""
        return drain(self._readers, list(self._queues), self._is_complete)

    def _is_complete(self) -> bool:
        now_ns = self.log.now_ns()
        self._final_ns = self._final_ns or now_ns
        if now_ns < self._last_due_ns + LATE_NS:  # before that a missing one is not lost
            return False
        return not self._owed or now_ns >= self._final_ns + SETTLE_NS

    def checkers(self) -> Sequence[Checker]:
        """Return due times, each queue as a log, and what was sent is what stands there."""
        return (check_delay, check_queue_log, check_places)


class DelayClient:
    """A producer and a reader."""

    def __init__(self, workload: DelayWorkload, producer: Producer, reader: PollingReader) -> None:
        self._workload = workload
        self._producer = producer
        self._reader = reader

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        try:
            if f in READS:
                return await self._reader.invoke(f, value)
            return await self._workload.send(self._producer, shaped(value, DelaySend))
        except ClientError as error:
            return ended(error, value, changes_nothing=f in READS)
