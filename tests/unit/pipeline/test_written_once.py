"""Files that are written once: whole, durable, and the first writer's."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.storage.posix import PosixDisk, PosixFile
from pipeline.errors import InconclusiveError
from pipeline.written_once import written_once


def test_it_is_settled_once_and_read_ever_after(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.json"
    assert written_once(file, "it", lambda: {"x": [1]}) == {"x": [1]}
    assert written_once(file, "it", lambda: pytest.fail("asked again")) == {"x": [1]}
    assert [each.name for each in file.parent.iterdir()] == ["b.json"]


def test_who_comes_second_gets_what_the_first_one_wrote(tmp_path: Path) -> None:
    file = tmp_path / "b.json"

    def settle_slowly() -> int:
        assert written_once(file, "it", lambda: 1) == 1, "another one is faster"
        return 2

    assert written_once(file, "it", settle_slowly) == 1


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    with pytest.raises(InconclusiveError, match=r"it in .*/file cannot be read"):
        written_once(tmp_path / "file", "it", lambda: 1)
    with pytest.raises(InconclusiveError, match=r"it cannot be kept in .*/file/m"):
        written_once(tmp_path / "file" / "m", "it", lambda: 1)


def test_what_another_one_wrote_is_durable_before_it_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have been killed before it synced the folder."""
    file = tmp_path / "b.json"
    written_once(file, "it", lambda: 1)

    def fail(_disk: PosixDisk, _folder: str) -> None:
        raise OSError(errno.EIO, "simulated sync failure")

    monkeypatch.setattr(PosixDisk, "sync_folder", fail)
    with pytest.raises(InconclusiveError, match=r"it in .* cannot be read: .*simulated"):
        written_once(file, "it", lambda: 1)


def test_who_comes_second_does_not_believe_what_the_first_one_left_unsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.json"

    def fail(_disk: PosixDisk, _folder: str) -> None:
        raise OSError(errno.EIO, "simulated sync failure")

    def settle_slowly() -> int:
        file.write_text("1")
        monkeypatch.setattr(PosixDisk, "sync_folder", fail)
        return 2

    with pytest.raises(InconclusiveError, match=r"it cannot be kept in .*simulated"):
        written_once(file, "it", settle_slowly)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: PosixFile, _offset: int, _parts: Sequence[bytes]) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(PosixFile, "write_at", fail)
    with pytest.raises(InconclusiveError, match=r"it cannot be kept in .*no room"):
        written_once(tmp_path / "b.json", "it", lambda: 1)
    assert list(tmp_path.iterdir()) == []
