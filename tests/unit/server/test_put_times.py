"""How long sends took lately, as RocketMQ writes it."""

from __future__ import annotations

from broker.server.requests.calls import Calls
from broker.server.requests.put_times import BOUNDS_MS, PERIOD_MS, PutTimes
from dledger_mq.remoting.codes import ResponseCode


def counts(times: PutTimes) -> list[int]:
    """As rocketmq-exporter reads them."""
    return [int(each.split(":")[1]) for each in times.text().split(" ")]


def test_each_class_is_there_and_ends_where_its_name_says() -> None:
    times = PutTimes()
    assert times.text() == (
        "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 "
        "[2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0"
    )
    for bound in BOUNDS_MS:
        times.add(bound, 1)
        times.add(bound + 1, 2)
    assert counts(times) == [1, *[3] * 11, 2]


def test_a_minute_begins_anew() -> None:
    times = PutTimes()
    times.sample(1_000)
    times.add(3, 5)
    times.sample(1_000 + PERIOD_MS - 1)
    assert counts(times)[1] == 5
    times.sample(1_000 + PERIOD_MS)
    assert sum(counts(times)) == 0


def test_only_sends_that_were_stored_count_and_held_requests_are_not_long() -> None:
    times, now_ms = PutTimes(), 100
    calls = Calls(times)
    calls.now_ms = lambda: now_ms
    calls.answered(ResponseCode.SUCCESS, 95, 7)
    calls.answered(ResponseCode.SYSTEM_BUSY, 40)
    assert counts(times) == [0, 7, *[0] * 11]
    assert calls.longest_ms == 60
    calls.answered(ResponseCode.SUCCESS, 0, was_held=True)
    assert calls.longest_ms == 60
