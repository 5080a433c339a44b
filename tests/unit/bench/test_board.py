"""What the picture of the board asks for, and how its answers become lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.board.__main__ import BOARD
from bench.board.drawing import with_gaps
from bench.board.panels import PanelTarget, panels_of
from bench.board.prometheus import Series, find_prometheus, last_figures


def test_expressions_of_the_board_have_no_variables_left() -> None:
    panels = panels_of(json.loads(BOARD.read_text()), rate_window_s=10)
    expressions = [target.expression for panel in panels for target in panel.targets]
    assert [each for each in expressions if "$" in each] == []
    assert (
        'sum(rate(rocketmq_throughput_in_total{cluster=~".*",node_id=~".*"}[10s]))' in expressions
    )
    assert {panel.kind for panel in panels} == {"row", "stat", "timeseries"}
    assert all(panel.targets for panel in panels if panel.kind != "row")


def test_a_legend_stands_for_the_labels_of_its_series() -> None:
    labels = {"node_id": "broker-a", "member": "n1"}
    assert PanelTarget("x", "{{node_id}} {{ member }}: {{no}}").name_of(labels) == "broker-a n1: "
    assert PanelTarget("x", "").name_of(labels) == "broker-a, n1"


def test_a_line_has_a_gap_where_there_was_no_figure() -> None:
    points = list(with_gaps([(0.0, 1.0), (2.0, 2.0), (8.0, 3.0)], 2.0))
    assert [at for at, _ in points] == [0.0, 2.0, 4.0, 8.0]
    assert [math.isnan(figure) for _, figure in points] == [False, False, True, False]
    assert list(with_gaps([], 2.0)) == []


def test_a_number_is_the_last_one_of_those_that_go_on_to_the_end() -> None:
    ended = Series({"member": "n0"}, [(0.0, 1.0)])
    goes_on = Series({"member": "n1"}, [(0.0, 0.0), (2.0, 1.0)])
    assert last_figures([ended, goes_on]) == [({"member": "n1"}, 1.0)]
    assert last_figures([]) == []


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"prometheus is not installed \(Debian"):
        find_prometheus(str(tmp_path / "prometheus"))
