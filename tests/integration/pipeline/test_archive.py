"""The archive: what it holds, what a run leaves that is ended anywhere, and what retention may go by."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from dledger.raft.entry import Entry, EntryKind
from dledger.storage.posix import PosixDisk
from dledger_mq.message.record import decode_records
from jepsen.processes import poll
from pipeline.archive import writing
from pipeline.archive.manifests import (
    ArchiveError,
    Manifest,
    listed_files,
    load_manifests,
    may_delete,
    topic_of,
    write_manifest,
)
from pipeline.archive.parts import StagedFile
from pipeline.archive.writing import Archive, expired_index
from pipeline.errors import PipelineError
from pipeline.scan.plan import CommittedBound
from pipeline.scan.stores import Store
from pipeline.spark.archive_rows import parquet_rows
from tests.unit.pipeline.stores import orders, write_store
from tests.unit.store.lone_broker import START_MS

ALL = CommittedBound(None, "test")
DAY_MS = 86_400_000


def archived(spark: Any, archive: Path) -> list[tuple[Any, ...]]:
    rows = parquet_rows(spark, listed_files(archive), str(archive))
    columns = ("topic", "queueId", "queueOffset", "body", "physicalOffset", "date")
    return sorted(
        (*row[:3], bytes(row[3]), row[4], row[5]) for row in rows.select(*columns).collect()
    )


def plainly(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.body,
            record.physical_offset,
            "2023-11-14" if record.store_timestamp_ms < START_MS + 6_400_000 else "2023-11-15",
        )
        for entry in entries
        if entry.kind is EntryKind.NORMAL
        for record in decode_records(entry.body)
    )


def add_all(
    spark: Any,
    archive: Path,
    store: Path,
    bound: CommittedBound = ALL,
    stretch_bytes: int = 1 << 40,
    told: Callable[[int], None] = lambda _: None,
) -> int:
    with Archive(archive) as opened:
        found = opened.stretches(Store(store), bound, stretch_bytes)
        for stretch in found:
            opened.add(
                spark,
                Store(store),
                stretch,
                broker_name="broker-a",
                known_by=bound.known_by,
                told=told,
            )
    return len(found)


def files_under(archive: Path) -> set[str]:
    return {
        str(path.relative_to(archive))
        for path in archive.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    broker = orders(30, topics=("orders", "%RETRY%bills", "a b=c"))
    broker.now_ms += DAY_MS
    for number in range(6):
        broker.stage("orders", 0, b"next day %d" % number * 60)
        broker.commit()
    return broker.log.entries


def test_history_is_archived_once_by_topic_and_date(
    spark: Any, tmp_path: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    sealed = write_store(store, entries, 2000)
    assert add_all(spark, archive, store, CommittedBound(7, "test")) == 1
    assert archived(spark, archive) == plainly(entries[:7])
    monkeypatch.setattr(writing, "PART_BYTES_MIN", 1000)
    told: list[int] = []
    assert add_all(spark, archive, store, told=told.append) == 1
    assert len(told) == 2, "of each part, by its task"
    assert sum(told) == sealed[-1].end_position - load_manifests(archive)[0].end_position
    assert add_all(spark, archive, store) == 0
    assert archived(spark, archive) == plainly(entries)
    first, second = load_manifests(archive)
    assert (first.first_index, first.last_index, second.first_index) == (1, 7, 8)
    assert second.end_position == sealed[-1].end_position
    assert {topic_of(file.path) for file in second.files} == {"orders", "%RETRY%bills", "a b=c"}
    assert {each.topic for each in second.queues} == {"orders", "%RETRY%bills", "a b=c"}
    listed = {file.path for each in (first, second) for file in each.files}
    assert listed == {name for name in files_under(archive) if name.endswith(".parquet")}
    assert set(listed_files(archive, frozenset({"orders"}))) < set(listed_files(archive))
    # What retention may go by.
    assert may_delete(archive, store, first.end_position)
    assert may_delete(archive, store, second.end_position)
    assert not may_delete(archive, store, second.end_position + 1)
    assert not may_delete(tmp_path / "none", store, 48)
    # Another log, a changed file, a missing file, a missing manifest: nothing may be deleted.
    other = tmp_path / "other"
    write_store(other, orders(60).log.entries, 2000)
    assert not may_delete(archive, other, first.end_position)
    with pytest.raises(ArchiveError, match="another log"):
        add_all(spark, archive, other)
    victim = archive / first.files[0].path
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not may_delete(archive, store, 48)
    victim.unlink()
    with pytest.raises(ArchiveError, match="is missing, and a manifest lists it"):
        listed_files(archive)
    victim.write_bytes(content)
    (archive / "_manifests" / f"{7:020}.json").rename(archive / "kept")
    with pytest.raises(ArchiveError, match="a manifest is missing"):
        load_manifests(archive)
    assert not may_delete(archive, store, 48)


class EndedError(BaseException):
    """Stands for SIGKILL: nothing of ours may run after it."""


@pytest.mark.parametrize("step", ["staged", "half placed", "placed"])
def test_what_an_ended_run_leaves_is_not_taken_for_whole(
    spark: Any, tmp_path: Path, entries: list[Entry], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    write_store(store, entries)
    add_all(spark, archive, store, CommittedBound(7, "test"))
    before = archived(spark, archive)

    def end(*_: Any) -> None:
        raise EndedError

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Archive, "_remove_strays", lambda _: None)
        if step == "staged":
            patch.setattr(Archive, "_place", end)
        elif step == "half placed":
            patch.setattr(Archive, "_place", end_after_one(PosixDisk.rename))
        else:
            patch.setattr(writing, "write_manifest", end)
        with pytest.raises(EndedError):
            add_all(spark, archive, store)
    if step == "placed":
        (archive / "_manifests" / f"{20:020}.json.aside").write_text("{")
    assert archived(spark, archive) == before
    assert add_all(spark, archive, store) == 1
    assert archived(spark, archive) == plainly(entries)
    listed = {file.path for each in load_manifests(archive) for file in each.files}
    assert {name for name in files_under(archive) if "_manifests" not in name} == listed


def end_after_one(rename: Any) -> Any:
    def place(self: Archive, staged: list[StagedFile], manifest: Any) -> None:
        disk = PosixDisk(self.path)
        disk.make_folder(staged[0].folder)
        rename(disk, str(Path(staged[0].path).relative_to(self.path)), manifest.files[0].path)
        raise EndedError

    return place


def test_one_run_at_a_time_and_manifests_are_checked(tmp_path: Path) -> None:
    with Archive(tmp_path), pytest.raises(PipelineError, match="another run writes"):
        Archive(tmp_path)
    manifest = Manifest("g", 1, 5, 0, 400, 0, 7, "test", 0, (), ())
    path = write_manifest(tmp_path, manifest)
    assert load_manifests(tmp_path) == [manifest]
    write_manifest(tmp_path, replace(manifest, first_index=6, last_index=9, first_chain_crc=8))
    with pytest.raises(ArchiveError, match="goes on another log"):
        load_manifests(tmp_path)
    path.write_text(path.read_text().replace('"endPosition": 400', '"endPosition": 500'))
    with pytest.raises(ArchiveError, match="its crc32c is"):
        load_manifests(tmp_path)
    path.write_text("[]")
    with pytest.raises(ArchiveError, match="is no manifest"):
        load_manifests(tmp_path)


def test_expired_are_finished_segments_with_nothing_younger(
    tmp_path: Path, entries: list[Entry]
) -> None:
    write_store(tmp_path, entries, 2000)
    store = Store(tmp_path)
    assert expired_index(store, START_MS) == 0
    middle = expired_index(store, START_MS + DAY_MS)
    assert 0 < middle < expired_index(store, START_MS + 2 * DAY_MS) < entries[-1].index
    ends = {segment.first_position for segment in store.segments}
    assert entries[middle].position in ends


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root and mount for a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_told_and_leaves_what_was_whole(
    spark: Any, tmp_path: Path, small_disk: Path
) -> None:
    broker = orders(12)
    bound = CommittedBound(broker.log.entries[-1].index, "test")
    for number in range(200):
        broker.stage("noise", 0, os.urandom(4000) + b"%d" % number)
        broker.commit()
    store, archive = tmp_path / "store", small_disk / "archive"
    write_store(store, broker.log.entries, 1 << 20)
    add_all(spark, archive, store, bound)
    before = files_under(archive)
    with pytest.raises(
        ArchiveError, match=r"no room for entries .*archive; what was begun is removed"
    ):
        add_all(spark, archive, store)
    assert files_under(archive) == before
    assert len(archived(spark, archive)) == 12
    assert may_delete(archive, store, 48)


@pytest.mark.slow
@pytest.mark.integration
def test_a_killed_run_is_gone_on_with(spark: Any, tmp_path: Path, entries: list[Entry]) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    write_store(store, entries, 2000)
    with Archive(archive) as opened:
        several = len(opened.stretches(Store(store), ALL, 1000))
    assert several > 4
    script = (
        "import sys, time, pipeline.archive.writing as w\n"
        "from pipeline.spark.session import open_session\n"
        "from pipeline.scan.plan import CommittedBound\n"
        "from pipeline.scan.stores import Store\n"
        "spark, store = open_session('killed', master='local[1]'), Store(sys.argv[1])\n"
        "with w.Archive(sys.argv[2]) as archive:\n"
        "    for done, each in enumerate(archive.stretches(store, CommittedBound(None, 'test'), 1000)):\n"
        "        while done == 4:\n"  # however late the kill comes, it is not over
        "            time.sleep(1)\n"
        "        archive.add(spark, store, each, broker_name='broker-a', known_by='test')\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(store), str(archive)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert poll(lambda: len(load_manifests(archive)) > 0 or run.poll() is not None, 600)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        _, said = run.communicate()
    assert run.returncode == -signal.SIGKILL, said.decode()
    assert 0 < len(load_manifests(archive)) < several
    assert add_all(spark, archive, store) == 1
    assert archived(spark, archive) == plainly(entries)
    assert (
        json.loads(next((archive / "_manifests").iterdir()).read_text())["brokerName"] == "broker-a"
    )
