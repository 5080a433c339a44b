"""Judges the amount of work: a run that did little of what was asked for proves little.

The model: none. A run asks for so many operations a second, as long as things are broken. Operations that were begun in
that time and succeeded are done. The verdict is unknown below a floor, for each kind of operation and for all together:

    a tenth of the rate that was asked for, at most FLOOR_RATE_MAX a second (higher rates are asked for to press, not to
    be reached), times the seconds in which the kind could be done, times its share in what was begun; and never less
    than FLOOR_MIN operations together

A kind of operation can be done whenever no fault stands in the way: from each thing that the nemesis did, a strike or a
cure, until the first success of such an operation that was begun after it, the time does not count. So long outages by
design cost nothing; a machine that is too busy, clients that hang and a group that starves by itself are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from jepsen.checkers.messages import operations
from jepsen.checkers.outages import joined, until_success
from jepsen.checkers.results import CheckResult, judged
from jepsen.history.ops import NEMESIS, Op, Pair
from jepsen.history.phases import span_of

NAME: Final = "work"
FLOOR_SHARE: Final = 0.1
FLOOR_RATE_MAX: Final = 15.0
FLOOR_MIN: Final = 10


def check_work(ops: Sequence[Op], *, rate: float) -> CheckResult:
    """Compare the number of successful operations with what the settings demanded.

    Args:
        ops: the history.
        rate: operations a second that were asked for.
    """
    span = span_of(ops, "breaking")
    seconds = (span[1] - span[0]) / 1e9
    kinds: dict[str, list[Pair]] = defaultdict(list)
    for pair in operations(ops):
        if span[0] <= pair.invoke.t_ns <= span[1]:
            kinds[pair.invoke.f].append(pair)
    begun = sum(map(len, kinds.values()))
    done = {f: sum(pair.type == "ok" for pair in row) for f, row in sorted(kinds.items())}
    marks = [op for op in ops if op.process == NEMESIS and isinstance(op.value, dict)]
    per_second = min(FLOOR_SHARE * rate, FLOOR_RATE_MAX)
    floors = {
        f: per_second * (seconds - _unable_s(row, marks, span)) * len(row) / begun
        for f, row in sorted(kinds.items())
    }
    asked, total = round(rate * seconds), sum(done.values())
    counts: dict[str, object] = {
        "asked": asked,
        "begun": begun,
        "done": total,
        "done_percent": round(100 * total / asked) if asked else 0,
        "floor": max(round(sum(floors.values())), FLOOR_MIN),
        "done_by_kind": done,
    }
    short = [f"{done[f]} of {len(kinds[f])} {f}" for f in done if done[f] < int(floors[f])]
    if short or total < FLOOR_MIN:
        short.insert(0, f"{total} of {asked} operations that were asked for")
    why = f"too little was done to prove anything: {', '.join(short)}" if short else ""
    return judged(NAME, (), counts, why)


def _unable_s(row: Sequence[Pair], marks: Sequence[Op], span: tuple[int, int]) -> float:
    """Return how long within the span the nemesis had done something, and nothing of this kind had succeeded since."""
    first_ns, last_ns = span
    spans = [
        (max(begin, first_ns), min(end, last_ns))
        for begin, end in until_success(row, marks, last_ns)
        if begin < last_ns and end > first_ns
    ]
    return sum(end - begin for begin, end in joined(sorted(spans))) / 1e9
