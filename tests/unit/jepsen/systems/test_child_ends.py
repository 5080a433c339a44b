"""The ends of a supervisor's processes are counted, whoever looks when."""

from __future__ import annotations

from broker.node.status import NodeStatus
from broker.processes.child import ChildStatus
from jepsen.systems.child_ends import ChildEnds

KILLED = "was ended by SIGKILL"
FAILED = "ended with status 1: AssertionError: the log"
STOPPED = "ended with status 0: stopped"


def look(
    restarts: int = 0,
    last_end: str = "",
    *,
    is_up: bool = True,
    supervisor: int = 1,
    is_stopping: bool = False,
) -> NodeStatus:
    child = ChildStatus("broker-a", 7 if is_up else None, 0, restarts, last_end)
    return NodeStatus(supervisor, "n0", (child,), start="boot", is_stopping=is_stopping)


def words(ends: ChildEnds, *looks: NodeStatus | None) -> list[str]:
    return [end.words for status in looks for end in ends.note(status)]


def test_an_end_between_two_looks_is_found_by_the_new_start() -> None:
    ends = ChildEnds()
    assert words(ends, look(), look(1, FAILED)) == [f"broker-a {FAILED}"]
    assert words(ends, look(1, FAILED)) == []
    (end,) = ends.note(look(2, FAILED))
    assert end.status == 1


def test_an_end_that_is_seen_while_it_is_down_counts_once() -> None:
    ends = ChildEnds()
    down = look(0, FAILED, is_up=False)
    assert words(ends, look(), down, down, look(1, FAILED)) == [f"broker-a {FAILED}"]
    assert words(ends, look(1, KILLED, is_up=False)) == [f"broker-a {KILLED}"]


def test_an_end_of_our_doing_excuses_no_later_one() -> None:
    ends = ChildEnds()
    ends.note(look())
    ends.expect(["broker-a"])
    assert words(ends, look(1, KILLED)) == [], "nobody saw it down"
    assert words(ends, look(2, KILLED)) == [f"broker-a {KILLED}"]


def test_of_two_ends_between_two_looks_one_is_our_doing() -> None:
    ends = ChildEnds()
    ends.note(look())
    ends.expect(["broker-a"])
    assert words(ends, look(1, FAILED, is_up=False)) == [f"broker-a {FAILED}"]


def test_an_end_of_its_own_before_ours_is_noted() -> None:
    ends = ChildEnds()
    ends.note(look())
    ends.expect(["broker-a"])
    assert words(ends, look(0, FAILED, is_up=False)) == [f"broker-a {FAILED}"]
    assert words(ends, look(2, KILLED)) == [f"broker-a {KILLED}"]


def test_another_supervisor_counts_anew() -> None:
    ends = ChildEnds()
    ends.note(look(3, KILLED))
    ends.expect(["broker-a"])
    assert words(ends, None, look(supervisor=2)) == []
    assert (
        words(ends, *(look(n, KILLED, supervisor=2) for n in range(1, 5)))
        == [f"broker-a {KILLED}"] * 4
    )


def test_only_ends_in_order_belong_to_a_stop() -> None:
    for how, found in (
        (STOPPED, []),
        ("was ended by SIGTERM", []),
        (FAILED, [f"broker-a {FAILED}"]),
        (KILLED, [f"broker-a {KILLED}"]),
    ):
        down = look(0, how, is_up=False, is_stopping=True)
        assert words(ChildEnds(), look(), down) == found
    assert words(ChildEnds(), look(0, STOPPED, is_up=False)) == [f"broker-a {STOPPED}"]
