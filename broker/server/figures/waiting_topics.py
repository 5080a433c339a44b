"""The topics of messages that wait for a due time or a delay, and how many wait for each.

The derived state knows when such a message is due and where it stands; which topic it is for stands in the message. It
is read from the log beside the loop, once for each message and for a bounded time, and kept while the message waits.
There are figures once all are known, and none where more wait than can be kept: never a part of them. It must not know
how figures are shown.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import Final

import trio

from broker.server.figures.missing_parts import read_missing
from broker.store.consume_queue import ConsumeQueue
from broker.store.not_in_memory import NotInMemoryError
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.state import BrokerState
from broker.store.timers import TIMER_UNIT
from dledger import DLedgerError, LogReader
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from dledger_mq.message.properties import REAL_TOPIC

WAITING_MAX: Final = 100_000
"""Messages whose topics are kept: some 10 MB, and a tenth of a second of the processor for each look."""

WAIT_S: Final = 2.0
"""For one look; what it has read stays known for the next one."""

STEP_S: Final = 0.002
TRIES_MAX: Final = 4

LevelTopic = tuple[str, int]
"""Topic and delay level."""


class WaitingTopics:
    """The numbers of messages that wait for each topic, as they were at the last `refresh`.

    Attributes:
        timed: those with a due time of their own, by topic; None: not known, or too many.
        delayed: those with a delay level, by topic and level; None: not known, or too many. A message that cannot be
            read counts with an empty topic.
    """

    def __init__(
        self, state: BrokerState, reader: LogReader, *, waiting_max: int = WAITING_MAX
    ) -> None:
        """Set up for one broker; beyond `waiting_max` messages of either kind it is not known what they are for."""
        self.timed: Counter[str] | None = None
        self.delayed: Counter[LevelTopic] | None = None
        self._state = state
        self._reader = reader
        self._waiting_max = waiting_max
        self._records = RecordReader(reader, only_memory=True)
        self._known: dict[PhysicalOffset, str] = {}
        self._begun_s = 0.0

    async def refresh(self) -> None:
        """Look again, for WAIT_S at most; what was not reached by then is not known."""
        self.timed = self.delayed = None
        seen: dict[PhysicalOffset, str] = {}
        with trio.move_on_after(WAIT_S) as scope:
            self._begun_s = perf_counter()
            if self._state.timers.count <= self._waiting_max:
                self.timed = await self._count_timed(seen)
            if self._state.schedule.waiting_count <= self._waiting_max:
                self.delayed = await self._count_delayed(seen)
        if scope.cancelled_caught and len(self._known) < 2 * self._waiting_max:
            self._known.update(seen)  # the next look goes on from all that is known by now
        else:
            self._known = seen

    async def _count_timed(self, seen: dict[PhysicalOffset, str]) -> Counter[str]:
        """Count the messages with a due time, by topic."""
        counts = Counter[str]()
        for unit in self._state.timers.units():
            offset = PhysicalOffset(TIMER_UNIT.unpack(unit)[1])
            counts[await self._topic_of(offset, seen)] += 1
        return counts

    async def _count_delayed(self, seen: dict[PhysicalOffset, str]) -> Counter[LevelTopic]:
        """Count the messages with a delay level, by topic and level."""
        counts = Counter[LevelTopic]()
        for level, queue, start in self._state.schedule.waiting():
            for number in range(start, queue.max_offset):
                offset = await self._place_of(queue, QueueOffset(number))
                if offset is not None:
                    counts[await self._topic_of(offset, seen), level] += 1
        return counts

    async def _topic_of(self, offset: PhysicalOffset, seen: dict[PhysicalOffset, str]) -> str:
        """Return what the message at a physical offset is for; empty if it does not say, or cannot be read now."""
        if perf_counter() - self._begun_s >= STEP_S:
            await trio.lowlevel.checkpoint()
            self._begun_s = perf_counter()
        topic = self._known.get(offset) or await self._read_topic(offset)
        if topic:
            seen[offset] = topic
        return topic

    async def _read_topic(self, offset: PhysicalOffset) -> str:
        for _ in range(TRIES_MAX):
            try:
                message = self._records.message_at(offset)
            except NotInMemoryError as missing:
                await read_missing(self._reader, missing)
            except (MessageGoneError, DLedgerError):
                break  # delivered meanwhile and forgotten, or damaged and asked for
            else:
                return (message.find(REAL_TOPIC) or b"").decode(errors="replace")
        return ""

    async def _place_of(self, queue: ConsumeQueue, offset: QueueOffset) -> PhysicalOffset | None:
        """Return where the message at a queue offset stands; None if it is gone meanwhile."""
        for _ in range(TRIES_MAX):
            if not queue.min_offset <= offset < queue.max_offset:
                break
            try:
                return queue.unit(offset, without_waiting=True).physical_offset
            except NotInMemoryError as missing:
                await read_missing(self._reader, missing)
        return None
