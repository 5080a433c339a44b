"""Counts and times operations, and finds the longest gaps. Judges only that something was done.

The verdict is unknown when operations of some kind never succeeded: what was not exercised was not tested. Faults, and
operations that stand alone, are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

from jepsen.checkers.messages import operations
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import CheckResult, judged
from jepsen.history.ops import Op, Pair

NAME = "availability"


def check_availability(ops: Sequence[Op], *, optional: Collection[str] = ()) -> CheckResult:
    """Count operations by `f`: how they ended, the rate of the successful, latencies, and the longest gap.

    Args:
        ops: the history.
        optional: kinds of operations that need not succeed.
    """
    by_f: dict[str, list[Pair]] = defaultdict(list)
    for pair in operations(ops):
        by_f[pair.invoke.f].append(pair)
    counts: dict[str, object] = {f: _counts(row) for f, row in sorted(by_f.items())}
    idle = [
        f
        for f, row in sorted(by_f.items())
        if f not in optional and all(pair.type != "ok" for pair in row)
    ]
    why = f"no success of {', '.join(idle)}" if idle else "" if by_f else "nothing was done"
    return judged(NAME, (), counts, why)


def _counts(row: Sequence[Pair]) -> dict[str, object]:
    """Count one kind of operation; latencies are of successes only, since a timeout measures the client's patience."""
    types = Counter(pair.type for pair in row)
    done = [(pair.invoke, pair.completion) for pair in row if pair.completion and pair.type == "ok"]
    latencies = [(end.t_ns - begin.t_ns) / 1e6 for begin, end in done]
    # A gap lasts from the first question to the last end, successes in between.
    ends = [pair.completion.t_ns for pair in row if pair.completion]
    span_ns = max(ends, default=row[0].invoke.t_ns) - row[0].invoke.t_ns
    moments = sorted([row[0].invoke.t_ns, *(end.t_ns for _, end in done), *ends[-1:]])
    return {
        "ok": types["ok"],
        "fail": types["fail"],
        "info": types["info"],
        "rate": round(len(done) / (span_ns / 1e9), 1) if span_ns else 0.0,
        "latency_ms": {
            f"p{percent}": round(percentile(latencies, percent), 2) if latencies else None
            for percent in (50, 99, 100)
        },
        "longest_gap_s": round(max((b - a for a, b in pairwise(moments)), default=0) / 1e9, 3),
    }
