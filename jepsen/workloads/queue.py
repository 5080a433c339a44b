"""Messages to queues, read by several consumers, with offsets that are committed and asked for.

The model. Each queue is a list that only grows: a send that is acknowledged with offset n stands at place n for
ever, a send that is refused stands nowhere, and one whose outcome is unknown stands at one place or nowhere
(the client sends it again under its UNIQ_KEY, which must not store it twice). A reader asks for what stands
from a place on and gets exactly that, in order and without a gap. A consumer group's offset of a queue is a register:
whoever reads it sees the newest acknowledged write, or one that was in flight.

What is done. Each process has a producer and a consumer. Sends go to a queue of the generator's choice, or to any
(then the client chooses). A worker reads the queues that belong to it and commits the place that it has reached,
under a group of its own, so that no other writes that register; a process that takes over its work starts at the
committed offset. In the end new processes read every queue from its first offset to its end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from dledger_mq import ClientError, MessageQueue, Producer, PullConsumer
from jepsen.checkers.offsets import check_offsets
from jepsen.checkers.places import check_places
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.checkers.total_queue import check_total_queue
from jepsen.clients.topics import open_topics, queue_name
from jepsen.generators import Endless, Generator, Invocation, Mix, each_slot
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import CommitAsked, OffsetAsked, SendAsked, shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import content_sent, message_of
from jepsen.workloads.reading import PollingReader, Reader, drain, share_out

TOPICS: Final = ("ChaosA", "ChaosB")
QUEUES: Final = 4
SHARES: Final = {"send": 6, "poll": 3, "commit": 1, "committed": 1}
SEND_TIMEOUT_S: Final = 6.0
READ_TIMEOUT_S: Final = 4.0


class QueueWorkload(Workload):
    """The workload of messages to queues, with several readers and committed offsets."""

    name = "queue"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.queues: dict[str, MessageQueue] = {}
        self.readers: list[Reader] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topics and share out the queues."""
        self.queues = await open_topics(brokers(system), TOPICS, queues=QUEUES)
        self.readers = share_out(list(self.queues), self._workers)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a producer and a consumer."""
        group = brokers(system)
        slot = process % len(self.readers)
        async with (
            Producer(group.namesrv, "chaos-send", timeout_s=SEND_TIMEOUT_S) as producer,
            PullConsumer(group.namesrv, group_of(slot), timeout_s=READ_TIMEOUT_S) as consumer,
        ):
            reader = PollingReader(self.readers[slot], consumer, self.queues)
            yield QueueClient(self.queues, producer, consumer, reader)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate sends, polls, commits and questions for offsets, mixed."""
        return each_slot(workers, lambda slot: self._mixed(slot, chance))

    def _mixed(self, slot: int, chance: random.Random) -> Generator:
        reader = self.readers[slot]
        makers = {
            "send": lambda: self._send(chance),
            "poll": lambda: Invocation("poll"),
            "commit": lambda: self._commit(slot, chance),
            "committed": lambda: self._committed(slot, chance),
        }
        wanted = SHARES if reader.queues else {"send": 1}
        return Mix([(share, Endless(makers[f])) for f, share in wanted.items()], chance)

    def _send(self, chance: random.Random) -> Invocation:
        names = list(self.queues)
        queue = chance.choice(names) if chance.random() < 0.5 else None
        key = f"m{next(self._numbers)}"
        content = content_sent(message_of(TOPICS[0], key))
        return Invocation("send", {"key": key, "queue": queue, "content": content})

    def _commit(self, slot: int, chance: random.Random) -> Invocation:
        reader = self.readers[slot]
        if not reader.positions:
            return Invocation("poll")
        queue = chance.choice(sorted(reader.positions))
        value = {"queue": queue, "offset": reader.positions[queue], "group": group_of(slot)}
        return Invocation("commit", value)

    def _committed(self, slot: int, chance: random.Random) -> Invocation:
        queue = chance.choice(self.readers[slot].queues)
        return Invocation("committed", {"queue": queue, "group": group_of(slot)})

    def final(self, workers: int) -> Generator:
        """Let every worker read its share of the queues from the first offset to the end."""
        return drain(self.readers, list(self.queues))

    def checkers(self) -> Sequence[Checker]:
        """Return a bag, a log per queue, what stands where answers say, and registers of offsets."""
        return (check_total_queue, check_queue_log, check_places, check_offsets)


class QueueClient:
    """A producer and a consumer of one process."""

    def __init__(
        self,
        queues: Mapping[str, MessageQueue],
        producer: Producer,
        consumer: PullConsumer,
        reader: PollingReader,
    ) -> None:
        self._queues = queues
        self._producer = producer
        self._consumer = consumer
        self._reader = reader

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        try:
            match f:
                case "send":
                    return await self._send(shaped(value, SendAsked))
                case "commit":
                    commit = shaped(value, CommitAsked)
                    await self._consumer.commit(self._queues[commit["queue"]], commit["offset"])
                    return Outcome("ok", value)
                case "committed":
                    asked = shaped(value, OffsetAsked)
                    offset = await self._consumer.committed(self._queues[asked["queue"]])
                    # A broker that keeps a queue's first message says 0 to a group without an offset
                    # (rule I4): nothing else follows from it.
                    return Outcome("ok", {**asked, "offset": offset or None})
                case _:
                    return await self._reader.invoke(f, value)
        except ClientError as error:
            return ended(error, value, changes_nothing=f not in {"send", "commit"})

    async def _send(self, asked: SendAsked) -> Outcome:
        """Send to the named queue, else to a topic that the key decides and a queue that the producer picks."""
        key, name = asked["key"], asked.get("queue")
        topic = self._queues[name].topic if name else TOPICS[len(key) % len(TOPICS)]
        queue = self._queues[name] if name else None
        result = await self._producer.send(message_of(topic, key), queue=queue)
        answer = {
            "key": key,
            "queue": queue_name(result.queue),
            "offset": result.queue_offset,
            "uniq": result.unique_key,
            "id": result.message_id,
        }
        return Outcome("ok", answer)


def group_of(slot: int) -> str:
    """Return the consumer group of a worker."""
    return f"chaos-{slot}"
