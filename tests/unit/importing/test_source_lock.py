"""RocketMQ's lock of a store: as its Java takes it, an exclusive lock on the first byte, of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.importing.errors import SourceError
from broker.importing.source_lock import hold_source

TAKE = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
except OSError:
    sys.exit(7)
print("held", flush=True)
sys.stdin.read()
"""


def can_be_taken(path: Path) -> bool:
    """Return whether another process gets the lock now."""
    taken = subprocess.run(
        [sys.executable, "-c", TAKE, str(path)], stdin=subprocess.DEVNULL, check=False, timeout=60
    )
    assert taken.returncode in {0, 7}
    return taken.returncode == 0


def test_no_broker_starts_while_a_store_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with hold_source(tmp_path):
        assert not can_be_taken(path)
    assert can_be_taken(path)


def test_a_store_whose_broker_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    command = [sys.executable, "-c", TAKE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdin is not None
        assert broker.stdout.readline() == b"held\n"
        with pytest.raises(SourceError, match="stop its broker first"), hold_source(tmp_path):
            pass
        broker.stdin.close()
    with hold_source(tmp_path):
        assert not can_be_taken(path)


def test_a_copy_without_a_lock_stays_without(tmp_path: Path) -> None:
    with hold_source(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
