"""Durations by their bounds, against a count of each."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from dledger.runtime.durations import Durations

BOUNDS_MS = (0.5, 1, 10, 250)


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(1, 50))))
def test_each_counts_for_all_bounds_that_it_does_not_exceed(added: list[tuple[float, int]]) -> None:
    durations = Durations(BOUNDS_MS)
    for took_ms, count in added:
        durations.add(took_ms, count)
    assert durations.cumulative() == [
        (bound, sum(count for took_ms, count in added if took_ms <= bound))
        for bound in (*BOUNDS_MS, inf)
    ]
    assert durations.count == sum(count for _, count in added)
    assert abs(durations.total_ms - sum(took * count for took, count in added)) < 1e-6
