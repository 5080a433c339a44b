"""Draws a profile into a file: messages and retries by hour, and how slow groups were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipeline.errors import UsageError

KINDS: Final = (".png", ".svg")
LINES_MAX: Final = 12
"""Topics, or groups, that are drawn; the busiest."""

Rows = Sequence[Mapping[str, Any]]


def check_plot_file(name: str) -> Path:
    """Refuse a file that could not be drawn, before anything is computed.

    Raises:
        UsageError: says why.
    """
    path = Path(name)
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {name}: the name must end in {' or '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {name}: there is no folder {path.absolute().parent}")
    return path


def plot_profile(path: Path, traffic: Rows, retries: Rows, delays: Rows) -> None:
    """Draw, and write the file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (top, middle, bottom) = pyplot.subplots(3, 1, figsize=(11, 12), layout="constrained")
    _lines(top, traffic, "topic", "messages")
    top.set_title("messages per hour")
    _lines(middle, retries, "group", "retries")
    middle.set_title("retries per hour")
    slowest = list(delays)[:LINES_MAX][::-1]
    names = [f"{row['group']} ({row['topic']})" for row in slowest]
    bottom.barh(names, [row["p99_s"] for row in slowest], color="tab:orange", label="p99")
    bottom.barh(names, [row["p50_s"] for row in slowest], color="tab:blue", label="p50")
    bottom.set_title("seconds from storing to commit, slowest groups")
    if slowest:
        bottom.legend()
    aside = path.with_name(f".{path.name}.aside")
    try:
        figure.savefig(aside, format=path.suffix[1:].lower())
        aside.rename(path)  # a picture under its name is whole
    finally:
        pyplot.close(figure)
        aside.unlink(missing_ok=True)


def _lines(axes: Any, rows: Rows, by: str, value: str) -> None:
    series: dict[str, dict[Any, int]] = {}
    for row in rows:
        hours = series.setdefault(row[by], {})
        hours[row["hour"]] = hours.get(row["hour"], 0) + row[value]
    busiest = sorted(series, key=lambda name: (-sum(series[name].values()), name))[:LINES_MAX]
    for name in busiest:
        points = sorted(series[name].items())
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if busiest:
        axes.legend()
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
