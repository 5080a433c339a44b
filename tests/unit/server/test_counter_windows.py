"""Growth of counters within a minute, an hour and a day, against all values that they had."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.server.watches.counter_windows import CounterWindows, Totals

ROUND_MS = 10_000
SPANS_MS = (60_000, 3_600_000, 86_400_000)
DISTANCES_MS = (10_000, 600_000, 3_600_000)


def totals(count: int) -> Totals:
    return Totals(count, 7 * count)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), min_size=1, max_size=60))
def test_growth_is_that_of_the_time_that_it_is_said_to_be_of(
    stretches: list[tuple[int, int]],
) -> None:
    """Each stretch: so many more in each of so many rounds."""
    windows, count, now_ms = CounterWindows(0, totals(0)), 0, 0
    history = [0]
    for more, rounds in stretches:
        for _ in range(rounds):
            now_ms, count = now_ms + ROUND_MS, count + more
            history.append(count)
            windows.sample(now_ms, totals(count))
    growths = windows.growth(now_ms, totals(count))
    begins = [len(history) - 1 - growth.span_ms // ROUND_MS for growth in growths]
    assert [growth.messages for growth in growths] == [count - history[begin] for begin in begins]
    assert [growth.size_bytes for growth in growths] == [7 * growth.messages for growth in growths]
    assert [
        min(now_ms, span_ms) <= growth.span_ms <= min(now_ms, span_ms + distance_ms)
        for growth, span_ms, distance_ms in zip(growths, SPANS_MS, DISTANCES_MS, strict=True)
    ] == [True, True, True]


def test_what_is_idle_has_grown_by_nothing_and_needs_no_samples() -> None:
    windows = CounterWindows(0, totals(5))
    for now_ms in range(0, 10 * SPANS_MS[0], ROUND_MS):
        windows.sample(now_ms, totals(5))
    assert [each.messages for each in windows.growth(10 * SPANS_MS[0], totals(5))] == [0, 0, 0]
    assert windows.last_ms == 0


def test_a_burst_just_now_counts_though_nobody_has_looked_since() -> None:
    windows = CounterWindows(0, totals(0))
    minute, _, _ = windows.growth(30_000, totals(90))
    assert (minute.messages, minute.span_ms, minute.per_second) == (90, 30_000, 3.0)
