"""Draws the panels of a board in their grid: lines, numbers and headings. It must not know what a figure means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.board.panels import Panel
from bench.board.prometheus import Series, last_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Formatter

COLUMNS: Final = 24
COLUMN_INCH: Final = 0.55
LINE_INCH: Final = 0.34
CAPTION_INCH: Final = 0.9
DOTS_PER_INCH: Final = 62
LEGEND_MAX: Final = 6
"""Series with a name below a panel; the others are drawn."""

NAME_MAX: Final = 30

Answers = Sequence[Sequence[Series]]
"""The series that each target of a panel was answered with."""


def draw(
    path: Path,
    panels: Sequence[tuple[Panel, Answers]],
    *,
    begin_s: float,
    step_s: float,
    caption: str,
) -> None:
    """Draw a board.

    Args:
        path: the file to write, a PNG.
        panels: each with its answers.
        begin_s: seconds since 1970 at the left of each panel.
        step_s: between two figures.
        caption: how the picture was made, at its foot.
    """
    from matplotlib.figure import Figure

    lines = max(panel.top + panel.height for panel, _ in panels)
    width, height = COLUMNS * COLUMN_INCH, lines * LINE_INCH + CAPTION_INCH
    figure = Figure(figsize=(width, height), facecolor="white")

    def place(panel: Panel) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height in parts of the figure."""
        bottom = height - (panel.top + panel.height) * LINE_INCH
        return (
            panel.left * COLUMN_INCH / width,
            bottom / height,
            panel.width * COLUMN_INCH / width,
            panel.height * LINE_INCH / height,
        )

    for panel, answers in panels:
        left, bottom, wide, high = place(panel)
        if panel.kind == "row":
            figure.text(left + 0.008, bottom + high * 0.3, panel.title, weight="bold", size=11)
            continue
        room = (left + 0.045, bottom + high * 0.30, wide - 0.055, high * 0.57)
        axes = figure.add_axes(room)
        axes.set_title(panel.title, size=10, loc="left")
        if panel.kind == "stat":
            _draw_numbers(axes, panel, answers)
        else:
            _draw_lines(axes, panel, answers, begin_s=begin_s, step_s=step_s)
    figure.text(0.01, 0.2 / height, caption, size=9, color="dimgray", wrap=True)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)


def _draw_numbers(axes: Axes, panel: Panel, answers: Answers) -> None:
    """Write the last figures of a panel, one below the other."""
    axes.set_axis_off()
    lines = [
        f"{target.name_of(labels)}   {figure:g}"
        for target, series in zip(panel.targets, answers, strict=True)
        for labels, figure in last_figures(series)
    ]
    axes.text(0.02, 0.5, "\n".join(lines) or "nothing", size=13, va="center")


def with_gaps(
    points: Sequence[tuple[float, float]], step_s: float
) -> Iterator[tuple[float, float]]:
    """Yield points, and none where there was no figure: a line over a gap would say that there was."""
    before_s = None
    for at, figure in points:
        if before_s is not None and at - before_s > 1.5 * step_s:
            yield before_s + step_s, math.nan
        yield at, figure
        before_s = at


def _short(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"


def _draw_lines(
    axes: Axes, panel: Panel, answers: Answers, *, begin_s: float, step_s: float
) -> None:
    """Draw all series of a panel."""
    for target, series in zip(panel.targets, answers, strict=True):
        for each in series:
            points = list(with_gaps(each.points, step_s))
            times = [at - begin_s for at, _ in points]
            figures = [figure for _, figure in points]
            axes.plot(times, figures, linewidth=1.2, label=_short(target.name_of(each.labels)))
    axes.grid(visible=True, alpha=0.25)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:.0f} s")
    if (formatter := _formatter(panel.unit)) is not None:
        axes.yaxis.set_major_formatter(formatter)
    if not axes.lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="gray", size=8)
        return
    named = axes.lines[:LEGEND_MAX]
    axes.legend(
        handles=named,
        fontsize=7,
        ncols=2,
        loc="upper left",
        bbox_to_anchor=(-0.08, -0.12),
        frameon=False,
        borderaxespad=0,
        columnspacing=1,
        handlelength=1.2,
    )


def _formatter(unit: str) -> Formatter | None:
    """Return how Grafana's unit is written on an axis; None: as a plain number."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

    engineering: Mapping[str, str] = {"bytes": "B", "Bps": "B/s", "cps": "/s", "s": "s"}
    if unit in engineering:
        return EngFormatter(engineering[unit], sep="")
    if unit == "ms":
        return FuncFormatter(lambda value, _: f"{value:g} ms")
    if unit == "percentunit":
        return PercentFormatter(1.0)
    return None
