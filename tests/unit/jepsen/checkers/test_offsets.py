from jepsen.checkers.offsets import check_offsets
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only


def at(offset: int | None) -> dict[str, object]:
    return {"queue": Q, "offset": offset, "group": "g"}


def test_offsets_that_follow_their_commits() -> None:
    history = History()
    history.do(1, "committed", None, at(None))
    history.do(0, "commit", at(3))
    history.do(1, "committed", None, at(3))
    history.begin(0, "commit", at(5))
    history.do(1, "committed", None, at(3))  # the commit is under way
    history.do(1, "committed", None, at(5))
    history.end(0)
    history.do(1, "committed", None, at(5))
    result = check_offsets(history.ops)
    assert result.valid is True
    assert result.counts == {"registers": 1, "commits": 2, "reads": 5, "rewinds": 0}


def test_an_offset_below_an_acknowledged_commit() -> None:
    history = History()
    history.do(0, "commit", at(3))
    history.do(0, "commit", at(5))
    history.do(1, "committed", None, at(3))
    assert_shows_only(check_offsets(history.ops), "rewind")


def test_an_offset_below_an_earlier_read() -> None:
    history = History()
    history.do(1, "committed", None, at(5))
    history.do(2, "committed", None, at(4))
    assert_shows_only(check_offsets(history.ops), "rewind")


def test_an_offset_that_vanished() -> None:
    history = History()
    history.do(1, "committed", None, at(5))
    history.do(2, "committed", None, at(None))
    assert_shows_only(check_offsets(history.ops), "rewind")


def test_no_offset_and_zero_are_the_same() -> None:
    history = History()
    history.do(0, "commit", at(0))
    history.do(2, "committed", None, at(None))
    assert check_offsets(history.ops).valid is True


def test_a_client_may_set_its_group_back() -> None:
    history = History()
    history.do(0, "commit", at(5))
    history.do(0, "commit", at(2))
    history.do(1, "committed", None, at(2))
    history.do(1, "committed", None, at(2))
    assert check_offsets(history.ops).valid is True


def test_a_value_that_a_later_commit_replaced_does_not_come_back() -> None:
    history = History()
    history.do(0, "commit", at(10))
    history.do(0, "commit", at(5))
    history.do(0, "commit", at(8))
    history.do(1, "committed", None, at(5))
    assert_shows_only(check_offsets(history.ops), "rewind")


def test_a_group_that_a_client_set_back_stays_there() -> None:
    history = History()
    history.do(0, "commit", at(10))
    history.do(0, "commit", at(5))
    history.do(1, "committed", None, at(10))
    assert_shows_only(check_offsets(history.ops), "stale")


def test_a_read_replaces_what_was_committed_before_it() -> None:
    history = History()
    history.do(0, "commit", at(5))
    history.do(0, "commit", at(9), type_="info")
    history.do(1, "committed", None, at(9))
    history.do(1, "committed", None, at(5))
    assert_shows_only(check_offsets(history.ops), "rewind")


def test_a_commit_that_was_refused_wrote_nothing() -> None:
    history = History()
    history.do(0, "commit", at(3), type_="fail")
    history.do(1, "committed", None, at(3))
    assert_shows_only(check_offsets(history.ops), "spurious")


def test_a_commit_of_unknown_outcome_may_take_effect_late() -> None:
    history = History()
    history.do(0, "commit", at(3), type_="info")
    history.do(0, "commit", at(5))
    history.do(1, "committed", None, at(3))
    assert check_offsets(history.ops).valid is True


def test_the_zero_that_nobody_committed() -> None:
    history = History()
    history.do(0, "commit", at(3), type_="info")
    history.do(1, "committed", None, at(0))
    assert_shows_only(check_offsets(history.ops), "spurious")


def test_groups_and_queues_are_apart() -> None:
    history = History()
    history.do(1, "committed", None, at(5))
    history.do(1, "committed", None, {**at(2), "group": "other"})
    history.do(1, "committed", None, {**at(1), "queue": "orders/broker-a/1"})
    assert check_offsets(history.ops).valid is True


def test_a_run_in_which_nobody_asked_is_unknown() -> None:
    assert check_offsets(History().ops).valid is None
