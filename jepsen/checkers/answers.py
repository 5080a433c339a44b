"""Judges what faults observed themselves, such as a second process on a node's store that was not refused.

The model: none. A fault sees such an answer itself and notes it as "broken" (`nemeses/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op
from jepsen.history.values import strike_of

NAME = "answers"


def check_answers(ops: Sequence[Op]) -> CheckResult:
    """Report each promise that a fault saw broken as an anomaly."""
    strikes = [(op, strike) for op in ops if (strike := strike_of(op)) is not None]
    broken = [
        Anomaly("answer", f"{op.f}: {strike['broken']}", (op.index,))
        for op, strike in strikes
        if "broken" in strike
    ]
    injected = sum(
        bool(strike.get("do") == "inject" and strike.get("done")) for _, strike in strikes
    )
    injected -= sum(strike.get("do") == "cure" and "missing" in strike for _, strike in strikes)
    return judged(NAME, broken, {"faults": injected})
