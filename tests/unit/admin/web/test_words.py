"""Figures, times and names as a page shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.web import words


@given(st.text())
def test_what_is_shown_can_be_printed(text: str) -> None:
    shown = words.visible(text)
    assert [each for each in shown if not each.isprintable() and each not in "\n\t\xa0"] == []
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Orders", "Orders"),
        ("a\x00b", "a\\x00b"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        ("half \ud800", "half \\ud800"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_what_cannot_be_printed_is_an_escape(text: str, shown: str) -> None:
    assert words.visible(text) == shown


@pytest.mark.parametrize(
    ("value_ms", "shown"),
    [(None, "\N{EN DASH}"), (0, "0 ms"), (999, "999 ms"), (61_000, "1 min"), (90_000_000, "1 d")],
)
def test_durations(value_ms: int | None, shown: str) -> None:
    assert words.duration(value_ms) == shown


@given(st.integers())
def test_any_time_has_words(at_ms: int) -> None:
    assert words.time_of(at_ms)


def test_times_are_utc() -> None:
    assert words.time_of(1_750_000_000_000) == "2025-06-15 15:06:40"
    assert words.clock_of(1_750_000_000_000) == "15:06:40"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.25, "0.2"), (9.96, "10.0"), (4.0, "4"), (1234.4, "1\xa0234")],
)
def test_rates(value: float, shown: str) -> None:
    assert words.rate(value) == shown
