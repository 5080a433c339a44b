"""The checker of pops, on histories that were written by hand: each kind of anomaly, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen.checkers.pops import SETTLE_NS, check_pops
from jepsen.checkers.results import CheckResult
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only, kinds

GROUP = "billing"
RETRY = f"%RETRY%{GROUP}/broker-a/0"
DEAD = f"%DLQ%{GROUP}/broker-a/0"
SETTLE_S = SETTLE_NS / 1e9


class Pops(History):
    """A history of one group. Pop times are those of the run, from 1000 ms on."""

    def __init__(self, *, ordered: bool = False) -> None:
        super().__init__()
        self.ordered = ordered

    @property
    def log_ms(self) -> int:
        return 1000 + self.now_ns // 1_000_000

    def pop(
        self,
        *offsets: int,
        popped_ms: int | None = None,
        invisible_ms: int = 100,
        queue: str = Q,
        keys: str = "",
        process: int = 1,
    ) -> int:
        """Messages are handed out; returns their pop time."""
        at = self.log_ms if popped_ms is None else popped_ms
        named = keys.split() or [f"m{offset}" for offset in offsets]
        rows = [
            [queue, offset, key, at, invisible_ms, 0]
            for offset, key in zip(offsets, named, strict=True)
        ]
        asked = {"group": GROUP, "ordered": self.ordered, "invisible_ms": invisible_ms}
        self.do(process, "pop", asked, {"rows": rows})
        return at

    def again(self, *offsets: int, **more: Any) -> int:
        """The same once its time is over."""
        self.wait(0.2)
        return self.pop(*offsets, **more)

    def ack(
        self,
        offset: int,
        popped_ms: int,
        end: str = "ok",
        *,
        queue: str = Q,
        key: str = "",
        process: int = 1,
    ) -> None:
        asked = {"group": GROUP, "handles": [[queue, offset, popped_ms, key or f"m{offset}"]]}
        type_: Any = "fail" if end == "gone" else end
        self.do(process, "ack", asked, {"ends": [end]}, type_)

    def change(self, offset: int, popped_ms: int, invisible_ms: int, end: str = "ok") -> int:
        asked = {
            "group": GROUP,
            "handle": [Q, offset, popped_ms, f"m{offset}"],
            "invisible_ms": invisible_ms,
        }
        new_ms = self.log_ms
        told = {"popped_ms": new_ms} if end == "ok" else {"end": end}
        type_: Any = "fail" if end == "gone" else end
        self.do(1, "change", asked, told, type_)
        return new_ms

    def dead(self, key: str, *offsets: int, stored_ms: int | None = None) -> None:
        at = self.log_ms if stored_ms is None else stored_ms
        rows = [[DEAD, offset, key, 4, at] for offset in offsets]
        self.do(2, "dead", {"group": GROUP}, {"group": GROUP, "rows": rows})

    def passed(self, *, wait_s: float = 2 * SETTLE_S) -> CheckResult:
        """The group has popped everything; the judgement."""
        self.wait(wait_s)
        value = {"group": GROUP, "stands": {Q: 9}, "ends": {Q: 9}}
        self.do(2, "passed", {"group": GROUP}, value)
        return check_pops(self.ops)


def begun(*offsets: int, ordered: bool = False) -> Pops:
    """Messages are stored; one more of them was forgotten once, then acknowledged."""
    history = Pops(ordered=ordered)
    history.send("m0", 0)
    history.pop(0)
    history.ack(0, history.again(0))
    for offset in offsets:
        history.send(f"m{offset}", offset)
    return history


def test_everything_is_acknowledged_in_the_end() -> None:
    history = begun(1, 2, 3)
    first = history.pop(1, 2, 3)
    history.ack(1, first)
    history.ack(1, first, "gone")
    new = history.change(2, first, 500)
    history.ack(2, first, "gone")
    history.ack(2, new)
    last = history.again(3)
    history.ack(3, first, "gone")
    history.ack(3, last)
    result = history.passed()
    assert result.valid is True, result
    assert result.counts["groups"] == {
        GROUP: {
            "handed_out": 6,
            "again": 2,
            "changed": 1,
            "acknowledged": 4,
            "not_in_flight": 3,
            "unknown": 0,
            "returned": 0,
            "dead": 0,
        }
    }


def test_an_acknowledged_message_that_comes_again() -> None:
    history = begun(1)
    history.ack(1, history.pop(1))
    history.again(1)
    assert_shows_only(history.passed(), "acknowledged")


def test_a_pop_time_tells_what_the_order_of_answers_does_not() -> None:
    """The pop that came after the acknowledgement was answered before it."""
    history = begun(1)
    first = history.pop(1)
    history.wait(0.2)
    history.pop(1, process=3)
    history.ack(1, first)
    assert_shows_only(history.passed(), "acknowledged")


def test_an_old_answer_after_the_acknowledgement_is_none() -> None:
    history = begun(1)
    asked = {"group": GROUP, "ordered": False, "invisible_ms": 100}
    first = history.log_ms
    history.begin(3, "pop", asked)
    history.ack(1, history.again(1))
    history.end(3, {"rows": [[Q, 1, "m1", first, 100, 0]]})
    assert history.passed().valid is True


@pytest.mark.parametrize("is_dead", [False, True])
def test_an_acknowledged_message_with_a_copy(is_dead: bool) -> None:
    history = begun(1)
    history.ack(1, history.pop(1))
    history.wait(1)
    if is_dead:
        history.dead("m1", 0)
    else:
        history.ack(0, history.pop(0, queue=RETRY, keys="m1"), queue=RETRY, key="m1")
    assert_shows_only(history.passed(), "acknowledged")


def test_a_copy_is_another_handing() -> None:
    history = begun(1)
    history.pop(1)
    history.wait(1)
    history.pop(0, queue=RETRY, keys="m1")
    history.wait(1)
    history.ack(1, history.pop(1, queue=RETRY, keys="m1"), queue=RETRY, key="m1")
    result = history.passed()
    assert result.valid is True, result
    assert result.counts["groups"][GROUP]["returned"] == 2  # type: ignore[index]


def test_the_original_after_its_copy_was_acknowledged() -> None:
    history = begun(1)
    history.pop(1)
    history.wait(1)
    history.ack(0, history.pop(0, queue=RETRY, keys="m1"), queue=RETRY, key="m1")
    history.again(1)
    assert_shows_only(history.passed(), "acknowledged")


def test_early_by_the_clock_of_the_log() -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=100)
    history.wait(1)
    history.ack(1, history.pop(1, popped_ms=first + 99))
    assert_shows_only(history.passed(), "early")


def test_to_the_millisecond_it_is_not_early() -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=100)
    history.wait(1)
    history.ack(1, history.pop(1, popped_ms=first + 100))
    assert history.passed().valid is True


def test_early_by_the_clock_of_the_run() -> None:
    """The log's clock has leapt."""
    history = begun(1)
    first = history.pop(1, invisible_ms=1000)
    history.ack(1, history.pop(1, popped_ms=first + 5000))
    assert_shows_only(history.passed(), "early")


def test_a_dead_letter_or_a_copy_that_is_early() -> None:
    history = begun(1, 2)
    first = history.pop(1, 2, invisible_ms=5000)
    history.wait(10)
    history.dead("m1", 0, stored_ms=first + 4999)
    history.pop(0, queue=RETRY, keys="m2", popped_ms=first + 4999)
    history.ack(0, history.again(0, queue=RETRY, keys="m2"), queue=RETRY, key="m2")
    assert kinds(history.passed()) == ["early", "early"]


def test_a_changed_time_counts_from_the_change_on() -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=10_000)
    new = history.change(1, first, 50)
    history.wait(0.1)
    history.ack(1, history.pop(1, popped_ms=new + 50))
    assert history.passed().valid is True


def test_a_change_that_made_the_time_longer() -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=10)
    new = history.change(1, first, 10_000)
    history.wait(60)
    history.ack(1, history.pop(1, popped_ms=new + 9_999))
    assert_shows_only(history.passed(), "early")


@pytest.mark.parametrize(("asked_ms", "valid"), [(50, True), (500, False)])
def test_a_change_of_unknown_outcome_may_have_made_it_short(asked_ms: int, valid: bool) -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=10_000)
    history.change(1, first, asked_ms, "info")
    history.wait(0.1)
    history.ack(1, history.pop(1, popped_ms=first + 120))
    assert history.passed().valid is valid


def test_two_who_have_one_handle() -> None:
    history = begun(1)
    first = history.pop(1)
    history.wait(1)
    history.pop(1, popped_ms=first, process=3)
    history.ack(1, first)
    assert_shows_only(history.passed(), "shared-handle")


def test_a_handle_that_is_used_twice() -> None:
    history = begun(1)
    first = history.pop(1)
    history.ack(1, first)
    history.ack(1, first)
    assert_shows_only(history.passed(), "dead-handle")


def test_a_change_under_a_handle_that_somebody_else_has_replaced() -> None:
    history = begun(1)
    first = history.pop(1)
    history.again(1)
    new = history.change(1, first, 100)
    history.ack(1, new)
    assert_shows_only(history.passed(), "dead-handle")


@pytest.mark.parametrize(
    ("ordered", "shows"), [(False, ["forgotten"]), (True, [])], ids=["any order", "in order"]
)
def test_a_live_handle_that_is_refused(ordered: bool, shows: list[str]) -> None:
    """In order a repeated attempt, whose answer was lost as well, may have taken it."""
    history = begun(1, ordered=ordered)
    first = history.pop(1, invisible_ms=1000)
    history.ack(1, first, "gone")
    history.wait(1)
    history.ack(1, history.again(1))
    assert kinds(history.passed()) == shows


def test_a_handle_is_dead_after_its_time_or_another_use() -> None:
    history = begun(1, 2)
    first = history.pop(1, 2, invisible_ms=1000)
    history.ack(1, first, "info")
    history.ack(1, first, "gone")
    history.wait(2)
    history.ack(2, first, "gone")
    history.ack(2, history.pop(2))
    assert history.passed().valid is True


def test_in_order_nothing_follows_what_is_not_acknowledged() -> None:
    history = begun(1, 2, ordered=True)
    first = history.pop(1)
    history.ack(2, history.pop(2))
    history.ack(1, first)
    assert_shows_only(history.passed(), "overtaken")


def test_in_order_nothing_is_passed_over() -> None:
    history = begun(1, 2, ordered=True)
    history.ack(2, history.pop(2))
    history.ack(1, history.pop(1))
    assert_shows_only(history.passed(), "overtaken")


def test_in_order_an_answer_that_goes_back() -> None:
    history = begun(1, 2, ordered=True)
    first = history.pop(2, 1)
    history.ack(1, first)
    history.ack(2, first)
    assert_shows_only(history.passed(), "overtaken")


@pytest.mark.parametrize("end", ["ok", "info", "dead"])
def test_in_order_the_next_follows_what_may_be_done(end: str) -> None:
    history = begun(1, 2, ordered=True)
    first = history.pop(1)
    if end != "dead":
        history.ack(1, first, end)
    history.ack(2, history.again(2))
    if end == "dead":
        history.dead("m1", 0)
    assert history.passed().valid is True


def test_the_same_disorder_is_none_without_order() -> None:
    history = begun(1, 2)
    history.ack(2, history.pop(2))
    history.ack(1, history.pop(1))
    assert history.passed().valid is True


@pytest.mark.parametrize("is_popped", [False, True])
def test_a_message_that_never_comes_again(is_popped: bool) -> None:
    history = begun(1)
    if is_popped:
        history.pop(1)
    assert_shows_only(history.passed(), "lost")


def test_nobody_waited_for_it() -> None:
    history = begun(1)
    history.pop(1, invisible_ms=60_000)
    result = history.passed()
    assert result.valid is None
    assert "1 messages are missing" in result.why_unknown


def test_a_group_that_was_not_seen_at_the_end() -> None:
    history = begun(1)
    result = check_pops(history.ops)
    assert result.valid is None
    assert result.counts["unseen"] == 1


def test_what_may_be_acknowledged_or_is_dead_is_not_lost() -> None:
    history = begun(1, 2)
    first = history.pop(1, 2)
    history.ack(1, first, "info")
    history.wait(1)
    history.dead("m2", 0)
    history.dead("m2", 0)  # read again
    result = history.passed()
    assert result.valid is True
    assert result.counts["groups"][GROUP]["dead"] == 1  # type: ignore[index]


def test_dead_twice() -> None:
    history = begun(1)
    history.pop(1)
    history.wait(1)
    history.dead("m1", 0, 1)
    assert_shows_only(history.passed(), "two-places")


def test_one_message_at_two_places() -> None:
    history = begun()
    history.send("m1")
    history.ack(1, history.pop(1))
    history.ack(2, history.pop(2, keys="m1"), key="m1")
    assert_shows_only(history.passed(), "two-places")


def test_another_message_than_was_stored_there() -> None:
    history = begun(1)
    history.ack(5, history.pop(5, keys="m1"), key="m1")
    assert_shows_only(history.passed(), "other-message")


def test_another_content() -> None:
    history = begun()
    asked = {"key": "m1", "queue": Q, "content": "paid 1"}
    history.do(0, "send", asked, {**asked, "offset": 1})
    at = history.log_ms
    rows = [[Q, 1, "m1", at, 100, 0, "paid 2"]]
    history.do(1, "pop", {"group": GROUP, "ordered": False, "invisible_ms": 100}, {"rows": rows})
    history.ack(1, at)
    assert_shows_only(history.passed(), "other-content")


@pytest.mark.parametrize("is_sent", [False, True])
def test_what_nobody_sent_or_what_was_refused(is_sent: bool) -> None:
    history = begun()
    if is_sent:
        history.do(0, "send", {"key": "m1", "queue": Q}, type_="fail")
    history.ack(1, history.pop(1))
    assert_shows_only(history.passed(), "unexpected")


def test_too_little_was_seen() -> None:
    history = Pops()
    history.send("m1", 1)
    assert "nothing was acknowledged" in history.passed().why_unknown
    history.ack(1, history.pop(1))
    result = check_pops(history.ops)
    assert (result.valid, result.why_unknown) == (None, "nothing was handed out again")


def test_wrong_clocks_may_be_followed_by_the_slew() -> None:
    history = begun(1)
    first = history.pop(1, invisible_ms=20_000)
    history.wait(19.95)
    history.ack(1, history.pop(1, popped_ms=first + 20_000))
    assert_shows_only(history.passed(), "early")
    history.add("nemesis", "info", "clock-skew", {"do": "inject"})
    assert check_pops(history.ops).valid is True
