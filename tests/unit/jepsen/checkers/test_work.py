from typing import Any

import pytest

from jepsen.checkers.work import check_work
from jepsen.history.ops import NEMESIS, OBSERVER
from tests.unit.jepsen.checkers.histories import History


def begun() -> History:
    history = History()
    history.add(OBSERVER, "info", "phase", "breaking")
    return history


def over(history: History) -> History:
    history.add(OBSERVER, "info", "phase", "healing")
    return history


def work(
    history: History, count: int, *, f: str = "send", every_s: float = 0.1, **more: Any
) -> None:
    """Operations one after the other, each 20 ms long."""
    for _ in range(count):
        history.do(0, f, None, **more)
        history.wait(every_s - 0.02)


def struck(history: History, f: str = "kill") -> None:
    history.add(NEMESIS, "info", f, {"do": "inject"})


def test_what_was_asked_for_was_done() -> None:
    history = begun()
    work(history, 80)
    work(history, 20, f="poll")
    history.do(0, "poll", None)
    result = check_work(over(history).ops, rate=10)
    assert result.valid is True
    assert result.counts == {
        "asked": 100,
        "begun": 101,
        "done": 101,
        "done_percent": 101,
        "floor": 10,
        "done_by_kind": {"poll": 21, "send": 80},
    }


def test_what_was_read_in_the_end_is_no_work() -> None:
    history = over(begun())
    work(history, 100, f="poll")
    result = check_work(history.ops, rate=150)
    assert result.valid is None
    assert result.counts["done"] == 0


def test_a_hundred_sends_in_five_minutes_prove_nothing() -> None:
    """150 a second were asked for: such a run was valid without a word."""
    history = begun()
    work(history, 102, every_s=3.0)
    result = check_work(over(history).ops, rate=150)
    assert result.valid is None
    assert "102 of 45902 operations that were asked for" in result.why_unknown
    assert result.counts["floor"] == 4590


def test_sends_that_starve_beside_many_reads() -> None:
    history = begun()
    for _ in range(100):
        work(history, 1, type_="info")
        work(history, 1, f="poll", every_s=0.02)
    work(history, 1)
    result = check_work(over(history).ops, rate=20)
    assert result.valid is None
    assert "1 of 101 send" in result.why_unknown


def test_a_rate_that_is_asked_for_to_press_need_not_be_reached() -> None:
    history = begun()
    work(history, 200, every_s=0.05)
    assert check_work(over(history).ops, rate=2000).valid is True


@pytest.mark.parametrize("has_fault", [True, False])
def test_an_outage_by_design_costs_nothing(has_fault: bool) -> None:
    history = begun()
    work(history, 30, every_s=0.02)
    if has_fault:
        struck(history, "pause:all")
    work(history, 10, every_s=6.0, type_="info")
    work(history, 30, every_s=0.02)
    assert check_work(over(history).ops, rate=100).valid is (True if has_fault else None)


def test_reads_that_go_on_do_not_make_sends_able() -> None:
    """Clients see a minority: it serves reads, and takes no send."""
    history = begun()
    work(history, 20, every_s=0.02)
    struck(history)
    for _ in range(20):
        work(history, 1, every_s=1.0, type_="fail")
        work(history, 3, f="poll", every_s=0.05)
    assert check_work(over(history).ops, rate=30).valid is True


def test_time_counts_again_once_something_succeeds() -> None:
    history = begun()
    struck(history)
    work(history, 1)
    work(history, 9, every_s=10.0)
    result = check_work(over(history).ops, rate=100)
    assert result.valid is None
    assert result.counts["floor"] == pytest.approx(900, abs=20)


def test_a_handful_proves_nothing_however_low_the_rate() -> None:
    history = begun()
    work(history, 9)
    result = check_work(over(history).ops, rate=1)
    assert result.valid is None
    assert "too little was done to prove anything: 9 of 1 operations" in result.why_unknown


def test_nothing_at_all() -> None:
    assert check_work([], rate=100).valid is None
