"""The rows that each command makes of its options, and the smaller benches that are listed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from bench.cli import _parser, main
from bench.compare.rows import BenchRow, RowKind
from bench.compare.runners import CONTENDERS
from bench.listing import small_benches


def rows_of(*words: str) -> list[BenchRow]:
    options = _parser().parse_args(words)
    rows: list[BenchRow] = options.rows_of(options)
    return rows


def test_the_table_has_the_rows_that_speed_is_judged_by() -> None:
    rows = rows_of("compare")
    assert [(row.kind.name, row.connections, row.in_flight) for row in rows] == [
        ("SEND", 1, 1),
        ("SEND", 64, 1),
        ("SEND", 1, 64),
        ("SEND", 1, 1024),
        ("BATCH", 1, 16),
        ("PULL", 1, 1),
        ("PULL", 1, 8),
        ("JAVA_SYNC", 1, 1),
        ("JAVA_SYNC", 1, 64),
        ("JAVA_ASYNC", 1, 1024),
        ("MEMORY", 1, 1),
    ]
    options = _parser().parse_args(["compare"])
    assert [each.name for each in options.systems] == ["ours", "rocketmq-dledger", "rocketmq-sync"]
    assert {row.body_bytes for row in rows_of("compare", "--size", "100")} == {100}


def test_the_whole_table_takes_at_most_a_quarter_of_an_hour() -> None:
    from bench.compare.running import Plan
    from bench.load.running import RoundPlan
    from bench.systems.brokers import Setup

    options = _parser().parse_args(["compare"])
    pace = RoundPlan(options.warm_up, options.seconds, options.rounds)
    plan = Plan(
        contenders=options.systems,
        rows=options.rows_of(options),
        pace=pace,
        heat_s=options.heat,
        setup=Setup(),
    )
    assert 8 * 60 < 3 * plan.system_s < 15 * 60


def test_produce_has_a_row_for_each_combination() -> None:
    rows = rows_of("produce", "--clients", "1,2", "--in-flight", "4,8", "--queues", "16,1000")
    assert len(rows) == 8
    assert len({row.name for row in rows}) == 8
    assert {row.kind for row in rows} == {RowKind.SEND}
    assert {(row.connections, row.in_flight, row.queues) for row in rows} == {
        (c, f, q) for c in (1, 2) for f in (4, 8) for q in (16, 1000)
    }


@pytest.mark.parametrize(("mode", "kind"), [("sync", "SEND"), ("oneway", "ONEWAY")])
def test_what_waits_for_each_answer_has_one_in_flight(mode: str, kind: str) -> None:
    rows = rows_of("produce", "--mode", mode, "--clients", "3,9")
    assert [(row.kind.name, row.connections, row.in_flight) for row in rows] == [
        (kind, 3, 1),
        (kind, 9, 1),
    ]


@pytest.mark.parametrize(
    ("words", "kind", "count"),
    [
        ("produce --mode batch --batch 7", RowKind.BATCH, 4),
        ("consume", RowKind.PULL, 2),
        ("consume --mode cold --readers 2", RowKind.COLD_PULL, 1),
        ("consume --mode tags --readers 1,2,3", RowKind.TAG_PULL, 3),
        ("latency", RowKind.END_TO_END, 1),
        ("delays", RowKind.DELAY, 1),
        ("transactions --clients 1,2", RowKind.TRANSACTION, 2),
        ("failover", RowKind.FAILOVER, 1),
        ("recovery", RowKind.RECOVERY, 1),
    ],
)
def test_each_command_has_rows_of_its_kind(words: str, kind: RowKind, count: int) -> None:
    rows = rows_of(*words.split())
    assert {row.kind for row in rows} == {kind}
    assert len({row.name for row in rows}) == len(rows) == count


@pytest.mark.parametrize(
    ("file", "words"),
    [("p.jpeg", "must end in .png or .svg"), ("no/p.svg", "there is no folder")],
)
def test_a_picture_that_could_not_be_drawn_is_refused_at_once(
    file: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["produce", "--plot", str(tmp_path / file)])
    assert words in capsys.readouterr().err


def test_without_matplotlib_a_picture_is_refused_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.compare.plots.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["produce", "--plot", str(tmp_path / "p.svg")])
    assert "matplotlib is not installed (extra `spark`)" in capsys.readouterr().err


def test_every_listed_bench_is_there_and_has_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    listed = dict(small_benches())
    modules = [command.split()[-1] for command in listed]
    assert {"bench.calls", "bench.timers", "bench.pipeline"} <= set(modules)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    assert all(len(question) > 20 for question in listed.values())
    assert main(["list"]) == 0
    assert "python -m bench.calls" in capsys.readouterr().out


def test_names_of_systems_are_those_of_options() -> None:
    assert {name for name in CONTENDERS if not name.startswith("rocketmq")} == {
        "bare",
        "ours",
        "pysyncobj",
        "pysyncobj-single",
    }
