"""Judges consumer offsets: they never go back by themselves.

The model. For each group and queue there is one register, the committed offset. A `commit` writes it, a
`committed` reads it; both take effect at one moment between invocation and completion. Nothing else writes it: what a
failover, a restart or a copy of old files changes is a broken promise.

    rewind     a read shows less than what had replaced that value: a later commit that was acknowledged, or what
               another read saw since (a client may set its group back; the broker may not)
    stale      the same, and the read shows more: the group was set back, and reads its old offset
    spurious   a read shows a value that nobody committed, while the history has the commits of this group and queue;
               the classic is the zero of a default

A commit of unknown outcome may take effect at any later time, so its value may always come.

No stored offset reads as null and counts like 0: a broker answers 0 to a group of a young queue that has none. A push
consumer commits on its own: where the history has no commits of a group and queue, any fall is a rewind and nothing is
spurious.

Shapes: `commit` and `committed` of `messages.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.messages import operations
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op
from jepsen.history.values import CommitAsked, OffsetRead, shaped

NAME = "offsets"

Register = tuple[str, str]  # group, queue


@dataclass(frozen=True, slots=True)
class _Step:
    """A commit or a read of one register.

    Attributes:
        begin: place of its invocation.
        end: place of its completion; None when it may still take effect.
        is_stored: whether a read was answered with an offset at all.
    """

    offset: int
    begin: int
    end: int | None
    is_stored: bool = True


_NOTHING_YET: Final = _Step(0, -1, -1, is_stored=False)
"""The content of a register before anybody writes."""


@dataclass(slots=True)
class _Steps:
    """The steps of a register, in order; `is_written` even when every commit was refused."""

    commits: list[_Step] = field(default_factory=list)
    reads: list[_Step] = field(default_factory=list)
    is_written: bool = False


def check_offsets(ops: Sequence[Op]) -> CheckResult:
    """Judge what was read of committed offsets; for the shapes see `messages.py`."""
    registers = _registers(ops)
    anomalies: list[Anomaly] = []
    for (group, queue), steps in sorted(registers.items()):
        who = f"the offset of {group} in {queue}"
        anomalies += _judge_written(who, steps) if steps.is_written else _judge_read(who, steps)
    reads = sum(len(steps.reads) for steps in registers.values())
    counts: dict[str, object] = {
        "registers": len(registers),
        "commits": sum(len(steps.commits) for steps in registers.values()),
        "reads": reads,
        "rewinds": sum(one.kind == "rewind" for one in anomalies),
    }
    return judged(NAME, anomalies, counts, "" if reads else "no committed offset was read")


def _registers(ops: Sequence[Op]) -> dict[Register, _Steps]:
    """Gather commits and reads per register; a commit of unknown outcome stays in, as it may have been applied."""
    registers: dict[Register, _Steps] = defaultdict(_Steps)
    for pair in operations(ops):
        end = pair.completion.index if pair.completion is not None and pair.type == "ok" else None
        if pair.invoke.f == "commit":
            asked = shaped(pair.invoke.value, CommitAsked)
            steps = registers[asked.get("group") or "", asked["queue"]]
            steps.is_written = True
            if pair.type != "fail":
                steps.commits.append(_Step(asked["offset"], pair.invoke.index, end))
        elif pair.invoke.f == "committed" and pair.completion is not None and end is not None:
            answer = shaped(pair.completion.value, OffsetRead)
            is_stored = answer["offset"] is not None
            read = _Step(answer["offset"] or QueueOffset(0), pair.invoke.index, end, is_stored)
            registers[answer.get("group") or "", answer["queue"]].reads.append(read)
    return registers


def _judge_written(who: str, steps: _Steps) -> Iterator[Anomaly]:
    """Judge each read by the commits of its value, and by the values that surely replaced them."""
    writes: dict[int, list[_Step]] = defaultdict(list)
    for commit in steps.commits:
        writes[commit.offset].append(commit)
    # What stood at some moment for sure: acknowledged commits, and reads that can be explained.
    sure = sorted((step for step in steps.commits if step.end is not None), key=_end)
    for read in steps.reads:  # in order of invocation
        sources = [step for step in writes[read.offset] if step.begin < _end(read)]
        sources += [] if read.is_stored else [_NOTHING_YET]
        if not sources:
            text = f"{who} is {read.offset}, which nobody committed"
            yield Anomaly("spurious", text, (_end(read),))
            continue
        newer = _replaced_by(read, sources, sure)
        if newer is None:
            insort(sure, read, key=_end)
        elif newer.offset > read.offset:
            yield _rewind(who, newer, read)
        else:
            text = f"{who} is {read.offset} again, after it was {newer.offset}"
            yield Anomaly("stale", text, (_end(newer), _end(read)))


def _replaced_by(read: _Step, sources: Sequence[_Step], sure: Sequence[_Step]) -> _Step | None:
    """Return the newest other value that stood after all that could have written this one, and before it was read."""
    if any(source.end is None for source in sources):
        return None
    last = max(map(_end, sources))
    for step in reversed(sure[: bisect_left(sure, read.begin, key=_end)]):
        if _end(step) <= last:
            break
        if step.begin > last and step.offset != read.offset:
            return step
    return None


def _judge_read(who: str, steps: _Steps) -> Iterator[Anomaly]:
    """Judge a register of which nobody's commits are known: what was read may only grow."""
    ended = sorted(steps.reads, key=_end)
    at, highest = 0, _NOTHING_YET
    for read in steps.reads:  # in order of invocation
        while _end(ended[at]) < read.begin:
            highest = max(highest, ended[at], key=lambda step: step.offset)
            at += 1
        if read.offset < highest.offset:
            yield _rewind(who, highest, read)


def _rewind(who: str, before: _Step, read: _Step) -> Anomaly:
    shown = str(read.offset) if read.is_stored else "none"
    text = f"{who} went back from {before.offset} to {shown}"
    return Anomaly("rewind", text, (_end(before), _end(read)))


def _end(step: _Step) -> int:
    assert step.end is not None, "asked of what has ended"
    return step.end
