"""Arithmetic on queue offsets: their JSON form, the next range to read, and lost ranges. Pure.

An offset of a table or stream is the next offset to be read of every queue. It travels as JSON

    {"<topic>": {"<brokerName>": {"<queueId>": next}}}

and Spark compares that text, so there is one canonical form: keys sorted, queue ids by number. brokerName is
the name of a Raft group, never an address: a failover changes nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import PipelineUsageError

LATEST: Final = QueueOffset(-1)
EARLIEST: Final = QueueOffset(-2)

OFFSET_MAX: Final = 2**63 - 1

Offsets = dict[MessageQueue, QueueOffset]
"""The next offset of each queue."""

OffsetsForm = dict[str, dict[str, dict[str, int]]]
"""The same as JSON has it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The present content of a queue: offsets `start` to `end`, without `end`; all of it is committed."""

    start: QueueOffset
    end: QueueOffset


@dataclass(frozen=True, slots=True)
class OffsetLoss:
    """The reasons why wanted messages cannot be had, queue by queue, as clauses of a sentence."""

    clauses: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.clauses)

    def __str__(self) -> str:
        return "; ".join(self.clauses)


def to_form(offsets: Mapping[MessageQueue, QueueOffset]) -> OffsetsForm:
    """Return the canonical JSON form: equal offsets give equal text."""
    form: OffsetsForm = {}
    for queue in sorted(offsets):
        of_topic = form.setdefault(queue.topic, {})
        of_topic.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return form


def from_form(value: object, what: str, marks: frozenset[int] = frozenset()) -> Offsets:
    """Read the JSON form.

    Args:
        value: parsed JSON.
        what: the name of the option or file, for errors.
        marks: negative numbers that are allowed too (LATEST, EARLIEST).

    Raises:
        PipelineUsageError: it has another shape; names the place in it.
    """
    offsets: Offsets = {}
    for topic, brokers in _members(value, what):
        for broker, queues in _members(brokers, f"{what}, topic {topic}"):
            for queue_id, offset in _members(queues, f"{what}, topic {topic}, broker {broker}"):
                place = f"{what}, topic {topic}, broker {broker}, queue {queue_id}"
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise PipelineUsageError(f"{place}: a queue id is a number from 0 on")
                if type(offset) is not int:
                    raise PipelineUsageError(
                        f"{place}: the offset {offset!r} is not a whole number"
                    )
                if not 0 <= offset <= OFFSET_MAX and offset not in marks:
                    allowed = "".join(f", or {mark}" for mark in sorted(marks, reverse=True))
                    raise PipelineUsageError(
                        f"{place}: the offset {offset} is not 0 or more{allowed}"
                    )
                queue = MessageQueue(topic, broker, int(queue_id))
                if queue in offsets:
                    raise PipelineUsageError(f"{place}: the queue is named twice")
                offsets[queue] = QueueOffset(offset)
    return offsets


def _members(value: object, place: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        shape = '{"topic": {"brokerName": {"queueId": offset}}}'
        raise PipelineUsageError(f"{place}: {value!r} is not an object; the shape is {shape}")
    return value.items()


def resolved(
    wanted: Mapping[MessageQueue, QueueOffset], bounds: Mapping[MessageQueue, Bounds], what: str
) -> Offsets:
    """Replace LATEST and EARLIEST by what queues have now.

    Raises:
        PipelineUsageError: `wanted` leaves out a queue that exists, or names one that does not.
    """
    check_names(wanted, bounds, what, "; -2 stands for the earliest offset, -1 for the latest")
    marks = {EARLIEST: lambda b: b.start, LATEST: lambda b: b.end}
    return {
        queue: QueueOffset(marks[offset](bounds[queue]) if offset in marks else offset)
        for queue, offset in wanted.items()
    }


def check_names(
    wanted: Mapping[MessageQueue, object],
    bounds: Mapping[MessageQueue, Bounds],
    what: str,
    hint: str = "",
) -> None:
    """Check that an option names exactly the queues that there are.

    Raises:
        PipelineUsageError: it leaves out a queue that exists, or names one that does not.
    """
    unknown = sorted(wanted.keys() - bounds.keys())
    if unknown:
        raise PipelineUsageError(f"{what} names queues that do not exist: {_named(unknown)}")
    missing = sorted(bounds.keys() - wanted.keys())
    if missing:
        raise PipelineUsageError(f"{what} leaves out {_named(missing)}{hint}")


def _named(queues: Iterable[MessageQueue], most: int = 5) -> str:
    names = [str(queue) for queue in queues]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def loss_at_start(
    start: Mapping[MessageQueue, QueueOffset], bounds: Mapping[MessageQueue, Bounds]
) -> OffsetLoss:
    """Return the loss between `start` and the first offsets that the queues still hold."""
    clauses = []
    for queue in sorted(start):
        offset, has = start[queue], bounds.get(queue)
        if has is None:
            clauses.append(f"{queue} is gone, {offset} was next")
        elif offset < has.start:
            clauses.append(f"{queue} begins at {has.start}, {offset} was next")
        elif offset > has.end:
            clauses.append(f"{queue} ends at {has.end}, {offset} was next")
    return OffsetLoss(tuple(clauses))


def loss_of_topics(topics: Sequence[str], subject: str) -> OffsetLoss:
    """Return the loss of a start that names topics which are not read; `subject` names those that are."""
    if not topics:
        return OffsetLoss()
    where = f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"
    clause = (
        f"the checkpoint stands in {where}, and the query reads {subject}: it is the checkpoint of another "
        "query, or topics were taken out of this one"
    )
    return OffsetLoss((clause,))


def loss_of_queues(queues: Sequence[MessageQueue]) -> OffsetLoss:
    """Return the loss of a start that names queues which option assign leaves out."""
    if not queues:
        return OffsetLoss()
    clause = f"the checkpoint stands in {_named(queues)}, which option assign leaves out"
    return OffsetLoss((clause,))


def loss_at_end(
    start: Mapping[MessageQueue, QueueOffset],
    end: Mapping[MessageQueue, QueueOffset],
    bounds: Mapping[MessageQueue, Bounds],
) -> OffsetLoss:
    """Return the loss of an end that lies before its start or beyond its queue's end."""
    clauses = []
    for queue in sorted(end):
        if end[queue] < start.get(queue, 0):
            clauses.append(f"{queue} is to end at {end[queue]}, before its start {start[queue]}")
        elif queue in bounds and end[queue] > bounds[queue].end:
            clauses.append(f"{queue} is to be read to {end[queue]}, it ends at {bounds[queue].end}")
    return OffsetLoss(tuple(clauses))


def loss_between(
    past: Mapping[MessageQueue, Bounds], live: Mapping[MessageQueue, Bounds]
) -> OffsetLoss:
    """Return the offsets in neither the archive nor the queues, and archives that cannot be of these queues."""
    clauses = []
    for queue in sorted(live):
        archived, has = past.get(queue), live[queue]
        if archived is None:
            if has.start > 0:  # an archive reaches from its log's first entry on
                clauses.append(
                    f"{queue}: it begins at {has.start}, and the archive has nothing of it; an archive is of "
                    "one broker group"
                )
        elif archived.end < has.start:
            clauses.append(
                f"{queue}: the archive ends before {archived.end}, the queue begins at {has.start}"
            )
        elif archived.end > has.end:
            clauses.append(
                f"{queue}: the archive goes on to {archived.end}, the queue ends at {has.end}: it is "
                "another log's"
            )
    return OffsetLoss(tuple(clauses))


def joined(
    past: Mapping[MessageQueue, Bounds], live: Mapping[MessageQueue, Bounds]
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of archive and queues together."""
    both = dict(past) | dict(live)
    for queue in past.keys() & live.keys():
        start = min(past[queue].start, live[queue].start)
        both[queue] = Bounds(start, max(past[queue].end, live[queue].end))
    return both


def within(
    offsets: Mapping[MessageQueue, QueueOffset], bounds: Mapping[MessageQueue, Bounds]
) -> Offsets:
    """Move offsets into what queues hold; queues that are gone drop out."""
    return {
        queue: QueueOffset(min(max(offset, bounds[queue].start), bounds[queue].end))
        for queue, offset in offsets.items()
        if queue in bounds
    }


def reached(
    start: Mapping[MessageQueue, QueueOffset], bounds: Mapping[MessageQueue, Bounds]
) -> Offsets:
    """Return how far a stream that stands at `start` may read: never back, no queue forgotten.

    A queue that `start` does not know is new and will be read from its earliest offset; one that is
    not seen now keeps its place.
    """
    end = {
        queue: QueueOffset(max(start.get(queue, has.start), has.end))
        for queue, has in bounds.items()
    }
    return dict(start) | end


def begun(
    start: Mapping[MessageQueue, QueueOffset],
    end: Mapping[MessageQueue, QueueOffset],
    bounds: Mapping[MessageQueue, Bounds] | None = None,
) -> Offsets:
    """Return where every queue of `end` begins: at `start`, a new one at its earliest offset (or 0)."""
    found = bounds or {}
    return {
        queue: QueueOffset(
            start[queue] if queue in start else found[queue].start if queue in found else 0
        )
        for queue in end
    }


def limited(
    start: Mapping[MessageQueue, QueueOffset], end: Mapping[MessageQueue, QueueOffset], most: int
) -> Offsets:
    """Return an end that lies at most `most` offsets after `start`, in proportion to each backlog.

    Every queue with a backlog goes on by at least one, even when there are more of them than `most`; no
    other sum goes above it, and what is there is used up to it.
    """
    backlog = {queue: offset - start[queue] for queue, offset in end.items()}
    waiting = {queue: size for queue, size in sorted(backlog.items()) if size > 0}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    shares = {queue: max(most * size // total, 1) for queue, size in waiting.items()}
    left = most - sum(shares.values())
    # What rounding left over goes to those who lost most by it; what the ones took, the largest give.
    by_remainder = sorted(waiting, key=lambda queue: (-(most * waiting[queue] % total), queue))
    while left > 0:
        for queue in by_remainder:
            if left > 0 and shares[queue] < waiting[queue]:
                shares[queue] += 1
                left -= 1
    by_share = sorted(shares, key=lambda queue: (-shares[queue], queue))
    while left < 0 and any(share > 1 for share in shares.values()):
        for queue in by_share:
            if left < 0 and shares[queue] > 1:
                shares[queue] -= 1
                left += 1
    return {queue: QueueOffset(start[queue] + shares.get(queue, 0)) for queue in end}
