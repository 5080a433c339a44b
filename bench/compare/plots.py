"""Draws the rate of a comparison against its latency, a line for each system, where matplotlib is installed."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.compare.results import SystemComparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: Final = (".png", ".svg")


def plot_file(text: str) -> Path:
    """Refuse a file that could not be drawn, before anything is measured.

    Raises:
        argparse.ArgumentTypeError: says why.
    """
    path = Path(text)
    if path.suffix.lower() not in KINDS:
        raise argparse.ArgumentTypeError(f"{text} must end in {' or '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is not installed (extra `spark`)")
    return path


def plot_curves(path: Path, result: SystemComparison) -> None:
    """Draw, and write the file."""
    figure_of(result).savefig(path, format=path.suffix[1:].lower())


def figure_of(result: SystemComparison) -> Figure:
    """Return one panel: each row of a system is a point, in the order of the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for system in result.systems:
        points = [(row.label, row.measured) for row in system.rows if row.measured is not None]
        if not points:
            continue
        rates = [figures.per_second.median for _, figures in points]
        latencies = [figures.over(lambda each: each.p50_us).median / 1000 for _, figures in points]
        axes.plot(rates, latencies, marker="o", label=system.name)
        for (label, _), rate, latency in zip(points, rates, latencies, strict=True):
            axes.annotate(label, (rate, latency), fontsize="x-small")
    axes.set(xscale="log", yscale="log", xlabel="messages a second", ylabel="p50, ms")
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend()
    return figure
