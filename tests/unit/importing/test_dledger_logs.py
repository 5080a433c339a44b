"""Logs of RocketMQ on DLedger: the same records, each in an entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.importing.check import check_store
from broker.importing.commit_log import LogEnd, SourceLogReader, list_log_files
from broker.importing.copying import StoreCopy
from broker.importing.errors import SourceError
from broker.importing.plan import ImportPlan, make_plan
from broker.importing.survey import find_log, read_committed_index
from tests.unit.importing.source_store import FILE_BYTES, STORED_MS, SourceStore


@pytest.fixture
def store(tmp_path: Path) -> SourceStore:
    """Twelve records in several files, with a no-op between them."""
    store = SourceStore(tmp_path / "store", in_entries=True)
    store.topic("T")
    for number in range(12):
        store.put("T", b"%x" % number * 300)
        if number == 6:
            store.write_entry(2, b"")
    return store


def read(store: SourceStore) -> tuple[list[bytes], LogEnd, int]:
    reader = SourceLogReader(list_log_files([store.log]), in_entries=True)
    bodies = [record.message.body for record in reader.records()]
    assert reader.end is not None
    return bodies, reader.end, reader.last_index


def plan_of(store: SourceStore, *, after_crash: bool = False) -> ImportPlan:
    return make_plan(store.survey(), leave_out=(), after_crash=after_crash, is_until=False)


def test_records_are_read_from_their_entries(store: SourceStore) -> None:
    bodies, end, last_index = read(store)
    assert bodies == [b"%x" % number * 300 for number in range(12)]
    assert (end.physical_offset, end.problem, last_index) == (store.place, "", 12)
    assert len(list_log_files([store.log])) == 3


@pytest.mark.parametrize("cut", [4, 8, 47, 48, 60, 200])
def test_an_entry_that_is_half_written_is_told_with_its_place(store: SourceStore, cut: int) -> None:
    place = store.place
    store.put("T", b"y" * 120)
    first = place - place % FILE_BYTES
    path = store.log / f"{first:020}"
    data = bytearray(path.read_bytes())
    data[place - first + cut :] = bytes(len(data) - (place - first + cut))
    path.write_bytes(data)
    bodies, end, _ = read(store)
    assert len(bodies) == 12
    assert end.physical_offset == place
    assert end.problem


def test_an_entry_of_another_place_ends_the_log(store: SourceStore) -> None:
    place = store.place
    store.place -= 1
    store.write_entry(2, b"")
    data = (store.log / f"{2 * FILE_BYTES:020}").read_bytes()
    store.place = place
    assert data[place - 2 * FILE_BYTES :].strip(b"\0")
    _, end, _ = read(store)
    assert "entry" in end.problem or "record" in end.problem


def test_a_record_that_does_not_fill_its_entry(store: SourceStore) -> None:
    place = store.place
    record = (store.log / f"{2 * FILE_BYTES:020}").read_bytes()[48:][:392]
    store.write_entry(1, record + b"more")
    _, end, _ = read(store)
    assert end.physical_offset == place
    assert "bytes in an entry for" in end.problem


def test_a_store_of_dledger_is_imported(store: SourceStore, tmp_path: Path) -> None:
    found = store.survey()
    plan = plan_of(store)
    assert plan.problems == []
    assert plan.message_count == 12
    copy = StoreCopy(found, plan, tmp_path / "new", now_ms=STORED_MS)
    copy.run(lambda _done, _total: None, lambda _store: True)
    assert check_store(tmp_path / "new", plan, copy.digests, lambda _done, _total: None) == []


def test_entries_that_may_not_be_committed_are_a_problem(store: SourceStore) -> None:
    store.committed = 9
    (problem,) = plan_of(store).problems
    assert "the last 3 entries" in problem.why
    assert plan_of(store, after_crash=True).problems == []


def test_what_dledger_knew_to_be_committed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert read_committed_index(path) == -1
    path.write_text("endIndex=7\n")
    assert read_committed_index(path) == -1
    path.write_text("#x\ncommittedIndex=6\nendIndex=7\n")
    assert read_committed_index(path) == 6
    path.write_text("committedIndex=\u00b2\n")
    assert read_committed_index(path) == -1
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="checkpoint"):
        read_committed_index(path)


def test_which_log_of_a_store_counts(store: SourceStore) -> None:
    assert find_log(store.folder) == store.log
    plain = store.folder / "commitlog"
    plain.mkdir()
    assert find_log(store.folder) == store.log
    (plain / f"{0:020}").write_bytes(b"x")
    with pytest.raises(SourceError, match="--commitlog"):
        find_log(store.folder)
    (plain / f"{0:020}").unlink()
    (store.folder / "dledger-n1").mkdir()
    with pytest.raises(SourceError, match="2 logs of DLedger"):
        find_log(store.folder)
