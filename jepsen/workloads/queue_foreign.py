"""The queue workload with one of RocketMQ's clients, C++, Java or Node, as one of its clients.

The model is that of `queue.py`, and each consumer group must get everything: the foreign push consumer as well as
our readers, whoever sent it. The clients do not say of which group a queue is (`checkers/known_queues.py`).

What is done. The last worker sends through a producer of the foreign client, to queues of the generator's choice; where
there are several groups, to any, so that the client can go on with another group. The
C++ client repeats a send of which it heard nothing under a new UNIQ_KEY, so that messages of its own may stand twice
(`rekeyed` in `queue_log.py`); Java's keeps the key; Node's has none, and is told to send once. A push consumer of the
same client runs all the time, and what its listener is handed stands in the history as that of a process that has
joined the group. In the end the group must get everything that was acknowledged; what it has not got when it has
committed the end of every queue is lost.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from dledger_mq import ClientError, PullConsumer
from jepsen.clients.foreign import ForeignClient, ForeignProcess, ForeignProducer, OutputLine
from jepsen.clients.topics import end_of
from jepsen.generators import (
    MILLISECOND_NS,
    SECOND_NS,
    Endless,
    Generator,
    Invocation,
    Reserve,
    Share,
    Stagger,
    TimeLimit,
    Until,
)
from jepsen.history.ops import FIRST_LISTENER, OBSERVER, RECEIVE
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import SendAsked, shaped
from jepsen.processes import NotReadyError
from jepsen.systems.api import System
from jepsen.systems.brokers import Brokers, brokers
from jepsen.workloads.api import Completion, WorkloadClient
from jepsen.workloads.contents import body_of, content, key_of
from jepsen.workloads.queue import READ_TIMEOUT_S, TOPICS, QueueWorkload

START_S: Final = 30.0
FINAL_TIMEOUT_NS: Final = (
    60 * SECOND_NS
)  # it gives up a pull on a broken connection after 30 s only
FINAL_PAUSE_NS: Final = 100 * MILLISECOND_NS


class ForeignQueueWorkload(QueueWorkload):
    """The queue workload in which one client is RocketMQ's, C++, Java or Node."""

    def __init__(self, foreign: ForeignClient, workers: int) -> None:
        super().__init__(workers - 1)
        self.name = f"queue-{foreign.name}"
        self.consumer_group = f"chaos-{foreign.name}"
        self._foreign = foreign
        self._ours = Share(0, workers - 1, workers)
        self._theirs = Share(workers - 1, 1, workers)
        self._foreign_numbers = itertools.count()
        self._broker_name = ""  # there are several
        self._producer: ForeignProducer | None = None
        self._consumer: ForeignProcess | None = None
        self._owed: set[str] = set()
        self._received: set[str] = set()
        self._is_over = False

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topics, and hold the foreign producer and consumer open."""
        groups = brokers(system)
        if len(groups.addresses) == 1:
            (self._broker_name,) = groups.addresses
        async with super().setup(system), trio.open_nursery() as nursery:
            await self._start(groups, nursery)
            nursery.start_soon(self._watch)
            yield
            nursery.cancel_scope.cancel()

    async def _start(self, group: Brokers, nursery: trio.Nursery) -> None:
        """Start consumer and producer, and wait for both to report that they run; raises NotReadyError otherwise."""
        words = ("--group", self.consumer_group, "--topics", *TOPICS)
        self._consumer = ForeignProcess(
            self._foreign,
            "consume",
            namesrv=group.namesrv,
            folder=group.folder,
            take=self._receive,
            more=words,
        )
        self._producer = ForeignProducer(self._foreign, group.namesrv, group.folder)
        self._note("join", {"group": self.consumer_group})
        for process in (self._consumer, self._producer.process):
            nursery.start_soon(process.run)
        for process in (self._consumer, self._producer.process):
            with trio.move_on_after(START_S):
                await process.has_started.wait()
            if process.has_ended.is_set() or not process.has_started.is_set():
                raise NotReadyError(f"{self._foreign.title} did not start: {process.last_words()}")

    async def _watch(self) -> None:
        """Note when the consumer ends by itself: then nobody can ask its group for anything."""
        assert self._consumer is not None, f"nobody consumes for {self.consumer_group}"
        await self._consumer.has_ended.wait()
        self._is_over = True
        self._note("leave", {"group": self.consumer_group})
        self.log.add(
            OBSERVER, "info", "note", f"the consumer of {self._foreign.title} ended by itself"
        )

    def _note(self, f: str, value: object) -> None:
        self.log.add(FIRST_LISTENER, "invoke", f, value)
        self.log.add(FIRST_LISTENER, "ok", f, value)

    def _receive(self, line: OutputLine) -> None:
        queue = f"{line.topic}/{self._broker_name}/{line.queue}"
        key = key_of(line.body.encode())
        self._received.add(key)
        self.log.add(FIRST_LISTENER, "ok", RECEIVE, {queue: [[line.offset, key, line.uniq]]})

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a client of ours, or return the foreign one, which all processes of its worker share."""
        if self._ours.owns(process):
            async with super().client(system, self._ours.inner(process)) as client:
                yield _Listened(client, self.owe)
            return
        namesrv = brokers(system).namesrv
        async with PullConsumer(namesrv, self.consumer_group, timeout_s=READ_TIMEOUT_S) as asker:
            yield ForeignQueueClient(self, asker)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate what our clients do, and sends of the foreign client."""
        ours = super().generator(chance, self._ours.workers)
        theirs = Endless(lambda: self._foreign_send(chance))
        return Reserve([(self._ours, ours), (self._theirs, theirs)])

    def _foreign_send(self, chance: random.Random) -> Invocation:
        key = f"{self._foreign.name}{next(self._foreign_numbers)}"
        value = {
            "key": key,
            "queue": chance.choice(list(self.queues)) if self._broker_name else None,
            "client": self._foreign.name,
            "content": content(body_of(key), None, keys=(), properties={}, flag=0),
        }
        return Invocation("send", value)

    def final(self, workers: int) -> Generator:
        """Let our clients read everything; the foreign client's group must have committed it."""
        ours = super().final(self._ours.workers)
        asking = Stagger(
            FINAL_PAUSE_NS, Endless(lambda: Invocation("group-drained")), random.Random(workers)
        )
        theirs = TimeLimit(FINAL_TIMEOUT_NS, Until(lambda: self._is_over, asking))
        return Reserve([(self._ours, ours), (self._theirs, theirs)])

    def owe(self, key: str) -> None:
        """Note that a message was acknowledged: the group must get it, too."""
        self._owed.add(key)

    async def send(self, value: SendAsked) -> Outcome:
        """Send through the foreign client."""
        assert self._producer is not None, f"nobody is there to send {value}"
        key, name = value["key"], value.get("queue")
        topic = self.queues[name].topic if name else TOPICS[len(key) % len(TOPICS)]
        queue_id = self.queues[name].queue_id if name else None
        line = await self._producer.send(key, topic, queue_id, body_of(key))
        if line is None:
            return Outcome("fail", value, f"the producer of {self._foreign.title} is gone")
        if line.event != "ack":
            return Outcome("info", value, line.text)
        self.owe(key)
        return Outcome("ok", {**value, "offset": line.offset})

    async def passed(self, asker: PullConsumer) -> Outcome:
        """Return whether the group has received everything, or has committed all ends without receiving it."""
        ends: dict[str, int] = {}
        if self._owed <= self._received:
            self._is_over = True
            return Outcome("ok", {"group": self.consumer_group, "ends": ends})
        for name, queue in self.queues.items():
            end = await end_of(asker, queue)
            committed = await asker.committed(queue) or 0
            if committed < end:
                return Outcome("fail", None, f"{name} goes on to {end}, committed is {committed}")
            ends[name] = end
        self._is_over = True
        return Outcome("ok", {"group": self.consumer_group, "ends": ends})


class _Listened:
    """A client of ours that reports each acknowledged send."""

    def __init__(self, client: WorkloadClient, on_sent: Callable[[str], None]) -> None:
        self._client = client
        self._on_sent = on_sent

    async def invoke(self, f: str, value: object) -> Completion:
        outcome = await self._client.invoke(f, value)
        if f == "send" and outcome.type == "ok":
            self._on_sent(shaped(value, SendAsked)["key"])
        return outcome


class ForeignQueueClient:
    """The foreign client's producer, with a reader of its group's offsets."""

    def __init__(self, workload: ForeignQueueWorkload, asker: PullConsumer) -> None:
        self._workload = workload
        self._asker = asker

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        if f == "send":
            return await self._workload.send(shaped(value, SendAsked))
        try:
            return await self._workload.passed(self._asker)
        except ClientError as error:
            return ended(error, value, changes_nothing=True)
