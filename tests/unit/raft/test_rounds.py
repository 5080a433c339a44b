"""When was a round sent?"""

from __future__ import annotations

from dledger.raft.rounds import RoundClock


def test_rounds_count_up_and_remember_their_time() -> None:
    clock = RoundClock(horizon_ms=300)
    assert [clock.start(now) for now in (10, 10, 12, 15)] == [1, 2, 3, 4]
    assert [clock.sent_ms(round_) for round_ in (1, 2, 3, 4)] == [10, 10, 12, 15]


def test_round_zero_was_never_sent() -> None:
    clock = RoundClock(horizon_ms=300)
    assert clock.sent_ms(0) is None
    clock.start(10)
    assert clock.sent_ms(0) is None


def test_old_times_are_forgotten_and_memory_stays_bounded() -> None:
    clock = RoundClock(horizon_ms=300)
    for now_ms in range(10_000):
        clock.start(now_ms)
    assert clock.sent_ms(1) is None
    assert len(clock._sent_ms) <= 2 * 300 + 17
    for round_ in range(9_701, 10_001):
        assert clock.sent_ms(round_) == round_ - 1


def test_many_rounds_of_one_moment_take_one_place() -> None:
    clock = RoundClock(horizon_ms=300)
    for _ in range(1000):
        clock.start(5)
    assert len(clock._sent_ms) == 1
    assert (clock.sent_ms(1), clock.sent_ms(1000)) == (5, 5)
