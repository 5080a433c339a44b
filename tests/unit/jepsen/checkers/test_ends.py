from jepsen.checkers.ends import check_ends
from tests.unit.jepsen.checkers.histories import History, assert_shows_only


def ended(history: History, node: str, *, excused: bool) -> None:
    words = "AssertionError: committed entries never change"
    value = {"status": 1, "words": words, "excused": excused}
    history.add("observer", "info", "ended", value, node)


def test_processes_that_live_are_well() -> None:
    history = History()
    history.send("a", 0)
    assert check_ends(history.ops).valid is True


def test_a_node_that_ended_by_itself() -> None:
    history = History()
    ended(history, "n1", excused=False)
    result = check_ends(history.ops)
    assert_shows_only(result, "ended")
    assert "committed entries never change" in result.anomalies[0].text


def test_a_node_whose_disk_failed_is_excused() -> None:
    history = History()
    ended(history, "n1", excused=True)
    result = check_ends(history.ops)
    assert result.valid is True
    assert result.counts == {"ended": 1, "excused": 1}
