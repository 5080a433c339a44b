"""The answers of jobs before Spark is asked: exit codes and sentences, as a shell sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.progress import Progress

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from dledger_mq.client.lag import QueueLag
from pipeline.archive.manifests import Manifest, write_manifest
from pipeline.cli import main
from pipeline.jobs import lag
from pipeline.jobs.context import counted
from tests.unit.pipeline.stores import orders, write_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    write_store(tmp_path / "store", orders(9).log.entries)
    return str(tmp_path / "store")


def test_a_group_that_nobody_knows_is_not_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [QueueLag("g", "T", "a", 0, 5, 0, 7)]

    async def lags(_: str, *, group: str | None, topic: str | None) -> list[QueueLag]:
        return [each for each in known if group in (None, each.group) and topic in (None, "T")]

    monkeypatch.setattr(lag, "consumer_lags", lags)
    ask = ["lag", "--name-server", "h:1", "--max-lag", "2"]
    assert main([*ask, "--group", "g"]) == 0
    assert main([*ask, "--group", "typo", "--topic", "T"]) == 2
    assert "no broker has an offset of group typo in topic T" in capsys.readouterr().err
    known.clear()
    assert main(ask) == 0, "nobody consumes, so nobody is behind"


def test_only_an_archive_can_be_checked(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "archive"
    assert main(["archive", store, str(place), "--check"]) == 2
    assert "it has no manifests" in capsys.readouterr().err
    assert not place.exists(), "a check writes nothing"
    write_manifest(place, Manifest("g", 1, 5, 0, 400, 0, 7, "test", 0, (), ()))
    (place / "topic=T").mkdir()
    (place / "topic=T" / "stray.parquet").write_text("of a run that goes on")
    assert main(["archive", store, str(place), "--check"]) == 0
    assert (place / "topic=T" / "stray.parquet").exists()


def test_an_audit_takes_no_node_for_all(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", store, store + "x", "-n", "127.0.0.1:1", "--node", "n0"]) == 2
    assert "an audit has several" in capsys.readouterr().err


def test_a_place_that_is_none_is_a_sentence(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["archive", store, str(tmp_path / "file"), "--up-to", "end"]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert main(["rebuild", store, str(tmp_path / "file" / "x"), "--up-to", "end", "--local"]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert main(["archive", store, str(tmp_path / "a"), "--stretch-mib", "0"]) == 2
    assert "--stretch-mib 0" in capsys.readouterr().err


def test_a_full_bar_names_the_step_behind_it() -> None:
    progress = Progress(disable=True)
    count = counted(progress, progress.add_task("fold", total=10), 10, "compare")
    count(4)
    (bar,) = progress.tasks
    assert (bar.description, bar.completed, bar.total) == ("fold", 4, 10)
    count(6)
    assert (bar.description, bar.completed, bar.total) == ("compare", 10, 10)
