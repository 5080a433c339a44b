"""What is said of consumers through faults: a bound that was waited for in vain is not a figure."""

from __future__ import annotations

import math

from tests.interop.consumer_failover import figures_of


def test_figures_of_rounds() -> None:
    assert figures_of([1.234, 0.5, 3.0]) == {"rounds": 3, "p50_s": 1.23, "max_s": 3.0}


def test_what_never_came_back_is_no_figure() -> None:
    assert figures_of([1.0, math.inf]) == {"rounds": 2, "p50_s": 1.0, "max_s": "not within 90 s"}
