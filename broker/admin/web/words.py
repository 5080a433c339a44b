"""Figures, times and names as words of a page. Pure; the time zone is UTC, which every operator's logs can be held to.

What others have named is shown so that it stays in its place: no control characters, no change of direction.
"""

from __future__ import annotations

import datetime
from typing import Final

from rich.filesize import decimal

from dledger.runtime import visible_text

NOT_KNOWN: Final = "\N{EN DASH}"
NOT_ASKED: Final = "Not known: no broker group could be asked."
_KEPT: Final = frozenset("\n\t\N{NO-BREAK SPACE}")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def visible(text: str) -> str:
    """Return text in which whatever cannot be printed is written as an escape; lines and tabs stay."""
    return visible_text.visible(text, _KEPT)


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    return NOT_KNOWN if value is None else f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def rate(value: float | None) -> str:
    """Return a rate or another figure: whole from 10 on."""
    if value is None:
        return NOT_KNOWN
    return number(value) if value >= 10 or value == round(value) else f"{value:.1f}"


def size(value: int | None) -> str:
    """Return a number of bytes."""
    return NOT_KNOWN if value is None else decimal(value)


def duration(value_ms: int | None) -> str:
    """Return a duration in its largest unit."""
    if value_ms is None:
        return NOT_KNOWN
    for unit_ms, name in _UNITS:
        if value_ms >= unit_ms:
            return f"{value_ms // unit_ms} {name}"
    return f"{max(0, value_ms)} ms"


def time_of(at_ms: int | None) -> str:
    """Return a time with its day, UTC; a time that no calendar has as a number."""
    if not at_ms or at_ms < 0:
        return NOT_KNOWN
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S")


def clock_of(at_ms: int) -> str:
    """Return a time of day, UTC."""
    return time_of(at_ms)[-8:]
