"""Delayed messages (rules M1 to M13): which are due, how far each level has been delivered.

A message with a delay level waits in `SCHEDULE_TOPIC_XXXX`, queue level - 1; its consume queue unit
carries the due time instead of a tag hash. The leader's task asks `due`, builds the messages with
`delivery`, and stages them with one `AdvanceSchedule` record per level in the same entry, so that a
crash between delivery and progress cannot be observed (RocketMQ repeats up to ten seconds: M10).

Nothing here reads a clock or a message of the log: the times are given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from broker.store.consume_queue import ConsumeQueue, ConsumeQueues
from broker.store.refusals import RefusalKind
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import REAL_QID, REAL_TOPIC, find_property, set_property
from dledger_mq.message.properties import WAIT as WAIT_PROPERTY
from dledger_mq.message.record import StoredMessage

SCHEDULE_KEY: Final = names.SCHEDULE_TOPIC.encode()
UNKNOWN_LEVEL_DELAY_MS: Final = 1000

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ADVANCE: Final = struct.Struct(">iq")

DELIVERY_PROPERTIES_BYTES: Final = 96
"""Room that a waiting message leaves for the properties that its delivery adds."""

DELAY_LEVELS_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's messageDelayLevel: levels 1 to 18 (M1)."""


def parse_delay_levels(text: str) -> list[int]:
    """Read a `messageDelayLevel` setting into milliseconds, level 1 first.

    Raises:
        ValueError: a part is not a number with one of the units s, m, h, d.
    """
    delays = []
    for part in text.split():
        number, unit = part[:-1], part[-1]
        if unit not in _UNITS_MS or not number.isascii() or not number.isdigit():
            raise ValueError(f"delay level {part!r} is not a number with a unit s, m, h or d")
        delays.append(int(number) * _UNITS_MS[unit])
    if not delays:
        raise ValueError("there are no delay levels")
    return delays


class DueMessage(NamedTuple):
    """A delayed message whose time has come."""

    level: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size_bytes: int
    due_ms: int


class Delivery(NamedTuple):
    """The message to store in place of a delayed one; hosts, times and flags stay those of the original."""

    topic: bytes
    queue_id: QueueId
    properties: bytes


def delivery(message: StoredMessage) -> Delivery | None:
    """Build the message to store in place of a due one (M7).

    Returns:
        None if it cannot be delivered: it names no topic or queue, or the half topic (M8).
    """
    topic = message.find(REAL_TOPIC)
    queue_id = message.find(REAL_QID)
    if topic is None or queue_id is None or topic == names.HALF_TOPIC.encode():
        return None
    if not queue_id.isdigit() or int(queue_id) > 2**31 - 1:
        return None
    properties = set_property(message.properties, WAIT_PROPERTY, b"false")
    return Delivery(topic, QueueId(int(queue_id)), properties)


def level_of(properties: bytes) -> int:
    """Return the delay level that a message asks for, 0 for none."""
    text = find_property(properties, b"DELAY")
    if text is None or not text.isdigit() or len(text) > 9:
        return 0
    return int(text)


class Schedule:
    """Delays of the levels and the progress of each. Changes are for the fold; everybody else reads.

    Attributes:
        delays_ms: of levels 1, 2, ...; the first stands at index 0.
        digest: CRC32C chained over every change.
    """

    def __init__(self, queues: ConsumeQueues) -> None:
        self.delays_ms: Sequence[int] = tuple(parse_delay_levels(DELAY_LEVELS_TEXT))
        self.digest: int = 0
        self._queues = queues
        self._progress: dict[int, QueueOffset] = {}

    def clamp(self, level: int) -> int:
        """Return the level that a wanted level means: those above the last mean the last (M2)."""
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level, after clamping; an unknown one means one second."""
        level = self.clamp(level)
        return self.delays_ms[level - 1] if level >= 1 else UNKNOWN_LEVEL_DELAY_MS

    def progress(self, level: int) -> QueueOffset:
        """Return the queue offset of the first message of a level that has not been delivered."""
        return self._progress.get(level, QueueOffset(0))

    def progress_table(self) -> Mapping[int, QueueOffset]:
        """Return the progress by level, of levels that have delivered something."""
        return self._progress

    @property
    def waiting_count(self) -> int:
        """The count of messages that are not delivered, and still in the log."""
        return sum(queue.max_offset - start for _, queue, start in self.waiting())

    def waiting(self) -> list[tuple[int, ConsumeQueue, QueueOffset]]:
        """Return each level with its queue, and where in it the messages begin that are not delivered."""
        return [(level, queue, self._start(level, queue, None)) for level, queue in self._levels()]

    def due(
        self, now_ms: int, limit: int, after: Mapping[int, QueueOffset] | None = None
    ) -> list[DueMessage]:
        """Return the messages whose time has come, earliest due first, in queue order within a level.

        Args:
            now_ms: the leader's clock.
            limit: how many at most.
            after: progress that was staged but is not applied yet, by level.
        """
        levels = [
            self._due_of(level, queue, self._start(level, queue, after), now_ms)
            for level, queue in self._levels()
        ]
        return list(islice(merge(*levels, key=lambda due: min(due.due_ms, now_ms)), limit))

    def next_due_ms(self) -> int | None:
        """Return the earliest due time of the levels' first messages; None when nothing waits.

        By rule M6 one may be due before that.
        """
        heads = (
            queue.unit(start).tag_hash
            for _, queue, start in self.waiting()
            if start < queue.max_offset
        )
        return min(heads, default=None)

    def _due_of(
        self, level: int, queue: ConsumeQueue, offset: QueueOffset, now_ms: int
    ) -> Iterator[DueMessage]:
        """Yield the messages of a level whose time has come, from a queue offset on."""
        while offset < queue.max_offset:
            unit = queue.unit(offset)
            # A due time further off than the level's delay means that the clock was set back, or
            # that the levels were shortened: deliver now (M6).
            if now_ms < unit.tag_hash <= now_ms + self.delay_ms(level):
                return
            yield DueMessage(level, offset, unit.physical_offset, unit.size_bytes, unit.tag_hash)
            offset = QueueOffset(offset + 1)

    def oldest_waiting(self) -> PhysicalOffset | None:
        """Return where the oldest message stands that is not delivered; None when none waits."""
        waiting = (
            queue.unit(start).physical_offset
            for _, queue, start in self.waiting()
            if start < queue.max_offset
        )
        return min(waiting, default=None)

    def set_delays(self, delays_ms: list[int]) -> None:
        """Replace the level table. Messages that wait keep their due times (but see M6)."""
        self.delays_ms = tuple(delays_ms)
        self.digest = crc32c(repr(delays_ms).encode(), self.digest)

    def advance(self, level: int, first: QueueOffset, end: QueueOffset) -> RefusalKind | None:
        """Note that messages first..end of a level were delivered; return the reason if it was refused."""
        queue = self._queues.by_key.get((SCHEDULE_KEY, QueueId(level - 1)))
        if queue is None or not first <= end <= queue.max_offset:
            return RefusalKind.OUT_OF_RANGE
        if first < self.progress(level):  # above it: what lay between is no longer in the log
            return RefusalKind.STALE_PROGRESS
        assert end >= self.progress(level), f"level {level}: {self.progress(level)} becomes {end}"
        self._progress[level] = end
        self.digest = crc32c(_ADVANCE.pack(level, end), self.digest)
        return None

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (list(self.delays_ms), list(self._progress.items()), self.digest)
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        delays_ms, progress, self.digest = msgspec.msgpack.decode(
            data, type=tuple[list[int], list[tuple[int, QueueOffset]], int]
        )
        self.delays_ms = tuple(delays_ms)
        self._progress = dict(progress)

    def _levels(self) -> list[tuple[int, ConsumeQueue]]:
        """Return every level that has seen a message, with its queue, lowest level first."""
        queues = self._queues.of_topic(names.SCHEDULE_TOPIC)
        levels = ((queue.key[1] + 1, queue) for queue in queues if queue.key[1] >= 0)
        return sorted(levels, key=lambda pair: pair[0])

    def _start(
        self, level: int, queue: ConsumeQueue, after: Mapping[int, QueueOffset] | None
    ) -> QueueOffset:
        """Return the offset of a level's first message that is not delivered, and still in the log."""
        staged = QueueOffset(0) if after is None else after.get(level, QueueOffset(0))
        return max(self.progress(level), staged, queue.min_offset)
