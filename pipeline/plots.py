"""Draws a profile into a file: messages and retries by hour, and how slow groups were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import PipelineUsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = (".png", ".svg")
LINES_MAX: Final = 12
"""Topics, or groups, that are drawn; the busiest."""

Rows = Sequence[Mapping[str, Any]]


def check_plot_file(name: str) -> Path:
    """Refuse a file that could not be drawn, before anything is computed.

    Raises:
        PipelineUsageError: says why.
    """
    path = Path(name)
    if path.suffix.lower() not in KINDS:
        raise PipelineUsageError(f"--plot {name}: the name must end in {' or '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise PipelineUsageError(f"--plot {name}: there is no folder {path.absolute().parent}")
    return path


def plot_profile(path: Path, traffic: Rows, retries: Rows, delays: Rows) -> None:
    """Draw, and write the file; under its name it is whole."""
    figure = figure_of(traffic, retries, delays)
    aside = path.with_name(f".{path.name}.aside")
    try:
        figure.savefig(aside, format=path.suffix[1:].lower())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def figure_of(traffic: Rows, retries: Rows, delays: Rows) -> Figure:
    """Return three panels: messages and retries by hour, on one axis of time, and the slowest groups."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 12), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1)
    hours = [row["hour"] for row in (*traffic, *retries)]
    _lines(top, traffic, by="topic", value="messages", hours=hours)
    top.set_title("messages per hour (UTC)")
    _lines(middle, retries, by="group", value="retries", hours=hours)
    middle.set_title("retries per hour (UTC)")
    slowest = list(delays)[:LINES_MAX][::-1]
    names = [f"{row['group']} ({row['topic']})" for row in slowest]
    bottom.set_title("seconds from storing to commit, slowest groups")
    if slowest:
        bottom.barh(names, [row["p99_s"] for row in slowest], color="tab:orange", label="p99")
        bottom.barh(names, [row["p50_s"] for row in slowest], color="tab:blue", label="p50")
        bottom.legend()
    else:
        _mark_empty(bottom)
    return figure


def _lines(axes: Axes, rows: Rows, *, by: str, value: str, hours: Sequence[datetime]) -> None:
    """Draw a line per name for the busiest LINES_MAX names; more could not be told apart."""
    series: dict[str, dict[datetime, int]] = {}
    for row in rows:
        of_name = series.setdefault(row[by], {})
        of_name[row["hour"]] = of_name.get(row["hour"], 0) + row[value]
    busiest = sorted(series, key=lambda name: (-sum(series[name].values()), name))[:LINES_MAX]
    if not busiest:
        _mark_empty(axes)
        return
    for name in busiest:
        points = sorted(series[name].items())
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.legend()
    # One hour alone would be a point on an axis of years.
    axes.set(xlim=(min(hours) - timedelta(hours=1), max(hours) + timedelta(hours=1)))
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)


def _mark_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, ha="center")
    axes.set_axis_off()
