"""A search finds what it is there to find, also when the seed that it begins with does not show it any more."""

from __future__ import annotations

import pytest

from tests.simulation.searches import lately_first, report_with


@pytest.fixture
def lines() -> list[str]:
    reported: list[str] = []
    report_with(reported.append)
    return reported


def test_the_seed_of_lately_comes_first_and_ends_the_search(lines: list[str]) -> None:
    assert list(lately_first(range(1, 6), 4)) == [4, 1, 2, 3, 5]
    assert next(seed for seed in lately_first(range(1, 6), 4) if seed > 3) == 4
    assert lines == []


def test_another_seed_that_shows_it_is_told(lines: list[str]) -> None:
    assert any(seed == 2 for seed in lately_first(range(1, 6), 4))
    assert lines == ["seed 4 no longer shows what 2 does: write that in its place"]


def test_only_a_seed_of_the_search_may_come_first() -> None:
    with pytest.raises(ValueError, match="not in list"):
        next(lately_first(range(1, 6), 6))
