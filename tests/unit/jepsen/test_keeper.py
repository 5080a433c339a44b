"""Whatever ends a harness, its processes end, tried on harmless ones; those of others live on."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.keeper import MARK, marked, sweep
from jepsen.processes import Process, is_running, kill_all, poll

WAITS = "import time; time.sleep(300)"

SUPERVISOR = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {WAITS!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""
"""Has a child that would outlive it."""

HARNESS = f"""
import signal, sys, time
from pathlib import Path
from jepsen.processes import Process, poll, sigterm_as_interrupt

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored if the tests run under nohup
sigterm_as_interrupt()
process = Process("node", [sys.executable, "-c", {SUPERVISOR!r}], log=Path(sys.argv[1]), port=1)
process.start()
poll(lambda: process.log_tail(1).isdecimal(), 60)
try:
    print(process.pid, process.log_tail(1), flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
"""Forgets to end what it started."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_what_a_harness_leaves_is_ended_with_its_children(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", HARNESS, str(tmp_path / "node.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as harness:
        try:
            assert harness.stdout is not None
            pids = [int(word) for word in harness.stdout.readline().split()]
            assert len(pids) == 2
            assert all(map(is_running, pids))
            harness.send_signal(number)
            said = harness.stdout.read()
        finally:
            harness.kill()
    assert said == ("" if number is signal.SIGKILL else "interrupted\n")
    assert poll(lambda: not any(map(is_running, pids)), 60)


def test_only_what_carries_the_mark_is_ended() -> None:
    mark = secrets.token_hex(8)  # another run of the tests beside this one has processes, too
    ours, other, stranger = (
        subprocess.Popen([sys.executable, "-c", WAITS], env={**os.environ, **more})
        for more in ({MARK: mark}, {MARK: f"{mark}d"}, {"NAME": f"{MARK}={mark}"})
    )
    try:
        assert sweep(mark, patience_s=60) >= 1, "who takes long to end is killed twice"
        assert ours.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert stranger.poll() is None
    finally:
        for each in (ours, other, stranger):
            each.kill()
            each.wait()


def test_a_harness_has_one_keeper() -> None:
    assert marked() == marked()
    assert MARK not in os.environ


def test_one_process_that_cannot_be_killed_saves_no_other(tmp_path: Path) -> None:
    class Stubborn(Process):
        def kill(self) -> None:
            raise AssertionError("it runs on")

    nodes = [
        Process(name, [sys.executable, "-c", WAITS], log=tmp_path / name, port=1) for name in "ab"
    ]
    stubborn = Stubborn("c", [], log=tmp_path / "c", port=1)
    for node in nodes:
        node.start()
    with pytest.raises(AssertionError, match="it runs on"):
        kill_all([nodes[0], stubborn, nodes[1]])
    assert [node.exit_status for node in nodes] == [-signal.SIGKILL, -signal.SIGKILL]
