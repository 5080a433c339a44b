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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from broker.client import ClientError, Message, MessageQueue, Producer, PullConsumer
from jepsen.broker_system import BrokerSystem, brokers
from jepsen.checkers.offsets import check_offsets
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.checkers.total_queue import check_total_queue
from jepsen.generators import (
    MILLISECOND_NS,
    Endless,
    Generator,
    Invocation,
    Mix,
    Once,
    Phases,
    Stagger,
    TimeLimit,
    Until,
    each_slot,
)
from jepsen.outcomes import Outcome, ended
from jepsen.system import System
from jepsen.topics import make_topics, queue_name, wait_for_queues
from jepsen.workloads.api import Workload, WorkloadClient

TOPICS: Final = ("ChaosA", "ChaosB")
QUEUES: Final = 4
SHARES: Final = {"send": 6, "poll": 3, "commit": 1, "committed": 1}
SEND_TIMEOUT_S: Final = 6.0
READ_TIMEOUT_S: Final = 4.0
FINAL_TIMEOUT_NS: Final = 90_000 * MILLISECOND_NS
FINAL_PAUSE_NS: Final = 2 * MILLISECOND_NS
BODY_PADDING: Final = 64


@dataclass(slots=True)
class _Reader:
    """The reading of one worker, over all of its processes.

    Attributes:
        queues: names of those that it reads.
        positions: where it reads on, by queue.
        from_first: read from the first offset, and not from the committed one.
        at_end: by queue, whether nothing came the last time.
        has_drained: whether it has read everything, in the end.
    """

    queues: tuple[str, ...] = ()
    positions: dict[str, int] = field(default_factory=dict)
    from_first: bool = False
    at_end: dict[str, bool] = field(default_factory=dict)
    has_drained: bool = False


class QueueWorkload(Workload):
    """See the module's text."""

    name = "queue"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.queues: dict[str, MessageQueue] = {}
        self.readers: list[_Reader] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topics and share out the queues."""
        group = brokers(system)
        await make_topics([node.address for node in group.nodes], TOPICS, queues=QUEUES)
        async with Producer(group.namesrv, "chaos-setup") as producer:
            self.queues = await wait_for_queues(producer, TOPICS, queues=QUEUES)
        names, workers = list(self.queues), self._workers
        # Two workers read each queue, so that readers can be compared with each other.
        self.readers = [
            _Reader(
                tuple(
                    name
                    for place, name in enumerate(names)
                    if slot in {place % workers, (place + 1) % workers}
                )
            )
            for slot in range(workers)
        ]
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
            yield QueueClient(self, self.readers[slot], group, producer, consumer)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Sends, polls, commits and questions for offsets, mixed."""
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
        return Invocation("send", {"key": f"m{next(self._numbers)}", "queue": queue})

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
        """Every worker reads its share of the queues from the first offset to the end."""
        names = list(self.queues)
        return TimeLimit(
            FINAL_TIMEOUT_NS,
            each_slot(workers, lambda slot: self._drain(slot, tuple(names[slot::workers]))),
        )

    def _drain(self, slot: int, queues: tuple[str, ...]) -> Generator:
        reader = self.readers[slot]

        def step() -> Invocation:
            is_at_end = all(reader.at_end.get(queue) for queue in queues)
            return Invocation("drained" if is_at_end else "poll")

        reading = Stagger(FINAL_PAUSE_NS, Endless(step), random.Random(slot))
        assign = Invocation("assign", {"queues": queues, "from": "first"})
        return Phases([Once(assign), Until(lambda: reader.has_drained, reading)])

    def checkers(self) -> Sequence[Checker]:
        """A bag, a log per queue, and registers of offsets."""
        return (check_total_queue, check_queue_log, check_offsets)


class QueueClient:
    """A producer and a consumer of one process."""

    def __init__(
        self,
        workload: QueueWorkload,
        reader: _Reader,
        group: BrokerSystem,
        producer: Producer,
        consumer: PullConsumer,
    ) -> None:
        self._queues = workload.queues
        self._reader = reader
        self._group = group
        self._producer = producer
        self._consumer = consumer
        # The worker's places belong to the process before; this one finds out where to go on.
        reader.positions = {}
        reader.at_end = {}

    async def invoke(self, f: str, value: Any) -> Outcome:
        """Do one operation."""
        try:
            match f:
                case "send":
                    return await self._send(value)
                case "poll":
                    return await self._poll()
                case "commit":
                    await self._consumer.commit(self._queues[value["queue"]], value["offset"])
                    return Outcome("ok", value)
                case "committed":
                    offset = await self._consumer.committed(self._queues[value["queue"]])
                    # A broker that keeps a queue's first message says 0 to a group without an offset
                    # (semantics.md): nothing else can be told from it.
                    return Outcome("ok", {**value, "offset": offset or None})
                case "assign":
                    return self._assign(value)
                case "drained":
                    return await self._drained()
                case _:
                    raise AssertionError(f"no operation of this workload: {f}")
        except ClientError as error:
            return ended(error, value, changes_nothing=f not in {"send", "commit"})

    async def _send(self, value: dict[str, Any]) -> Outcome:
        key, name = value["key"], value["queue"]
        topic = self._queues[name].topic if name else TOPICS[len(key) % len(TOPICS)]
        message = Message(topic, body_of(key))
        queue = self._queues[name] if name else None
        result = await self._producer.send(message, queue=queue)
        told = {
            "key": key,
            "queue": queue_name(result.queue),
            "offset": result.queue_offset,
            "uniq": result.unique_key,
        }
        return Outcome("ok", told)

    async def _poll(self) -> Outcome:
        """Ask each queue once; what was read before an error counts."""
        reader = self._reader
        read: dict[str, list[list[object]]] = {}
        for name in reader.queues:
            try:
                position = await self._position(name)
                pulled = await self._consumer.pull(self._queues[name], position)
            except ClientError as error:
                if not read:
                    return ended(error, changes_nothing=True)
                break
            read[name] = [
                [each.queue_offset, key_of(each.body), each.unique_key] for each in pulled.messages
            ]
            reader.positions[name] = pulled.next_offset
            reader.at_end[name] = pulled.is_empty
        return Outcome("ok", read)

    async def _position(self, name: str) -> int:
        reader = self._reader
        if name not in reader.positions:
            queue = self._queues[name]
            stored = None if reader.from_first else await self._consumer.committed(queue)
            if stored is None:
                stored = await self._consumer.min_offset(queue)
            reader.positions[name] = stored
        return reader.positions[name]

    def _assign(self, value: dict[str, Any]) -> Outcome:
        reader = self._reader
        reader.queues = tuple(value["queues"])
        reader.from_first = True
        reader.positions = {}
        reader.at_end = {}
        return Outcome("ok", value)

    async def _drained(self) -> Outcome:
        """Say up to where everything was read, if that is the end now."""
        reader = self._reader
        ends: dict[str, int] = {}
        for name in reader.queues:
            end = await self._consumer.max_offset(self._queues[name])
            if reader.positions.get(name, -1) < end:
                reader.at_end[name] = False
                return Outcome("fail", None, f"{name} goes on to {end}")
            ends[name] = end
        reader.has_drained = True
        return Outcome("ok", ends)


def group_of(slot: int) -> str:
    """Return the consumer group of a worker."""
    return f"chaos-{slot}"


def body_of(key: str) -> bytes:
    """Return the body of a message: its key, padded so that messages have some weight."""
    return key.encode().ljust(BODY_PADDING)


def key_of(body: bytes) -> str:
    """Return the key that a body carries."""
    return body.decode(errors="replace").rstrip()
