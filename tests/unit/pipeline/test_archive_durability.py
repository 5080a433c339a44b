"""An archive whose last run was killed: what it lists is durable before anybody goes by it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dledger import DiskFullError
from dledger.raft.ids import Index, Position
from dledger.storage.posix import PosixDisk, PosixFile

pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from pipeline.archive.manifests import (
    MANIFESTS,
    ArchivedFile,
    Manifest,
    load_manifests,
    write_manifest,
)
from pipeline.archive.parts import StagedFile
from pipeline.archive.writing import Archive

FOLDER = "topic=T/date=2023-11-14"
MANIFEST = Manifest(
    broker_name="g",
    first_index=Index(1),
    last_index=Index(5),
    first_position=Position(0),
    end_position=Position(400),
    first_chain_crc=0,
    last_chain_crc=7,
    known_by="test",
    rows=1,
    queues=(),
    files=(ArchivedFile(f"{FOLDER}/part.parquet", 1, 1, 0),),
)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were synced, in this order."""
    folders: list[str] = []
    sync_folder = PosixDisk.sync_folder

    def note(disk: PosixDisk, folder: str) -> None:
        sync_folder(disk, folder)
        folders.append(folder)

    monkeypatch.setattr(PosixDisk, "sync_folder", note)
    return folders


def test_a_manifest_that_a_killed_run_left_is_durable_before_it_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut takes it back, and the next run removes the files that it listed as strays."""
    write_manifest(tmp_path, MANIFEST)
    sync_folder = PosixDisk.sync_folder

    def fail(disk: PosixDisk, folder: str) -> None:
        if folder == MANIFESTS:
            raise OSError(errno.EIO, "simulated sync failure")
        sync_folder(disk, folder)

    monkeypatch.setattr(PosixDisk, "sync_folder", fail)
    with pytest.raises(OSError, match="simulated"):
        Archive(tmp_path)


def test_folders_that_a_killed_run_made_are_durable_before_a_manifest_lists_what_is_in_them(
    tmp_path: Path, synced: list[str]
) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    with Archive(tmp_path) as archive:
        staged = tmp_path / "_staging" / "part.parquet"
        staged.write_bytes(b"x")
        del synced[:]
        archive._place([StagedFile(str(staged), FOLDER, 1, 1, 0)], MANIFEST)
    assert set(synced) >= {"", "topic=T", FOLDER}
    assert (tmp_path / FOLDER / "part.parquet").read_bytes() == b"x"


def test_a_manifest_without_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: PosixFile, _offset: int, _parts: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PosixFile, "write_at", fail)
    with pytest.raises(DiskFullError, match="no room"):
        write_manifest(tmp_path, MANIFEST)
    assert load_manifests(tmp_path) == []
    assert list((tmp_path / MANIFESTS).iterdir()) == []
