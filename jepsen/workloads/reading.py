"""The reading of queues, which several message workloads share.

A worker reads the queues that belong to it, place by place, over all of its processes. While things break each queue
is read by two workers, from the group's committed offset on; in the end every queue has one reader that starts at the
first offset and goes on until it has everything.

    poll      asks each queue once; what was read before an error counts
    assign    gives the worker other queues and places
    drained   says up to where everything was read, if that is the end now

In the end a refusal is an answer, too: of a queue that is gone the leader says that it ends at 0. That is its end, and
what was acknowledged there is lost. Only what nobody answered stays unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

from dledger_mq import ClientError, MessageQueue, PullConsumer, ReceivedMessage
from jepsen.clients.topics import end_of
from jepsen.generators import (
    MILLISECOND_NS,
    Endless,
    Generator,
    Invocation,
    Mix,
    Nothing,
    Once,
    Phases,
    Stagger,
    TimeLimit,
    Until,
    each_slot,
)
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import shaped
from jepsen.workloads.contents import key_of, row_of

FINAL_TIMEOUT_NS: Final = 120_000 * MILLISECOND_NS
FINAL_PAUSE_NS: Final = 20 * MILLISECOND_NS
READS: Final = frozenset({"poll", "assign", "drained"})


class Assigned(TypedDict):
    """The queues that a worker reads from here on, each from its first offset."""

    queues: list[str]


@dataclass(slots=True)
class Reader:
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

    @property
    def is_at_end(self) -> bool:
        """True when nothing came from any queue the last time."""
        return all(self.at_end.get(queue) for queue in self.queues)

    def forget_places(self) -> None:
        """Forget the positions, so that they are fetched again: the worker has a new process."""
        self.positions, self.at_end = {}, {}


def share_out(queues: Sequence[str], workers: int) -> list[Reader]:
    """Give each queue to two workers, so that readers can be compared with each other."""
    return [
        Reader(
            tuple(
                name
                for place, name in enumerate(queues)
                if slot in {place % workers, (place + 1) % workers}
            )
        )
        for slot in range(workers)
    ]


def mixed_with_polls(
    readers: Sequence[Reader], make: Callable[[], Invocation], weight: int, chance: random.Random
) -> Generator:
    """Return a generator in which every worker does what `make` says, and reads if it has queues.

    Args:
        readers: one for each worker.
        make: makes what is done beside polls.
        weight: how often that is done for one poll.
        chance: draws.
    """
    work, poll = Endless(make), Endless(lambda: Invocation("poll"))

    def one(slot: int) -> Generator:
        return Mix([(weight, work), (1, poll)], chance) if readers[slot].queues else work

    return each_slot(len(readers), one)


def drain(
    readers: Sequence[Reader],
    queues: Sequence[str],
    is_complete: Callable[[], bool] = lambda: True,
) -> Generator:
    """Return the final generator: each worker reads its share from the first offset to the end.

    Args:
        readers: one for each worker.
        queues: all of them.
        is_complete: whether everything that must still come has been read by somebody; the end of a
            queue is looked for until then, or until the time is over.
    """
    workers = len(readers)

    def drain_one(slot: int) -> Generator:
        reader, share = readers[slot], tuple(queues[slot::workers])
        if not share:
            return Nothing()

        def step() -> Invocation:
            is_end = reader.is_at_end and is_complete()
            return Invocation("drained" if is_end else "poll")

        reading = Stagger(FINAL_PAUSE_NS, Endless(step), random.Random(slot))
        assign = Invocation("assign", {"queues": share, "from": "first"})
        return Phases([Once(assign), Until(lambda: reader.has_drained, reading)])

    return TimeLimit(FINAL_TIMEOUT_NS, each_slot(workers, drain_one))


class PollingReader:
    """Reads for one process.

    Args:
        reader: of its worker.
        consumer: open.
        queues: all queues by their names.
        on_read: called with each key that was read.
        row: makes the history's row of a message.
    """

    def __init__(
        self,
        reader: Reader,
        consumer: PullConsumer,
        queues: Mapping[str, MessageQueue],
        *,
        on_read: Callable[[str], None] = lambda _key: None,
        row: Callable[[ReceivedMessage], list[object]] = row_of,
    ) -> None:
        self._reader = reader
        self._consumer = consumer
        self._queues = queues
        self._on_read = on_read
        self._row = row
        reader.forget_places()

    async def invoke(self, f: str, value: object) -> Outcome:
        """Do one read operation of those in `READS`.

        Raises:
            ClientError: nothing was read; the operation has failed.
        """
        match f:
            case "poll":
                return await self._poll()
            case "assign":
                return self._assign(shaped(value, Assigned))
            case _:
                return await self._drained()

    async def _poll(self) -> Outcome:
        """Pull once from every queue; what was read before an error is kept, since those positions have moved."""
        reader = self._reader
        read: dict[str, list[list[object]]] = {}
        refused = ""
        for name in reader.queues:
            try:
                position = await self._position(name)
                pulled = await self._consumer.pull(self._queues[name], position)
            except ClientError as error:
                if reader.from_first and await self._has_nothing(name):
                    reader.positions.setdefault(name, 0)
                    reader.at_end[name] = True
                    read[name], refused = [], str(error)
                    continue
                if not read:
                    return ended(error, changes_nothing=True)
                break
            read[name] = [self._row(each) for each in pulled.messages]
            for each in pulled.messages:
                self._on_read(key_of(each.body))
            position_after = pulled.next_offset
            assert position_after >= position or not pulled.messages, (
                f"{name} was read from {position} on, and goes on at {position_after}"
            )
            reader.positions[name] = position_after
            reader.at_end[name] = pulled.is_empty
        return Outcome("ok", read, refused)

    async def _has_nothing(self, name: str) -> bool:
        """Return whether the leader of a queue that cannot be read says that nothing stands from our place on."""
        try:
            end = await end_of(self._consumer, self._queues[name])
        except ClientError:
            return False
        return end <= self._reader.positions.get(name, 0)

    async def _position(self, name: str) -> int:
        reader = self._reader
        if name not in reader.positions:
            queue = self._queues[name]
            stored = None if reader.from_first else await self._consumer.committed(queue)
            if stored is None:
                stored = await self._consumer.min_offset(queue)
            reader.positions[name] = stored
        return reader.positions[name]

    def _assign(self, value: Assigned) -> Outcome:
        reader = self._reader
        reader.queues = tuple(value["queues"])
        reader.from_first = True
        reader.forget_places()
        return Outcome("ok", value)

    async def _drained(self) -> Outcome:
        reader = self._reader
        ends: dict[str, int] = {}
        for name in reader.queues:
            end = await end_of(self._consumer, self._queues[name])
            if reader.positions.get(name, -1) < end:
                reader.at_end[name] = False
                return Outcome("fail", None, f"{name} goes on to {end}")
            ends[name] = end
        reader.has_drained = True
        return Outcome("ok", ends)
