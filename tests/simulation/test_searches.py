"""A search finds what it is there to find, also when the seed that it begins with does not show it any more."""

from __future__ import annotations

import pytest

from tests.simulation.searches import lately_first, tell_with


@pytest.fixture
def told() -> list[str]:
    lines: list[str] = []
    tell_with(lines.append)
    return lines


def test_the_seed_of_lately_comes_first_and_ends_the_search(told: list[str]) -> None:
    assert list(lately_first(range(1, 6), 4)) == [4, 1, 2, 3, 5]
    assert next(seed for seed in lately_first(range(1, 6), 4) if seed > 3) == 4
    assert told == []


def test_another_seed_that_shows_it_is_told(told: list[str]) -> None:
    assert any(seed == 2 for seed in lately_first(range(1, 6), 4))
    assert told == ["seed 4 no longer shows what 2 does: write that in its place"]


def test_only_a_seed_of_the_search_may_come_first() -> None:
    with pytest.raises(ValueError, match="not in list"):
        next(lately_first(range(1, 6), 6))
