"""One process per store."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.errors import StoreLockedError
from dledger.storage import posix
from dledger.storage.lock import StoreLock


def is_locked(store: Path) -> bool:
    """Ask the kernel, as another process would."""
    with (store / "lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_held_store_is_refused_naming_file_and_process(tmp_path: Path) -> None:
    with StoreLock(tmp_path / "store") as held:
        with pytest.raises(StoreLockedError) as caught:
            StoreLock(tmp_path / "store")
        assert held.path == str(tmp_path / "store" / "lock")
        assert held.path in str(caught.value)
        assert f"process {os.getpid()}" in str(caught.value)
    assert not is_locked(tmp_path / "store")


def test_the_name_of_a_new_store_is_durable_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut took the whole store of a young group: its folder had never been synced."""
    synced: list[Path] = []
    monkeypatch.setattr(posix, "_sync_folder", synced.append)
    StoreLock(tmp_path / "a" / "store").release()
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_released_store_can_be_taken_again(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    lock.release()
    lock.release()
    with StoreLock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_lock_of_another_store_is_no_hindrance(tmp_path: Path) -> None:
    with StoreLock(tmp_path / "a") as one, StoreLock(tmp_path / "b") as other:
        assert one.path != other.path
        assert is_locked(tmp_path / "a")
        assert is_locked(tmp_path / "b")
    assert not is_locked(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.integration
def test_the_kernel_drops_the_lock_of_a_process_that_dies(tmp_path: Path) -> None:
    script = (
        "import sys; from dledger.storage.lock import StoreLock\n"
        "lock = StoreLock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match=f"process {process.pid}"):
            StoreLock(tmp_path)
    finally:
        process.kill()
        process.communicate(timeout=60)
    StoreLock(tmp_path).release()


def test_a_full_disk_costs_the_name_of_the_process_and_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with StoreLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(StoreLockedError, match="process unknown"):
            StoreLock(tmp_path)
    assert not is_locked(tmp_path)


def test_a_lock_that_is_not_given_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks says so; an embedding process may try again with another folder."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="locks"):
        StoreLock(tmp_path)
    # Files that earlier tests have left to the collector may go meanwhile.
    assert set(Path("/proc/self/fd").iterdir()) <= before
