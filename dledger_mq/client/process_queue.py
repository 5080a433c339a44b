"""What a consumer holds of one queue: pulled, not yet finished, and what may be committed.

Pure. The committed offset is the lowest one that is unfinished (rule I7), so a crash repeats
messages but never skips one. The position to pull next lives here too and outlives connections: after
a leader was killed the consumer goes on exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """The limits at which pulling of a queue pauses. The numbers are the Java client's (rule E16)."""

    messages_max: int = 1000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int = 2000


class ProcessQueue:
    """The unfinished messages of one queue.

    Invariants: unfinished offsets are below `next_offset`; `committable` never falls, except
    through `reset`.
    """

    __slots__ = ("_sizes", "byte_count", "committed", "next_offset", "queue")

    def __init__(self, queue: MessageQueue, next_offset: QueueOffset) -> None:
        self.queue = queue
        self.next_offset = next_offset  # the next offset to pull
        self.byte_count = 0  # bodies of unfinished messages
        self.committed: QueueOffset | None = (
            None  # what the broker has confirmed, None before the first
        )
        self._sizes: dict[QueueOffset, int] = {}  # offset -> body bytes, ascending by insertion

    def add(
        self, offsets: Sequence[QueueOffset], sizes: Sequence[int], next_offset: QueueOffset
    ) -> None:
        """Take note of one pull: ascending offsets, the bytes of each body, and where the next pull starts."""
        if offsets:
            bounds = (self.next_offset, offsets[0], offsets[-1], next_offset)
            assert bounds[0] <= bounds[1] <= bounds[2] < bounds[3], f"{offsets} do not fit {bounds}"
            count = len(self._sizes) + len(offsets)
            self._sizes.update(zip(offsets, sizes, strict=True))
            assert len(self._sizes) == count, f"an offset of {offsets} is there twice"
            self.byte_count += sum(sizes)
        self.next_offset = max(self.next_offset, next_offset)

    def finish(self, offsets: Iterable[QueueOffset]) -> None:
        """Mark messages as dealt with. Offsets that are not held (after a reset) are ignored."""
        pop, finished_bytes = self._sizes.pop, 0
        for offset in offsets:
            finished_bytes += pop(offset, 0)
        self.byte_count -= finished_bytes
        assert self.byte_count >= 0, f"{self.byte_count} bytes are held of {self.queue}"

    def holds(self, offset: QueueOffset) -> bool:
        """Return whether a message is unfinished here."""
        return offset in self._sizes

    def first_offsets(self, count: int) -> list[QueueOffset]:
        """Return the lowest unfinished offsets, ascending."""
        return list(islice(self._sizes, count))

    def reset(self, next_offset: QueueOffset) -> None:
        """Drop everything held and go on at `next_offset`, forwards or backwards."""
        self._sizes.clear()
        self.byte_count = 0
        self.next_offset = next_offset

    @property
    def message_count(self) -> int:
        """Number of unfinished messages."""
        return len(self._sizes)

    @property
    def last_offset(self) -> QueueOffset | None:
        """The highest unfinished offset."""
        return next(reversed(self._sizes), None)

    @property
    def committable(self) -> QueueOffset:
        """The offset to commit: everything below it is finished."""
        return next(iter(self._sizes), self.next_offset)

    @property
    def needs_commit(self) -> bool:
        """True while the broker does not know `committable` yet."""
        return self.committed != self.committable

    def is_full(self, limits: FlowLimits) -> bool:
        """Return whether pulling should pause until more is finished."""
        return (
            len(self._sizes) >= limits.messages_max
            or self.byte_count >= limits.bytes_max
            or (bool(self._sizes) and self.next_offset - self.committable >= limits.span_max)
        )
