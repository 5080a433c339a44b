"""`dledger-admin import`: what it prints, and what a script may conclude from its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.admin import import_store
from broker.admin.cli import main
from broker.importing.check import QueueDifference
from broker.importing.errors import ImportFailedError
from tests.unit.importing.source_store import SourceStore


@pytest.fixture
def source(tmp_path: Path) -> SourceStore:
    store = SourceStore(tmp_path / "old")
    store.topic("T")
    for offset in (7, 8):
        store.put("T", offset=offset)
    store.put("gone")
    store.groups["g"] = {"groupName": "g"}
    store.offsets["T@g"] = {"0": 8}
    store.save()
    return store


def test_an_import_is_told_in_words(
    source: SourceStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(source.folder), "--store", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "3 records" in printed
    assert "7..9" in printed
    assert "1 consumer groups, 1 consumer offsets" in printed
    assert f"Put copies of {tmp_path / 'new'}" in printed
    assert (tmp_path / "new" / "hard_state").exists()


def test_an_import_is_told_to_scripts(
    source: SourceStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(source.folder), "--store", str(tmp_path / "new"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["imported"] is True
    assert report["messages"] == 2
    assert report["topics"]["T"] == [
        {"queue": 0, "min": 7, "max": 9, "messages": 2, "bytes": 2 * (91 + 1 + 4)}
    ]
    assert [each["what"] for each in report["leftOut"]] == ["gone"]
    assert (report["problems"], report["differences"]) == ([], [])


def test_a_dry_run_says_the_same_and_writes_nothing(
    source: SourceStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = str(tmp_path / "in" / "new")
    assert main(["import", str(source.folder), "--dry-run", "--json", "--store", new]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["imported"], report["messages"]) == (False, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_with_a_problem_nothing_is_written(
    source: SourceStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = source.place
    source.write(b"\1" * 20)
    arguments = ["import", str(source.folder), "--store", str(tmp_path / "new")]
    assert main(arguments) == 1
    printed = "".join(capsys.readouterr().out.split())
    assert "nothingcanbeimported" in printed
    assert "commitlog" in printed
    assert f"{place}" in printed
    assert not (tmp_path / "new").exists()
    assert main([*arguments, "--until", str(place)]) == 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["nowhere", "--dry-run"], "nowhere is no folder"),
        (["old"], "--store names the folder"),
        (["old", "--dry-run", "--commitlog", "nothing"], "nothing: No such file or directory"),
        (["old", "--store", "old"], "old is not empty"),
        (["old", "--dry-run", "--store", "old"], "old is not empty"),
        (
            ["old", "--dry-run", "--until", "5"],
            "--until 5: no record ends there, the nearest ends at 96",
        ),
    ],
)
def test_wrong_folders_are_wrong_usage(
    source: SourceStore,
    more: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(source.folder.parent)
    assert main(["import", *more]) == 2
    assert error in capsys.readouterr().err


def test_delay_levels_that_are_none(source: SourceStore) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import", str(source.folder), "--dry-run", "--delay-levels", "1x"])
    assert ended.value.code == 2


def test_a_store_that_differs_is_not_to_be_used(
    source: SourceStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    difference = QueueDifference("T", 0, "7..9, 2 records", "7..8, 1 records")
    monkeypatch.setattr(import_store, "check_store", lambda *_: [difference])
    assert main(["import", str(source.folder), "--store", str(tmp_path / "new")]) == 1
    printed = capsys.readouterr().out
    assert "do not use it" in printed
    assert "Put copies" not in printed
    assert not (tmp_path / "new").exists()


def test_what_fails_is_a_line(
    source: SourceStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ImportFailedError("the disk is gone")

    monkeypatch.setattr(import_store, "check_store", fail)
    assert main(["import", str(source.folder), "--store", str(tmp_path / "new")]) == 3
    assert capsys.readouterr().err.endswith("dledger-admin: the disk is gone\n")
    assert not (tmp_path / "new").exists()


def test_a_target_that_is_not_empty_is_told_before_the_log_is_read(
    source: SourceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "letters").write_text("dear")

    def read(*_: object) -> None:
        raise AssertionError("the log is read")

    monkeypatch.setattr(import_store, "survey", read)
    assert main(["import", str(source.folder), "--store", str(tmp_path / "new")]) == 2
