"""Short runs of messages on real broker groups: whatever breaks, no promise does.

Judged is safety, and that something succeeded at all: how fast a loaded machine elects a leader is not looked at.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jepsen import cli
from jepsen.catalogue import make_faults, network_for
from jepsen.guards import GUARDS
from jepsen.processes import is_running, poll
from jepsen.reports.folder import write_folder
from jepsen.run import RunSettings, execute
from tests.integration.commands import run_here
from tests.integration.jepsen.breaking import PATIENCE_S, TIME_LIMIT_S, one_after_another

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RUNS: list[tuple[str, str, dict[str, int]]] = [
    (
        "queue",
        "kill:leader,partition:leader-peers,partition:leader-deaf",
        {"commit": 40, "committed": 40},
    ),
    ("queue", "disk-full:leader,fsync-fail:leader", {}),
    ("transactions", "pause:leader", {"txn": 60, "poll": 20}),
    ("ordered", "kill:leader", {}),
    ("pop", "kill:leader", {"send": 40, "pop": 80, "ack": 40, "change": 5}),
]
"""Workload, faults that strike one after the other, and so many operations that have to succeed.

By so many of them `test_broken_programs.py` finds mistakes; sends over a kill are behind guards.
"""

SENDS = {"transactions": "txn"}
"""The operation of a workload that sends in another way."""


def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the summary of `--json`, and what was said to people; in this process, which has patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "sigterm_as_interrupt", lambda: None)
        ended = run_here(cli.main, *arguments, "--json")
    return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr


@pytest.mark.parametrize(("workload", "nemesis", "enough"), RUNS)
def test_no_promise_is_broken(
    workload: str, nemesis: str, enough: dict[str, int], tmp_path: Path
) -> None:
    network = network_for(make_faults(nemesis), None)
    settings = RunSettings(workload, nemesis, TIME_LIMIT_S, rate=50.0, network=network)
    result = execute(settings, tmp_path / "run", break_it=one_after_another(1, enough))
    if result.skipped:
        pytest.skip(result.skipped)
    assert [one for check in result.checks for one in check.anomalies] == []
    assert result.problems == ()
    assert result.faults == dict.fromkeys(nemesis.split(","), 1)
    availability = next(check for check in result.checks if check.name == "availability")
    done = availability.counts[SENDS.get(workload, "send")]
    assert isinstance(done, dict)
    assert done["ok"] > 0
    write_folder(result, keep_stores=False)
    for name in ("results.json", "history.jsonl", "history.edn", "report.html"):
        assert (tmp_path / "run" / name).stat().st_size, name


def test_a_run_behind_all_guards(tmp_path: Path) -> None:
    """The workload writes frames itself, too, so each way in which a run's clients sign and encrypt is used."""
    settings = RunSettings("sends", "kill:leader", TIME_LIMIT_S, rate=60.0, guards=GUARDS)
    enough = one_after_another(1, {"frames": 150, "poll": 40})
    result = execute(settings, tmp_path / "run", break_it=enough)
    assert [one for check in result.checks for one in check.anomalies] == []
    assert result.problems == ()
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "nodes").glob("*.log"))
    assert "AclException" not in logs
    assert "plain text on a port" not in logs


def test_a_planned_transfer_fails_no_send(tmp_path: Path) -> None:
    code, times, said = run("transfer", "--rounds", "3", "--keep", str(tmp_path / "run"))
    assert code != 1, said
    assert times["failed_sends"] == 0, said
    assert times["overcome"] > 0, said


def test_a_failover_is_measured(tmp_path: Path) -> None:
    code, times, said = run("failover", "--rounds", "1", "--keep", str(tmp_path / "run"))
    assert code != 1, said
    assert times["rounds"] == 1, said
    assert times["p50_ms"] == times["worst_ms"] is not None, said


def test_a_run_that_is_ended_leaves_no_process_behind(tmp_path: Path) -> None:
    """Behind proxies; other ways to end one are in `test_interrupted.py`."""
    folder = tmp_path / "run"
    words = ["run", "--workload", "ordered", "--nemesis", "partition:leader", "--keep", str(folder)]
    command = [sys.executable, "-m", "jepsen.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        history = folder / "history.jsonl"
        assert poll(lambda: history.exists() and history.stat().st_size > 0, PATIENCE_S)
        children = children_of(process.pid)
        assert len(children) >= 5, "a name server, three brokers and the proxies"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 130
        assert poll(lambda: not any(is_running(child) for child in children), PATIENCE_S)
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    """Process ids of the children, whichever thread started them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, file.read_text().split())
    return found
