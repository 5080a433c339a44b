from jepsen.checkers.set_full import check_set_full
from tests.unit.jepsen.checkers.histories import History, assert_shows_only


def read(history: History, *elements: int) -> None:
    history.do(9, "read", None, list(elements))


def test_elements_that_stay() -> None:
    history = History()
    history.do(0, "add", 1)
    read(history, 1)
    history.begin(0, "add", 2)
    read(history, 1)  # the add is under way
    history.end(0)
    history.do(1, "add", 3, type_="info")  # unknown, and stored
    history.do(2, "add", 4, type_="info")  # unknown, and not stored
    history.do(3, "add", 5, type_="fail")
    read(history, 1, 2, 3)
    result = check_set_full(history.ops)
    assert result.valid is True
    assert result.counts == {
        "attempts": 5,
        "acknowledged": 2,
        "reads": 3,
        "stable": 3,
        "lost": 0,
        "stale": 0,
        "never-read": 0,
        "recovered": 1,
        "stale_ms": {"p50": None, "p99": None, "p100": None},
    }


def test_an_acknowledged_element_that_is_missing_at_last() -> None:
    history = History()
    history.do(0, "add", 1)
    read(history)
    assert_shows_only(check_set_full(history.ops), "lost")


def test_an_empty_log_at_last_has_lost_everything() -> None:
    history = History()
    for element in (1, 2):
        history.do(0, "add", element)
    read(history, 1, 2)
    read(history)
    result = check_set_full(history.ops)
    assert result.valid is False
    assert result.counts["lost"] == 2


def test_reads_that_nobody_answered_prove_nothing() -> None:
    history = History()
    history.do(0, "add", 1)
    history.do(9, "read", None, type_="fail")
    assert check_set_full(history.ops).valid is None


def test_an_element_that_was_read_and_is_missing_at_last() -> None:
    history = History()
    history.do(0, "add", 0)
    history.do(1, "add", 1, type_="info")
    read(history, 0, 1)
    read(history, 0)
    assert_shows_only(check_set_full(history.ops), "lost")


def test_an_element_that_was_missing_for_a_while() -> None:
    history = History()
    history.do(0, "add", 1)
    read(history)
    read(history, 1)
    result = check_set_full(history.ops)
    assert_shows_only(result, "stale")
    assert result.counts["stale_ms"] == {"p50": 20.0, "p99": 20.0, "p100": 20.0}
    assert check_set_full(history.ops, linearizable=False).valid is True


def test_an_element_twice_in_a_read() -> None:
    history = History()
    history.do(0, "add", 1)
    read(history, 1, 1)
    assert_shows_only(check_set_full(history.ops), "duplicate")


def test_an_element_that_nobody_added() -> None:
    history = History()
    history.do(0, "add", 1)
    read(history, 1, 7)
    assert_shows_only(check_set_full(history.ops), "unexpected")


def test_a_refused_element_that_is_there() -> None:
    history = History()
    history.do(0, "add", 1)
    history.do(0, "add", 2, type_="fail")
    read(history, 1, 2)
    assert_shows_only(check_set_full(history.ops), "unexpected")


def test_an_element_that_nobody_looked_for_leaves_it_unknown() -> None:
    history = History()
    read(history)
    history.do(0, "add", 1)
    result = check_set_full(history.ops)
    assert result.valid is None
    assert result.counts["never-read"] == 1


def test_a_run_without_an_acknowledgement_is_unknown() -> None:
    history = History()
    history.do(0, "add", 1, type_="info")
    read(history, 1)
    assert check_set_full(history.ops).valid is None
