"""Runs the commands that show a row, and reports the results. One that cannot run is "skipped", never "holds"."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from dledger.testing.sim_fault_kinds import MACHINE_KINDS
from jepsen.catalogue import make_faults, network_for
from jepsen.checklist.rows import ChecklistRow
from jepsen.checklist.script import play
from jepsen.checklist.stage import Scenario
from jepsen.reports.folder import write_folder
from jepsen.run import RunResult, RunSettings, execute

Verdict = Literal["holds", "in part", "broken", "skipped", "unknown", "not built"]
_WORST_FIRST: Final[tuple[Verdict, ...]] = ("broken", "unknown", "not built", "holds", "skipped")

RUN_S: Final = 30.0
TESTS_TIMEOUT_S: Final = 300.0
TROUBLES_SHOWN: Final = 3
SIM_SEEDS: Final = 200
SIM_TIMEOUT_S: Final = 300.0
SIM_VERDICTS: Final[dict[int, Verdict]] = {0: "holds", 1: "broken", 3: "broken", 4: "broken"}


class Shown(msgspec.Struct, frozen=True):
    """The result of showing a row in one way.

    Attributes:
        way: "process", "simulator" or "tests".
        command: that repeats it.
        verdict: what it says.
        text: the facts, or why it was skipped.
        seconds: how long it took.
    """

    way: str
    command: str
    verdict: Verdict
    text: str
    seconds: float


class RowResult(msgspec.Struct, frozen=True):
    """The results of showing a row in all its ways."""

    number: int
    verdict: Verdict
    shown: tuple[Shown, ...]


def joined(row: ChecklistRow, shown: Sequence[Shown]) -> RowResult:
    """Join the results of a row: a broken one breaks the row, a skipped one is ignored."""
    if row.unbuilt:
        return RowResult(row.number, "not built", tuple(shown))
    verdicts = {each.verdict for each in shown}
    verdict: Verdict = next((each for each in _WORST_FIRST if each in verdicts), "unknown")
    if row.gap and verdict == "holds":
        verdict = "in part"
    return RowResult(row.number, verdict, tuple(shown))


def show_by_run(workload: str, nemesis: str, folder: Path, *, seed: int) -> Shown:
    """Make a run of another workload with the faults of a row."""
    settings = RunSettings(
        workload, nemesis, RUN_S, seed=seed, network=network_for(make_faults(nemesis), None)
    )
    words = f"-m jepsen.cli run --workload {workload} --nemesis {nemesis} --time-limit {RUN_S:g}"
    begun = time.monotonic()
    result = execute(settings, folder)
    return _judged([*words.split(), "--seed", str(seed)], workload, result, begun)


def show_by_scenario(scenario: Scenario, folder: Path, *, seed: int) -> Shown:
    """Play a scenario; its folder stays when it did not hold."""
    command = ["-m", "jepsen.cli", "checklist", "--row", str(scenario.row), "--seed", str(seed)]
    begun = time.monotonic()
    return _judged(command, scenario.name, play(scenario, folder, seed=seed), begun)


def _judged(command: Sequence[str], name: str, result: RunResult, begun: float) -> Shown:
    if result.skipped:
        return _shown(
            "process", command, verdict="skipped", text=f"{name}: {result.skipped}", begun=begun
        )
    write_folder(result, keep_stores=False)
    if result.is_interrupted:
        raise KeyboardInterrupt
    verdict: Verdict = "unknown" if result.valid is None else "holds" if result.valid else "broken"
    return _shown(
        "process", command, verdict=verdict, text=f"{name}: {_facts(result)}", begun=begun
    )


def _facts(result: RunResult) -> str:
    anomalies = [
        f"{check.name}: {anomaly.kind}: {anomaly.text}"
        for check in result.checks
        for anomaly in check.anomalies
    ]
    unknown = [check.why_unknown for check in result.checks if check.valid is None]
    troubles = [*anomalies, *result.problems, *unknown]
    if troubles:
        return "; ".join(troubles[:TROUBLES_SHOWN]) + f" (in {result.folder.name})"
    done = sum(op.type == "ok" and op.is_client for op in result.ops)
    return f"{done} operations succeeded"


def sim_command(row: ChecklistRow) -> list[str]:
    """Return the command that simulates a row's faults alone; in groups of brokers where only those have what fails."""
    module = "broker.testing.sim" if set(row.sim) & set(MACHINE_KINDS) else "dledger.testing.sim"
    # Links heal as often as something breaks: else a run is broken for ever and shows little.
    faults = ",".join([*(f"{kind}:10" for kind in row.sim), "heal:10"])
    return ["-m", module, "--seeds", str(SIM_SEEDS), "--set", f"faults={faults}"]


def show_by_simulation(row: ChecklistRow) -> Shown:
    """Simulate SIM_SEEDS groups."""
    command = sim_command(row)
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=SIM_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _shown(
            "simulator",
            command,
            verdict="unknown",
            text=f"no end in {SIM_TIMEOUT_S:g} s",
            begun=begun,
        )
    verdict = SIM_VERDICTS.get(done.returncode, "unknown")
    text = f"{SIM_SEEDS} seeds" if verdict == "holds" else _last_lines(done.stdout + done.stderr)
    return _shown("simulator", command, verdict=verdict, text=text, begun=begun)


def show_by_tests(row: ChecklistRow) -> Shown:
    """Run the tests of a row with pytest, in the folder of the project."""
    command = ["-m", "pytest", "-q", *row.tests]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        try:
            done = subprocess.run(
                [sys.executable, *command, f"--junitxml={report}"],
                capture_output=True, text=True, timeout=TESTS_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _shown(
                "tests",
                command,
                verdict="unknown",
                text=f"no end in {TESTS_TIMEOUT_S:g} s",
                begun=begun,
            )
        if not report.exists():
            return _shown(
                "tests",
                command,
                verdict="unknown",
                text=_last_lines(done.stdout + done.stderr),
                begun=begun,
            )
        verdict, text = read_report(report)
    return _shown("tests", command, verdict=verdict, text=text, begun=begun)


def read_report(report: Path) -> tuple[Verdict, str]:
    """Read what pytest's --junitxml says: a verdict and the facts."""
    # Written by our own pytest a moment ago: nobody else's XML is read.
    suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314
    assert suite is not None, "pytest writes one suite"
    counts = {
        name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    }
    if counts["failures"] or counts["errors"]:
        failed = [case.get("name", "") for case in suite if case.find("failure") is not None]
        return "broken", f"failed: {', '.join(failed) or 'errors'}"
    passed = counts["tests"] - counts["skipped"]
    if not counts["tests"]:
        return "unknown", "no test was found"
    if not passed:
        reasons = {each.get("message", "") for each in suite.iter("skipped")}
        return "skipped", "; ".join(sorted(reasons))
    return "holds", f"{passed} passed" + (
        f", {counts['skipped']} skipped" if counts["skipped"] else ""
    )


def _shown(way: str, command: Sequence[str], *, verdict: Verdict, text: str, begun: float) -> Shown:
    line = " ".join(["python", *command])
    return Shown(way, line, verdict, text, round(time.monotonic() - begun, 1))


def _last_lines(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])
