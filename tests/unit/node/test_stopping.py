"""`dledger-node stop`: what it says is true, whoever has died meanwhile, and nobody is asked for haste by mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from broker.node import cli
from broker.node.config import read_node_file
from broker.node.plan import NodePlan, plan_node
from broker.node.status import STATUS_NAME, NodeStatus, look
from broker.node.supervisor import Supervisor
from broker.processes.child import ChildStatus
from broker.processes.identity import process_of
from tests.waiting import wait_until

NODE = '[machines]\nhere = "127.0.0.1"\n'

# Notes each SIGTERM, and ends at the one whose number it is given once its standard input is at its end.
TAKES = """
import signal, sys
wanted, noted = int(sys.argv[1]), open(sys.argv[2], "a")
def take(number, frame):
    print("SIGTERM", file=noted, flush=True)
signal.signal(signal.SIGTERM, take)
print("ready", flush=True)
for _ in range(wanted):
    signal.pause()
sys.stdin.read()
"""


@pytest.fixture
def plan(tmp_path: Path) -> NodePlan:
    (tmp_path / "node.toml").write_text(NODE)
    planned = plan_node(read_node_file(NODE, folder=tmp_path), "here", secret=None)
    planned.folder.mkdir(parents=True)
    return planned


@contextmanager
def process(folder: Path, *, signals: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A process that notes its signals; it ends at one of them, once its standard input is closed."""
    command = (sys.executable, "-c", TAKES, str(signals), str(folder / "signals"))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()


def keep(plan: NodePlan, supervisor: int | None, child: int, name: str = "namesrv") -> None:
    """Write node.json as a supervisor does that has one child; None for a supervisor that has ended."""
    start = "an-earlier-boot/1" if supervisor is None else start_of(supervisor)
    left = ChildStatus(name, child, 0, start=start_of(child))
    status = NodeStatus(supervisor or 1, "here", (left,), start)
    (plan.folder / STATUS_NAME).write_bytes(msgspec.json.encode(status))


def start_of(pid: int) -> str:
    found = process_of(pid)
    assert found is not None
    return found.start


def signals(folder: Path) -> list[str]:
    noted = folder / "signals"
    return noted.read_text().split() if noted.exists() else []


async def test_who_stops_what_a_killed_supervisor_has_left_is_no_supervisor(
    plan: NodePlan, tmp_path: Path
) -> None:
    with process(tmp_path) as child:
        keep(plan, None, child.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(plan, lambda _line: None).stop_orphans)
            await wait_until(lambda: signals(tmp_path) == ["SIGTERM"])
            seen = look(plan)
            assert child.stdin is not None
            child.stdin.close()
        assert (seen.supervisor, [one.pid for one in seen.children]) == (None, [child.pid, None])
    assert not (plan.folder / STATUS_NAME).exists()


def test_what_a_supervisor_leaves_that_ends_at_once_is_stopped(
    plan: NodePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    with process(tmp_path / "other") as supervisor, process(tmp_path) as child:
        assert supervisor.stdin is not None
        assert child.stdin is not None
        supervisor.stdin.close()
        child.stdin.close()
        keep(plan, supervisor.pid, child.pid)
        command = ["-c", str(tmp_path / "node.toml"), "--machine", "here", "stop"]
        assert cli.main(command) == 0
        assert process_of(child.pid) is None
    assert (signals(tmp_path / "other"), signals(tmp_path)) == (["SIGTERM"], ["SIGTERM"])
    assert "machine here is stopped" in capsys.readouterr().err


def test_what_still_runs_after_a_stop_is_said(
    plan: NodePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def stop_nothing(_supervisor: Supervisor) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Supervisor, "stop_orphans", stop_nothing)
    with process(tmp_path) as child:
        keep(plan, None, child.pid)
        command = ["-c", str(tmp_path / "node.toml"), "--machine", "here", "stop"]
        assert cli.main(command) == 1
    said = capsys.readouterr().err
    assert f"still runs: namesrv, process {child.pid}" in said
    assert "is stopped" not in said
