"""Figures over time: bounded, with gaps where nothing was measured, and rates that never lie about a restart."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from broker.admin.web import history
from broker.admin.web.history import Rates, SampleHistory


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 9)), max_size=30),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_a_history_is_what_was_noted_last(
    samples: list[dict[str, float | None]], samples_max: int, series_max: int
) -> None:
    kept = SampleHistory(samples_max, series_max)
    for at_ms, sample in enumerate(samples):
        kept.add(at_ms, sample)
    last = samples[-samples_max:]
    assert list(kept.times_ms) == list(range(len(samples)))[-samples_max:]
    names = kept.names("")
    assert len(names) <= series_max
    for name in "abc":
        shown = [None if math.isnan(each) else each for each in kept.series(name)]
        wanted = [sample.get(name) for sample in last] if name in names else [None] * len(last)
        if name in names and series_max == 3:
            assert shown == wanted
        assert len(shown) == len(last)
    if series_max == 3:
        assert set(names) == {name for name in "abc" if any(s.get(name) is not None for s in last)}


def test_a_rate_is_the_growth_between_two_looks() -> None:
    rates = Rates()
    assert rates.note("a", 1000, 5) is None
    assert rates.note("a", 3000, 25) == 10.0
    assert rates.rate("a") == 10.0
    assert rates.note("a", 3000, 25) is None, "no time has passed"


def test_a_counter_that_went_back_has_no_rate() -> None:
    rates = Rates()
    rates.note("a", 1000, 500)
    assert rates.note("a", 2000, 3) is None
    assert rates.note("a", 3000, 4) == 1.0


def test_counters_are_bounded_and_forgotten() -> None:
    rates = Rates()
    for number in range(history.RATES_MAX + 1):
        rates.note(number, 1, 0)
    assert rates.note(history.RATES_MAX + 2, 2, 0) is None
    assert rates.note(history.RATES_MAX + 2, 3, 5) is None, "it was never taken up"
    rates.note(0, 10, 7)
    rates.forget_before(5)
    assert (rates.rate(0) is None, rates.rate(1)) == (False, None)
