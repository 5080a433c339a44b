"""A process is known by its id and start, or by its command, and never mistaken for another one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from broker.processes.identity import find_process, is_same_process, process_of

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


def test_an_id_that_another_process_has_now_is_not_the_same_process() -> None:
    own = process_of(os.getpid())
    assert own is not None
    assert is_same_process(own.pid, own.start)
    boot, _, ticks = own.start.partition("/")
    assert not is_same_process(own.pid, f"{boot}/{int(ticks) + 1}")
    assert not is_same_process(own.pid, f"another-boot/{ticks}")
    assert not is_same_process(own.pid, "")


def test_one_that_has_ended_runs_no_more_though_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        running = process_of(ended.pid)
        assert running is not None
        assert ended.stdin is not None
        ended.stdin.write(b"\n")
        ended.stdin.close()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert not is_same_process(ended.pid, running.start)
    assert process_of(ended.pid) is None


def test_a_program_name_with_blanks_and_brackets_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "60"]) as child:
        try:
            found = process_of(child.pid)
            assert found is not None
            assert found.age_s < 60
        finally:
            child.kill()


def test_a_process_is_found_by_its_whole_command_and_by_no_part_of_it(tmp_path: Path) -> None:
    mark = str(tmp_path / "größe und mehr")
    assert find_process((*SLEEPS, mark)) is None
    with (
        subprocess.Popen((*SLEEPS, mark, "more")) as other,
        subprocess.Popen((*SLEEPS, mark)) as wanted,
    ):
        try:
            # A process that was forked has its parent's command until it runs its own.
            deadline = time.monotonic() + 60
            while (found := find_process((*SLEEPS, mark))) is None:
                assert time.monotonic() < deadline
            assert found.pid == wanted.pid
        finally:
            other.kill()
            wanted.kill()


def test_the_age_of_a_process_is_the_time_since_its_start() -> None:
    before = time.monotonic()
    with subprocess.Popen(SLEEPS) as child:
        try:
            found = process_of(child.pid)
            passed_s = time.monotonic() - before
            assert found is not None
            assert 0 <= found.age_s <= passed_s + 0.02  # a clock tick is 0.01 s
        finally:
            child.kill()
