"""An archive as a Delta table: the same rows, whoever reads and wherever a run ends; what manifests list stays.

There are two readers: deltalake's own, and one of these tests' that knows no more of Delta than its log's lines.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
pytest.importorskip("deltalake", reason="deltalake is not installed (extra `delta`)")

import deltalake
import deltalake.exceptions
import pyarrow as pa
import pyarrow.parquet as pq

from dledger.raft.entry import Entry, EntryKind
from dledger_mq.message.record import decode_records
from pipeline.archive.manifests import ArchiveError, check_contents, load_manifests
from pipeline.archive.parts import ARCHIVE_COLUMNS
from pipeline.archive.writing import open_archive
from pipeline.cli import main
from pipeline.errors import InconclusiveError, PipelineError, PipelineUsageError
from pipeline.folders import Where, open_folder, understood
from pipeline.locations import S3, ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.table import compacting, delta, following
from pipeline.table.compacting import compact
from pipeline.table.delta import COMPACTED, LOG, TableVersion, open_or_create_table, open_table
from pipeline.table.following import follow
from pipeline.table.reading import table_snapshot
from pipeline.table.vacuuming import vacuum
from tests.unit.pipeline.archives import write_archive
from tests.unit.pipeline.object_stores import SECRET_KEY, TOKEN, store_of
from tests.unit.pipeline.stores import orders

pytestmark = pytest.mark.slow
TOPICS = ("orders", "%RETRY%bills", "a b=c")
ROWS = 60
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline-table.md").read_text()
LONG_AGO_S = 1_000_000_000
Row = tuple[Any, ...]


class EndedError(BaseException):
    """Stands for SIGKILL: nothing of ours may run after it."""


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    entries: list[Entry] = orders(ROWS, topics=TOPICS).log.entries
    return entries


@pytest.fixture
def archive(tmp_path: Path, entries: list[Entry]) -> Path:
    return write_archive(tmp_path / "100% a", entries, ends=(4, 9, 14))


def plainly(entries: list[Entry]) -> list[Row]:
    """What the log holds, by the decoder of the client."""
    return sorted(
        (
            record.topic,
            datetime.fromtimestamp(record.store_timestamp_ms / 1000, UTC).date(),
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.body,
        )
        for entry in entries
        if entry.kind is EntryKind.NORMAL
        for record in decode_records(entry.body)
    )


COLUMNS = ["topic", "date", "queueId", "queueOffset", "physicalOffset", "body"]


def rows_of(table: Any) -> list[Row]:
    return sorted(tuple(row[name] for name in COLUMNS) for row in table.to_pylist())


def by_deltalake(archive: Where, version: int | None = None) -> list[Row]:
    options = delta._storage_options(understood(archive))
    table = deltalake.DeltaTable(str(archive), version=version, storage_options=options)
    return rows_of(table.to_pyarrow_table())


def by_hand(archive: Where) -> list[Row]:
    """Read what the lines of the log say, with pyarrow alone."""
    folder = open_folder(archive)
    listed: dict[str, dict[str, str]] = {}
    for name in sorted(each for each in folder.names(LOG) if each.endswith(".json")):
        for line in folder.read(f"{LOG}/{name}").splitlines():
            action = json.loads(line)
            if "remove" in action:
                del listed[unquote(action["remove"]["path"])]
            elif "add" in action:
                path = unquote(action["add"]["path"])
                assert path not in listed
                listed[path] = action["add"]["partitionValues"]
    found: list[Row] = []
    for path, values in listed.items():
        with folder.source(path) as file:
            for row in pq.ParquetFile(file).read().to_pylist():
                date = datetime.strptime(values["date"], "%Y-%m-%d").replace(tzinfo=UTC).date()
                row |= {"topic": values["topic"], "date": date}
                found.append(tuple(row[name] for name in COLUMNS))
    return sorted(found)


def is_whole(archive: Where) -> bool:
    """Whether all that manifests list is there, byte for byte."""
    check_contents(archive, load_manifests(archive))
    return True


def listed_in(archive: Path) -> list[Path]:
    table = open_table(archive)
    assert table is not None
    return [archive / file.path for file in table.files()]


def versions(archive: Path) -> int:
    return len(list((archive / LOG).glob("*.json")))


def test_the_table_has_the_rows_of_the_log_and_the_archives_own_files(
    archive: Path, entries: list[Entry]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in archive.rglob("*.parquet")}
    followed = follow(archive)
    last = load_manifests(archive)[-1].last_index
    assert (followed.rows, followed.covered_index, followed.files) == (ROWS, last, len(before))
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    assert {path: path.stat().st_mtime_ns for path in archive.rglob("*.parquet")} == before
    table = deltalake.DeltaTable(str(archive))
    assert table.metadata().partition_columns == ["topic", "date"]
    assert pa.schema(table.schema().to_arrow()) == ARCHIVE_COLUMNS.append(
        pa.field("date", pa.date32())
    )
    rows = table.to_pyarrow_table(filters=[("topic", "=", "a b=c"), ("queueOffset", ">=", 8)])
    assert rows_of(rows) == [row for row in plainly(entries) if row[0] == "a b=c" and row[3] >= 8]


def test_what_a_file_is_skipped_by_is_what_it_holds(archive: Path) -> None:
    follow(archive)
    actions = pa.table(deltalake.DeltaTable(str(archive)).get_add_actions(flatten=True)).to_pylist()
    assert len(actions) == len(listed_in(archive)) > len(TOPICS)
    for each in actions:
        rows = pq.read_table(archive / unquote(each["path"]), partitioning=None)
        assert each["num_records"] == len(rows)
        for name in ("queueId", "queueOffset", "storeTimestamp", "physicalOffset", "index"):
            values = rows[name].to_pylist()
            assert (each[f"min.{name}"], each[f"max.{name}"]) == (min(values), max(values))


def test_a_run_adds_what_is_new_and_a_second_one_nothing(
    tmp_path: Path, entries: list[Entry]
) -> None:
    archive = write_archive(tmp_path, entries, ends=(4, 9))
    (newest,) = sorted((archive / "_manifests").iterdir())[-1:]
    aside = tmp_path / "aside"
    newest.rename(aside)
    first = follow(archive)
    assert first.covered_index == 9
    assert by_deltalake(archive) != plainly(entries)
    again = follow(archive)
    assert (again.version, again.files) == (first.version, 0)
    aside.rename(newest)
    assert follow(archive).version == first.version + 1
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)


@pytest.mark.parametrize("when", ["before the commit", "behind the commit", "behind the table"])
def test_a_run_that_ends_between_manifest_and_table_is_repeated(
    archive: Path, entries: list[Entry], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FILES_MAX", 1)  # a version for each manifest
    add = TableVersion.add

    def ended(self: TableVersion, *given: Any) -> TableVersion:
        if when == "behind the commit" or (when == "before the commit" and self.number == 0):
            add(self, *given)
        raise EndedError

    with monkeypatch.context() as patch:
        patch.setattr(TableVersion, "add", ended)
        for _ in range(2):
            with pytest.raises(EndedError):
                follow(archive)
    assert (
        versions(archive)
        == {
            "behind the table": 1,
            "before the commit": 2,
            "behind the commit": 3,
        }[when]
    )
    follow(archive)
    assert versions(archive) == 1 + len(load_manifests(archive))
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)


def test_a_run_that_is_killed_is_repeated(archive: Path, entries: list[Entry]) -> None:
    """The process of the command, ended by the system where it stands, once before and once behind the commit."""
    script = (
        "import os, signal, sys\n"
        "from pipeline.cli import main\n"
        "from pipeline.table.delta import TableVersion\n"
        "add = TableVersion.add\n"
        "def killed(self, *given):\n"
        "    if sys.argv[2] == 'behind':\n"
        "        add(self, *given)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "TableVersion.add = killed\n"
        "main(['table', sys.argv[1]])\n"
    )
    for when, left in (("before", 1), ("behind", 2)):
        ran = subprocess.run([sys.executable, "-c", script, str(archive), when], timeout=120)
        assert ran.returncode == -9
        assert versions(archive) == left
    assert main(["table", str(archive)]) == 0
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)


def test_several_runs_at_once_list_nothing_twice(
    archive: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FILES_MAX", 1)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: follow(archive), range(4)))
    assert sum(each.rows for each in done) == ROWS
    assert versions(archive) == 1 + len(load_manifests(archive))
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    with ThreadPoolExecutor(4) as pool:
        compacted = list(pool.map(lambda _: compact(archive), range(4)))
    assert sum(each.rows for each in compacted) == ROWS
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)


def test_who_comes_second_makes_no_version_of_what_it_has_not_seen(
    archive: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(archive)
    replace = TableVersion.replace
    lost: list[int] = []

    def late(self: TableVersion, *given: Any) -> TableVersion:
        if not lost:
            lost.append(self.number)
            with monkeypatch.context() as patch:
                patch.setattr(TableVersion, "replace", replace)
                assert compact(archive).written == len(TOPICS)
        return replace(self, *given)

    monkeypatch.setattr(TableVersion, "replace", late)
    assert compact(archive).written == 0
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    assert len(list((archive / COMPACTED).rglob("*.parquet"))) == len(TOPICS) + 1
    assert vacuum(archive).files == 1
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)


def test_compaction_leaves_the_rows_and_who_reads_the_version_before(
    archive: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(archive)
    held = deltalake.DeltaTable(str(archive))
    before = held.version()
    monkeypatch.setattr(compacting, "RUN_BYTES", 2000)  # several row groups
    compacted = compact(archive)
    assert (compacted.written, compacted.rows) == (len(TOPICS), ROWS)
    assert compacted.replaced == len(held.file_uris())
    files = listed_in(archive)
    assert len(files) == len(TOPICS)
    assert all(COMPACTED in path.parts for path in files)
    assert pq.read_metadata(files[0]).num_row_groups > 1
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    assert vacuum(archive, keep_ms=0).files == 0
    assert rows_of(held.to_pyarrow_table()) == plainly(entries)
    assert by_deltalake(archive, before) == plainly(entries)
    assert compact(archive).written == 0
    assert is_whole(archive)


def test_a_vacuum_removes_what_compaction_wrote_before_and_nothing_of_the_archive(
    tmp_path: Path, entries: list[Entry]
) -> None:
    archive = write_archive(tmp_path, entries, ends=(4, 9))
    (newest,) = sorted((archive / "_manifests").iterdir())[-1:]
    newest.rename(tmp_path / "aside")
    follow(archive)
    compact(archive)
    held = deltalake.DeltaTable(str(archive))
    seen = rows_of(held.to_pyarrow_table())
    (tmp_path / "aside").rename(newest)
    follow(archive)
    compact(archive)
    assert vacuum(archive).files == 0, "a version of this week has them"
    assert rows_of(held.to_pyarrow_table()) == seen
    assert vacuum(archive, keep_ms=0).files == len(TOPICS)
    assert len(list((archive / COMPACTED).rglob("*.parquet"))) == len(TOPICS)
    assert by_deltalake(archive) == plainly(entries)
    assert is_whole(archive)
    with pytest.raises(OSError, match="No such file"):
        held.to_pyarrow_table()
    assert vacuum(archive, keep_ms=0).files == 0
    again = follow(archive)
    assert (again.files, again.covered_index) == (0, load_manifests(archive)[-1].last_index)


def test_of_versions_that_are_forgotten_nothing_is_left(
    archive: Path, entries: list[Entry]
) -> None:
    follow(archive)
    compact(archive)
    folder = next((archive / COMPACTED).rglob("*.parquet")).parent
    left = folder / f"{0:020d}-{'a' * 32}.zstd.parquet"
    left.write_bytes(b"")
    not_yet = folder / f"{99:020d}-{'b' * 32}.zstd.parquet"
    not_yet.write_bytes(b"")
    not_ours = folder / "else.parquet"
    not_ours.write_bytes(b"")
    for path in (archive / LOG).iterdir():  # as after two months
        os.utime(path, (time.time() - 5_000_000,) * 2)
    assert vacuum(archive).files == 1, "the version behind it lists other files"
    assert not (archive / LOG / f"{1:020d}.json").exists()
    left.write_bytes(b"")
    assert vacuum(archive).files == 1, "whatever listed it is forgotten"
    assert not_yet.exists()
    assert not_ours.exists()
    assert by_deltalake(archive) == plainly(entries)
    assert is_whole(archive)
    open_or_create_table(archive).add([], follow(archive).covered_index)
    assert by_deltalake(archive) == plainly(entries)


def test_other_programs_remove_nothing_of_the_archive(archive: Path, entries: list[Entry]) -> None:
    follow(archive)
    compact(archive)
    for path in archive.rglob("*.parquet"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    table = deltalake.DeltaTable(str(archive))
    for is_full in (False, True):
        assert table.vacuum(dry_run=False, full=is_full) == []
    with pytest.raises(deltalake.exceptions.DeltaError, match="retention"):
        table.vacuum(retention_hours=0, dry_run=False)
    with pytest.raises(deltalake.exceptions.DeltaError, match="append-only"):
        table.delete("topic = 'orders'")
    assert by_deltalake(archive) == plainly(entries)
    assert is_whole(archive)


def test_what_another_program_has_compacted_stays_among_the_archives_files(
    archive: Path, entries: list[Entry]
) -> None:
    follow(archive)
    deltalake.DeltaTable(str(archive)).optimize.compact()
    assert len(listed_in(archive)) == len(TOPICS)
    stray = archive / "topic=orders" / f"part-{99:020d}-{99:020d}-00000.zstd.parquet"
    stray.write_bytes(b"of a run that was killed")
    with open_archive(archive):
        pass
    assert not stray.exists()
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    assert compact(archive).written == 0
    assert vacuum(archive, keep_ms=0).files == 0
    assert follow(archive).files == 0
    assert by_deltalake(archive) == plainly(entries)
    assert is_whole(archive)


@pytest.mark.parametrize("twist", ["one row less", "another value", "a row twice"])
def test_a_new_file_that_is_not_the_same_rows_is_not_listed(
    archive: Path, entries: list[Entry], twist: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(archive)
    runs = compacting._runs
    asked: list[int] = []

    def twisted(*given: Any) -> Iterator[pa.Table]:
        asked.append(1)
        for run in runs(*given):
            if len(asked) > 1:
                yield run
            elif twist == "one row less":
                yield run.slice(1)
            elif twist == "a row twice":
                yield pa.concat_tables([run, run.slice(0, 1)])
            else:
                column = pa.array([b"other"] * len(run), pa.binary())
                yield run.set_column(run.schema.get_field_index("body"), "body", column)

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_runs", twisted)
        with pytest.raises(ArchiveError, match="does not hold the rows"):
            compact(archive)
    assert by_deltalake(archive) == by_hand(archive) == plainly(entries)
    assert vacuum(archive).files == 0, "its version may yet come, for all that is known"
    compact(archive)
    assert vacuum(archive).files == 1
    assert by_deltalake(archive) == plainly(entries)


def test_the_table_says_where_live_data_goes_on(tmp_path: Path, entries: list[Entry]) -> None:
    archive = write_archive(tmp_path, entries, ends=(4, 9))
    (newest,) = sorted((archive / "_manifests").iterdir())[-1:]
    newest.rename(tmp_path / "aside")
    follow(archive)
    (tmp_path / "aside").rename(newest)
    snapshot = table_snapshot(archive)
    manifest = load_manifests(archive)[1]
    assert (snapshot.covered_index, snapshot.end_position) == (9, manifest.end_position)
    ends = {(queue.topic, queue.queue_id): end for queue, end in snapshot.ends.items()}
    behind = [row for row in plainly(entries) if row[3] >= ends.get((row[0], row[2]), 0)]
    assert 0 < len(behind) < ROWS
    assert sorted(by_deltalake(archive) + behind) == plainly(entries)
    assert behind == [row for row in plainly(entries) if row[4] >= snapshot.end_position]
    follow(archive)
    assert table_snapshot(archive).version == snapshot.version + 1
    assert table_snapshot(archive, version=snapshot.version) == snapshot
    assert table_snapshot(archive, {"orders"}).files == tuple(
        path for path in table_snapshot(archive).files if "topic=orders" in path
    )
    offsets = json.loads(snapshot.starting_offsets("orders", "broker-a", range(3)))
    assert offsets == {
        "orders": {"broker-a": {"0": ends["orders", 0], "1": ends["orders", 1], "2": -2}}
    }
    with pytest.raises(OSError, match="99"):
        table_snapshot(archive, version=99)


def test_what_is_no_table_of_an_archive_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PipelineUsageError, match="has no table"):
        compact(archive)
    with pytest.raises(PipelineUsageError, match="has no table"):
        table_snapshot(archive)
    with pytest.raises(PipelineUsageError, match="is no archive"):
        follow(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    for place in ("hdfs://namenode:8020/a", "gs://bucket/a"):
        with pytest.raises(PipelineUsageError, match="no table can be kept in"):
            open_table(place)
    table = open_or_create_table(archive)
    table.add([], 3)
    with pytest.raises(ArchiveError, match="entry 3, with which no manifest ends"):
        follow(archive)
    deltalake.write_deltalake(str(tmp_path / "other"), pa.table({"x": [1]}))
    (tmp_path / "other" / LOG).rename(tmp_path / "aside")
    for path in (archive / LOG).iterdir():
        path.unlink()
    for path in (tmp_path / "aside").iterdir():
        path.rename(archive / LOG / path.name)
    with pytest.raises(ArchiveError, match="built again from the manifests"):
        follow(archive)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InconclusiveError, match="extra `delta`"):
        follow(archive)


def test_a_file_that_is_not_as_its_manifest_says_is_not_listed(archive: Path) -> None:
    victim = archive / load_manifests(archive)[-1].files[0].path
    content = victim.read_bytes()
    victim.unlink()
    with pytest.raises(ArchiveError, match="is missing, and a manifest lists it"):
        follow(archive)
    other = archive / load_manifests(archive)[0].files[0].path
    victim.write_bytes(other.read_bytes())
    with pytest.raises(ArchiveError, match=r"bytes and \d+ rows, the manifest says"):
        follow(archive)
    assert by_deltalake(archive) == []
    victim.write_bytes(content)
    assert follow(archive).rows == ROWS


def test_who_loses_again_and_again_says_so(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise delta.OvertakenError

    with monkeypatch.context() as patch:
        patch.setattr(TableVersion, "add", lost)
        with pytest.raises(PipelineError, match="run it again"):
            follow(archive)
    follow(archive)
    monkeypatch.setattr(TableVersion, "replace", lost)
    with pytest.raises(PipelineError, match="run it again"):
        compact(archive)


def test_the_command_says_what_it_did(
    archive: Path, capsys: pytest.CaptureFixture[str], entries: list[Entry]
) -> None:
    assert main(["table", str(archive), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["addedRows"], told["compactedFiles"]) == (ROWS, 0)
    assert told["lastIndex"] == load_manifests(archive)[-1].last_index
    command = ["table", str(archive), "--compact", "--vacuum", "--keep", "0h", "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["addedRows"], told["intoFiles"]) == (0, len(TOPICS))
    assert main(["table", str(archive)]) == 0
    assert "lastIndex" in capsys.readouterr().out
    assert by_deltalake(archive) == plainly(entries)
    assert main(["table", str(archive), "--target-mib", "0"]) == 2
    assert main(["table", str(archive), "--keep", "31d"]) == 2
    assert main(["table", "hdfs://namenode:8020/a"]) == 2
    assert main(["table", str(archive / "none")]) == 2


@pytest.fixture
def bucket(archive: Path) -> Iterator[ObjectPath]:
    """The archive, copied into an object store."""
    with store_of(S3) as place:
        folder = ObjectFolder(place / "archives of/100% b")
        for path in archive.rglob("*"):
            if path.is_file():
                folder.create(str(path.relative_to(archive)), path.read_bytes())
        yield folder.place


def test_an_archive_in_an_object_store_has_a_table_as_well(
    bucket: ObjectPath, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FILES_MAX", 1)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: follow(bucket), range(2)))
    assert sum(each.rows for each in done) == ROWS
    assert by_deltalake(bucket) == by_hand(bucket) == plainly(entries)
    before = max(each.version for each in done)
    with ThreadPoolExecutor(2) as pool:
        compacted = list(pool.map(lambda _: compact(bucket), range(2)))
    assert sum(each.written for each in compacted) == len(TOPICS)
    assert by_deltalake(bucket) == by_hand(bucket) == plainly(entries)
    lost = len(ObjectFolder(bucket).files(COMPACTED)) - len(TOPICS)
    assert vacuum(bucket).files == lost
    assert by_deltalake(bucket, before) == plainly(entries)
    assert is_whole(bucket)
    assert table_snapshot(bucket).files[0].startswith(f"{bucket}/{COMPACTED}/topic=")
    # Errors are one line without a secret; a store that lets a second writer win is refused.
    with pytest.raises(OSError, match="the table in s3://") as caught:
        open_table(bucket, 99)
    said = str(caught.value)
    assert [each for each in ("\n", "\x1b", SECRET_KEY, TOKEN) if each in said] == []
    assert caught.value.__cause__ is None

    def refuse(_: ObjectFolder) -> None:
        raise OSError("the store lets a second writer write over the first one")

    monkeypatch.setattr(ObjectFolder, "check_conditions", refuse)
    table = open_table(bucket)
    assert table is not None
    with pytest.raises(OSError, match="write over"):
        table.add([], 3)


def test_the_page_says_what_can_be_run(
    archive: Path, entries: list[Entry], capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/pipeline-table.md, and its first example; the other one needs Spark."""
    lines = re.findall(r"^    dledger-pipeline (.*)$", PAGE, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["archive", "table", "table", "table"]
    for line in lines:
        given = line.replace("/var/archive", "ARCHIVE").replace("data/n0", "STORE")
        words = [
            {"ARCHIVE": str(archive), "STORE": str(archive.parent / "store")}.get(word, word)
            for word in shlex.split(given, comments=True)
        ]
        capsys.readouterr()
        assert main([*words, "--json"]) == 0, capsys.readouterr().err
    assert compact(archive).written == 0, "the third one did"
    (example,) = re.findall(r"```python\n(from deltalake.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("/var/archive", str(archive)), names)
    assert rows_of(names["orders"]) == [row for row in plainly(entries) if row[0] == "orders"]
    checked = ["archive", str(archive.parent / "store"), str(archive), "--check"]
    assert main(checked) == 0
    assert main([*checked, "--table"]) == 2
    in_hdfs = ["archive", str(archive.parent / "store"), "hdfs://namenode:8020/a", "--table"]
    assert main(in_hdfs) == 2
    assert "no table can be kept" in capsys.readouterr().err


def test_many_versions_are_read_from_a_checkpoint(
    archive: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FILES_MAX", 1)
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 3)
    follow(archive)
    assert (archive / LOG / f"{3:020d}.checkpoint.parquet").is_file()
    for number in range(3):
        (archive / LOG / f"{number:020d}.json").unlink()
    table = open_table(archive)
    assert table is not None
    assert table.covered_index == load_manifests(archive)[-1].last_index
    assert by_deltalake(archive) == plainly(entries)
    compact(archive)
    assert by_deltalake(archive) == plainly(entries)


def test_a_copy_has_the_table_as_well_and_goes_on(
    archive: Path, tmp_path: Path, entries: list[Entry]
) -> None:
    follow(archive)
    compact(archive)
    archive.rename(tmp_path / "moved")
    assert by_deltalake(tmp_path / "moved") == plainly(entries)
    assert follow(tmp_path / "moved").files == 0
