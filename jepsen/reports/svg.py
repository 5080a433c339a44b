"""The charts of a report, as SVG: faults and leaders over time, latency, throughput. Pure.

All charts share one axis of time. Colours come from the page's style sheet (classes and variables), so that the page
decides about light and dark. Points are drawn once for each place on the picture: a run of half an hour has as many
as fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from jepsen.reports.timeline import ENDS, Ended, Leadership, Point, Span

WIDTH: Final = 1120
LEFT, RIGHT = 132, 16
PLOT: Final = WIDTH - LEFT - RIGHT
LANE: Final = 22
LATENCY_HEIGHT, RATE_HEIGHT = 260, 130
MARGIN: Final = 10
AXIS: Final = 22
LATENCY_FLOOR_NS: Final = 100_000
LABEL_PX: Final = 6.6
"""About how wide a letter of a label is."""

TIME_STEPS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from left to right."""

    end_ns: int

    def x(self, t_ns: int) -> float:
        """Return the horizontal place of a moment."""
        return LEFT + PLOT * min(max(t_ns, 0), self.end_ns) / max(self.end_ns, 1)

    def ticks_s(self) -> list[float]:
        """Return round moments, about a dozen."""
        end_s = self.end_ns / 1e9
        step = next((each for each in TIME_STEPS_S if end_s / each <= 14), TIME_STEPS_S[-1])
        return [step * number for number in range(int(end_s / step) + 1)]


def chart_of(title: str, height: float, body: Sequence[str]) -> str:
    """Return a drawing with a title for who cannot see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def lanes_chart(
    axis: Axis,
    spans: Sequence[Span],
    leaders: Sequence[Leadership],
    phases: Sequence[tuple[str, int, int]] = (),
) -> str:
    """Return one lane with the phases, one with the leaders of each group, and one for each kind of fault."""
    names = list(dict.fromkeys(span.name for span in spans))
    nodes = sorted({lead.node for lead in leaders})
    groups = sorted({lead.group for lead in leaders}) or [""]
    body = [_lane_name(0, "phase")]
    body += [_phase(axis, *phase) for phase in phases]
    for place, group in enumerate(groups, start=1):
        body.append(_lane_name(place, f"{group or 'leader'} · term"))
        body += [
            _leadership(axis, lead, nodes.index(lead.node), place)
            for lead in leaders
            if lead.group == group
        ]
    for place, name in enumerate(names, start=len(groups) + 1):
        body.append(_lane_name(place, name))
        body += [_span(axis, span, place) for span in spans if span.name == name]
    height = LANE * (len(names) + len(groups) + 1)
    return chart_of("phases, leaders and faults over time", height + 2, body)


def latency_chart(axis: Axis, points: Sequence[Point], spans: Sequence[Span]) -> str:
    """Return a point for each operation, by how it ended, on a logarithmic scale."""
    top_ns = max((point.latency_ns for point in points), default=0)
    low, high = math.log10(LATENCY_FLOOR_NS), math.log10(max(top_ns, 10 * LATENCY_FLOOR_NS)) + 0.1

    def y(latency_ns: int) -> float:
        share = (math.log10(max(latency_ns, LATENCY_FLOOR_NS)) - low) / (high - low)
        return MARGIN + LATENCY_HEIGHT * (1 - share)

    body = _shades(axis, spans, MARGIN, LATENCY_HEIGHT)
    for power in range(math.ceil(low), math.floor(high) + 1):
        body.append(_grid_line(y(10**power), _latency_text(power)))
    body += _time_axis(axis, MARGIN + LATENCY_HEIGHT)
    for ended in ENDS:  # what went wrong is drawn last, and seen
        places = dict.fromkeys(
            (round(axis.x(point.start_ns), 1), round(y(point.latency_ns)))
            for point in points
            if point.type == ended
        )
        path = "".join(f"M{x:g} {y_px}h0" for x, y_px in places)
        body.append(f'<path class="point {ended}" d="{path}"/>')
    return chart_of("latency of each operation", MARGIN + LATENCY_HEIGHT + AXIS, body)


def rate_chart(
    axis: Axis,
    counts: Mapping[Ended, Sequence[int]],
    *,
    bucket_ns: int,
    spans: Sequence[Span],
    until_ns: int,
) -> str:
    """Return how many operations ended per second, stacked by how.

    The scale is that of the time before `until_ns`; the reading at the end is faster, and is cut off.
    """
    per_s = bucket_ns / 1e9
    totals = [sum(row) / per_s for row in zip(*counts.values(), strict=True)]
    seen = totals[: max(until_ns // bucket_ns, 1)]
    top = _round_up(max(seen, default=1) or 1)

    def height_of(value: float) -> float:
        return RATE_HEIGHT * value / per_s / top

    bottom = MARGIN + RATE_HEIGHT
    body = _shades(axis, spans, MARGIN, RATE_HEIGHT)
    body += [_grid_line(bottom - RATE_HEIGHT * part, f"{top * part:g}/s") for part in (0.5, 1)]
    body += _time_axis(axis, bottom)
    for place in range(len(totals)):
        left = axis.x(place * bucket_ns)
        width = max(axis.x((place + 1) * bucket_ns) - left - 0.6, 0.6)
        base = float(bottom)
        for ended in ENDS:
            room = base - (bottom - RATE_HEIGHT)
            height = min(height_of(counts[ended][place]), room)
            if height:
                base -= height
                body.append(
                    f'<rect class="bar {ended}" x="{left:.1f}" y="{base:.1f}" '
                    f'width="{width:.1f}" height="{height:.1f}"/>'
                )
    return chart_of("operations that ended, per second", bottom + AXIS, body)


def _lane_name(place: int, name: str) -> str:
    y = place * LANE + LANE / 2
    return f'<text class="lane" x="{LEFT - 8}" y="{y:.0f}">{escape(name)}</text>'


def _phase(axis: Axis, name: str, start_ns: int, end_ns: int) -> str:
    x, width = axis.x(start_ns), axis.x(end_ns) - axis.x(start_ns)
    label = name if width > len(name) * LABEL_PX else ""
    title = f"{name} from {_seconds(start_ns)} to {_seconds(end_ns)}"
    return (
        f'<g><title>{escape(title)}</title><rect class="phase" x="{x:.1f}" y="3" '
        f'width="{max(width - 1, 0.8):.1f}" height="{LANE - 6}" rx="2"/>'
        f'<text class="middle" x="{x + width / 2:.1f}" y="{LANE / 2:.0f}">{escape(label)}</text></g>'
    )


def _leadership(axis: Axis, lead: Leadership, color: int, place: int) -> str:
    x, width = axis.x(lead.start_ns), axis.x(lead.end_ns) - axis.x(lead.start_ns)
    title = f"{lead.node} leads term {lead.term} from {_seconds(lead.start_ns)}"
    label = f"{lead.node} · {lead.term}"
    if width < len(label) * LABEL_PX:
        label = str(lead.term) if width > len(str(lead.term)) * LABEL_PX + 2 else ""
    return (
        f'<g><title>{escape(title)}</title><rect class="leadership node{color % 5}" x="{x:.1f}" y="{place * LANE + 3}" '
        f'width="{max(width - 1, 0.8):.1f}" height="{LANE - 6}" rx="2"/>'
        f'<text class="inside" x="{x + width / 2:.1f}" y="{LANE * (place + 0.5):.0f}">{escape(label)}</text></g>'
    )


def _span(axis: Axis, span: Span, place: int) -> str:
    x, width = axis.x(span.start_ns), axis.x(span.end_ns) - axis.x(span.start_ns)
    cured = f"; {span.cured}" if span.cured else "; never cured"
    title = f"{_seconds(span.start_ns)} to {_seconds(span.end_ns)}: {span.done}{cured}"
    return (
        f'<rect class="fault" x="{x:.1f}" y="{place * LANE + 3}" width="{max(width, 1.5):.1f}" '
        f'height="{LANE - 6}" rx="2"><title>{escape(title)}</title></rect>'
    )


def _shades(axis: Axis, spans: Sequence[Span], top: float, height: float) -> list[str]:
    return [
        f'<rect class="shade" x="{axis.x(span.start_ns):.1f}" y="{top}" height="{height}" '
        f'width="{max(axis.x(span.end_ns) - axis.x(span.start_ns), 1):.1f}"/>'
        for span in spans
    ]


def _grid_line(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="lane" x="{LEFT - 8}" y="{y:.1f}">{escape(text)}</text>'
    )


def _time_axis(axis: Axis, y: float) -> list[str]:
    body = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>']
    for tick in axis.ticks_s():
        x = axis.x(round(tick * 1e9))
        body.append(f'<text class="tick" x="{x:.1f}" y="{y + 14}">{tick:g} s</text>')
    return body


def _latency_text(power: int) -> str:
    if power >= 9:
        return f"{10 ** (power - 9)} s"
    return f"{10.0 ** (power - 6):g} ms"


def _seconds(t_ns: int) -> str:
    return f"{t_ns / 1e9:.2f} s"


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)
