"""`dledger-node stop`: what it says is true, whoever has died meanwhile, and nobody is asked for haste by mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from broker.node import cli
from broker.node import supervisor as supervisor_module
from broker.node.config import read_node_file
from broker.node.plan import NodePlan, plan_node
from broker.node.status import STATUS_NAME, NodeStatus, look
from broker.node.supervisor import Supervisor
from broker.processes.child import ChildStatus
from broker.processes.identity import process_of
from tests.waiting import wait_until

NODE = '[machines]\nhere = "127.0.0.1"\n'

# Notes each SIGTERM, and ends at the one whose number it is given once its standard input is at its end.
# A signal is a byte in a pipe: so none is missed that comes before it waits for one.
TAKES = """
import os, select, signal, sys
wanted, noted = int(sys.argv[1]), open(sys.argv[2], "a")
came, comes = os.pipe()
os.set_blocking(comes, False)
signal.set_wakeup_fd(comes)
signal.signal(signal.SIGTERM, lambda number, frame: None)
print("ready", flush=True)
def take():
    os.read(came, 1)
    print("SIGTERM", file=noted, flush=True)
for _ in range(wanted):
    take()
while came in select.select([came, 0], [], [])[0]:
    take()
while select.select([came], [], [], 0)[0]:
    take()
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


@contextmanager
def sleeping(plan: NodePlan) -> Iterator[NodePlan]:
    """The plan, with programs that end at a SIGTERM; what is left of them is killed."""
    planned = tuple(
        replace(
            child,
            command=(sys.executable, "-c", "import time; time.sleep(600)", str(child.log)),
            files=(),
        )
        for child in plan.children
    )
    plan = replace(plan, children=planned)
    try:
        yield plan
    finally:
        for child in look(plan).children:
            if child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


@pytest.fixture
def takers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[signal.Signals], None]]:
    """What takes the signals of each supervisor that runs in this process, instead of the process itself."""
    found: list[Callable[[signal.Signals], None]] = []

    def handle(take: Callable[[signal.Signals], None], **_limits: float) -> None:
        found.append(take)

    monkeypatch.setattr(supervisor_module, "handle_stop_signals", handle)
    return found


def keep(plan: NodePlan, supervisor: int | None, children: Mapping[str, int]) -> None:
    """Write node.json as a supervisor does that has these children; None for a supervisor that has ended."""
    start = "an-earlier-boot/1" if supervisor is None else start_of(supervisor)
    left = [ChildStatus(name, pid, 0, start=start_of(pid)) for name, pid in children.items()]
    status = NodeStatus(supervisor or 1, "here", tuple(left), start)
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
        keep(plan, None, {"namesrv": child.pid})
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
        keep(plan, supervisor.pid, {"namesrv": child.pid})
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
        keep(plan, None, {"namesrv": child.pid})
        command = ["-c", str(tmp_path / "node.toml"), "--machine", "here", "stop"]
        assert cli.main(command) == 1
    said = capsys.readouterr().err
    assert f"still runs: namesrv, process {child.pid}" in said
    assert "is stopped" not in said


async def test_a_group_that_is_stopping_is_not_asked_again_when_the_machine_is_stopped(
    plan: NodePlan, tmp_path: Path, takers: list[Callable[[signal.Signals], None]]
) -> None:
    with sleeping(plan) as small, process(tmp_path) as gone:
        keep(small, None, {"broker-z": gone.pid})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(small, lambda _line: None).run)
            await wait_until(lambda: signals(tmp_path) == ["SIGTERM"])
            await wait_until(lambda: look(small).is_whole)
            takers[0](signal.SIGTERM)
            # Those that stop side by side with it were asked.
            await wait_until(lambda: "broker-a" not in running(small))
            assert gone.stdin is not None
            gone.stdin.close()
        assert running(small) == set()
    assert signals(tmp_path) == ["SIGTERM"]


async def test_who_goes_on_with_the_stop_of_a_killed_supervisor_asks_nobody_again(
    plan: NodePlan, tmp_path: Path, takers: list[Callable[[signal.Signals], None]]
) -> None:
    lines: list[str] = []
    (tmp_path / "other").mkdir()
    with process(tmp_path) as broker, process(tmp_path / "other") as name_server:
        keep(plan, None, {"namesrv": name_server.pid, "broker-a": broker.pid})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(plan, lines.append).run)
            await wait_until(lambda: len(lines) == 2)
            takers[0](signal.SIGTERM)
            await wait_until(lambda: signals(tmp_path) == ["SIGTERM"])
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(plan, lines.append).stop_orphans)
            await wait_until(lambda: len(lines) == 4)
            for each in (broker, name_server):
                assert each.stdin is not None
                each.stdin.close()
    assert signals(tmp_path) == ["SIGTERM"]
    assert signals(tmp_path / "other") == ["SIGTERM"], "its turn had not come"


async def test_a_stop_without_a_supervisor_that_is_interrupted_has_noted_whom_it_asked(
    plan: NodePlan, tmp_path: Path
) -> None:
    lines: list[str] = []
    with process(tmp_path) as broker:
        keep(plan, None, {"broker-a": broker.pid})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(plan, lambda _line: None).stop_orphans)
            await wait_until(lambda: signals(tmp_path) == ["SIGTERM"])
            nursery.cancel_scope.cancel()
        assert look(plan).supervisor is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Supervisor(plan, lines.append).stop_orphans)
            await wait_until(lambda: bool(lines))
            assert broker.stdin is not None
            broker.stdin.close()
    assert signals(tmp_path) == ["SIGTERM"]


def test_a_process_of_a_group_that_is_gone_is_shown_and_stopped_though_nothing_else_runs(
    plan: NodePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["-c", str(tmp_path / "node.toml"), "--machine", "here"]
    with process(tmp_path) as gone:
        assert gone.stdin is not None
        gone.stdin.close()
        keep(plan, None, {"broker-z": gone.pid})
        assert cli.main([*command, "status"]) == 1
        shown = capsys.readouterr().out
        assert [str(gone.pid) in line for line in shown.splitlines() if "broker-z" in line] == [
            True
        ]
        assert cli.main([*command, "stop"]) == 0
        assert process_of(gone.pid) is None
    said = capsys.readouterr().err
    assert f"broker-z is no longer among the groups: process {gone.pid} is to stop" in said
    assert "machine here is stopped" in said
    assert signals(tmp_path) == ["SIGTERM"]


def running(plan: NodePlan) -> set[str]:
    """The names of what runs on the machine."""
    return {child.name for child in look(plan).children if child.pid is not None}
