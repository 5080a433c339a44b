"""Figures over time as lines, and leaders over time as bars: the geometry of drawings in a page. Pure.

A drawing is 1000 wide; its colours are named by classes of the stylesheet. A list of values stands beside each, for
those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.web import words
from broker.admin.web.timeline import LeaderSpan

WIDTH: Final = 1000
HEIGHT: Final = 160
COLOURS: Final = 6
LINES_MAX: Final = 6
BAR_WIDTH_MIN: Final = 3.0
"""A second without a leader is to be seen in half an hour."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name, the class of its colour, its path, its last value as text."""

    name: str
    colour: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of some lines.

    Attributes:
        top: the value at its upper edge, as text.
        begin, end: the times at its left and right edge, as text.
    """

    title: str
    lines: Sequence[Line]
    top: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a strip: where, how wide, the class of its colour, who it stands for, and what it means."""

    x: float
    width: float
    colour: str
    name: str
    title: str


def line_chart(
    title: str, times_ms: Sequence[int], series: Mapping[str, Sequence[float]], unit: str = ""
) -> Chart:
    """Draw series; those without any value are left out, and so are those beyond LINES_MAX."""
    kept = {name: values for name, values in series.items() if not all(map(math.isnan, values))}
    chosen = dict(list(kept.items())[:LINES_MAX])
    largest = max(
        (value for values in chosen.values() for value in values if not math.isnan(value)),
        default=0.0,
    )
    top = _round_up(largest)
    lines = tuple(
        Line(name, f"colour-{place}", _path(times_ms, values, top), _last(values, unit))
        for place, (name, values) in enumerate(chosen.items())
    )
    begin, end = (times_ms[0], times_ms[-1]) if times_ms else (0, 0)
    return Chart(
        title,
        lines,
        f"{words.rate(top)}{unit}",
        words.clock_of(begin),
        words.clock_of(end),
    )


def strip(
    spans: Sequence[LeaderSpan], begin_ms: int, end_ms: int, members: Collection[str] = ()
) -> tuple[Bar, ...]:
    """Draw who led from when to when; each of the members has a colour, whoever led, and nobody has one of its own."""
    leaders = sorted({span.leader for span in spans if span.leader} | set(members))
    bars = []
    for span, until_ms in zip(spans, _ends(spans, end_ms), strict=True):
        if until_ms < begin_ms:
            continue
        x = _place(max(span.begin_ms, begin_ms), begin_ms, end_ms)
        width = max(BAR_WIDTH_MIN, _place(until_ms, begin_ms, end_ms) - x)
        colour = f"colour-{leaders.index(span.leader) % COLOURS}" if span.leader else "nobody"
        who = f"{span.leader} led in term {span.term}" if span.leader else "nobody was seen to lead"
        times = f"{words.time_of(span.begin_ms)} to {words.clock_of(until_ms)}"
        name = span.leader or "nobody"
        bars.append(Bar(min(x, WIDTH - width), width, colour, name, f"{who}, {times}"))
    # Those without a leader are short, and come last: above the others.
    return tuple(sorted(bars, key=lambda bar: bar.colour == "nobody"))


def _ends(spans: Sequence[LeaderSpan], end_ms: int) -> Iterator[int]:
    """Yield until when each span is shown: the next one begins."""
    yield from (span.begin_ms for span in spans[1:])
    if spans:
        yield max(end_ms, spans[-1].seen_ms)


def _place(at_ms: int, begin_ms: int, end_ms: int) -> float:
    share = (at_ms - begin_ms) / max(1, end_ms - begin_ms)
    return round(WIDTH * min(1.0, max(0.0, share)), 1)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 ... that is no less."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _path(times_ms: Sequence[int], values: Sequence[float], top: float) -> str:
    """Return the path of a line; a gap where nothing was measured."""
    pieces: list[str] = []
    is_drawing = False
    for at_ms, value in zip(times_ms, values, strict=True):
        if math.isnan(value):
            is_drawing = False
            continue
        x = _place(at_ms, times_ms[0], times_ms[-1])
        y = HEIGHT - HEIGHT * min(1.0, max(0.0, value / top))
        pieces.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        is_drawing = True
    return "".join(pieces)


def _last(values: Sequence[float], unit: str) -> str:
    last = values[-1] if values else math.nan
    return words.NOT_KNOWN if math.isnan(last) else f"{words.rate(last)}{unit}"
