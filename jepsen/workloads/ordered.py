"""Ordered consumption under locks: one member at a time per queue, every key in its order.

The model. A key's messages are numbered and go to one queue, one after the other. A queue has a lock, which one member
of the consumer group holds; the holder hands messages to its listener one by one, in the order of their
offsets. So a listener never sees a key go back, except to be delivered again from the last committed offset on, no
acknowledged message is passed over, and no two members work on one queue at the same time.

What is done. Members of one group consume for the whole run, each listener taking a little while for a message so
that two at work on one queue would be seen; now and then a member leaves and comes back, which hands its queues
over (a member that leaves while nobody leads cannot give its locks back, and they last a minute: `members_stay`
leaves that out). The workers send, each for a key of its own, and ask for the group's offsets, which must never go
back. In the end the group must have committed the end of every queue.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypedDict

import trio

from dledger_mq import (
    ClientError,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from dledger_mq.client.queues import queue_for_key
from jepsen.checkers.offsets import check_offsets
from jepsen.checkers.ordered import check_ordered
from jepsen.checkers.places import check_places
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.checkers.total_queue import check_total_queue
from jepsen.clients.topics import end_of, open_topics, queue_name
from jepsen.generators import (
    MILLISECOND_NS,
    SECOND_NS,
    Endless,
    Generator,
    Invocation,
    Mix,
    Stagger,
    TimeLimit,
    Until,
    each_slot,
)
from jepsen.history.ops import FIRST_LISTENER, RECEIVE
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import OffsetAsked, SendAsked, shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import content_sent, key_of, message_of, row_of

TOPIC: Final = "ChaosOrdered"
GROUP: Final = "chaos-ordered"
QUEUES: Final = 6
MEMBERS: Final = 3
LISTENER_S: Final = 0.004
TIMEOUT_S: Final = 6.0
AWAY_S: Final = 1.0
WEIGHTS: Final = {"send": 230, "committed": 19, "rejoin": 1}
FINAL_TIMEOUT_NS: Final = (
    150 * SECOND_NS
)  # the lock of a member that could not say goodbye lasts a minute
FINAL_PAUSE_NS: Final = 100 * MILLISECOND_NS


class Rejoin(TypedDict):
    """The number of the member that is to leave for a while."""

    member: int


class OrderedWorkload(Workload):
    """The workload of ordered consumption by a group whose members leave and rejoin."""

    name = "ordered"

    def __init__(self, workers: int, *, members_stay: bool = False) -> None:
        self._workers = workers
        self._members_stay = members_stay
        self._queues: dict[str, MessageQueue] = {}
        self._numbers: Counter[int] = Counter()
        self._members: list[GroupMember] = []
        self._tenures: dict[str, tuple[str, int]] = {}
        self._tenure_count = 0
        self._is_drained = False

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topic, and let the members consume until the end."""
        group = brokers(system)
        self._queues = await open_topics(group, [TOPIC], queues=QUEUES)
        chance = random.Random(0)
        async with trio.open_nursery() as nursery:
            self._members = [GroupMember(self, number, chance) for number in range(MEMBERS)]
            for member in self._members:
                nursery.start_soon(member.run, group.namesrv)
            yield
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a producer, and a consumer that only asks for offsets."""
        namesrv = brokers(system).namesrv
        async with (
            Producer(namesrv, "chaos-keys", timeout_s=TIMEOUT_S) as producer,
            PullConsumer(namesrv, GROUP, timeout_s=TIMEOUT_S) as asker,
        ):
            yield OrderedClient(self, producer, asker)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate sends for each worker's key, and questions for offsets; now and then a member leaves for a while."""

        def one(slot: int) -> Generator:
            makers: dict[str, Callable[[], Invocation]] = {
                "send": partial(self._send, slot),
                "committed": partial(self._committed, chance),
                "rejoin": lambda: Invocation("rejoin", {"member": chance.randrange(MEMBERS)}),
            }
            if self._members_stay:
                del makers["rejoin"]
            return Mix([(WEIGHTS[f], Endless(make)) for f, make in makers.items()], chance)

        return each_slot(workers, one)

    def _send(self, slot: int) -> Invocation:
        number = self._numbers[slot]
        self._numbers[slot] += 1
        queue = queue_for_key(list(self._queues.values()), f"key{slot}")
        key = f"key{slot}-{number}"
        content = content_sent(message_of(TOPIC, key))
        value = {"key": key, "queue": queue_name(queue), "content": content}
        return Invocation("send", value)

    def _committed(self, chance: random.Random) -> Invocation:
        queue = chance.choice(list(self._queues))
        return Invocation("committed", {"queue": queue, "group": GROUP})

    def final(self, workers: int) -> Generator:
        """Ask until the group has committed the end of every queue."""
        asking = Stagger(
            FINAL_PAUSE_NS, Endless(lambda: Invocation("drained")), random.Random(workers)
        )
        return TimeLimit(FINAL_TIMEOUT_NS, Until(lambda: self._is_drained, asking))

    def checkers(self) -> Sequence[Checker]:
        """Order and locks; nothing lost; queues as logs; places that answers name; offsets that members commit."""
        return (check_ordered, check_total_queue, check_queue_log, check_places, check_offsets)

    def queue(self, name: str) -> MessageQueue:
        """Return the queue of a name."""
        return self._queues[name]

    def rejoin(self, member: int) -> None:
        """Let a member leave, and come back a little later."""
        self._members[member].leave()

    def tenure(self, queue: str, member: str) -> int:
        """Return the history's process for a member's work on a queue since it took the queue over.

        A queue that went to another member and came back begins anew: what the other one was handed
        in between was not left out. A listener learns of that only from whose turn it was before.
        """
        holder, process = self._tenures.get(queue, ("", 0))
        if holder != member:
            process = FIRST_LISTENER + self._tenure_count
            self._tenure_count += 1
            self._tenures[queue] = (member, process)
        return process

    async def ends(self, asker: PullConsumer) -> dict[str, int] | None:
        """Return the ends of all queues if the group has committed them all."""
        found: dict[str, int] = {}
        for name, queue in self._queues.items():
            end = await end_of(asker, queue)
            if end and (await asker.committed(queue) or 0) < end:
                return None
            found[name] = end
        self._is_drained = True
        return found


class GroupMember:
    """One member of the group, that notes what its listener is handed."""

    def __init__(self, workload: OrderedWorkload, number: int, chance: random.Random) -> None:
        self._workload = workload
        self._number = number
        self._chance = chance
        self._lives = 0
        self._leaving = trio.Event()

    def leave(self) -> None:
        """Request that the member leaves the group for a while."""
        self._leaving.set()

    async def run(self, namesrv: str) -> None:
        """Consume until cancelled."""
        while True:
            self._leaving = trio.Event()
            self._lives += 1
            async with PushConsumer(
                namesrv,
                GROUP,
                self._listen,
                subscriptions={TOPIC: "*"},
                ordered=True,
                start_from="first",
                commit_interval_s=0.5,
            ):
                await self._leaving.wait()
            await trio.sleep(AWAY_S)

    async def _listen(self, message: ReceivedMessage) -> None:
        """Note a delivered message, and take a short while to work on it."""
        log, queue, key = self._workload.log, queue_name(message.queue), key_of(message.body)
        member = f"member{self._number}.{self._lives}"
        process = self._workload.tenure(queue, member)
        offset = message.queue_offset
        value = {"queue": queue, "offset": offset, "key": key, "member": member}
        log.add(process, "invoke", "process", value)
        ended_as = "info"
        try:
            await trio.sleep(self._chance.uniform(0, LISTENER_S))
            ended_as = "ok"
        finally:
            log.add(process, "ok" if ended_as == "ok" else "info", "process", value)
        log.add(process, "ok", RECEIVE, {queue: [row_of(message)]})


class OrderedClient:
    """A producer for a key, and an asker for offsets."""

    def __init__(self, workload: OrderedWorkload, producer: Producer, asker: PullConsumer) -> None:
        self._workload = workload
        self._producer = producer
        self._asker = asker

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        try:
            match f:
                case "send":
                    return await self._send(shaped(value, SendAsked))
                case "rejoin":
                    self._workload.rejoin(shaped(value, Rejoin)["member"])
                    return Outcome("ok", value)
                case "committed":
                    asked = shaped(value, OffsetAsked)
                    queue = self._workload.queue(asked["queue"])
                    # As in the queue workload: 0 is also said of a group that has none.
                    offset = await self._asker.committed(queue)
                    return Outcome("ok", {**asked, "offset": offset or None})
                case _:
                    ends = await self._workload.ends(self._asker)
                    return Outcome("ok", ends) if ends is not None else Outcome("fail")
        except ClientError as error:
            return ended(error, value, changes_nothing=f != "send")

    async def _send(self, asked: SendAsked) -> Outcome:
        """Send to the named queue; without one the key's order would not be defined."""
        name = asked.get("queue")
        assert name is not None, f"{asked['key']} goes to no queue, so that its order is nobody's"
        queue = self._workload.queue(name)
        result = await self._producer.send(message_of(TOPIC, asked["key"]), queue=queue)
        answer = {
            "key": asked["key"],
            "queue": queue_name(result.queue),
            "offset": result.queue_offset,
            "uniq": result.unique_key,
            "id": result.message_id,
        }
        return Outcome("ok", answer)
