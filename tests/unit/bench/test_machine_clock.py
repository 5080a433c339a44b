"""A limit that follows the machine: on one that is ten times slower, ten times as much of the wall's time passes."""

from __future__ import annotations

import pytest

from bench.pipeline.machine_clock import PIECE_S, MachineClock


@pytest.mark.parametrize(("times", "slowness"), [(0.5, 1.0), (1.0, 1.0), (10.0, 10.0)])
def test_seconds_are_as_long_as_the_machine_is_slow(times: float, slowness: float) -> None:
    wall = [100.0]

    def work() -> None:
        wall[0] += times * PIECE_S

    clock = MachineClock(work, lambda: wall[0])
    for _ in range(50):
        wall[0] += 2.0 - times * PIECE_S
        clock.look()
    assert clock.wall_s == pytest.approx(100.0)
    assert clock.passed_s == pytest.approx(100.0 / slowness)
    assert clock.slowness == pytest.approx(slowness)
