"""`dledger-bench` on real processes: a tiny comparison, one beside Apache RocketMQ, and an interrupt."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.load.native import lacking_generator
from bench.options import default_interop
from bench.systems.brokers import Setup
from bench.systems.rocketmq import KINDS
from jepsen.processes import is_running, poll, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(lacking_generator() is not None, reason=str(lacking_generator())),
]

TIMEOUT_S = 300.0
SHORT = ("--seconds", "0.5", "--rounds", "1", "--warm-up", "0.3", "--heat", "0.3")


def bench(*words: str) -> tuple[int, dict[str, Any], str]:
    """Run it with --json; its exit code, what it found, and what it printed."""
    done = subprocess.run(
        [program("dledger-bench"), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_tiny_comparison_measures_and_looks_up_what_was_acknowledged() -> None:
    rows = "sync-1,async-64,batch,pull-8,memory"
    code, found, shown = bench("compare", "--systems", "ours", "--rows", rows, *SHORT)
    assert code == 0, shown
    (system,) = found["systems"]
    *loads, memory = system["rows"]
    assert [row["row"] for row in system["rows"]] == rows.split(",")
    assert [len(row["measured"]["rounds"]) for row in loads] == [1, 1, 1, 1]
    assert all(row["measured"]["rounds"][0]["messages"] > 0 for row in loads[:4])
    assert all(row["measured"]["checked"] > 0 for row in loads[:3])
    assert memory["memory"]["resident_mib"] > memory["memory"]["own_mib"] > 10
    assert "batches of 100, 16 in flight" in shown


def test_apache_rocketmq_is_measured_by_the_same_loads() -> None:
    (kind,) = [each for each in KINDS if each.name == "rocketmq-sync"]
    if lack := kind.lacking(Setup(interop=default_interop())):
        pytest.skip(lack)
    words = ("--systems", kind.name, "--rows", "async-64,pull-1", "--heap-mb", "256")
    code, found, shown = bench("compare", *words, *SHORT)
    assert code == 0, shown
    sends, pulls = [row["measured"] for row in found["systems"][0]["rows"]]
    assert sends["rounds"][0]["messages"] > 0
    assert sends["checked"] > 0
    assert pulls["rounds"][0]["messages"] % 32 == 0


def test_an_interrupt_ends_every_process_and_prints_what_was_measured(tmp_path: Path) -> None:
    command = [program("dledger-bench"), "compare", "--systems", "ours", "--json"]
    command += ["--rows", "sync-1,async-64", "--keep", str(tmp_path), "--heat", "0.1"]
    command += ["--warm-up", "0.1", "--seconds", "0.2", "--rounds", "1"]
    command[command.index("--rows") + 1] += ",async-1024"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "1 sync sender" in line:
                child.send_signal(signal.SIGINT)
                break
        out, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 130
    found = json.loads(out)
    assert found["is_interrupted"]
    assert found["systems"][0]["rows"][0]["row"] == "sync-1"
    nodes = [int(pid) for pid in pids_of(tmp_path)]
    assert poll(lambda: not any(is_running(pid) for pid in nodes), 10)


def pids_of(folder: Path) -> list[str]:
    """The processes whose command names a file of this folder."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], check=True, capture_output=True, text=True)
    pattern = re.compile(rf"^\s*(\d+) .*{re.escape(str(folder))}", re.MULTILINE)
    return pattern.findall(listed.stdout)
