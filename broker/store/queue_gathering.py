"""The rows and the units of all consume queues as they are at one moment, for a snapshot.

A group may have more queues than can be gone through in one go: 80 000 take a quarter of a second, about as long as
a leader's lease. So their rows are gathered beforehand, some at a time, while the fold goes on; at the moment itself
only those that have changed since are gathered again. A queue changes its row only by growing, so that max offset
tells which they are. Its min offset may have moved on: the row then names a few units more than need be shown, and
they are still there, since nothing is released while this is.

Nothing here knows what else the state has, or where the bytes go.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Final

from broker.store.consume_queue import SWEEP_QUEUES, ConsumeQueue, ConsumeQueues
from broker.store.packing import pack
from dledger.state_machine import SealedPart, SnapshotOvertakenError
from dledger_mq.message.numbers import QueueOffset

STEP_QUEUES: Final = 1024
"""Queues of one step: some milliseconds."""


class QueueGathering:
    """The queues of one snapshot. As long as it or what it gave lives, no unit is released.

    Invariant: the four lists go together, in the order of the queues' first messages.

    Attributes:
        rows: encoded, one for each queue.
    """

    def __init__(self, queues: ConsumeQueues) -> None:
        self.rows: list[bytes] = []
        self._all = queues
        self._reading = queues.begin_reading()
        self._queues: list[ConsumeQueue] = []
        self._firsts: list[QueueOffset] = []
        self._ends: list[QueueOffset] = []

    def beforehand(self) -> Iterator[None]:
        """Gather the queues that are there; the fold may go on between the steps."""
        for _ in range(0, len(self._all.by_key), SWEEP_QUEUES):
            self._all.sweep()  # what is forgotten need not be written down
            yield
        yield from self._all.sort_steps()
        yield from self._add(list(self._all.by_key.values()))

    def at_the_moment(self) -> Iterator[None]:
        """Gather again what has changed, and what is new; the fold stands still until the last step."""
        by_key = self._all.by_key
        self._leave_out_dropped()
        changed = [
            place
            for place, queue in enumerate(self._queues)
            if queue.max_offset != self._ends[place]
        ]
        yield
        for first in range(0, len(changed), STEP_QUEUES):
            for place in changed[first : first + STEP_QUEUES]:
                queue = self._queues[place]
                self.rows[place], self._ends[place] = _row_of(queue), queue.max_offset
                self._firsts[place] = queue.min_offset
            yield
        yield from self._add(list(by_key.values())[len(self._queues) :])

    def units(self) -> Iterator[bytes | SealedPart]:
        """Yield the units of the rows, in bounded parts, while the fold goes on; full ranges of a queue as parts.

        Raises:
            SnapshotOvertakenError: a queue was dropped since.
        """
        queues, step = self._all, self._all.sealed_units
        for queue, begin, end in zip(self._queues, self._firsts, self._ends, strict=True):
            for first, stop in ranges_of(begin, end, step):
                if queues.by_key.get(queue.key) is not queue:
                    raise SnapshotOvertakenError(f"{queue.key} lost units from {first} on")
                if stop - first == step:
                    yield queues.seal(queue, first, None)
                else:
                    yield from queues.read_units(queue, first, stop)

    def _add(self, queues: list[ConsumeQueue]) -> Iterator[None]:
        for first in range(0, len(queues), STEP_QUEUES):
            for queue in queues[first : first + STEP_QUEUES]:
                self._queues.append(queue)
                self._firsts.append(queue.min_offset)
                self._ends.append(queue.max_offset)
                self.rows.append(_row_of(queue))
            yield

    def _leave_out_dropped(self) -> None:
        """Leave out the queues whose topics were deleted since they were gathered."""
        by_key = self._all.by_key
        if len(by_key) >= len(self._queues) and all(map(is_, self._queues, by_key.values())):
            return
        left = [p for p, queue in enumerate(self._queues) if by_key.get(queue.key) is queue]
        self.rows = [self.rows[place] for place in left]
        self._queues = [self._queues[place] for place in left]
        self._firsts = [self._firsts[place] for place in left]
        self._ends = [self._ends[place] for place in left]


def ranges_of(
    begin: QueueOffset, end: QueueOffset, step: int
) -> Iterator[tuple[QueueOffset, QueueOffset]]:
    """Yield the ranges between multiples of `step` that begin..end consists of; the first and last may be shorter."""
    first = begin
    while first < end:
        stop = QueueOffset(min(first - first % step + step, end))
        yield first, stop
        first = stop


def _row_of(queue: ConsumeQueue) -> bytes:
    """Return a queue's row, encoded; its line is up to date then, so that the digest of all costs little."""
    if queue.line_offset != queue.max_offset:
        queue.draw_line()
    return pack(queue.row())
