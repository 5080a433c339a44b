"""When a loop stood still, and what it was doing."""

from __future__ import annotations

from dledger.runtime.loop_watch import OUTSIDE, LoopWatch

PULSE_MS = 60


def test_a_loop_that_runs_at_its_pulse_does_not_stand_still() -> None:
    watch = LoopWatch(PULSE_MS, 1000)
    for now_ms in (1000, 1001, 1061, 1061 + 2 * PULSE_MS - 1):
        assert watch.begin(now_ms) is None


def test_the_time_beyond_one_pulse_is_the_stall() -> None:
    watch = LoopWatch(PULSE_MS, 1000)
    stall = watch.begin(3060)
    assert stall is not None
    assert (stall.length_ms, stall.doing) == (2000, OUTSIDE)
    assert watch.begin(3061) is None


def test_what_took_longest_is_named() -> None:
    watch = LoopWatch(PULSE_MS, 0)
    assert watch.begin(10) is None
    watch.passed(received_ms=15, written_ms=915, ended_ms=920)
    stall = watch.begin(1000)
    assert stall is not None
    assert (stall.length_ms, stall.doing) == (930, "disk")
    assert watch.begin(1010) is None
    outside = watch.begin(2000)
    assert outside is not None
    assert outside.doing == OUTSIDE
