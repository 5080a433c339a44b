"""A test that hangs, also as it closes what it has opened, ends by name, and what stands behind it is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.processes import poll

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ENDS_S = 300
"""No pytest of one file takes that long, nor three of them on a busy machine."""

HANGING = """
import subprocess, threading
from pathlib import Path

import pytest

class Stuck:
    def __enter__(self): pass
    def __exit__(self, *_): threading.Event().wait()

def test_first():
    child = subprocess.Popen(["sleep", "600"])
    Path("child").write_text(str(child.pid))

@pytest.mark.timeout(2)
def test_stuck():
    with Stuck():
        raise AssertionError

def test_behind(): pass
"""
HANGING_AS_IT_IS_CLOSED = """
import threading

import pytest

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

def test_stuck(stuck):
    raise AssertionError
"""
HANGING_WITH_A_SUPERVISOR = """
import sys, threading
from pathlib import Path
from jepsen.processes import Process, poll

SUPERVISOR = '''
import subprocess, time
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(600)
'''

def test_stuck():
    process = Process("node", [sys.executable, "-c", SUPERVISOR], log=Path("node.log"), port=1)
    process.start()
    poll(lambda: process.log_tail(1).isdecimal(), 60)
    Path("child").write_text(process.log_tail(1))
    threading.Event().wait()
"""
LOOKED_AT = """
import time

def test_looked_at():
    breakpoint()
    time.sleep(4)
"""


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_test_that_hangs_ends_by_name(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")  # the others have no haste
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "tests.conftest", "-p", "tests.hangs"),
            *("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"),
        ],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "test_hanging.py::test_stuck did not end within 2 s" in said
    assert "in __exit__" in said
    of_child = Path("/proc", (tmp_path / "child").read_text(), "cmdline")
    assert poll(lambda: not of_child.exists() or not of_child.read_bytes(), 60)
    if workers:
        assert "1 failed, 2 passed" in said


def _run(
    tmp_path: Path, code: str, typed: str = "", *, timeout_s: int = 2
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_one.py").write_text(code)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntimeout = {timeout_s}\n")
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest"),
            *("-p", "tests.conftest", "-p", "tests.hangs", "-n", "0"),
        ],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )


def test_a_test_that_has_failed_is_watched_while_its_fixtures_end(tmp_path: Path) -> None:
    ended = _run(tmp_path, HANGING_AS_IT_IS_CLOSED)
    assert ended.returncode == 1
    assert "test_one.py::test_stuck did not end within 2 s" in ended.stderr


def test_what_a_supervisor_has_started_ends_with_a_test_that_hangs(tmp_path: Path) -> None:
    ended = _run(tmp_path, HANGING_WITH_A_SUPERVISOR, timeout_s=10)
    assert ended.returncode == 1
    assert "test_one.py::test_stuck did not end within 10 s" in ended.stderr
    of_child = Path("/proc", (tmp_path / "child").read_text(), "cmdline")
    assert poll(lambda: not of_child.exists() or not of_child.read_bytes(), 60)


def test_a_test_that_is_looked_at_with_a_debugger_is_left_alone(tmp_path: Path) -> None:
    ended = _run(tmp_path, LOOKED_AT, typed="continue\n", timeout_s=3)
    assert ended.returncode == 0, ended.stdout + ended.stderr
