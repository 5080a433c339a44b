"""An archive in an object store: whole stretches only, whoever writes at the same time and wherever a run ends.

Spark is not needed for that: parts are written one after the other in this process. What is the same in every kind of
store is tried in the quickest one, a name node in this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow.parquet as pq

from broker.admin.archive_search import ArchiveSearch
from dledger.raft.entry import Entry, EntryKind
from dledger_mq.message.record import decode_records
from pipeline.archive import told_parts, writing
from pipeline.archive.history import History
from pipeline.archive.manifests import (
    MANIFESTS,
    ArchiveError,
    create_manifest,
    listed_files,
    load_manifests,
    may_delete,
    topic_of,
    write_manifest,
)
from pipeline.archive.parts import Part, stage_part
from pipeline.archive.search import find_archived
from pipeline.archive.writing import ObjectArchive, OpenArchive, open_archive
from pipeline.cli import main
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.folders import source_of
from pipeline.locations import GS, HDFS, S3, ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.scan.plan import CommittedBound
from pipeline.scan.stores import Store
from tests.unit.pipeline.object_stores import store_of
from tests.unit.pipeline.stores import orders, write_store

pytestmark = pytest.mark.slow
ALL = CommittedBound(None, "test")


class EndedError(BaseException):
    """Stands for SIGKILL: nothing of ours may run after it."""


class OneByOne:
    """Does in this process what Spark does in tasks."""

    def __init__(self, cores: int = 2) -> None:
        self.__dict__ |= {"sparkContext": self, "defaultParallelism": cores}

    def parallelize(self, parts: list[Any], _: int) -> Any:
        def mapped(stage: Callable[[Any], Any]) -> Any:
            return SimpleNamespace(collect=lambda: [stage(part) for part in parts])

        return SimpleNamespace(map=mapped)

    def accumulator(self, start: int, param: Any) -> Any:
        return SimpleNamespace(add=partial(param.addInPlace, start))


class Log(NamedTuple):
    folder: Path
    entries: list[Entry]


@pytest.fixture(scope="module", params=[HDFS])
def bucket(request: pytest.FixtureRequest) -> Iterator[ObjectPath]:
    with store_of(request.param) as place:
        yield place


in_every_kind = pytest.mark.parametrize("bucket", [S3, GS, HDFS], indirect=True)


@pytest.fixture
def place(bucket: ObjectPath, request: pytest.FixtureRequest) -> ObjectPath:
    test: str = request.node.name
    return bucket / test.replace("[", "-").replace("]", "").replace(" ", "-")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    folder = tmp_path_factory.mktemp("log") / "store"
    entries = orders(40, topics=("orders", "%RETRY%bills", "a b=c")).log.entries
    write_store(folder, entries, 2000)
    return Log(folder, entries)


def add(archive: OpenArchive, log: Log, up_to: int | None = None) -> int:
    """Archive what is missing, as one stretch; returns how many that were."""
    store = Store(log.folder)
    bound = ALL if up_to is None else CommittedBound(up_to, "test")
    found = archive.stretches(store, bound, 1 << 40)
    for stretch in found:
        archive.add(OneByOne(), store, stretch, broker_name="broker-a", known_by="test")
    return len(found)


def test_each_part_is_told_when_it_is_done(
    place: ObjectPath, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PART_BYTES_MIN", 1000)
    told: list[int] = []
    with open_archive(place) as archive:
        (stretch,) = archive.stretches(Store(log.folder), ALL)
        archive.add(
            OneByOne(8),
            Store(log.folder),
            stretch,
            broker_name="broker-a",
            known_by="test",
            told=told.append,
        )
    assert len(told) > 4
    assert sum(told) == stretch.size_bytes


def archived(place: ObjectPath | Path) -> list[tuple[Any, ...]]:
    rows = []
    for path in listed_files(place):
        base = str(place)
        with source_of(path) as file:
            for row in pq.ParquetFile(file).read().to_pylist():
                topic = topic_of(path.removeprefix(f"{base}/"))
                rows.append((topic, row["queueId"], row["queueOffset"], row["body"]))
    return sorted(rows)


def plainly(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return sorted(
        (record.topic, record.queue_id, record.queue_offset, record.body)
        for entry in entries
        if entry.kind is EntryKind.NORMAL
        for record in decode_records(entry.body)
    )


def rows_in(place: ObjectPath) -> set[str]:
    return {path for path in ObjectFolder(place).files("") if path.endswith(".parquet")}


def listed_in(place: ObjectPath) -> set[str]:
    return {file.path for each in load_manifests(place) for file in each.files}


@in_every_kind
def test_a_log_is_archived_read_searched_and_may_be_deleted(
    place: ObjectPath, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_archive(str(place)) as archive:
        assert isinstance(archive, ObjectArchive)
        assert add(archive, log, 7) == 1
    with pytest.raises(PipelineUsageError, match="is no archive"):
        History(place / "none", lambda _: True, None)
    with open_archive(place) as archive:
        assert add(archive, log) == 1
        assert add(archive, log) == 0
    assert archived(place) == plainly(log.entries)
    assert rows_in(place) == listed_in(place)
    assert [each.first_index for each in load_manifests(place)] == [1, 8]
    history = History(place, lambda topic: topic == "orders", None)
    assert sum(each.end - each.start for each in history.bounds.values()) == len(
        [row for row in plainly(log.entries) if row[0] == "orders"]
    )
    assert history.offsets_at(history.bounds, 0) == dict.fromkeys(history.bounds, 0)
    found = list(find_archived(str(place), ArchiveSearch(topic="orders", key="k3")))
    assert [row["queueId"] for row in found] == [1]
    assert main(["archive", str(log.folder), str(place), "--check", "--json"]) == 0
    assert f'"archive": "{place}"' in capsys.readouterr().out
    end = load_manifests(place)[-1].end_position
    assert may_delete(place, log.folder, end)
    folder, victim = ObjectFolder(place), load_manifests(place)[0].files[0].path
    content = folder.read(victim)
    folder.remove(victim)
    assert not may_delete(place, log.folder, 48)
    with pytest.raises(ArchiveError, match="is missing, and a manifest lists it"):
        listed_files(place)
    folder.create(victim, content[:-1] + bytes([content[-1] ^ 1]))
    assert not may_delete(place, log.folder, 48)


@pytest.mark.parametrize(
    "step", ["between the parts", "before the manifest", "behind the manifest"]
)
def test_what_an_ended_run_leaves_is_not_taken_for_whole(
    place: ObjectPath, log: Log, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_archive(place) as archive:
        add(archive, log, 7)
    before = archived(place)
    done: list[Part] = []

    def stage(part: Any) -> Any:
        if done and step == "between the parts":
            raise EndedError
        done.append(part)
        return stage_part(part)

    def create(*given: Any) -> str:
        if step == "behind the manifest":
            create_manifest(*given)
        raise EndedError

    with monkeypatch.context() as patch:
        patch.setattr(writing, "PART_BYTES_MIN", 500)
        patch.setattr(told_parts, "stage_part", stage)
        patch.setattr(writing, "create_manifest", create)
        with pytest.raises(EndedError), open_archive(place) as archive:
            add(archive, log)
    assert done
    is_done = step == "behind the manifest"
    assert archived(place) == (plainly(log.entries) if is_done else before)
    assert (rows_in(place) == listed_in(place)) == is_done, "the run got as far as is meant"
    with open_archive(place) as archive:
        assert add(archive, log) == (0 if is_done else 1)
    assert archived(place) == plainly(log.entries)
    assert rows_in(place) == listed_in(place), "what was left over is removed"


@in_every_kind
def test_of_two_runs_at_once_one_archives_a_stretch_and_the_other_loses_nothing(
    place: ObjectPath, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one archives another stretch, and removes what it can, before the first one's manifest comes."""
    others = [9, 12]

    def create_late(*given: Any) -> str:
        if others:
            with open_archive(place) as faster:
                add(faster, log, others.pop())
        return create_manifest(*given)

    monkeypatch.setattr(writing, "create_manifest", create_late)
    slow = open_archive(place)
    # The second one is itself overtaken by a third.
    with pytest.raises(PipelineError, match="another run has archived what follows entry 0 in"):
        add(slow, log)
    assert [each.last_index for each in load_manifests(place)] == [9]
    with open_archive(place) as archive:
        add(archive, log)
    assert archived(place) == plainly(log.entries)
    assert rows_in(place) == listed_in(place)


def test_files_of_a_run_that_goes_on_are_left_alone(
    place: ObjectPath, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(*given: Any) -> str:
        with open_archive(place):  # looks for what it may remove
            pass
        return create_manifest(*given)

    monkeypatch.setattr(writing, "create_manifest", create)
    with open_archive(place) as archive:
        add(archive, log, 7)
        add(archive, log)
    assert archived(place) == plainly(log.entries)


def test_a_run_whose_files_are_removed_under_its_hands_says_who_was_faster(
    place: ObjectPath, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [1]

    def stage(part: Any) -> Any:
        staged = stage_part(part)
        if others:
            others.pop()
            with open_archive(place) as faster:
                add(faster, log, 7)
            raise OSError("the file that was written is not there")
        return staged

    monkeypatch.setattr(told_parts, "stage_part", stage)
    with pytest.raises(PipelineError, match="another run has archived what follows entry 0"):
        add(open_archive(place), log)


def test_an_archive_that_was_copied_from_a_folder_goes_on(
    place: ObjectPath, log: Log, tmp_path: Path
) -> None:
    with open_archive(tmp_path / "archive") as archive:
        add(archive, log, 7)
    folder = ObjectFolder(place)
    for path in (tmp_path / "archive").rglob("*"):
        if path.is_file() and path.stat().st_size:
            folder.create(str(path.relative_to(tmp_path / "archive")), path.read_bytes())
    with open_archive(place) as archive:
        add(archive, log, 10)
    for name in folder.files(""):  # and back
        (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / name).write_bytes(folder.read(name))
    with open_archive(str(tmp_path / "back")) as archive:
        add(archive, log)
    assert archived(tmp_path / "back") == plainly(log.entries)
    assert sorted(path.name for path in (tmp_path / "back" / MANIFESTS).iterdir()) == [
        f"{7:020}.after.json",
        f"{7:020}.json",
        f"{log.entries[-1].index:020}.json",
    ]
    manifests = load_manifests(tmp_path / "back")
    shutil.move(
        tmp_path / "back" / MANIFESTS / f"{7:020}.after.json",
        tmp_path / "back" / MANIFESTS / f"{8:020}.after.json",
    )
    with pytest.raises(ArchiveError, match="a manifest is missing or misnamed"):
        load_manifests(tmp_path / "back")
    write_manifest(tmp_path / "other", manifests[0])
    assert load_manifests(tmp_path / "other") == manifests[:1]
