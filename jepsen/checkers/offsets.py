"""Consumer offsets never go back by themselves.

The model. For each group and queue there is one register, the committed offset. A `commit` writes it, a
`committed` reads it; both take effect at one moment between invocation and completion. Nothing else writes it: what a
failover, a restart or a copy of old files changes is a broken promise.

    rewind     a read shows less than an acknowledged commit or an earlier read showed, and no commit that could have
               come in between wrote that value (a client may set its group back; the broker may not)
    spurious   a read shows a value that nobody committed, while the history has the commits of this group and queue;
               the classic is the zero of a default

No stored offset reads as null and counts like 0: a broker answers 0 to a group of a young queue that has none. A push
consumer commits on its own: where the history has no commits of a group and queue, any fall is a rewind and nothing is
spurious.

Shapes: `commit` and `committed` of `messages.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jepsen.checkers.messages import operations
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.ops import Op, Pair

NAME = "offsets"

Register = tuple[str, str]  # group, queue


@dataclass(frozen=True, slots=True)
class _Step:
    """A commit or a read of one register."""

    offset: int
    pair: Pair
    is_stored: bool = True

    @property
    def begin(self) -> int:
        return self.pair.invoke.index

    @property
    def end(self) -> int | None:
        """Place of its completion; None when it may still take effect."""
        completion = self.pair.completion
        return completion.index if completion is not None and completion.type == "ok" else None


@dataclass(slots=True)
class _Steps:
    commits: list[_Step] = field(default_factory=list)
    reads: list[_Step] = field(default_factory=list)


def check_offsets(ops: Sequence[Op]) -> CheckResult:
    """Judge what was read of committed offsets; for the shapes see `messages.py`."""
    registers = _registers(ops)
    anomalies: list[Anomaly] = []
    for (group, queue), steps in sorted(registers.items()):
        who = f"offset of {group} in {queue}"
        anomalies += _rewinds(who, steps)
        anomalies += _spurious(who, steps)
    reads = sum(len(steps.reads) for steps in registers.values())
    counts: dict[str, object] = {
        "registers": len(registers),
        "commits": sum(len(steps.commits) for steps in registers.values()),
        "reads": reads,
        "rewinds": sum(one.kind == "rewind" for one in anomalies),
    }
    return judged(NAME, anomalies, counts, "" if reads else "no committed offset was read")


def _registers(ops: Sequence[Op]) -> dict[Register, _Steps]:
    registers: dict[Register, _Steps] = defaultdict(_Steps)
    for pair in operations(ops):
        if pair.invoke.f == "commit" and pair.type != "fail":
            asked = pair.invoke.value
            place = (asked.get("group") or "", asked["queue"])
            registers[place].commits.append(_Step(asked["offset"], pair))
        elif pair.invoke.f == "committed" and pair.completion is not None and pair.type == "ok":
            told = pair.completion.value
            place = (told.get("group") or "", told["queue"])
            is_stored = told["offset"] is not None
            registers[place].reads.append(_Step(told["offset"] or 0, pair, is_stored))
    return registers


def _rewinds(who: str, steps: _Steps) -> Iterator[Anomaly]:
    """Reads below what was established before they began."""
    known = sorted(
        (step for step in (*steps.commits, *steps.reads) if step.end is not None),
        key=lambda step: step.end or 0,
    )
    at, highest = 0, None
    for read in steps.reads:  # in order of invocation
        while at < len(known) and (known[at].end or 0) < read.begin:
            if highest is None or known[at].offset >= highest.offset:
                highest = known[at]
            at += 1
        if highest is None or read.offset >= highest.offset:
            continue
        back = _set_back(read, highest, steps.commits)
        if back is None:
            text = f"the {who} went back from {highest.offset} to {_shown(read)}"
            yield Anomaly("rewind", text, (highest.end or 0, read.end or 0))
        else:
            highest = back  # a client's doing; from here on that is what stands


def _set_back(read: _Step, highest: _Step, commits: Sequence[_Step]) -> _Step | None:
    """A commit of the value that was read which may have come after the highest one."""
    for commit in commits:
        began_in_time = commit.begin < (read.end or 0)
        may_be_later = commit.end is None or commit.end > highest.begin
        if commit.offset == read.offset and began_in_time and may_be_later:
            return commit
    return None


def _spurious(who: str, steps: _Steps) -> Iterator[Anomaly]:
    if not steps.commits:
        return
    for read in steps.reads:
        begun = [step for step in steps.commits if step.begin < (read.end or 0)]
        if read.is_stored and all(step.offset != read.offset for step in begun):
            text = f"the {who} is {read.offset}, which nobody committed"
            yield Anomaly("spurious", text, (read.end or 0,))


def _shown(read: _Step) -> str:
    return str(read.offset) if read.is_stored else "none"
