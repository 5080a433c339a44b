"""The number of changes of the lead."""

from __future__ import annotations

from jepsen.checkers.leaders import check_leaders
from jepsen.history.ops import OBSERVER, Op


def history(*seen: tuple[str, int]) -> list[Op]:
    """A phase by its name, a leader by its term."""
    ops = []
    for at, (what, term) in enumerate(seen):
        f, value = ("leader", {"term": term}) if what == "leader" else ("phase", what)
        ops.append(Op(at, at * 1000, OBSERVER, "info", f, value))
    return ops


def test_only_changes_while_things_are_broken_count() -> None:
    ops = history(
        ("starting", 0), ("leader", 1), ("leader", 2), ("breaking", 0), ("leader", 2), ("leader", 3),
        ("leader", 6), ("healing", 0), ("leader", 9),
    )  # fmt: skip
    result = check_leaders(ops)
    assert (result.valid, result.counts) == (True, {"changes": 2, "terms": 4})


def test_one_leader_throughout_is_no_change() -> None:
    ops = history(("leader", 4), ("breaking", 0), ("leader", 4), ("healing", 0))
    assert check_leaders(ops).counts == {"changes": 0, "terms": 0}


def test_a_history_without_leaders_has_no_changes() -> None:
    assert check_leaders([]).counts == {"changes": 0, "terms": 0}
