"""A run that is interrupted, twice in a row as impatient people do, tells what it saw and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.nemeses.limits import CGROUPS, CPU, CgroupError, hierarchy
from jepsen.nemeses.limits import OWN as OWN_CGROUP
from jepsen.nemeses.namespaces import lacking_namespaces
from jepsen.processes import is_running, poll
from tests.integration.jepsen.breaking import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STRUCK = '"do":"inject","done"'


def interrupted(
    folder: Path, nemesis: str, number: signal.Signals
) -> tuple[int, dict[str, object]]:
    """Run until the first fault is in force, interrupt; the process id that it had, and results.json."""
    words = [
        "run",
        "--workload",
        "log-set",
        "--nemesis",
        nemesis,
        "--time-limit",
        "600",
        "--seed",
        "1",
    ]
    command = [sys.executable, "-m", "jepsen.cli", *words, "--keep", str(folder), "--json"]
    history = folder / "history.jsonl"
    with (folder.parent / "said").open("wb") as said:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
    try:
        assert poll(lambda: history.exists() and STRUCK in history.read_text(), PATIENCE_S)
        run.send_signal(number)
        run.send_signal(number)
        out, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == 130
    assert out == b""
    assert "interrupted" in (folder.parent / "said").read_text()
    return run.pid, json.loads((folder / "results.json").read_text())


def left_of(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nodes_are_ended_and_the_report_is_written(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    _, results = interrupted(folder, "pause:all", number)
    assert results["verdict"] == "unknown"
    assert results["problems"] == ["while breaking: interrupted"]
    assert (folder / "report.html").exists()
    assert left_of(folder) == []


def test_namespaces_are_removed(tmp_path: Path) -> None:
    if lacking := lacking_namespaces():
        pytest.skip(lacking)
    pid, _ = interrupted(tmp_path / "run", "unplug:one", signal.SIGINT)
    assert not is_running(pid)
    assert list(Path("/run/netns").glob(f"jepsen-{pid}-*")) == []
    assert not Path(f"/sys/class/net/jp{pid}").exists()


def test_a_cgroup_is_removed(tmp_path: Path) -> None:
    try:
        folder, _ = hierarchy(CPU, CGROUPS, OWN_CGROUP)
    except CgroupError as error:
        pytest.skip(str(error))
    pid, _ = interrupted(tmp_path / "run", "cpu:one", signal.SIGINT)
    assert not (folder / f"jepsen-{pid}-cpu").exists()
