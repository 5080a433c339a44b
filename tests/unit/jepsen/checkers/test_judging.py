"""Verdicts: a checker that crashes and an empty history prove nothing, and no result contradicts itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jepsen.checkers.judging import judge
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op


def check_nothing(_ops: Sequence[Op]) -> CheckResult:
    return judged("nothing", ())


def check_badly(_ops: Sequence[Op]) -> CheckResult:
    raise KeyError("lost")


def test_an_empty_history_is_valid_for_nobody() -> None:
    (result,) = judge([], [check_nothing])
    assert (result.name, result.valid) == ("nothing", None)
    assert result.why_unknown == "the history is empty"


def test_a_checker_that_crashes_knows_nothing() -> None:
    good, bad = judge([Op(0, 0, 0, "invoke", "send")], [check_nothing, check_badly])
    assert (good.valid, bad.valid) == (True, None)
    assert "KeyError: 'lost'" in bad.why_unknown


@pytest.mark.parametrize(
    ("valid", "anomalies", "why"),
    [
        (True, (Anomaly("lost", "a"),), ""),
        (None, (Anomaly("lost", "a"),), "why"),
        (False, (), ""),
        (None, (), ""),
        (True, (), "nothing was read"),
    ],
)
def test_no_result_contradicts_itself(
    valid: bool | None, anomalies: tuple[Anomaly, ...], why: str
) -> None:
    with pytest.raises(AssertionError):
        CheckResult("places", valid, anomalies, why_unknown=why)
