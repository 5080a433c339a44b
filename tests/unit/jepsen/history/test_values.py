"""The shapes of values: what has another one is refused, with the member's name."""

from __future__ import annotations

import msgspec
import pytest

from jepsen.checkers.judging import judge
from jepsen.checkers.total_queue import check_total_queue
from jepsen.history.ops import NEMESIS, Op
from jepsen.history.values import OffsetRead, PolledMessage, Rows, SendAsked, shaped, strike_of


def test_a_value_of_its_shape_is_returned_without_what_the_shape_does_not_name() -> None:
    assert shaped({"key": "a", "way": "level"}, SendAsked) == {"key": "a"}


def test_rows_are_lists_whose_last_members_may_be_missing() -> None:
    rows = shaped({"q": [[4, "a"], [5, "b", "U", 96, "paid"]]}, Rows)
    assert rows == {"q": [PolledMessage(4, "a"), PolledMessage(5, "b", "U", 96, "paid")]}


def test_a_value_of_another_shape_is_refused_with_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match="key"):
        shaped({"queue": "q"}, SendAsked)
    with pytest.raises(msgspec.ValidationError, match=r"\$.offset"):
        shaped({"queue": "q", "offset": "nine"}, OffsetRead)


def test_a_history_of_other_shapes_is_unknown() -> None:
    ops = [Op(0, 0, 0, "invoke", "send", {"name": "a"}), Op(1, 1, 0, "ok", "send", {})]
    (result,) = judge(ops, [check_total_queue])
    assert result.valid is None
    assert "missing required field `key`" in result.why_unknown


def test_a_step_of_a_fault_is_one_of_the_nemesis() -> None:
    assert strike_of(Op(0, 0, NEMESIS, "info", "kill", {"do": "inject"})) == {"do": "inject"}
    assert strike_of(Op(0, 0, 3, "info", "kill", {"do": "inject"})) is None
