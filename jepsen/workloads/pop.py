"""Popping: messages handed out for a time, acknowledged, given another time, forgotten, and handed out again.

The model. A group has each message of its queues to hand out, in flight under one handle until its invisible time is
over, acknowledged, or among its dead letters; see `checkers/pops.py`, which judges it.

What is done. Workers send, and pop in the names of two groups, one of them in order, by our simple consumer and by raw
frames to any node. What they get they acknowledge one by one or in batches, in time or too late, change its time, or
forget; now and then they try a handle that is used up. A message that was forgotten DELIVERIES_MAX times becomes a
dead letter. From another topic they pop in the first seconds only, and forget all of it: in runs of more than a
minute it comes through the retry topic. In the end they pop and acknowledge until nothing is owed to anybody, read the
dead letters, ask where the groups stand, and read the queues.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NotRequired

import msgspec

from dledger_mq import (
    AckError,
    ClientError,
    MessageQueue,
    NoRouteError,
    PoppedMessage,
    Producer,
    PullConsumer,
    SimpleConsumer,
)
from dledger_mq.client.popped_messages import popped_ms_of
from dledger_mq.message import names
from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.places import check_places
from jepsen.checkers.pops import check_pops
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.clients.raw_pops import RawPop, RawPops
from jepsen.clients.topics import end_of, make_groups, open_topics, queue_name
from jepsen.generators import (
    MILLISECOND_NS,
    SECOND_NS,
    Endless,
    Generator,
    Invocation,
    Phases,
    Stagger,
    TimeLimit,
    Until,
    each_slot,
)
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import (
    AckAsked,
    ChangeAsked,
    DeadRead,
    Ends,
    GroupPassed,
    HandleEnd,
    PopAsked,
    SendAsked,
    UsedHandle,
    shaped,
)
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import content_read, content_sent, key_of, message_of
from jepsen.workloads.reading import READS, PollingReader, Reader, drain

TOPIC: Final = "ChaosPop"
LEFT: Final = "ChaosPopLeft"
QUEUES: Final = {TOPIC: 4, LEFT: 2}
FREE: Final = "chaos-pop-free"
ORDERED: Final = "chaos-pop-ordered"
GROUPS: Final = (FREE, ORDERED)
DELIVERIES_MAX: Final = 4

INVISIBLE_MS: Final = (300, 3000)
ORDERED_MS: Final = 2000
"""The one time of the group in order: an attempt whose answer was lost may take messages again that its repeat has."""

FINAL_MS: Final = 10_000
COUNTS: Final = (1, 4, 16)
WAIT_S: Final = 0.2
TIMEOUT_S: Final = 6.0
LEFT_NS: Final = 10 * SECOND_NS
"""So long the topic is popped that is then left alone."""

OLD_HANDLES_MAX: Final = 64
SHARES: Final = {"send": 30, "pop": 70}
"""Of what a worker does that holds nothing; who holds something works on it twice out of three times."""

QUIET_NS: Final = 25 * SECOND_NS
"""Nothing that is owed was handed out for so long in the end: what is missing does not come."""

FINAL_TIMEOUT_NS: Final = 180 * SECOND_NS
FINAL_PAUSE_NS: Final = 20 * MILLISECOND_NS
DEAD_EVERY: Final = 10

How = Literal["client", "raw", "each"]
"""Our simple consumer; raw frames; a raw batch that asks what became of each."""


class PopOrder(PopAsked):
    """A pop, and the way in which it is made."""

    topic: str
    how: How
    node: int
    count_max: int
    attempt: str


class AckOrder(AckAsked):
    """Handles to be acknowledged, and the way; of one pop."""

    how: How
    node: int
    together: bool


class ChangeOrder(ChangeAsked):
    """A message that is to have another time, and the way."""

    how: How
    node: int


class GroupAsked(DeadRead):
    """A group that is asked about."""

    final: NotRequired[bool]


@dataclass(slots=True)
class Held:
    """Messages that a worker has of one pop."""

    group: str
    messages: list[PoppedMessage]


@dataclass(slots=True)
class Worker:
    """The knowledge of a worker, over all of its processes.

    Attributes:
        held: pops that it has not finished with, the oldest first.
        attempt: of its last raw pop in order, if that was not answered; then the next one repeats it.
        steps: in the end.
    """

    held: deque[Held] = field(default_factory=deque)
    attempt: str = ""
    steps: int = 0


class PopWorkload(Workload):
    """The workload of popped messages."""

    name = "pop"

    def __init__(self, workers: int) -> None:
        self._workers = [Worker() for _ in range(workers)]
        self._readers = [Reader() for _ in range(workers)]
        self.queues: dict[str, MessageQueue] = {}
        self._numbers = itertools.count()
        self._attempts = itertools.count()
        self._messages: dict[tuple[str, str, int, int], PoppedMessage] = {}
        self._old: deque[tuple[str, UsedHandle]] = deque(maxlen=OLD_HANDLES_MAX)
        self._owed: dict[str, dict[str, None]] = {group: {} for group in GROUPS}
        self._done: dict[str, set[str]] = {group: set() for group in GROUPS}
        self._began_ns = 0
        self._handed_ns = 0
        self._has_passed: set[str] = set()

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make topics and groups."""
        group = brokers(system)
        for topic, count in QUEUES.items():
            self.queues |= await open_topics(group, [topic], queues=count)
        await make_groups(group, GROUPS, deliveries_max=DELIVERIES_MAX)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a producer, a consumer for each group, and one that reads the queues in the end."""
        group = brokers(system)
        slot = process % len(self._workers)
        (broker_name, addresses), *_ = group.addresses.items()
        wanted = {TOPIC: "*"}
        async with (
            Producer(group.namesrv, "chaos-pop-send", timeout_s=TIMEOUT_S) as producer,
            SimpleConsumer(
                group.namesrv, FREE, subscriptions=wanted, start_from="first", timeout_s=TIMEOUT_S
            ) as free,
            SimpleConsumer(
                group.namesrv,
                ORDERED,
                subscriptions=wanted,
                ordered=True,
                start_from="first",
                timeout_s=TIMEOUT_S,
            ) as ordered,
            PullConsumer(group.namesrv, "chaos-pop-look", timeout_s=TIMEOUT_S) as looker,
        ):
            yield PopClient(
                self,
                slot,
                producer,
                consumers={FREE: free, ORDERED: ordered},
                raw=RawPops(broker_name, addresses),
                looker=looker,
                reader=PollingReader(self._readers[slot], looker, self.queues),
                namesrv=group.namesrv,
            )

    # What is to be done.

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate sends and pops, and what becomes of what was popped."""
        self._began_ns = self.log.now_ns()
        return each_slot(workers, lambda slot: Endless(partial(self._next, slot, chance)))

    def _next(self, slot: int, chance: random.Random) -> Invocation:
        worker = self._workers[slot]
        if worker.held and chance.random() < 0.66:
            work = self._work(worker, chance)
            if work is not None:
                return work
        (f,) = chance.choices(list(SHARES), list(SHARES.values()))
        return self._send(chance) if f == "send" else self._pop(worker, chance)

    def _send(self, chance: random.Random) -> Invocation:
        is_early = self.log.now_ns() < self._began_ns + LEFT_NS
        topic = LEFT if is_early and chance.random() < 0.1 else TOPIC
        queue = chance.choice([name for name, each in self.queues.items() if each.topic == topic])
        key = f"p{next(self._numbers)}"
        content = content_sent(message_of(topic, key))
        return Invocation("send", {"key": key, "queue": queue, "content": content})

    def _pop(self, worker: Worker, chance: random.Random) -> Invocation:
        """Draw a pop: for either group, in either way, early also of the topic that is left."""
        group = chance.choice(GROUPS)
        topic, how = TOPIC, chance.choice(("client", "raw"))
        is_early = self.log.now_ns() < self._began_ns + LEFT_NS
        if is_early and group == FREE and chance.random() < 0.2:
            topic, how = LEFT, "raw"
        invisible_ms = ORDERED_MS if group == ORDERED else chance.randint(*INVISIBLE_MS)
        return self._pop_of(
            worker,
            group,
            topic,
            how=how,
            invisible_ms=invisible_ms,
            count_max=chance.choice(COUNTS),
            node=chance.randrange(8),
        )

    def _pop_of(
        self,
        worker: Worker,
        group: str,
        topic: str,
        *,
        how: str,
        invisible_ms: int,
        count_max: int,
        node: int,
    ) -> Invocation:
        """Return a pop; a raw one in order repeats the attempt whose answer was lost."""
        is_ordered = group == ORDERED
        attempt = ""
        if is_ordered and how == "raw":
            attempt = worker.attempt or f"attempt-{next(self._attempts)}"
        value = {
            "group": group,
            "topic": topic,
            "ordered": is_ordered,
            "how": how,
            "node": node,
            "count_max": count_max,
            "invisible_ms": invisible_ms,
            "attempt": attempt,
        }
        return Invocation("pop", value)

    def _work(self, worker: Worker, chance: random.Random) -> Invocation | None:
        """Do something about the oldest pop, or about a handle that is used up; None: it was forgotten."""
        held, draw, node = worker.held[0], chance.random(), chance.randrange(8)
        if draw < 0.08:
            worker.held.popleft()
            return None
        if draw < 0.14 and self._old:
            group, handle = chance.choice(list(self._old))
            return _ack_of(group, [handle], how="raw", node=node)
        if draw < 0.26:
            message = held.messages.pop(0)
            invisible_ms = ORDERED_MS if held.group == ORDERED else chance.randint(*INVISIBLE_MS)
            value = {
                "group": held.group,
                "handle": _as_row(handle_of(message)),
                "invisible_ms": invisible_ms,
                "how": chance.choice(("client", "raw")),
                "node": node,
            }
            self._drop_empty(worker)
            return Invocation("change", value)
        hows: tuple[How, ...] = ("client", "raw", "each")
        how = chance.choice(hows)
        together = chance.random() < 0.6
        count = len(held.messages) if together else 1
        messages = [held.messages.pop(0) for _ in range(count)]
        self._drop_empty(worker)
        return _ack_of(held.group, map(handle_of, messages), how=how, node=node, together=together)

    @staticmethod
    def _drop_empty(worker: Worker) -> None:
        if worker.held and not worker.held[0].messages:
            worker.held.popleft()

    def final(self, workers: int) -> Generator:
        """Pop and acknowledge until nothing is owed; ask where the groups stand; read all queues."""
        popping = each_slot(
            workers,
            lambda slot: Until(
                self._is_complete,
                Stagger(
                    FINAL_PAUSE_NS,
                    Endless(partial(self._last_step, slot, workers)),
                    random.Random(slot),
                ),
            ),
        )
        asking = [self._until_passed(group) for group in GROUPS]
        return Phases(
            [
                TimeLimit(FINAL_TIMEOUT_NS, popping),
                *asking,
                drain(self._readers, list(self.queues)),
            ]
        )

    def _last_step(self, slot: int, workers: int) -> Invocation:
        """Acknowledge what is held; else look at dead letters now and then, and pop."""
        worker = self._workers[slot]
        if not self._handed_ns:
            self._handed_ns = self.log.now_ns()
        if worker.held:
            held = worker.held.popleft()
            return _ack_of(held.group, map(handle_of, held.messages), how="client", together=True)
        worker.steps += 1
        if worker.steps % DEAD_EVERY == 0:
            return Invocation("dead", {"group": GROUPS[worker.steps // DEAD_EVERY % 2]})
        group, topic = ((FREE, TOPIC), (ORDERED, TOPIC), (FREE, LEFT))[(slot + worker.steps) % 3]
        how = "raw" if topic == LEFT or (slot + worker.steps // 3) % 2 else "client"
        return self._pop_of(
            worker,
            group,
            topic,
            how=how,
            invisible_ms=ORDERED_MS if group == ORDERED else FINAL_MS,
            count_max=COUNTS[-1],
            node=(slot + worker.steps) % max(workers, 8),
        )

    def _is_complete(self) -> bool:
        """Return whether nothing is owed, or nothing of it has come for long. What comes again is owed to nobody."""
        if not any(self._owed.values()):
            return True
        return bool(self._handed_ns) and self.log.now_ns() > self._handed_ns + QUIET_NS

    def _until_passed(self, group: str) -> Generator:
        asking = Stagger(
            FINAL_PAUSE_NS,
            Endless(lambda: Invocation("passed", {"group": group})),
            random.Random(0),
        )
        return TimeLimit(FINAL_TIMEOUT_NS, Until(lambda: group in self._has_passed, asking))

    def checkers(self) -> Sequence[Checker]:
        """Check what was popped, each queue as a log, and what stands where answers say."""
        return (check_pops, check_queue_log, check_places)

    # What came of it.

    def note_sent(self, key: str, topic: str) -> None:
        """Note a stored message: each group that pops its topic is owed it."""
        for group in GROUPS if topic == TOPIC else (FREE,):
            if key not in self._done[group]:
                self._owed[group][key] = None

    def note_done(self, group: str, key: str) -> None:
        """Note that a group is owed a message no more."""
        self._done[group].add(key)
        self._owed[group].pop(key, None)

    def note_popped(self, slot: int, asked: PopOrder, messages: Sequence[PoppedMessage]) -> None:
        """Note what a worker has now; what it pops of the topic that is to be left alone it forgets."""
        if not messages:
            return
        for message in messages:
            self.note_handle(asked["group"], message)
            if key_of(message.body) in self._owed[asked["group"]]:
                self._handed_ns = self.log.now_ns()
        if asked["topic"] == TOPIC or asked["invisible_ms"] == FINAL_MS:
            self._workers[slot].held.append(Held(asked["group"], list(messages)))

    def note_attempt(self, slot: int, asked: PopOrder, *, is_answered: bool) -> None:
        """Note whether a raw pop in order was answered; else the next one repeats it."""
        if asked["attempt"]:
            self._workers[slot].attempt = "" if is_answered else asked["attempt"]

    def note_handle(self, group: str, message: PoppedMessage) -> None:
        """Remember a message by its handle."""
        handle = handle_of(message)
        self._messages[group, handle.queue, handle.offset, handle.popped_ms] = message

    def hold_again(self, slot: int, group: str, message: PoppedMessage) -> None:
        """Note that a worker has a message under another handle."""
        self.note_handle(group, message)
        self._workers[slot].held.append(Held(group, [message]))

    def note_used(self, group: str, handle: UsedHandle) -> None:
        """Note a handle that may be tried once more."""
        self._old.append((group, handle))

    def note_passed(self, group: str) -> None:
        """Note that a group was seen at the end of its queues."""
        self._has_passed.add(group)

    def message(self, group: str, handle: UsedHandle) -> PoppedMessage:
        """Return the message of a handle."""
        return self._messages[group, handle.queue, handle.offset, handle.popped_ms]

    def queues_of(self, group: str) -> dict[str, MessageQueue]:
        """Return the queues that a group pops."""
        topics = {TOPIC} if group == ORDERED else set(QUEUES)
        return {name: queue for name, queue in self.queues.items() if queue.topic in topics}


class PopClient:
    """A producer, consumers of both groups, and raw frames, of one process."""

    def __init__(
        self,
        workload: PopWorkload,
        slot: int,
        producer: Producer,
        *,
        consumers: dict[str, SimpleConsumer],
        raw: RawPops,
        looker: PullConsumer,
        reader: PollingReader,
        namesrv: str,
    ) -> None:
        self._workload = workload
        self._slot = slot
        self._producer = producer
        self._consumers = consumers
        self._raw = raw
        self._looker = looker
        self._reader = reader
        self._namesrv = namesrv

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        try:
            match f:
                case "send":
                    return await self._send(shaped(value, SendAsked))
                case "pop":
                    return await self._pop(shaped(value, PopOrder))
                case "ack":
                    return await self._acknowledge(shaped(value, AckOrder))
                case "change":
                    return await self._change(shaped(value, ChangeOrder))
                case "dead":
                    return await self._dead(shaped(value, GroupAsked)["group"])
                case "passed":
                    return await self._passed(shaped(value, GroupAsked)["group"])
                case _:
                    return await self._reader.invoke(f, value)
        except ClientError as error:
            return ended(error, value, changes_nothing=f in {"dead", "passed", *READS})

    async def _send(self, asked: SendAsked) -> Outcome:
        """Send a message to its queue; each group that pops the topic is owed it from then on."""
        key, name = asked["key"], asked.get("queue")
        assert name is not None, f"{key} goes to no queue"
        queue = self._workload.queues[name]
        result = await self._producer.send(message_of(queue.topic, key), queue=queue)
        self._workload.note_sent(key, queue.topic)
        answer = {
            "key": key,
            "queue": queue_name(result.queue),
            "offset": result.queue_offset,
            "uniq": result.unique_key,
            "id": result.message_id,
        }
        return Outcome("ok", answer)

    async def _pop(self, asked: PopOrder) -> Outcome:
        """Pop with the client or by a raw frame, and keep what came."""
        group, invisible_ms = asked["group"], asked["invisible_ms"]
        if asked["how"] == "client":
            messages = await self._consumers[group].receive(
                asked["count_max"], invisible_s=invisible_ms / 1000, wait_s=WAIT_S
            )
        else:
            raw = RawPop(
                group,
                asked["topic"],
                asked["count_max"],
                invisible_ms,
                is_ordered=asked["ordered"],
                attempt=asked["attempt"],
            )
            popped = await self._raw.pop(asked["node"], raw)
            is_lost = isinstance(popped, Outcome) and popped.type == "info"
            self._workload.note_attempt(self._slot, asked, is_answered=not is_lost)
            if isinstance(popped, Outcome):
                return popped
            messages = popped
        self._workload.note_popped(self._slot, asked, messages)
        return Outcome("ok", {"rows": [row_of(message) for message in messages]})

    async def _acknowledge(self, asked: AckOrder) -> Outcome:
        """Acknowledge handles, by the client, in a raw batch or one by one; say what became of each."""
        group, handles = asked["group"], asked["handles"]
        messages = [self._workload.message(group, handle) for handle in handles]
        if asked["how"] == "client":
            ends = await self._acknowledge_by_client(group, messages)
        elif asked["together"]:
            is_told = asked["how"] == "each"
            ends = await self._raw.acknowledge_batch(asked["node"], group, messages, each=is_told)
        else:
            ends = [await self._raw.acknowledge(asked["node"], group, one) for one in messages]
        for handle, end in zip(handles, ends, strict=True):
            if end in ("ok", "info"):
                self._workload.note_done(group, handle.key)
            self._workload.note_used(group, handle)
        types = set(ends)
        type_: Literal["ok", "info", "fail"] = (
            "info" if "info" in types else "ok" if "ok" in types else "fail"
        )
        return Outcome(type_, {"ends": ends})

    async def _acknowledge_by_client(
        self, group: str, messages: list[PoppedMessage]
    ) -> list[HandleEnd]:
        """Acknowledge with the simple consumer; return what it says of each message."""
        ends: dict[str, HandleEnd] = {}
        try:
            await self._consumers[group].ack(messages)
        except AckError as error:
            ends |= {one.handle: "gone" for one in error.expired}
            ends |= {one.handle: "fail" for one in error.undone}
            ends |= {one.handle: "info" for one in error.unknown}
        return [ends.get(one.handle, "ok") for one in messages]

    async def _change(self, asked: ChangeOrder) -> Outcome:
        """Give a message another time, by the client or a raw frame, and keep its new handle."""
        group, handle, invisible_ms = asked["group"], asked["handle"], asked["invisible_ms"]
        message = self._workload.message(group, handle)
        changed: PoppedMessage | HandleEnd
        if asked["how"] == "client":
            try:
                consumer = self._consumers[group]
                changed = await consumer.change_invisible_time(message, invisible_ms / 1000)
            except AckError as error:
                changed = "gone" if error.expired else "fail" if error.undone else "info"
        else:
            changed = await self._raw.change(asked["node"], group, message, invisible_ms)
        self._workload.note_used(group, handle)
        if not isinstance(changed, PoppedMessage):
            return Outcome("info" if changed == "info" else "fail", {"end": changed})
        self._workload.hold_again(self._slot, group, changed)
        return Outcome("ok", {"popped_ms": popped_ms_of(changed)})

    async def _dead(self, group: str) -> Outcome:
        """Read all dead letters of a group; none if it has no topic for them yet."""
        rows: list[list[object]] = []
        try:
            queues = await self._looker.queues(names.dlq_topic(group))
        except NoRouteError:
            queues = ()
        for queue in queues:
            offset = await self._looker.min_offset(queue)
            while offset < await end_of(self._looker, queue):
                pulled = await self._looker.pull(queue, offset)
                for message in pulled.messages:
                    key = key_of(message.body)
                    self._workload.note_done(group, key)
                    rows.append(
                        [
                            queue_name(queue),
                            message.queue_offset,
                            key,
                            message.reconsume_times,
                            message.store_timestamp_ms,
                        ]
                    )
                if pulled.is_empty:
                    break
                offset = pulled.next_offset
        return Outcome("ok", {"group": group, "rows": rows})

    async def _passed(self, group: str) -> Outcome:
        """Say where the group stands if that is the end of all queues that it pops."""
        stands: Ends = {}
        ends: Ends = {}
        async with PullConsumer(self._namesrv, group, timeout_s=TIMEOUT_S) as asker:
            for name, queue in self._workload.queues_of(group).items():
                ends[name] = QueueOffset(await end_of(asker, queue))
                stands[name] = (
                    await asker.committed(queue) if ends[name] else None
                ) or QueueOffset(0)
                if stands[name] < ends[name]:
                    text = f"{group} stands at {stands[name]} of {ends[name]} in {name}"
                    return Outcome("fail", error=text)
        self._workload.note_passed(group)
        value: GroupPassed = {"group": group, "stands": stands, "ends": ends}
        return Outcome("ok", value)


def handle_of(message: PoppedMessage) -> UsedHandle:
    """Return the handle of a message as the history has it."""
    return UsedHandle(
        queue_name(message.queue),
        message.queue_offset,
        popped_ms_of(message),
        key_of(message.body),
    )


def _as_row(handle: UsedHandle) -> list[object]:
    return list(msgspec.structs.astuple(handle))


def row_of(message: PoppedMessage) -> list[object]:
    """Return the history's row for a message that was popped; see `jepsen.checkers.popped`."""
    popped_ms = popped_ms_of(message)
    return [
        queue_name(message.queue),
        message.queue_offset,
        key_of(message.body),
        popped_ms,
        message.invisible_until_ms - popped_ms,
        message.reconsume_times,
        content_read(message),
    ]


def _ack_of(
    group: str,
    handles: Iterable[UsedHandle],
    *,
    how: How,
    node: int = 0,
    together: bool = False,
) -> Invocation:
    """Return an acknowledgement of handles of one pop."""
    value = {
        "group": group,
        "handles": [_as_row(handle) for handle in handles],
        "how": how,
        "node": node,
        "together": together,
    }
    return Invocation("ack", value)
