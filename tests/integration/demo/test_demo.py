"""The demo for real, small: one killed leader, our client alone, and nothing may be lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.checker import check
from jepsen.cpp_client import ENVIRONMENT
from jepsen.history import read_history
from jepsen.processes import is_running, poll

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_killed_leader_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = run(
        "jepsen.demo", "--no-cpp", "--kills", "1", "--seconds", "6", "--json", "--keep", str(folder)
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    result = json.loads(line)
    assert list(result) == [
        *("acknowledged", "received", "lost", "duplicated", "kills", "failover_ms"),
        *("transactions", "timers", "ordered"),
    ]
    assert (result["lost"], result["kills"]) == (0, 1)
    assert result["acknowledged"] > 100
    assert result["transactions"]["committed"] > 10
    assert result["transactions"]["seen_wrongly"] == 0
    assert (result["timers"]["lost"], result["timers"]["early"]) == (0, 0)
    assert (result["ordered"]["lost"], result["ordered"]["violations"]) == (0, 0)
    assert result["failover_ms"]["max"] < 5000
    with (folder / "history.jsonl").open() as lines:
        events = list(read_history(lines))
    assert check(events, drained=["demo-ours"]).valid is True
    assert (folder / "n2.log").stat().st_size


def test_a_history_with_one_delivery_removed_is_not_valid(tmp_path: Path) -> None:
    """The whole path from a real run to the verdict can fail."""
    folder = tmp_path / "run"
    ended = run(
        *("jepsen.demo", "--no-cpp", "--plain", "--kills", "0", "--seconds", "1"),
        *("--keep", str(folder)),
    )
    assert ended.returncode == 0, ended.stdout
    with (folder / "history.jsonl").open() as lines:
        events = list(read_history(lines))
    dropped = next(e for e in events if e.kind == "receive")
    verdict = check([e for e in events if e is not dropped], drained=["demo-ours"])
    assert [anomaly.check for anomaly in verdict.anomalies] == ["lost"]


@pytest.mark.skipif(
    not (ENVIRONMENT / ".ready").exists(), reason="the C++ client is not installed (make interop)"
)
def test_the_cpp_client_takes_part(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = run(
        *("jepsen.demo", "--plain", "--kills", "0", "--seconds", "4", "--json"),
        *("--keep", str(folder)),
    )
    assert ended.returncode == 0, ended.stderr
    with (folder / "history.jsonl").open() as lines:
        events = list(read_history(lines))
    verdict = check(events, drained=["demo-ours", "demo-cpp"])
    assert verdict.valid is True
    assert verdict.tallies["cpp"].acknowledged > 20
    assert {e.consumer for e in events if e.kind == "receive"} == {"demo-ours", "demo-cpp"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "jepsen.demo", "--no-cpp", "--kills", "0", "--seconds", "60"]
    demo = subprocess.Popen(
        [*command, "--keep", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        history = folder / "history.jsonl"
        assert poll(lambda: history.exists() and history.stat().st_size > 0, 30)
        children = children_of(demo.pid)
        assert len(children) == 4
        demo.send_signal(number)
        assert demo.wait(20) == 130
        assert not any(is_running(child) for child in children)
    finally:
        demo.kill()
        demo.communicate()


def children_of(pid: int) -> list[int]:
    """Process ids of the children, whichever thread started them."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]
