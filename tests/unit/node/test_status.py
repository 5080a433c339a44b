"""node.json: kept on a disk that may be full, and read without disturbing anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from broker.node.config import read_node_file
from broker.node.plan import NodePlan, plan_node
from broker.node.status import STATUS_NAME, NodeStatus, StatusFile, look, read_status
from broker.processes.child import ChildStatus
from broker.processes.identity import process_of


@pytest.fixture
def plan(tmp_path: Path) -> NodePlan:
    file = read_node_file('[machines]\nhere = "127.0.0.1"\n', folder=tmp_path)
    return plan_node(file, "here", secret=None)


def keep(plan: NodePlan, status: NodeStatus) -> None:
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / STATUS_NAME).write_bytes(msgspec.json.encode(status))


def test_a_disk_that_takes_nothing_is_said_once_and_so_is_its_recovery(tmp_path: Path) -> None:
    lines: list[str] = []
    file = StatusFile(tmp_path, "here", lines.append)
    in_the_way = tmp_path / "node.new"
    in_the_way.mkdir()
    for restarts in range(3):
        file.write([ChildStatus("namesrv", None, 0, restarts)])
    assert file.is_behind
    path = tmp_path / STATUS_NAME
    assert lines == [
        f"{path} cannot be written: Is a directory; everything goes on, and it is tried again"
    ]
    in_the_way.rmdir()
    file.write([ChildStatus("namesrv", None, 0, 7)])
    file.write([ChildStatus("namesrv", None, 0, 8)])
    assert not file.is_behind
    assert lines[1:] == [f"{path} is written again"]
    status = read_status(tmp_path)
    assert status is not None
    assert (status.pid, status.children[0].restarts) == (os.getpid(), 8)


def test_one_that_cannot_be_removed_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / STATUS_NAME).mkdir()
    StatusFile(tmp_path, "here", lines.append).remove()
    assert lines == [f"{tmp_path / STATUS_NAME} cannot be removed: Is a directory"]


def test_to_look_makes_no_folder_and_no_file(plan: NodePlan) -> None:
    seen = look(plan)
    assert (seen.supervisor, seen.children, seen.is_whole) == (None, (), False)
    assert not plan.folder.exists()


def test_another_process_with_the_id_is_neither_supervisor_nor_child(plan: NodePlan) -> None:
    with subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)")) as other:
        try:
            left = [ChildStatus("namesrv", other.pid, 0, start="earlier/1")]
            keep(plan, NodeStatus(other.pid, "here", tuple(left), start="earlier/1"))
            seen = look(plan)
            assert (seen.supervisor, seen.children) == (None, ())
            now = process_of(other.pid)
            assert now is not None
            keep(plan, NodeStatus(other.pid, "here", tuple(left), start=now.start))
            seen = look(plan)
            assert seen.supervisor == other.pid
            assert [(child.name, child.pid) for child in seen.children] == [
                ("namesrv", None),
                ("broker-a", None),
            ]
        finally:
            other.kill()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b'{"pid": "x", "machine": "here", "children": []}',
        b'{"pid": 99999999999999999999, "machine": "here", "children": []}',
        b'{"pid": -1, "machine": "here", "children": [{"name": "namesrv", "pid": 0, "since_ms": 0}]}',
        b'{"pid": 4194999, "machine": "here", "children": [{"name": "other", "pid": 1, "since_ms": 0}]}',
    ],
)
def test_a_file_with_anything_in_it_is_no_running_machine(content: bytes, plan: NodePlan) -> None:
    plan.folder.mkdir(parents=True)
    (plan.folder / STATUS_NAME).write_bytes(content)
    seen = look(plan)
    assert (seen.supervisor, seen.children) == (None, ())


COUNTS_SIGNALS = """
import signal, sys
def take(number, frame):
    print("SIGTERM", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, take)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("is_stopping", "signals"), [(False, ["SIGTERM"]), (True, [])])
def test_a_second_stop_waits_for_the_first_one_and_asks_for_no_haste(
    is_stopping: bool, signals: list[str], plan: NodePlan, tmp_path: Path
) -> None:
    (tmp_path / "node.toml").write_text('[machines]\nhere = "127.0.0.1"\n')
    command = [sys.executable, "-m", "broker.node.cli", "-c", str(tmp_path / "node.toml")]
    with subprocess.Popen(
        (sys.executable, "-c", COUNTS_SIGNALS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        own = process_of(supervisor.pid)
        assert own is not None
        status = NodeStatus(own.pid, "here", (), own.start, is_stopping=is_stopping)
        keep(plan, status)
        assert look(plan).is_stopping == is_stopping
        with subprocess.Popen(
            [*command, "--machine", "here", "stop"], stderr=subprocess.PIPE, text=True
        ) as stop:
            assert stop.stderr is not None
            if is_stopping:
                # It waits for the end of the supervisor: nothing else ends it.
                assert stop.stderr.readline().startswith("waiting for process")
                supervisor.stdin.close()
            assert stop.wait(timeout=60) == 0
        assert supervisor.stdout.read().split() == signals
