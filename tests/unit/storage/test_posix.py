"""The real disk: names stay below the root, writes are whole however the kernel splits them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dledger.errors import UsageError
from dledger.storage import posix
from dledger.storage.posix import PosixDisk


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(tmp_path / "store")


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path / "a" / "b" / "c")
    assert disk.root.is_dir()


def test_the_root_is_durable_even_if_its_maker_was_killed_before_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    synced: list[Path] = []
    monkeypatch.setattr(posix, "_sync_folder", synced.append)
    PosixDisk(tmp_path / "store")
    assert synced == [tmp_path]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a/./b", "a\0b", ".."])
def test_names_never_lead_out_of_the_root(disk: PosixDisk, name: str) -> None:
    for action in (
        lambda: disk.open(name, create=True),
        lambda: disk.list(name),
        lambda: disk.make_folder(name),
        lambda: disk.remove(name),
        lambda: disk.rename(name, "x"),
        lambda: disk.rename("x", name),
        lambda: disk.exists(name),
        lambda: disk.sync_folder(name),
    ):
        with pytest.raises(UsageError, match="plain relative path"):
            action()


def test_a_link_in_place_of_a_file_is_not_followed(disk: PosixDisk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (disk.root / "x").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match=r"symbolic links|Too many levels"):
        disk.open("x")


def test_files_are_not_inherited_by_children(disk: PosixDisk) -> None:
    file = disk.open("x", create=True)
    assert not os.get_inheritable(file._descriptor)
    file.close()
    file.close()


def test_short_writes_are_continued(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may take less than it was given: at a signal, or near the end of the device."""
    real_many, real_one = os.pwritev, os.pwrite
    taken = iter([3, 7, 1])
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: real_many(fd, [b"".join(parts)[:5]], at)
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_one(fd, data[: next(taken, 2)], at))
    file = disk.open("x", create=True)
    file.write_at(2, (b"0123456", b"", b"789abcdefgh"))
    assert file.read_at(0, 100) == b"\0\x000123456789abcdefgh"


def test_a_write_that_makes_no_progress_is_an_error(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: 0)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    file = disk.open("x", create=True)
    with pytest.raises(OSError, match="nothing written at byte 4"):
        file.write_at(4, (b"data",))


def test_short_reads_are_continued(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("x", create=True)
    file.write_at(0, (bytes(range(100)),))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 7), at))
    assert file.read_at(10, 50) == bytes(range(10, 60))
    assert file.read_at(90, 50) == bytes(range(90, 100))
    assert file.read_at(100, 50) == b""


def test_what_the_system_has_in_memory_is_read_whole_or_not_at_all(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("f", create=True)
    file.write_at(0, (b"x" * 100_000,))
    found = file.read_resident(5, 90_000)
    assert found is None or found == b"x" * 90_000, "a file system may not be able to tell"
    assert file.read_resident(50_000, 50_001) is None
    asked: list[int] = []

    def not_there(_descriptor: int, _buffers: object, _offset: int, flags: int) -> int:
        asked.append(flags)
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    monkeypatch.setattr(os, "preadv", not_there)
    assert file.read_resident(5, 10) is None
    assert asked == [os.RWF_NOWAIT]
    monkeypatch.setattr(os, "preadv", lambda *_: 9)
    assert file.read_resident(5, 10) is None
    file.close()


def test_a_full_device_shows_at_preallocation(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = disk.open("x", create=True)
    file.preallocate(0)
    with pytest.raises(OSError, match="No space left"):
        file.preallocate(10)
    assert file.size() == 0


def test_only_this_module_syncs() -> None:
    """The disk stays behind its interface: nothing else in the package calls fsync or fdatasync."""
    package = Path(posix.__file__).parents[1]
    callers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "os.fsync(" in (text := path.read_text()) or "os.fdatasync(" in text
    }
    assert callers == {"storage/posix.py"}


def test_a_folder_that_is_there_may_have_been_made_by_a_process_that_was_killed(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not yet synced the folder around it."""
    around = disk.root
    (around / "data").mkdir()
    synced: list[Path] = []
    monkeypatch.setattr(posix, "_sync_folder", synced.append)
    disk.make_folder("data")
    assert synced == [around]
