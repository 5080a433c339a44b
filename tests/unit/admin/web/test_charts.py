"""Lines and bars: they stay within their drawing, and nothing that was not measured is drawn."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from broker.admin.web.chart_view import chart_sections
from broker.admin.web.charts import HEIGHT, LINES_MAX, WIDTH, line_chart, strip
from broker.admin.web.history import SampleHistory
from broker.admin.web.timeline import LeaderSpan
from tests.unit.admin.runtime_tables import GROUP
from tests.unit.admin.web.consoles import client_of, console_of, sampler_of, whole_look
from tests.unit.admin.web.test_pages import EVIL, Parsed

NAN = math.nan
VALUES = st.lists(st.just(NAN) | st.floats(0, 1e12), min_size=2, max_size=40)


@given(VALUES)
def test_a_line_has_a_point_for_each_value_within_the_drawing(values: list[float]) -> None:
    times = [1000 * place for place in range(len(values))]
    chart = line_chart("t", times, {"a": values})
    measured = [value for value in values if not math.isnan(value)]
    path = chart.lines[0].path if chart.lines else ""
    points = re.findall(r"([ML])([0-9.]+) ([0-9.]+)", path)
    assert len(points) == len(measured)
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for _, x, y in points)
    gaps = sum(
        not math.isnan(value) and (place == 0 or math.isnan(values[place - 1]))
        for place, value in enumerate(values)
    )
    assert sum(kind == "M" for kind, _, _ in points) == gaps


def test_the_upper_edge_is_a_round_number() -> None:
    chart = line_chart("t", [0, 1000], {"a": [0.0, 37.0], "b": [NAN, 12.0]}, " ms")
    assert (chart.top, [line.last for line in chart.lines]) == ("50 ms", ["37 ms", "12 ms"])
    assert chart.lines[0].path == "M0.0 160.0L1000.0 41.6"


def test_lines_are_bounded_and_empty_ones_left_out() -> None:
    series = {"none": [NAN, NAN]} | {f"s{number}": [1.0, 2.0] for number in range(LINES_MAX + 3)}
    chart = line_chart("t", [0, 1000], series)
    assert [line.name for line in chart.lines] == [f"s{number}" for number in range(LINES_MAX)]
    assert line_chart("t", [], {}).lines == ()


SPANS = [
    LeaderSpan("g", "n0", 1, 0, 50_000),
    LeaderSpan("g", "", None, 50_000, 50_010),
    LeaderSpan("g", "n1", 2, 50_010, 90_000),
]


def test_a_strip_has_a_bar_for_each_leader_and_shows_a_short_gap() -> None:
    first, second, nobody = strip(SPANS, 0, 100_000)
    assert (first.x, first.width, first.colour) == (0.0, 500.0, "colour-0")
    assert (second.colour, second.title) == (
        "colour-1",
        "n1 led in term 2, 1970-01-01 00:00:50 to 00:01:40",
    )
    assert (nobody.colour, nobody.width) == ("nobody", 3.0)


def test_a_member_keeps_its_colour_whoever_led() -> None:
    names = ["m", "n0", "n1"]
    assert {bar.name: bar.colour for bar in strip(SPANS, 0, 100_000, names)} == {
        "n0": "colour-1",
        "n1": "colour-2",
        "nobody": "nobody",
    }
    assert [bar.colour for bar in strip(SPANS[:1], 0, 100_000, names)] == ["colour-1"]


def test_what_ended_before_the_strip_is_left_out() -> None:
    assert [bar.colour for bar in strip(SPANS, 60_000, 100_000)] == ["colour-1"]


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_bars_stay_within_the_strip(begin_ms: int, length_ms: int) -> None:
    bars = strip(SPANS, begin_ms, begin_ms + length_ms)
    assert len(bars) <= len(SPANS)
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH + 0.1 for bar in bars)


def test_the_page_has_the_charts_of_groups_and_of_those_behind() -> None:
    kept = SampleHistory()
    for number in range(3):
        kept.add(
            1000 * number,
            {
                "stored/g": 5.0,
                "lag/g/n1": 1.0,
                "lag/g/n2": None,
                "behind/a": 2.0,
                "behind/b": number,
            },
        )
    group, behind = chart_sections(kept, ["g"])
    assert (group.heading, [len(chart.lines) for chart in group.charts]) == ("g", [1, 1, 0, 0])
    assert [line.name for line in behind.charts[0].lines] == ["a", "b"]
    assert chart_sections(SampleHistory(), []) == []


async def test_a_hostile_name_is_text_in_a_chart() -> None:
    sampler = sampler_of(whole_look())
    sampler.history.add(0, {f"behind/{EVIL}": 1.0, f"lag/{GROUP}/{EVIL}": 2.0})
    async with client_of(console_of(sampler)) as client:
        shown = Parsed((await client.get("/charts")).text)
    assert shown.tags.count("script") == 1
    assert "img" not in shown.tags
    assert "<script>alert('x')</script>" in shown.said
