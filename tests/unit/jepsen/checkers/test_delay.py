from jepsen.checkers.delay import check_delay
from jepsen.history.ops import NEMESIS
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only

SECOND = 1_000_000_000


def send(
    history: History, key: str, due_ns: int, type_: str = "ok", latest_ns: int | None = None
) -> None:
    value = {"key": key, "queue": Q, "due_ns": due_ns}
    told = {**value, "offset": None, "due_ns": latest_ns or due_ns}
    history.do(0, "send", value, told if type_ == "ok" else None, type_)  # type: ignore[arg-type]


def test_a_message_that_comes_when_it_is_due() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = SECOND
    history.poll([0, "a"])  # answered 10 ms later
    history.poll([0, "a"])
    result = check_delay(history.ops)
    assert result.valid is True
    assert result.counts["late_ms"] == {"p50": 10.0, "p99": 10.0}
    assert result.counts["redelivered"] == 1


def test_a_message_that_comes_early() -> None:
    history = History()
    send(history, "a", SECOND)
    history.poll([0, "a"])
    assert_shows_only(check_delay(history.ops), "early")


def test_a_message_at_two_places() -> None:
    history = History()
    send(history, "a", 0)
    history.poll([0, "a"], [1, "a"])
    assert_shows_only(check_delay(history.ops), "duplicate")


def test_a_message_that_never_comes() -> None:
    history = History()
    send(history, "a", SECOND)
    send(history, "b", 0)
    history.poll([0, "b"])
    history.now_ns = 3 * SECOND
    history.drained(1)
    assert_shows_only(check_delay(history.ops), "lost")


def test_a_queue_that_is_gone_has_lost_what_fell_due() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = 3 * SECOND
    history.poll()
    history.drained(0)
    assert_shows_only(check_delay(history.ops), "lost")


def test_reads_that_nobody_answered_prove_nothing() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = 3 * SECOND
    history.do(9, "poll", None, type_="fail")
    history.do(9, "drained", None, type_="fail")
    assert check_delay(history.ops).valid is None


def test_a_message_that_is_not_due_yet_is_not_lost() -> None:
    history = History()
    send(history, "a", 60 * SECOND)
    send(history, "b", 0)
    history.poll([0, "b"])
    history.drained(1)
    result = check_delay(history.ops)
    assert result.valid is None
    assert result.counts["unseen"] == 1


def test_a_refused_message_that_comes() -> None:
    history = History()
    send(history, "b", 0)
    send(history, "a", 0, "fail")
    history.poll([0, "b"], [1, "a"])
    assert_shows_only(check_delay(history.ops), "unexpected")


def test_lateness_is_judged_where_a_bound_is_given() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = 3 * SECOND
    history.poll()
    history.poll([0, "a"])
    assert check_delay(history.ops).valid is True
    assert_shows_only(check_delay(history.ops, late_max_ns=SECOND), "late")


def test_a_message_that_nobody_asked_for_is_not_late() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = 2 * SECOND - SECOND // 10
    history.poll()
    history.now_ns = 4 * SECOND
    history.poll(queue="orders/broker-a/1")
    history.poll([0, "a"])
    assert check_delay(history.ops, late_max_ns=SECOND).valid is True


def test_what_is_pushed_is_late_by_its_own_time() -> None:
    history = History()
    send(history, "a", SECOND)
    history.now_ns = 4 * SECOND
    history.add(9, "ok", "receive", {Q: [[0, "a"]]})
    assert_shows_only(check_delay(history.ops, late_max_ns=SECOND), "late")


def test_an_outage_excuses_lateness() -> None:
    history = History()
    send(history, "a", SECOND)
    history.do(1, "send", {"key": "probe", "queue": Q}, type_="info")
    history.begin(1, "send", {"key": "probe2", "queue": Q})
    history.now_ns = 4 * SECOND
    history.end(1, {"key": "probe2", "queue": Q, "offset": 0})
    history.poll()
    history.poll([1, "a"])
    result = check_delay(history.ops, late_max_ns=SECOND)
    assert result.valid is True
    assert result.counts["excused"] == 1
    assert result.counts["late_ms"] == {"p50": None, "p99": None}


def test_the_death_of_a_leader_excuses_lateness_until_what_began_after_it_succeeds() -> None:
    history = History()
    send(history, "a", SECOND)
    history.do(1, "send", {"key": "probe", "queue": Q}, {"key": "probe", "queue": Q, "offset": 0})
    history.add(NEMESIS, "info", "kill:leader", {"do": "inject"})
    history.now_ns = 3 * SECOND
    history.poll()
    history.poll([1, "a"])
    counts = check_delay(history.ops, late_max_ns=SECOND).counts
    assert (counts["late"], counts["excused"]) == (0, 1)
    later = History()
    send(later, "a", 6 * SECOND)
    later.add(NEMESIS, "info", "kill:leader", {"do": "inject"})
    later.poll()
    later.now_ns = 9 * SECOND
    later.poll()
    later.poll([1, "a"])
    assert_shows_only(check_delay(later.ops, late_max_ns=SECOND), "late")


def test_a_message_that_nobody_sent() -> None:
    history = History()
    send(history, "a", 0)
    history.poll([0, "a"], [1, "ghost"])
    assert_shows_only(check_delay(history.ops), "unexpected")


def test_a_due_time_known_within_bounds_is_early_by_the_first_and_late_by_the_last() -> None:
    history = History()
    send(history, "a", SECOND, latest_ns=3 * SECOND)
    history.now_ns = 3 * SECOND + SECOND // 2
    history.poll([0, "a"])
    assert check_delay(history.ops, late_max_ns=SECOND).valid is True


def test_a_run_without_a_message_is_unknown() -> None:
    history = History()
    send(history, "a", SECOND)
    assert check_delay(History().ops).valid is None
    assert check_delay(history.ops).valid is None


def test_clocks_that_were_set_wrong_are_followed_slowly_and_that_is_no_early_delivery() -> None:
    """20 s into the run two brokers may stand 40 ms apart; 30 ms early is that, 60 ms is not."""

    def came(early_ns: int, *, are_clocks_set: bool) -> bool | None:
        history = History()
        if are_clocks_set:
            history.add(NEMESIS, "info", "clock:skew", {"do": "inject", "done": "n0 -3 s"})
        send(history, "a", 20 * SECOND)
        history.now_ns = 20 * SECOND - early_ns - 10_000_000
        history.poll([0, "a"])  # answered 10 ms later
        return check_delay(history.ops).valid

    assert came(30_000_000, are_clocks_set=True) is True
    assert came(30_000_000, are_clocks_set=False) is False
    assert came(60_000_000, are_clocks_set=True) is False
