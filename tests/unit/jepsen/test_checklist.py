"""The list of faults: whole, runnable, and honest about what was not seen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dledger.testing.sim_fault_kinds import ALL_KINDS
from jepsen.catalogue import make_faults, workload_entry
from jepsen.checklist.command import NoRowError, exit_code, record, rows_asked_for
from jepsen.checklist.page import page
from jepsen.checklist.rows import ROWS, ChecklistRow
from jepsen.checklist.scenarios import SCENARIOS, scenarios_of
from jepsen.checklist.script import check_expectations
from jepsen.checklist.showing import RowResult, Shown, joined, read_report
from jepsen.checklist.stage import UNMET
from jepsen.history.ops import NEMESIS, Op
from jepsen.nemeses.registry import named

ROOT = Path(__file__).parents[3]


def shown(verdict: str) -> Shown:
    return Shown("tests", "python -m pytest", verdict, "", 1.0)  # type: ignore[arg-type]  # from parametrize


def test_rows_are_in_order_and_each_can_be_shown() -> None:
    numbers = [row.number for row in ROWS]
    assert numbers == sorted(set(numbers))
    for row in ROWS:
        assert row.unbuilt or row.tests or row.sim or scenarios_of(row.number), row


def test_scenarios_belong_to_rows_and_use_faults_that_there_are() -> None:
    for scenario in SCENARIOS:
        assert scenario.row in {row.number for row in ROWS}
        for spec in scenario.faults:
            named(spec)
    for row in ROWS:
        for workload, nemesis in row.runs:
            workload_entry(workload)
            make_faults(nemesis)


def test_tests_and_faults_that_rows_name_are_there() -> None:
    for row in ROWS:
        for node in row.tests:
            path, _, name = node.partition("::")
            source = ROOT / path
            assert source.exists(), node
            if name:
                functions = {
                    each.name
                    for each in ast.walk(ast.parse(source.read_text()))
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                assert name in functions, node
        assert set(row.sim) <= set(ALL_KINDS), row


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        (["holds", "skipped"], "holds"),
        (["holds", "broken"], "broken"),
        (["unknown", "broken"], "broken"),
        (["holds", "unknown"], "unknown"),
        (["skipped", "skipped"], "skipped"),
        ([], "unknown"),
    ],
)
def test_the_worst_way_decides_and_a_skipped_one_proves_nothing(
    verdicts: list[str], together: str
) -> None:
    row = ChecklistRow(1, "process", "fault", "expectation", "how")
    assert joined(row, [shown(verdict) for verdict in verdicts]).verdict == together


def test_what_is_not_built_never_holds() -> None:
    row = ChecklistRow(64, "operations", "fault", "expectation", "how", unbuilt="members")
    assert joined(row, [shown("holds")]).verdict == "not built"


def test_a_row_with_a_gap_holds_in_part_at_best() -> None:
    row = ChecklistRow(66, "operations", "fault", "expectation", "how", gap="no notice")
    assert joined(row, [shown("holds")]).verdict == "in part"
    assert joined(row, [shown("broken")]).verdict == "broken"


def test_exit_codes() -> None:
    def result(verdict: str) -> RowResult:
        return RowResult(1, verdict, ())  # type: ignore[arg-type]  # from the lines below

    assert exit_code([result("holds"), result("skipped"), result("not built")]) == 0
    assert exit_code([result("holds"), result("broken"), result("unknown")]) == 1
    assert exit_code([result("holds"), result("unknown")]) == 2


def test_an_unmet_expectation_is_an_anomaly() -> None:
    good = Op(0, 1, NEMESIS, "info", "kill", {"do": "inject", "done": "n0"})
    bad = Op(1, 2, NEMESIS, "info", UNMET, None, "the leader stays")
    assert check_expectations([good]).valid is True
    judged = check_expectations([good, bad])
    assert judged.valid is False
    assert judged.anomalies[0].text == "the leader stays"
    assert judged.anomalies[0].ops == (1,)


FAILED = '<testcase name="a"><failure/></testcase>'
SKIPPED = '<testcase name="a"><skipped message="no root"/></testcase>'


@pytest.mark.parametrize(
    ("tests", "failures", "skipped", "cases", "verdict"),
    [
        (2, 0, 0, "", "holds"),
        (2, 1, 0, FAILED, "broken"),
        (1, 0, 1, SKIPPED, "skipped"),
        (2, 0, 1, SKIPPED, "holds"),
        (0, 0, 0, "", "unknown"),
    ],
)
def test_a_report_of_tests_is_read(
    tmp_path: Path, tests: int, failures: int, skipped: int, cases: str, verdict: str
) -> None:
    report = tmp_path / "report.xml"
    counts = f'tests="{tests}" failures="{failures}" errors="0" skipped="{skipped}"'
    report.write_text(f"<testsuites><testsuite {counts}>{cases}</testsuite></testsuites>")
    told, text = read_report(report)
    assert told == verdict
    assert verdict != "skipped" or text == "no root"


def test_results_are_kept_and_the_page_names_every_row(tmp_path: Path) -> None:
    record(tmp_path, {1: RowResult(1, "holds", (shown("holds"),))})
    record(tmp_path, {2: RowResult(2, "broken", (shown("broken"),))})
    text = (tmp_path / "faults.md").read_text()
    assert "1 holds" in text
    assert "1 broken" in text
    assert f"{len(ROWS) - 2} not run" in text
    for row in ROWS:
        assert f"| {row.number} | {row.fault} |" in text


def test_rows_are_asked_for_by_number_and_section() -> None:
    assert [row.number for row in rows_asked_for([9, 3], [])] == [3, 9]
    assert {row.section for row in rows_asked_for([], ["clock"])} == {"clock"}
    assert rows_asked_for([], []) == list(ROWS)
    with pytest.raises(NoRowError, match="71"):
        rows_asked_for([71], [])


def test_the_page_says_what_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ChecklistRow(64, "operations", "fault", "expectation", "how", unbuilt="membership change")
    monkeypatch.setattr("jepsen.checklist.page.ROWS", (row,))
    assert "**not built**: membership change" in page({}, seen_on="never")
