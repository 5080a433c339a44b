"""The page of charts: what the console has measured since it was started, group by group. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.web.charts import LINES_MAX, Chart, line_chart
from broker.admin.web.history import SampleHistory

_OF_MEMBERS: Final = (
    ("lag", "Entries that members lack", ""),
    ("sync", "Making a write durable", " ms"),
    ("clients", "Connections of clients", ""),
)


@dataclass(frozen=True, slots=True)
class ChartSection:
    """Some charts under one heading."""

    heading: str
    charts: Sequence[Chart]


def chart_sections(history: SampleHistory, groups: Sequence[str]) -> list[ChartSection]:
    """Return the charts of each broker group, and those of the consumer groups that are furthest behind."""
    sections = [ChartSection(group, _of_group(history, group)) for group in groups]
    behind = {name.partition("/")[2]: history.series(name) for name in history.names("behind/")}
    furthest = sorted(behind, key=lambda name: -max(_known(behind[name]), default=0.0))[:LINES_MAX]
    if furthest:
        lines = {name: behind[name] for name in furthest}
        chart = line_chart("Messages that groups are behind", history.times_ms, lines)
        sections.append(ChartSection("Consumer groups that are furthest behind", [chart]))
    return sections


def _of_group(history: SampleHistory, group: str) -> list[Chart]:
    """Return the charts of one broker group."""
    rates = {
        "stored": history.series(f"stored/{group}"),
        "given to consumers": history.series(f"given/{group}"),
    }
    charts = [line_chart("Messages per second", history.times_ms, rates)]
    for kind, title, unit in _OF_MEMBERS:
        prefix = f"{kind}/{group}/"
        lines = {name.removeprefix(prefix): history.series(name) for name in history.names(prefix)}
        charts.append(line_chart(title, history.times_ms, lines, unit))
    return charts


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
