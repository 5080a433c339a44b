"""The panels of a board for Grafana, with what each asks Prometheus. It must not know how they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class PanelTarget:
    """One question of a panel.

    Attributes:
        expression: in Prometheus' language, without variables of the board.
        legend: of each series in the answer; `{{label}}` stands for the value of a label. Empty: all labels.
    """

    expression: str
    legend: str

    def name_of(self, labels: Mapping[str, str]) -> str:
        """Return the legend of a series."""
        if not self.legend:
            return ", ".join(labels.values())
        return _LABEL.sub(lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, or the heading of a row.

    Attributes:
        kind: `row`, `stat` or `timeseries`.
        unit: Grafana's name of it.
        left, top, width, height: in the board's grid, 24 columns wide.
    """

    kind: str
    title: str
    unit: str
    left: int
    top: int
    width: int
    height: int
    targets: tuple[PanelTarget, ...]


def panels_of(board: Mapping[str, Any], *, rate_window_s: int) -> list[Panel]:
    """Read a board; its choices of clusters and groups are all of them.

    Args:
        board: as Grafana exports it.
        rate_window_s: what `$__rate_interval` stands for: a few scrapes.
    """
    return list(
        _panels(board, {"cluster": ".*", "group": ".*", "__rate_interval": f"{rate_window_s}s"})
    )


def _panels(board: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Panel]:
    """Yield the panels of a board, with values in place of its variables."""
    for panel in board["panels"]:
        place = panel["gridPos"]
        yield Panel(
            kind=panel["type"],
            title=panel["title"],
            unit=panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short"),
            left=place["x"],
            top=place["y"],
            width=place["w"],
            height=place["h"],
            targets=tuple(
                PanelTarget(_filled(target["expr"], variables), target.get("legendFormat", ""))
                for target in panel.get("targets", ())
            ),
        )


def _filled(expression: str, variables: Mapping[str, str]) -> str:
    """Put values in place of the board's variables."""
    for name, value in variables.items():
        expression = expression.replace(f"${name}", value)
    return expression
