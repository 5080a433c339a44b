"""The register of the highest: what may be answered at any node, and hostile histories."""

from __future__ import annotations

from typing import Literal

import pytest

from jepsen.checkers.linearizable import check_linearizable
from jepsen.checkers.models import MAX_REGISTER
from tests.unit.jepsen.checkers.histories import History

NODE = 0


@pytest.fixture
def history() -> History:
    return History()


def verdict(history: History) -> bool | None:
    return check_linearizable(history.ops, model=MAX_REGISTER).valid


def commit(history: History, offset: int, end: Literal["ok", "fail", "info"] = "ok") -> None:
    told = ["g", None] if end == "ok" else None
    history.do(0, "commit", ["g", [offset, NODE]], told, end)


def read(history: History, offset: int, process: int = 1) -> None:
    history.do(process, "read", ["g", NODE], ["g", offset])


def test_commits_and_questions_in_turn(history: History) -> None:
    read(history, -1)
    commit(history, 3)
    commit(history, 2)
    read(history, 3)
    commit(history, 5)
    read(history, 5)
    assert verdict(history) is True


def test_a_question_beside_a_commit_may_be_answered_with_either(history: History) -> None:
    for seen in (3, 5):
        history = History()
        commit(history, 3)
        history.begin(0, "commit", ["g", [5, NODE]])
        read(history, seen)
        history.end(0, ["g", None])
        assert verdict(history) is True


def test_a_deposed_leader_that_tells_an_old_offset(history: History) -> None:
    commit(history, 1)
    commit(history, 3)
    read(history, 1)
    assert verdict(history) is False


def test_it_is_found_also_when_the_question_began_before_and_another_one_saw_more(
    history: History,
) -> None:
    """Two questions at once may differ, but not in the order in which they ended."""
    commit(history, 1)
    history.begin(0, "commit", ["g", [3, NODE]])
    read(history, 3, process=1)
    read(history, 1, process=2)
    history.end(0, ["g", None])
    assert verdict(history) is False


def test_a_restarted_node_that_knows_nothing(history: History) -> None:
    for told in (0, -1):
        history = History()
        commit(history, 200)
        read(history, told)
        assert verdict(history) is False


def test_a_commit_that_is_told_to_be_undone_and_is_read(history: History) -> None:
    commit(history, 3)
    commit(history, 5, "fail")
    read(history, 5)
    assert verdict(history) is False


@pytest.mark.parametrize("seen", [3, 5])
def test_a_commit_of_unknown_outcome_may_be_read_or_not(history: History, seen: int) -> None:
    commit(history, 3)
    commit(history, 5, "info")
    read(history, seen)
    assert verdict(history) is True


def test_a_commit_of_unknown_outcome_that_was_read_is_never_taken_back(history: History) -> None:
    commit(history, 3)
    commit(history, 5, "info")
    read(history, 5)
    read(history, 3)
    assert verdict(history) is False


def test_an_offset_that_nobody_committed(history: History) -> None:
    commit(history, 3)
    read(history, 4)
    assert verdict(history) is False
