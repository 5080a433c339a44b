"""Medians, spreads and ratios, and which figures are not to be believed."""

from __future__ import annotations

import mmap
import os

import pytest

from bench.compare.results import BenchRowResult, SystemResult, line_of, ratios_of
from bench.load.results import Measured, Spread
from bench.memory import Memory, memory_of
from tests.unit.bench.rounds import measured, round_with


def test_the_median_is_neither_the_mean_nor_the_best() -> None:
    figures = measured(100, 400, 130)
    assert figures.per_second == Spread(130, 100, 400)
    assert figures.per_second.percent == pytest.approx(230.8, abs=0.1)


def test_a_spread_needs_a_value() -> None:
    with pytest.raises(ValueError, match="no round"):
        Spread.of([])


def test_a_leader_alone_has_no_mean_follower() -> None:
    assert measured(1, follower_us=None).follower_us is None
    assert measured(1, 1, follower_us=3.0).follower_us == Spread(3, 3, 3)


def test_figures_with_refusals_losses_or_silence_are_not_believed() -> None:
    refused = Measured(rounds=[round_with(), round_with(refused=3, error="full")])
    assert refused.problem == "3 requests were refused: full"
    lost = Measured(rounds=[round_with()], checked=1, missing=["KEY at T-0@5"])
    assert lost.problem == "acknowledged, and not there: KEY at T-0@5"
    assert measured(5, 0).problem is not None
    assert measured(5, 6).problem is None


def system(name: str, *rows: BenchRowResult) -> SystemResult:
    return SystemResult(name=name, description="", rows=list(rows))


def test_ratios_are_those_of_the_first_to_the_others_row_by_row() -> None:
    fast = BenchRowResult(row="sync-1", label="sync-1", measured=measured(300, leader_us=10.0))
    slow = BenchRowResult(row="sync-1", label="sync-1", measured=measured(100, leader_us=40.0))
    small = BenchRowResult(row="memory", label="memory", memory=Memory(100, 80))
    large = BenchRowResult(row="memory", label="memory", memory=Memory(900, 400))
    (rate, memory) = ratios_of([system("a", fast, small), system("b", slow, large)])
    assert (rate.system, rate.rate, rate.leader) == ("b", 3.0, 0.25)
    assert (memory.row, memory.memory, memory.rate) == ("memory", 0.2, None), (
        "mapped files are not compared"
    )


def test_what_was_not_measured_on_both_sides_has_no_ratio() -> None:
    row = BenchRowResult(row="sync-1", label="sync-1", measured=measured(1))
    skipped = BenchRowResult(row="sync-1", label="sync-1", skipped="no Java")
    assert ratios_of([system("a", row), system("b", skipped), system("c")]) == []
    assert ratios_of([]) == []


def test_the_line_of_a_row_says_figures_or_the_reason() -> None:
    assert line_of(BenchRowResult(row="r", label="r", measured=measured(1500))) == (
        "1,500/s, p50 100 us, leader 20.0 us/msg"
    )
    once = measured(0.5, 0.5, requests=1, p50_us=2_000_000.0, leader_us=None)
    assert line_of(BenchRowResult(row="r", label="r", measured=once)) == "p50 2,000,000 us"
    memory = BenchRowResult(row="r", label="r", memory=Memory(96.4, 80))
    assert line_of(memory) == "80 MiB, and 16 of mapped files"
    assert line_of(BenchRowResult(row="r", label="r", skipped="no Java")) == "skipped: no Java"
    assert line_of(BenchRowResult(row="r", label="r", failed="it hung")) == "failed: it hung"


def test_memory_that_processes_share_is_a_process_s_own_and_mapped_files_are_not() -> None:
    before = memory_of(os.getpid())
    assert before.mapped_mib > 1, "this program is a mapped file"
    with mmap.mmap(-1, 32 << 20) as shared:
        shared.write(b"x" * len(shared))
        assert memory_of(os.getpid()).own_mib > before.own_mib + 24
