"""The leader's clock: a wall clock that jumps changes nothing."""

from __future__ import annotations

import logging

import pytest

from broker.server.clock import SteadyWallClock
from dledger import NodeId
from dledger.runtime.peer_clocks import ClockReading

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


class Clocks:
    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.steady_ms = 5_000

    def pass_ms(self, ms: int, *, wall_ms: int | None = None) -> None:
        self.steady_ms += ms
        self.wall_ms += ms if wall_ms is None else wall_ms

    def reading(self, ahead_ms: int = 0) -> ClockReading:
        """A member's clock, so far ahead of this one's, came back at once."""
        return ClockReading(self.wall_ms + ahead_ms, self.steady_ms, self.steady_ms)


def steady(clocks: Clocks, member_count: int = 1) -> SteadyWallClock:
    return SteadyWallClock(N0, member_count, lambda: clocks.wall_ms, lambda: clocks.steady_ms)


def test_it_begins_at_the_wall_clock_and_passes() -> None:
    clocks = Clocks()
    clock = steady(clocks)
    assert clock() == clocks.wall_ms
    clocks.pass_ms(12_345)
    assert clock() == clocks.wall_ms
    assert clock.error_ms == 0


def test_a_jump_changes_nothing_at_once() -> None:
    for jump_ms in (3_600_000, -3_600_000, 86_400_000_000):
        clocks = Clocks()
        clock = steady(clocks)
        started_ms = clock()
        clocks.wall_ms += jump_ms
        assert clock() == started_ms
        clocks.pass_ms(10_000)
        assert abs(clock() - started_ms - 10_000) <= 10
        assert clock.error_ms != 0


def test_a_drift_of_a_time_service_is_followed() -> None:
    clocks = Clocks()
    clock = steady(clocks)
    for _ in range(100):
        clocks.pass_ms(10_000, wall_ms=10_005)
        clock()
    assert clock.error_ms == 0
    for _ in range(100):
        clocks.pass_ms(10_000, wall_ms=9_995)
        clock()
    assert clock.error_ms == 0


def test_it_never_goes_back() -> None:
    clocks = Clocks()
    clock = steady(clocks)
    clocks.wall_ms -= 10_000_000
    last = clock()
    for _ in range(5_000):
        clocks.pass_ms(1)
        now = clock()
        assert now >= last
        last = now


@pytest.mark.parametrize("wrong_ms", [300_000, -300_000])
def test_a_node_that_starts_with_a_wrong_clock_takes_the_time_of_the_others(
    wrong_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    clocks.wall_ms += wrong_ms
    clock = steady(clocks, 3)
    clock.heard(N1, clocks.reading(-wrong_ms))
    assert clock() == clocks.wall_ms, "of two clocks nobody knows which one is wrong"
    clock.heard(N2, clocks.reading(-wrong_ms))
    true_ms = clocks.wall_ms - wrong_ms
    assert 0 <= true_ms - clock() <= 1
    assert abs(clock.ahead_ms - wrong_ms) <= 1
    assert "clock-corrected node=n0" in caplog.text
    clock.lead()
    assert "clock-differs node=n0" in caplog.text
    for _ in range(10):
        clocks.pass_ms(10_000)
        assert 0 <= clocks.wall_ms - wrong_ms - clock() <= 1, "its own clock is not followed"


def test_once_it_has_led_it_only_slews() -> None:
    clocks = Clocks()
    clock = steady(clocks, 3)
    clock.heard(N1, clocks.reading(300_000))
    clock.lead()
    before_ms = clock()
    clock.heard(N2, clocks.reading(300_000))
    assert clock() == before_ms
    clocks.pass_ms(10_000)
    assert clock() == before_ms + 10_010, "towards the others"


def test_a_jump_of_one_clock_is_not_followed_where_the_others_are_known() -> None:
    clocks = Clocks()
    clock = steady(clocks, 3)
    clock.heard(N1, clocks.reading())
    clock.heard(N2, clocks.reading())
    clocks.wall_ms += 3_600_000
    for _ in range(60):
        clocks.pass_ms(1_000)
        assert -2 <= clock() + 3_600_000 - clocks.wall_ms <= 0
    clocks.wall_ms -= 3_600_000
    clocks.pass_ms(10_000)
    assert clock() == clocks.wall_ms
    assert clock.ahead_ms == 0


def test_a_clock_that_is_little_off_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clocks = Clocks()
    clock = steady(clocks, 3)
    clock.heard(N1, clocks.reading(200))
    clock.heard(N2, clocks.reading(200))
    clock.lead()
    assert not caplog.text
    assert abs(clock() - clocks.wall_ms - 200) <= 1
