"""Answers to faults that are wrong in themselves: a second process with a node's store that was not refused.

The model: none. A fault sees such an answer itself and notes it as "broken" (`nemeses/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import NEMESIS, Op

NAME = "answers"


def check_answers(ops: Sequence[Op]) -> CheckResult:
    """Gather what faults saw."""
    strikes = [op for op in ops if op.process == NEMESIS and isinstance(op.value, dict)]
    broken = [
        Anomaly("answer", f"{op.f}: {op.value['broken']}", (op.index,))
        for op in strikes
        if "broken" in op.value
    ]
    injected = sum(bool(op.value.get("do") == "inject" and op.value.get("done")) for op in strikes)
    injected -= sum(op.value.get("do") == "cure" and "missing" in op.value for op in strikes)
    return judged(NAME, broken, {"faults": injected})
