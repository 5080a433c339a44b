"""The events of a run in time, from a history: faults with cures, leaderships, successes by second. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from dledger.raft.ids import Term
from jepsen.history.ops import OBSERVER, RECEIVE, Op, OpType, pairs
from jepsen.history.phases import span_of
from jepsen.history.values import LeaderSeen, shaped, strike_of

Ended = Literal["ok", "fail", "info"]
ENDS: Final[tuple[Ended, ...]] = ("ok", "fail", "info")

IDLE: Final = " (struck nothing)"


@dataclass(frozen=True, slots=True)
class Span:
    """A fault from its beginning to its cure.

    Attributes:
        name: of the fault.
        start_ns, end_ns: when; the end of the history when it was never cured.
        done: what was done.
        cured: what the cure did; empty when there was none.
    """

    name: str
    start_ns: int
    end_ns: int
    done: str
    cured: str


@dataclass(frozen=True, slots=True)
class Leadership:
    """The time in which one node leads (a group, where there are several), in one term, as the observer saw it."""

    node: str
    term: Term
    start_ns: int
    end_ns: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """One operation: when it was invoked, how long it took, how it ended."""

    start_ns: int
    latency_ns: int
    type: OpType


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing succeeded."""

    start_ns: int
    end_ns: int

    @property
    def ms(self) -> int:
        """The length in ms."""
        return round((self.end_ns - self.start_ns) / 1e6)


def end_of(ops: Sequence[Op]) -> int:
    """Return the time of the last operation, 0 when there is none."""
    return ops[-1].t_ns if ops else 0


def fault_spans(ops: Sequence[Op]) -> list[Span]:
    """Return every fault that was injected, in the order of their beginnings.

    A cure ends all spans of its name; what was cured and came back under a cure that found nothing more to do
    does not open another one. Where nothing was done there is nothing to cure: the span ends there. The name of one
    that struck nothing says so.
    """
    open_: dict[str, tuple[int, str]] = {}
    found: list[Span] = []
    for op in ops:
        strike = strike_of(op)
        if strike is None:
            continue
        done = strike.get("done", "")
        if strike.get("do") == "inject":
            start_ns, known = open_.pop(op.f, (op.t_ns, ""))
            if "done" in strike and not done:
                broken = strike.get("broken", "")
                what = broken or strike.get("missing", "")
                name = op.f if broken else op.f + IDLE
                found.append(Span(name, start_ns, op.t_ns, what, ""))
            else:
                open_[op.f] = (start_ns, done or known)
        elif strike.get("do") == "cure" and op.f in open_ and not op.error:
            start_ns, what = open_.pop(op.f)
            name = op.f + IDLE if "missing" in strike else op.f
            found.append(Span(name, start_ns, op.t_ns, what, done))
    found += [
        Span(name, start_ns, end_of(ops), done, "") for name, (start_ns, done) in open_.items()
    ]
    return sorted(found, key=lambda span: span.start_ns)


def leaderships(ops: Sequence[Op]) -> list[Leadership]:
    """Return the leaderships in order; each ends where another leader of its group, or none, was seen."""
    by_group: dict[str, list[tuple[Op, LeaderSeen]]] = defaultdict(list)
    for op in ops:
        if op.process == OBSERVER and op.f in {"leader", "leaderless"}:
            seen = shaped(op.value, LeaderSeen)
            by_group[seen.get("group", "")].append((op, seen))
    found = []
    for group, changes in by_group.items():
        ends = [op.t_ns for op, _ in changes[1:]] + [end_of(ops)]
        found += [
            Leadership(op.node, seen["term"], op.t_ns, end, group)
            for (op, seen), end in zip(changes, ends, strict=True)
            if op.f == "leader"
        ]
    return sorted(found, key=lambda lead: lead.start_ns)


def points(ops: Sequence[Op]) -> list[Point]:
    """Return every operation of a worker; one without an end lasts as long as the history."""
    end_ns = end_of(ops)
    found = []
    for pair in pairs([op for op in ops if op.f != RECEIVE]):
        ended_ns = pair.completion.t_ns if pair.completion else end_ns
        found.append(Point(pair.invoke.t_ns, ended_ns - pair.invoke.t_ns, pair.type))
    return found


def per_bucket(ops: Sequence[Op], bucket_ns: int) -> dict[Ended, list[int]]:
    """Count completions by how they ended, in buckets of time from 0 on."""
    count = end_of(ops) // bucket_ns + 1
    found: dict[Ended, list[int]] = {ended: [0] * count for ended in ENDS}
    for op in ops:
        if op.is_client and op.type != "invoke":
            found[op.type][op.t_ns // bucket_ns] += 1
    return found


def gaps(ops: Sequence[Op], longer_than_ns: int) -> list[Gap]:
    """Return the times without a success that were longer than that, longest first.

    Looked at is the phase in which clients work all the time; what is quiet later has no work.
    """
    start_ns, end_ns = span_of(ops, "breaking")
    inside = (op for op in ops if op.is_client and op.type == "ok")
    times = [op.t_ns for op in inside if start_ns <= op.t_ns <= end_ns]
    found = [Gap(a, b) for a, b in pairwise(times) if b - a > longer_than_ns]
    return sorted(found, key=lambda gap: gap.start_ns - gap.end_ns)
