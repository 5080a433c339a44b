"""Ratios to the floor, the page of cost curves, and the picture of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import _parser
from bench.compare.floors import FloorRatio, floor_ratios, write_floor_us
from bench.compare.plots import figure_of, plot_curves
from bench.compare.results import BenchMachine, BenchRowResult, SystemComparison, SystemResult
from bench.floor import Floor, measure_floor
from bench.load.results import Measured
from bench.report import BEGIN, END, PAGE, curves_of, member_rows, page_with, section_of
from tests.unit.bench.rounds import measured, round_with

ROOT = Path(__file__).resolve().parents[3]
FLOOR = Floor(write_us=80, round_trip_us=10, parse_us=2)
MACHINE = BenchMachine(cores=2, memory_mib=100, python="3.11", load_before=0.5, load_after=1.0)


def result_of(name: str, figures: Measured) -> BenchRowResult:
    return BenchRowResult(row=name, label=name, measured=figures)


def comparison(*rows: BenchRowResult) -> SystemComparison:
    system = SystemResult(name="ours", description="3 copies", floor=FLOOR, rows=list(rows))
    return SystemComparison(version="1", command="", machine=MACHINE, systems=[system], ratios=[])


def test_rows_are_held_against_the_part_of_the_floor_that_is_their_price() -> None:
    rows = [
        result_of("sync-1", measured(1, p50_us=500.0)),
        result_of("async-64", measured(1, leader_us=90.0)),
        result_of("pull-1", measured(1)),
        BenchRowResult(row="batch", label="", skipped="no compiler"),
        result_of("async-1024", Measured(rounds=[round_with(refused=1)])),
    ]
    (wait, price) = floor_ratios(comparison(*rows).systems[0])
    assert write_floor_us(FLOOR) == 100
    assert (wait.row, wait.times) == ("sync-1", 5)
    assert (price.row, price.times) == ("async-64", 45)
    assert not wait.is_high


def test_what_is_far_above_the_usual_is_a_warning() -> None:
    ratio = FloorRatio("sync-1", "p50", times=17, usual=8)
    assert ratio.text == "WARNING: sync-1: p50 is 17.0 floors (usual 8)"
    assert FloorRatio("sync-1", "p50", times=15, usual=8).text.startswith("sync-1: ")


def test_without_a_floor_there_is_nothing_to_hold_against() -> None:
    rows = [result_of("sync-1", measured(1))]
    assert floor_ratios(SystemResult(name="ours", description="", rows=rows)) == []
    other = SystemResult(name="rocketmq-sync", description="", floor=FLOOR, rows=rows)
    assert floor_ratios(other) == [], "what is usual is so for ours"


def test_the_floor_of_this_machine_is_measured(tmp_path: Path) -> None:
    floor = measure_floor(tmp_path)
    assert min(floor.write_us, floor.round_trip_us, floor.parse_us) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_a_table_and_a_chart_with_the_floor_for_each_curve() -> None:
    options = _parser().parse_args(["report", "--clients", "1,4", "--queues", "16,10000"])
    curves = curves_of(options)
    rows = [result_of(row.name, measured(50)) for curve in curves for row in curve.rows]
    skipped = BenchRowResult(row=rows[1].row, label="", skipped="no compiler")
    members = comparison(*(result_of(row.name, measured(70)) for row in member_rows()))
    page = section_of(curves, comparison(rows[0], skipped, *rows[2:]), [(1, members), (3, members)])
    assert page.count("```mermaid") == len(curves) == 4
    assert "| 1 | 50 | - | 100 | 1.0 | 20.0 | 10 | 8.0 |" in page
    assert "| 4 | skipped | - |" in page
    assert '  x-axis "queues" [16, 10000]\n  y-axis "leader us a message"' in page
    assert "  line [20.0, 20.0]\n  line [2.0, 2.0]" in page
    assert "| 3 | 70 | 100 | 20.0 | 70 | 100 | 20.0 | 70 | 100 | 20.0 |" in page
    tables = [line for line in page.splitlines() if line.startswith("| 10,000 |")]
    assert len(tables) == 1


def test_only_what_stands_between_the_comments_is_replaced() -> None:
    page = f"# Performance\n\n{BEGIN}\n\nold\n\n{END}\n\n## Pulls\n"
    found = page_with(page, "new\n")
    assert found == page.replace("old\n", "new\n")
    assert page_with(found, "new\n") == found
    assert page_with("", "new\n") == f"# Cost curves\n\n{BEGIN}\n\nnew\n\n{END}\n"
    ours = (ROOT / PAGE).read_text()
    assert (ours.count(BEGIN), ours.count(END)) == (1, 1)


def test_a_picture_has_a_line_for_each_system(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra `spark`)")
    rows = [
        result_of("a", measured(10, p50_us=1000.0)),
        result_of("b", measured(20, p50_us=3000.0)),
    ]
    (axes,) = figure_of(comparison(*rows)).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[10, 20]]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 3]]
    plot_curves(tmp_path / "p.svg", comparison(*rows))
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
