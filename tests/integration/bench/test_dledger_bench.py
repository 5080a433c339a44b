"""`dledger-bench` on real processes: a tiny comparison, one beside Apache RocketMQ, and an interrupt."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bench.compare.floors import floor_ratios
from bench.compare.results import SystemResult
from bench.compare.rows import BenchRow, RowKind
from bench.compare.runners import CONTENDERS
from bench.compare.running import Plan, compare
from bench.load.native import lacking_generator
from bench.load.running import RoundPlan
from bench.options import default_interop
from bench.progress import StageBar
from bench.systems.brokers import Setup
from bench.systems.rocketmq import KINDS
from jepsen.processes import is_running, poll, program
from tests.conftest import TOLD

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(lacking_generator() is not None, reason=str(lacking_generator())),
]

TIMEOUT_S = 300.0
SHORT = ("--rounds", "1", "--warm-up", "0.3", "--heat", "0.3")
PACES_S = (0.5, 5.0, 40.0)
"""Of a round; the longer ones are for a machine on which nothing has come of the shorter."""


def bench(*words: str) -> tuple[int, dict[str, Any], str]:
    """Run it with --json; its exit code, what it found, and what it printed."""
    done = subprocess.run(
        [program("dledger-bench"), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def compared(system: str, rows: str, *words: str) -> tuple[dict[str, Any], str]:
    """Compare in the shortest rounds in which each row has something, and look it up; what was found and printed."""
    asked = ("compare", "--systems", system, "--rows", rows, *words, *SHORT)
    for seconds in PACES_S:
        code, found, shown = bench(*asked, "--seconds", str(seconds))
        loads = [row["measured"] for row in found["systems"][0]["rows"] if row.get("measured")]
        if code == 0 and all(each["rounds"][0]["messages"] > 0 for each in loads):
            break
    assert code == 0, shown
    return found, shown


def test_a_tiny_comparison_measures_and_looks_up_what_was_acknowledged(
    record_property: Callable[[str, object], None],
) -> None:
    """Its ratios to the floor are printed at the end of the suite, with a warning where one is high; none fails."""
    rows = "sync-1,async-64,batch,pull-8,memory"
    found, shown = compared("ours", rows)
    (system,) = found["systems"]
    *loads, memory = system["rows"]
    assert [row["row"] for row in system["rows"]] == rows.split(",")
    assert [len(row["measured"]["rounds"]) for row in loads] == [1, 1, 1, 1]
    assert all(row["measured"]["rounds"][0]["messages"] > 0 for row in loads[:4])
    assert all(row["measured"]["checked"] > 0 for row in loads[:3])
    assert memory["memory"]["resident_mib"] > memory["memory"]["own_mib"] > 10
    assert "batches of 100, 16 in flight" in shown
    ratios = floor_ratios(msgspec.convert(system, SystemResult))
    assert [ratio.row for ratio in ratios] == ["sync-1", "async-64", "batch"]
    for ratio in ratios:
        record_property(TOLD, f"bench: {ratio.text}")


def test_every_kind_of_row_is_measured_on_a_running_group() -> None:
    kinds = ("ONEWAY", "TAG_PULL", "COLD_PULL", "TRANSACTION", "END_TO_END", "DELAY", "FAILOVER")
    rows = [
        BenchRow(kind.name, kind.value, kind, connections=2, queues=4, body_bytes=64)
        for kind in map(RowKind.__getitem__, kinds)
    ]
    for seconds in PACES_S:
        plan = Plan(
            contenders=[CONTENDERS["ours"]],
            rows=rows,
            pace=RoundPlan(0.2, seconds, 1),
            heat_s=0.2,
            setup=Setup(),
        )
        found = compare(plan, StageBar(Console(stderr=True), plan.system_s), "").systems[0]
        rounds = [row.measured.rounds[0] for row in found.rows if row.measured is not None]
        if not found.problems and all(each.messages > 0 for each in rounds):
            break
    assert found.problems == []
    assert [row.row for row in found.rows] == list(kinds)
    assert len(rounds) == len(kinds)
    assert all(each.messages > 0 for each in rounds)
    assert all(0 < each.p50_us <= each.p99_us <= each.max_us for each in rounds[1:])


def test_apache_rocketmq_is_measured_by_the_same_loads() -> None:
    (kind,) = [each for each in KINDS if each.name == "rocketmq-sync"]
    if lack := kind.lacking(Setup(interop=default_interop())):
        pytest.skip(lack)
    found, _ = compared(kind.name, "async-64,pull-1", "--heap-mb", "256")
    sends, pulls = [row["measured"] for row in found["systems"][0]["rows"]]
    assert sends["rounds"][0]["messages"] > 0
    assert sends["checked"] > 0
    assert pulls["rounds"][0]["messages"] % 32 == 0


def test_an_interrupt_ends_every_process_and_prints_what_was_measured(tmp_path: Path) -> None:
    command = [program("dledger-bench"), "compare", "--systems", "ours", "--json"]
    # Many more rows than the first: they are not over before the interrupt comes, though we stand still for seconds.
    rows = "sync-1,async-64,async-1024,batch,pull-1,pull-8,sync-64"
    command += ["--rows", rows, "--keep", str(tmp_path), "--heat", "0.1"]
    command += ["--warm-up", "0.1", "--seconds", "2", "--rounds", "1"]
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
    assert poll(lambda: not any(is_running(pid) for pid in nodes), TIMEOUT_S)


def pids_of(folder: Path) -> list[str]:
    """The processes whose command names a file of this folder."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], check=True, capture_output=True, text=True)
    pattern = re.compile(rf"^\s*(\d+) .*{re.escape(str(folder))}", re.MULTILINE)
    return pattern.findall(listed.stdout)
