"""The demo for real, small: one killed leader, our client alone, and nothing may be lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from jepsen import demo, run
from jepsen.checkers import work
from jepsen.checkers.judging import judge
from jepsen.checkers.results import CheckResult
from jepsen.clients.cpp import lacking
from jepsen.generators import SECOND_NS
from jepsen.history.ops import Op
from jepsen.history.values import Rows, SendAsked, shaped
from jepsen.processes import poll
from jepsen.reports.folder import read_folder
from jepsen.systems.api import Subject
from jepsen.workloads import delay
from tests.integration.jepsen.breaking import (
    PATIENCE_S,
    TIME_LIMIT_S,
    after_work,
    be_patient,
    rounds_of_work,
    until_found,
)
from tests.integration.jepsen.test_broken_programs import start_broken, stop_once_found

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAMS = ("transactions", "timers", "ordered", "sends")


def results(ops: list[Op], settings: run.RunSettings) -> dict[str, CheckResult]:
    return {result.name: result for result in judge(ops, run.run_checkers(settings))}


@pytest.fixture(autouse=True)
def _at_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in this process; how much a busy machine does in a time, and how late, is not looked at."""
    be_patient(monkeypatch)
    monkeypatch.setattr(work, "FLOOR_RATE_MAX", 0.0)
    monkeypatch.setattr(demo, "sigterm_as_interrupt", lambda: None)
    monkeypatch.setattr(demo, "LATE_NS", round(PATIENCE_S * SECOND_NS))
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)  # marks come every ten seconds: too long for this


def test_a_killed_leader_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "DIGESTS_S", PATIENCE_S)
    enough = {"send": 40, "txn": 4, "frames": 6, "committed": 2, "commit": 1}
    monkeypatch.setattr(demo, "in_rounds", rounds_of_work(enough))
    folder = tmp_path / "run"
    words = ["--no-cpp", "--groups", "1", "--kills", "1", "--seconds", "6", "--json"]
    words += ["--keep", str(folder)]
    code = demo.main(words)
    ended = capsys.readouterr()
    assert code == 0, ended.err
    assert "without the C++ client" in ended.err
    (line,) = ended.out.splitlines()
    result = json.loads(line)
    assert list(result) == [
        *("acknowledged", "received", "lost", "duplicated", "kills", "failover_ms"),
        *STREAMS,
    ]
    assert (result["lost"], result["kills"]) == (0, 1)
    assert result["acknowledged"] > 0
    assert result["transactions"]["committed"] > 0
    assert result["transactions"]["seen_wrongly"] == 0
    assert (result["timers"]["lost"], result["timers"]["early"]) == (0, 0)
    assert (result["ordered"]["lost"], result["ordered"]["violations"]) == (0, 0)
    assert (result["sends"]["wrong"], result["sends"]["lost"]) == (0, 0)
    assert result["sends"]["compared"] > 0
    assert result["failover_ms"]["max"] > 0
    for said in ("kill -9", "Messages", "1 of 1 kills overcome", "VALID"):
        assert said in ended.err
    summary, ops = read_folder(folder)
    assert results(ops, summary.settings)["queue/total-queue"].valid is True
    for name in ("nodes/n2.log", "report.html"):
        assert (folder / name).stat().st_size


async def a_machine_dies(system: Subject) -> None:
    system.node("n1").kill()
    system.node("n1").start()
    assert await system.wait_whole(PATIENCE_S)


def test_a_killed_machine_of_several_groups_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until enough was done, not for a time: nine brokers on a busy machine do little in six seconds."""
    enough = {"send": 120, "txn": 12, "frames": 12, "committed": 6, "commit": 1}
    monkeypatch.setattr(demo, "by_schedule", after_work(enough, a_machine_dies))
    folder = tmp_path / "run"
    words = ["--no-cpp", "--kills", "0", "--seconds", str(TIME_LIMIT_S), "--json"]
    code = demo.main([*words, "--keep", str(folder)])
    ended = capsys.readouterr()
    assert code != demo.INVALID, ended.err
    (line,) = ended.out.splitlines()
    result = json.loads(line)
    assert list(result["groups"]) == ["broker-a", "broker-b", "broker-c"]
    assert all(tally["acknowledged"] > 0 for tally in result["groups"].values())
    assert all(tally["lost"] == 0 for tally in result["groups"].values())
    for said in ("3 machines", "leads broker-b", "Groups", "writes by the machine that led"):
        assert said in ended.err
    assert (folder / "nodes/n2/logs/broker-c.log").stat().st_size


def test_a_history_with_one_message_removed_from_all_reads_is_not_valid(tmp_path: Path) -> None:
    """The whole path from a real run to the verdict can fail."""
    settings = run.RunSettings("queue", "none", TIME_LIMIT_S, rate=demo.RATE)
    ops = list(run.execute(settings, tmp_path / "run", break_it=after_work({"send": 100})).ops)
    found = results(ops, settings)["total-queue"]
    assert found.valid is True
    key = next(
        shaped(op.value, SendAsked)["key"] for op in ops if op.f == "send" and op.type == "ok"
    )
    for op in ops:
        if op.f == "poll" and op.type == "ok":
            assert isinstance(op.value, dict)
            for rows in op.value.values():
                rows[:] = [row for row in rows if row[1] != key]
    found = results(ops, settings)["total-queue"]
    assert [anomaly.kind for anomaly in found.anomalies] == ["lost"]


def test_a_broken_broker_is_found_out_and_a_person_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By one mistake; that each is found by its checker, other runs show (test_broken_programs.py)."""
    start_broken(monkeypatch, tmp_path, "half_visible")
    stop_once_found(monkeypatch)
    monkeypatch.setattr(delay, "DELAY_MS", (1000, 2000))
    monkeypatch.setattr(delay, "LEVEL_MS", {1: 1000})
    kinds = {"half-visible", "rolled-back-visible", "undecided-visible"}
    monkeypatch.setattr(
        demo, "by_schedule", until_found(("transactions/transactions", frozenset(kinds)))
    )
    folder = tmp_path / "run"
    words = ["--no-cpp", "--groups", "1", "--kills", "0", "--seconds", str(TIME_LIMIT_S)]
    assert demo.main([*words, "--keep", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "INVALID" in said
    assert "/transactions)" in said.replace("\n", "")
    assert str(folder / "report.html") in said.replace("\n", "")


@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_the_cpp_client_takes_part(tmp_path: Path) -> None:
    settings = run.RunSettings("queue-cpp", "none", TIME_LIMIT_S, rate=demo.RATE)
    break_it = after_work({"cpp": 10, "ours": 10}, name_of=sender_of)
    result = run.execute(settings, tmp_path / "run", break_it=break_it)
    assert [one for check in result.checks for one in check.anomalies] == []
    acknowledged = {
        shaped(op.value, SendAsked)["key"]
        for op in result.ops
        if op.f == "send" and op.type == "ok"
    }
    handed = {
        row.key
        for op in result.ops
        if op.f == "receive"
        for rows in shaped(op.value, Rows).values()
        for row in rows
    }
    assert acknowledged <= handed, "its consumer gets what both send"


def sender_of(op: Op) -> str:
    """Which client a send is of; other operations are nobody's."""
    return shaped(op.value, SendAsked).get("client", "ours") if op.f == "send" else ""


@pytest.mark.parametrize(("number", "groups"), [(signal.SIGINT, 3), (signal.SIGTERM, 1)])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, groups: int
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "jepsen.demo", "--no-cpp", "--kills", "0", "--seconds", "600"]
    command += ["--groups", str(groups)]
    process = subprocess.Popen(
        [*command, "--keep", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        history = folder / "history.jsonl"
        assert poll(lambda: history.exists() and history.stat().st_size > 0, PATIENCE_S)
        children: list[int] = []

        def are_there() -> bool:
            """The supervisor of a machine starts its processes by and by; the others work by then."""
            own = children_of(process.pid)
            assert len(own) == (4 if groups == 1 else 3) + 1, "and the keeper"
            children[:] = own + [each for child in own for each in children_of(child)]
            return len(children) == (4 if groups == 1 else 15) + 1

        assert poll(are_there, PATIENCE_S), children
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 130
        assert poll(lambda: not any(map(runs, children)), PATIENCE_S)
    finally:
        process.kill()
        process.communicate()


def runs(pid: int) -> bool:
    """True for a process that has not ended; one that nobody has waited for yet has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Process ids of the children, whichever thread started them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, file.read_text().split())
    return found
