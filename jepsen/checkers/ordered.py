"""Judges ordered consumption under locks: each key in order, and one member at a time per queue.

The model. A queue has a lock that one member of a consumer group holds; only the holder hands messages of the queue to
its listener, one after the other, in the order of their offsets. A key always goes to the same queue, and its messages
are sent one after the other. So what a listener sees of a key never goes backwards, except to be delivered again
from the last committed offset on.

    process  invoke {"queue": ..., "offset": n, "key": "k3-17"}: a listener begins, on behalf of the process; a member
             that works on several queues at once needs a process for each, and names itself in "member"
             ok     it has ended; anything else: it was interrupted, and worked until then at most

    The name of a key is what stands before the last "-", the number after it counts its messages up.

    order    the first delivery of an acknowledged message after that of a later one of its key
    overtaken  the same between keys: the first delivery of an offset after that of a later one of its queue, whichever
             members handed them out
    gap      an acknowledged message that was never delivered, though a later one of its key was
    overlap  two members at work on one queue at the same time
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.messages import operations, read_queue_history
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, Pair
from jepsen.history.values import PushDelivery, shaped

NAME = "ordered"


@dataclass(frozen=True, slots=True)
class _Work:
    """A listener at work on one message.

    Attributes:
        begin, end: indexes of operations; an end that nobody saw is the beginning.
    """

    member: str
    queue: str
    offset: QueueOffset
    key: str
    begin: int
    end: int


@dataclass(slots=True)
class _Order:
    """The anomalies in the order of first deliveries, and how many lie beyond the last one of their key."""

    late: list[Anomaly] = field(default_factory=list)
    overtaken: list[Anomaly] = field(default_factory=list)
    gaps: list[Anomaly] = field(default_factory=list)
    unseen: int = 0


def check_ordered(ops: Sequence[Op]) -> CheckResult:
    """Judge the `process` operations of an ordered consumer group."""
    works = [_work(pair) for pair in operations(ops) if pair.invoke.f == "process"]
    acknowledged = {send.key: send.ops for send in read_queue_history(ops).sends if send.is_ok}
    order = _order(works, acknowledged)
    overlaps = list(_overlaps(works))
    counts: dict[str, object] = {
        "acknowledged": len(acknowledged),
        "processed": len({work.key for work in works}),
        "redelivered": len(works) - len({(work.queue, work.key) for work in works}),
        "order": len(order.late),
        "overtaken": len(order.overtaken),
        "gaps": len(order.gaps),
        "unseen": order.unseen,
        "overlaps": len(overlaps),
        "members": len({work.member for work in works}),
    }
    why = "" if works else "nothing was processed"
    return judged(NAME, [*order.late, *order.overtaken, *order.gaps, *overlaps], counts, why)


def _work(pair: Pair) -> _Work:
    asked = shaped(pair.invoke.value, PushDelivery)
    member = str(asked.get("member") or pair.invoke.process)
    end = pair.invoke.index if pair.completion is None else pair.completion.index
    return _Work(member, asked["queue"], asked["offset"], asked["key"], pair.invoke.index, end)


def _split(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition("-")
    return name, int(number)


def _order(works: Sequence[_Work], acknowledged: Mapping[str, tuple[int, ...]]) -> _Order:
    """Judge the first delivery of each message, then find the acknowledged messages without any."""
    found = _Order()
    seen: set[str] = set()
    highest: dict[str, tuple[int, _Work]] = {}
    last: dict[str, _Work] = {}
    for work in works:
        if work.key in seen:
            continue
        seen.add(work.key)
        ahead = last.get(work.queue)
        if ahead is None or work.offset > ahead.offset:
            last[work.queue] = work
        name, number = _split(work.key)
        before = highest.get(name)
        if before is None or number > before[0]:
            highest[name] = (number, work)
        elif (
            work.key in acknowledged
        ):  # one of unknown outcome may come late: it promised nothing about its place
            text = f"{work.key} was delivered first after {before[1].key}, by {work.member}"
            found.late.append(Anomaly("order", text, (before[1].begin, work.begin)))
            continue
        if ahead is not None and work.offset < ahead.offset:
            text = (
                f"{work.key} at {work.offset} of {work.queue} was delivered first after {ahead.key} "
                f"at {ahead.offset}, by {work.member}"
            )
            found.overtaken.append(Anomaly("overtaken", text, (ahead.begin, work.begin)))
    for key in sorted(acknowledged.keys() - seen):
        name, number = _split(key)
        passing = highest.get(name)
        if passing is None or passing[0] < number:
            found.unseen += 1
            continue
        text = f"{key} was never delivered, {passing[1].key} was"
        found.gaps.append(Anomaly("gap", text, (*acknowledged[key], passing[1].begin)))
    return found


def _overlaps(works: Sequence[_Work]) -> Iterator[Anomaly]:
    """Yield pairs of members at work on one queue at once; works are sorted by their beginning."""
    busy: dict[str, dict[str, _Work]] = defaultdict(
        dict
    )  # by queue, by member: the one that ends last
    for work in works:
        for other in busy[work.queue].values():
            if other.member != work.member and other.end > work.begin:
                text = (
                    f"{work.member} began {work.key} of {work.queue} while {other.member} "
                    f"was at work on {other.key}"
                )
                yield Anomaly("overlap", text, (other.begin, work.begin))
        last = busy[work.queue].get(work.member)
        if last is None or work.end > last.end:
            busy[work.queue][work.member] = work
