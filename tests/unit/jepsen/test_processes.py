"""Starting and ending child processes, tried on harmless ones."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from jepsen.processes import Group, Process, ProcessDiedError, is_running, poll

WAITS = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


INTERRUPTIBLE = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts its background jobs
from jepsen.processes import sigterm_as_interrupt
sigterm_as_interrupt()
try:
    print('up', flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def child(folder: Path, code: str, name: str = "child") -> Process:
    return Process(name, [sys.executable, "-c", code], log=folder / f"{name}.log", port=1)


def wait_up(process: Process) -> None:
    assert poll(lambda: "up" in process.log_tail().splitlines(), 60)


def test_kill_and_start_again_keep_one_log(tmp_path: Path) -> None:
    process = child(tmp_path, WAITS)
    process.start()
    wait_up(process)
    first = process.pid
    assert first is not None
    process.kill()
    assert process.pid is None
    assert not is_running(first)
    process.start()
    assert poll(lambda: process.log_tail().splitlines().count("up") == 2, 60)
    process.kill()


@pytest.mark.slow
def test_stop_is_patient_but_not_for_ever(tmp_path: Path) -> None:
    polite, stubborn = child(tmp_path, WAITS, "polite"), child(tmp_path, STUBBORN, "stubborn")
    for process in (polite, stubborn):
        process.start()
        wait_up(process)
    assert polite.stop(60) == -signal.SIGTERM
    assert stubborn.stop(patience_s=0.1) == -signal.SIGKILL


def test_sigterm_ends_a_background_job_as_an_interruption(tmp_path: Path) -> None:
    process = child(tmp_path, INTERRUPTIBLE)
    process.start()
    wait_up(process)
    assert process.stop(60) == 130


def test_a_paused_process_can_be_stopped(tmp_path: Path) -> None:
    process = child(tmp_path, WAITS)
    process.start()
    wait_up(process)
    process.pause()
    assert process.is_paused
    assert process.stop(60) == -signal.SIGTERM


def test_leaving_a_group_ends_its_processes_whatever_happened(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail_in_the_middle() -> None:
        with Group(tmp_path) as group:
            for process in group.processes():
                process.command = [sys.executable, "-c", WAITS]
            group.start()
            pids.extend(process.pid for process in group.processes() if process.pid is not None)
            raise KeyError

    with pytest.raises(KeyError):
        fail_in_the_middle()
    assert len(pids) == 4
    assert not any(is_running(pid) for pid in pids)


def test_a_process_that_ends_by_itself_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    with Group(tmp_path, nodes=1) as group:
        for process in group.processes():
            process.command = [sys.executable, "-c", "print('no such option'); raise SystemExit(3)"]
        group.start()
        with pytest.raises(ProcessDiedError, match="no such option"):
            group.wait_listening(60)


def test_names_and_addresses(tmp_path: Path) -> None:
    group = Group(tmp_path, nodes=3, name_servers=2)
    assert [node.name for node in group.nodes] == ["n0", "n1", "n2"]
    assert group.namesrv == ";".join(server.address for server in group.name_servers)
    assert group.peers.count("127.0.0.1") == 3
    assert group.by_address[group.node("n1").address].name == "n1"


def test_an_end_that_nobody_asked_for_is_told_once(tmp_path: Path) -> None:
    process = child(tmp_path, "print('up', flush=True); input(); raise SystemExit('broken')")
    process.start()  # its input is empty: it ends at once
    assert poll(lambda: process.pid is None, 60)
    process.command = [sys.executable, "-c", WAITS]
    process.start()
    (end,) = process.take_unexpected_exits()
    assert end.status == 1
    assert "EOFError" in end.words
    process.kill()
    assert process.take_unexpected_exits() == []


@pytest.mark.slow
def test_an_end_that_was_asked_for_is_none(tmp_path: Path) -> None:
    process = child(tmp_path, WAITS)
    for end in (process.kill, process.stop, process.kill):
        process.start()
        assert poll(lambda: "up" in process.log_tail(1), 60)
        end()
        assert process.take_unexpected_exits() == []


@pytest.mark.slow
def test_who_stops_with_an_error_has_not_stopped_in_order(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit('no')); " + WAITS
    process = child(tmp_path, code)
    process.start()
    wait_up(process)
    assert process.stop(60) == 1
    assert [end.words for end in process.take_unexpected_exits()] == ["no"]
