"""Rates over three windows."""

from __future__ import annotations

from broker.server.watches.rates import RateWindows


def test_rates_of_three_windows() -> None:
    rate = RateWindows()
    assert rate.text() == "0.00 0.00 0.00"
    for second in range(0, 125, 5):
        rate.sample(second * 1000, second * 10 if second <= 100 else 1000)
    assert rate.text() == "0.00 6.67 8.33"
