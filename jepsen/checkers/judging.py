"""Asks every checker for its result on a history; a checker that crashes yields an unknown result."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from jepsen.checkers.results import Checker, CheckResult
from jepsen.history.ops import Op


def judge(ops: Sequence[Op], checkers: Sequence[Checker]) -> list[CheckResult]:
    """Ask every checker; the result is unknown for a crash (with its traceback) and for an empty history."""
    results = [_asked(ops, checker) for checker in checkers]
    assert len(results) == len(checkers), f"{len(checkers)} checkers gave {len(results)} results"
    assert ops or not any(result.valid for result in results), "nothing was seen, and it was valid"
    return results


def _asked(ops: Sequence[Op], checker: Checker) -> CheckResult:
    name = getattr(checker, "__name__", repr(checker)).removeprefix("check_").replace("_", "-")
    if not ops:
        return CheckResult(name, None, why_unknown="the history is empty")
    try:
        return checker(ops)
    except Exception:  # noqa: BLE001 - the root of a checker: a crash proves nothing, and is reported
        return CheckResult(name, None, why_unknown=f"the checker crashed\n{traceback.format_exc()}")
