"""A counter's value at the beginning of a day."""

from __future__ import annotations

from broker.server.watches.day_counts import DAY_MS, DayCounts


def test_each_day_begins_where_the_one_before_ended() -> None:
    counts = DayCounts(DAY_MS // 2, 7)
    seen = []
    for wall_ms, count in (
        (DAY_MS - 1, 9),
        (DAY_MS, 10),
        (DAY_MS * 2 - 1, 15),
        (DAY_MS // 2, 16),
        (DAY_MS * 2 + 5, 20),
    ):
        counts.sample(wall_ms, count)
        seen.append((counts.yesterday_morning, counts.morning))
    assert seen == [(7, 7), (7, 10), (7, 10), (7, 10), (10, 20)]


def test_what_is_replayed_is_of_no_day() -> None:
    counts = DayCounts(0, 0)
    counts.restart(1000)
    counts.sample(5, 1001)
    assert (counts.yesterday_morning, counts.morning) == (1000, 1000)


def test_a_counter_that_falls_is_counted_anew() -> None:
    counts = DayCounts(0, 500)
    counts.sample(5, 0)
    assert (counts.yesterday_morning, counts.morning) == (0, 0)
