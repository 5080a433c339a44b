"""A test that hangs, also as it closes what it has opened, ends by name, and what stands behind it is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.processes import poll

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HANGING = """
import subprocess, threading
from pathlib import Path

class Stuck:
    def __enter__(self): pass
    def __exit__(self, *_): threading.Event().wait()

def test_first(): pass

def test_stuck():
    child = subprocess.Popen(["sleep", "600"])
    Path("child").write_text(str(child.pid))
    with Stuck():
        raise AssertionError

def test_behind(): pass
"""


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_test_that_hangs_ends_by_name(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 2\n")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "tests.conftest", "-p", "tests.hangs"),
            *("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"),
        ],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "test_hanging.py::test_stuck did not end within 2 s" in said
    assert "in __exit__" in said
    of_child = Path("/proc", (tmp_path / "child").read_text(), "cmdline")
    assert poll(lambda: not of_child.exists() or not of_child.read_bytes(), 10)
    if workers:
        assert "1 failed, 2 passed" in said
