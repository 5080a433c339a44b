"""A comparison of made-up systems: what is printed, its JSON, its exit code, and how it goes on after failures."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.compare.command import exit_code
from bench.compare.results import SystemComparison
from bench.compare.rows import BY_NAME, BenchRow
from bench.compare.runners import Contender, RowRunner
from bench.compare.running import Plan, compare
from bench.compare.tables import print_comparison, ratio_text, spread_text
from bench.load.driver import LackingError
from bench.load.results import Measured, Spread
from bench.load.running import LoadError, RoundPlan
from bench.memory import Memory
from bench.systems.brokers import Setup
from jepsen.processes import ProcessDiedError
from tests.unit.bench.rounds import measured

Answer = Measured | BaseException


class MadeUpRunner:
    """Answers each row with what it was given."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self.warm_s = 0.0

    def warm_up(self, seconds: float) -> None:
        self.warm_s = seconds

    def run(self, row: BenchRow, pace: RoundPlan) -> Measured:
        answer = self._answers[row.name]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leader_memory(self) -> Memory:
        return Memory(200, 150)


def contender(name: str, answers: dict[str, Answer], lack: str | None = None) -> Contender:
    @contextlib.contextmanager
    def start(folder: Path, setup: Setup) -> Iterator[RowRunner]:
        yield MadeUpRunner(answers)

    return Contender(name, lambda setup: f"{setup.nodes} copies of {name}", lambda _: lack, start)


class Lines:
    """What was shown while it ran."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str, seconds: float) -> None:
        pass

    def line(self, text: str) -> None:
        self.lines.append(text)


def run(
    *contenders: Contender, rows: str = "sync-1 memory", shown: Lines | None = None
) -> SystemComparison:
    plan = Plan(
        contenders=contenders,
        rows=[BY_NAME[name] for name in rows.split()],
        pace=RoundPlan(0.1, 0.1, 1),
        heat_s=0.1,
        setup=Setup(),
    )
    return compare(plan, shown or Lines(), "dledger-bench compare")


def printed(result: SystemComparison, *, markdown: bool = False) -> str:
    out = io.StringIO()
    print_comparison(result, Console(file=out, width=200), markdown=markdown)
    return out.getvalue()


@pytest.fixture(autouse=True)
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.compare.running.measure_floor", lambda folder: None)


FAST: dict[str, Answer] = {"sync-1": measured(300, 360)}
SLOW: dict[str, Answer] = {"sync-1": measured(100, 120, leader_us=80.0)}


def test_the_table_has_each_row_of_each_system_and_the_ratios() -> None:
    result = run(contender("ours", FAST), contender("theirs", SLOW))
    lines = [line.split() for line in printed(result).splitlines() if "theirs" in line]
    assert lines[0] == [
        "theirs",
        "110",
        "18",
        "%",
        "100",
        "300",
        "80.0",
        "8.0",
        "150",
        "3.00x",
        "1.00x",
        "0.25x",
    ]
    assert lines[1][:4] == ["theirs", "150", "MiB", "mapped"]
    assert exit_code(result) == 0


def test_the_table_for_a_page_is_markdown() -> None:
    text = printed(run(contender("ours", FAST)), markdown=True)
    header, ruler = [line for line in text.splitlines() if line.startswith("|")][:2]
    assert [cell.strip() for cell in header.split("|")][1:4] == ["load", "system", "messages/s"]
    assert set(ruler) == {"|", "-", ":"} or set(ruler) == {"|", "-"}


def test_json_has_everything_and_is_read_back() -> None:
    result = run(contender("ours", FAST), contender("theirs", {}, lack="no Java on this machine"))
    data = msgspec.json.encode(result)
    assert msgspec.json.decode(data, type=SystemComparison) == result
    said = json.loads(data)
    assert said["systems"][0]["rows"][0]["measured"]["rounds"][0]["messages"] == 600
    assert said["systems"][1]["skipped"] == "no Java on this machine"
    assert said["command"] == "dledger-bench compare"


def test_what_the_machine_lacks_is_said_and_is_no_failure() -> None:
    shown = Lines()
    lacking = contender("theirs", {}, lack="no Java on this machine")
    result = run(contender("ours", FAST), lacking, shown=shown)
    assert "theirs skipped: no Java on this machine" in shown.lines
    assert "theirs skipped: no Java on this machine" in printed(result)
    assert exit_code(result) == 0
    assert exit_code(run(lacking)) == 2, "nothing was measured"


def test_a_row_that_a_system_lacks_is_skipped_for_a_reason() -> None:
    answers = FAST | {"java-sync-1": LackingError("no Java on this machine")}
    result = run(contender("ours", answers), rows="sync-1 java-sync-1")
    assert "ours, java-sync-1 skipped: no Java on this machine" in printed(result)
    assert exit_code(result) == 0


def test_a_row_that_fails_is_told_and_the_next_one_is_measured() -> None:
    answers = {"sync-1": LoadError("it was silent"), "sync-64": measured(5)}
    result = run(contender("ours", answers), rows="sync-1 sync-64")
    assert result.problems == ["ours, sync-1: it was silent"]
    assert result.systems[0].rows[1].measured is not None
    assert exit_code(result) == 1
    assert "NOT TO BE BELIEVED: ours, sync-1: it was silent" in printed(result)


def test_a_system_that_dies_does_not_end_the_run() -> None:
    dying = contender("ours", {"sync-1": ProcessDiedError("n0 ended with -9")})
    result = run(dying, contender("theirs", SLOW))
    assert result.problems == ["ours: n0 ended with -9"]
    assert result.systems[1].rows[0].measured is not None
    assert exit_code(result) == 1


def test_an_interrupt_ends_it_with_what_was_measured() -> None:
    answers = FAST | {"sync-64": KeyboardInterrupt()}
    result = run(contender("ours", answers), contender("theirs", SLOW), rows="sync-1 sync-64")
    assert [system.name for system in result.systems] == ["ours"]
    assert [row.row for row in result.systems[0].rows] == ["sync-1"]
    assert exit_code(result) == 130
    assert "interrupted" in printed(result)


def test_what_was_acknowledged_and_is_not_there_is_exit_code_1() -> None:
    lost = msgspec.structs.replace(measured(5), checked=2, missing=["KEY at Bench-0@7"])
    result = run(contender("ours", {"sync-1": lost}), rows="sync-1")
    assert exit_code(result) == 1
    assert "acknowledged, and not there: KEY at Bench-0@7" in printed(result)


def test_figures_are_as_long_as_they_are_worth() -> None:
    assert [ratio_text(each) for each in (None, 0.254, 9.99, 12.4)] == [
        "-",
        "0.25x",
        "9.99x",
        "12x",
    ]
    assert [spread_text(each) for each in (Spread(10, 10, 10), Spread(10, 9, 11))] == ["-", "20 %"]
