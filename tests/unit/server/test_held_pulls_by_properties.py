"""Held pulls with an SQL92 filter: woken by what matches, led past the rest, answered at their time (F5 to F9)."""

from __future__ import annotations

import pytest

from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from dledger_mq.filters import compile_filter
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import PullFields
from tests.unit.server.test_cold_pulls import ColdBench
from tests.unit.server.test_pulls_of_damaged_entries import Bench, bodies

HOLD_MS = 15_000


class Rules:
    def __init__(self, text: str) -> None:
        self.text = text

    def check(self, _fields: PullFields) -> PullGrant | Refusal:
        return PullGrant(None, property_filter=compile_filter(self.text))


class Filtered(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules("n > 5")
        self.pulls._rules = self.rules  # type: ignore[assignment]

    def comes(self, *numbers: int) -> None:
        for number in numbers:
            self.broker.stage("T", 0, b"%d" % number, n=str(number))
        self.broker.commit()
        self.pulls.applied()


@pytest.fixture
def bench() -> Filtered:
    return Filtered()


def test_it_is_woken_by_what_matches_and_not_by_the_rest(bench: Filtered) -> None:
    bench.comes(9)
    origin = bench.pull(1, HOLD_MS)
    bench.comes(1)
    bench.comes(2, 3)
    assert origin.frames == []
    bench.comes(4, 7)
    assert bodies(origin) == [b"7"]
    (answer,) = origin.answers()
    assert answer.ext["nextBeginOffset"] == "6"


def test_at_its_time_it_is_led_past_what_does_not_match(bench: Filtered) -> None:
    origin = bench.pull(0, HOLD_MS)
    bench.comes(1, 2)
    bench.expire(HOLD_MS - 1)
    assert origin.frames == []
    bench.expire(HOLD_MS)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (answer.ext["nextBeginOffset"], answer.body) == ("2", b"")


def test_without_anything_new_it_hears_so_at_its_time(bench: Filtered) -> None:
    bench.comes(9)
    origin = bench.pull(1, HOLD_MS)
    bench.expire(HOLD_MS)
    (answer,) = origin.answers()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")


def test_what_is_there_and_does_not_match_is_answered_at_once(bench: Filtered) -> None:
    bench.comes(1, 2, 3)
    (answer,) = bench.pull(1, HOLD_MS).answers()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "3"


def test_more_than_one_read_examines_is_not_waited_out(bench: Filtered) -> None:
    """Found here: nothing else may come that makes the broker look at the rest, for the whole time of the hold."""
    origin = bench.pull(0, HOLD_MS)
    bench.comes(*[1] * 900, 9)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "800"
    assert bodies(bench.pull(800, HOLD_MS)) == [b"9"]


def test_what_was_passed_over_and_is_wanted_now_comes_first(bench: Filtered) -> None:
    origin = bench.pull(0, HOLD_MS)
    bench.comes(1)
    bench.rules.text = "n > 0"
    bench.comes(9)
    assert bodies(origin) == [b"1", b"9"]


def test_the_same_text_is_the_same_filter(bench: Filtered) -> None:
    origin = bench.pull(0, HOLD_MS)
    bench.comes(1)
    bench.rules.text = "".join(["n ", "> 5"])
    bench.comes(9)
    assert bodies(origin) == [b"9"]


def test_what_is_not_in_memory_is_read_beside_the_loop_and_then_judged() -> None:
    bench = ColdBench()
    bench.pulls._rules = Rules("n IS NULL AND UNIQ_KEY IS NULL")  # type: ignore[assignment]
    origin = bench.pull(0)
    assert origin.frames == []
    (places, _), *others = bench.log.loads
    assert (len(places), others) == (10, [])
    bench.log.end_load(4)
    assert bodies(origin) == [b"0", b"1", b"2", b"3"]
    assert bench.log.read_on_the_loop == 0


def test_a_pull_gets_on_through_a_backlog_without_a_match() -> None:
    bench = ColdBench()
    bench.pulls._rules = Rules("n = 1")  # type: ignore[assignment]
    origin = bench.pull(0)
    bench.log.end_load(4)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "4"
    assert len(bench.log.loads) == 1, "what comes next is read ahead"
