"""Counts changes of leader while faults were in force. Judges nothing: a fault may justify them.

The model: none. The onlooker notes "leader" with the term whenever somebody begins to serve as leader. What was over
before it looked again, the difference of the terms shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jepsen.checkers.results import CheckResult, judged
from jepsen.history.ops import OBSERVER, Op
from jepsen.history.phases import span_of
from jepsen.history.values import LeaderSeen, shaped

NAME: Final = "leaders"
LEADER: Final = "leader"


def check_leaders(ops: Sequence[Op]) -> CheckResult:
    """Count, from the first fault to the last cure, the new leaders seen and the terms that went by."""
    start_ns, end_ns = span_of(ops, "breaking")
    seen = [
        (op.t_ns, shaped(op.value, LeaderSeen)["term"])
        for op in ops
        if op.process == OBSERVER and op.f == LEADER
    ]
    before = [term for t_ns, term in seen if t_ns < start_ns]
    terms = [*before[-1:], *(term for t_ns, term in seen if start_ns <= t_ns <= end_ns)]
    counts = {
        "changes": max(0, len(set(terms)) - 1),
        "terms": max(terms) - min(terms) if terms else 0,
    }
    return judged(NAME, (), counts)
