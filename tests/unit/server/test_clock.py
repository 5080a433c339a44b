"""The leader's clock: a wall clock that jumps changes nothing."""

from __future__ import annotations

from broker.server.clock import SteadyWallClock


class Clocks:
    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.steady_ms = 5_000

    def pass_ms(self, ms: int, *, wall_ms: int | None = None) -> None:
        self.steady_ms += ms
        self.wall_ms += ms if wall_ms is None else wall_ms


def steady(clocks: Clocks) -> SteadyWallClock:
    return SteadyWallClock(lambda: clocks.wall_ms, lambda: clocks.steady_ms)


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
