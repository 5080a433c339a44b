"""Commit logs of RocketMQ: read to the last whole record, and whatever else stands there is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.importing.commit_log import LogEnd, SourceLogReader, list_log_files
from broker.importing.errors import SourceError
from dledger_mq.message.numbers import PhysicalOffset
from tests.unit.importing.source_store import FILE_BYTES, SourceStore


def read(store: SourceStore, until: int | None = None) -> tuple[list[bytes], LogEnd]:
    end = None if until is None else PhysicalOffset(until)
    reader = SourceLogReader(list_log_files([store.log]), end)
    bodies = [record.message.body for record in reader.records()]
    assert reader.end is not None
    return bodies, reader.end


@pytest.fixture
def store(tmp_path: Path) -> SourceStore:
    """Twelve records in three files, the first of which RocketMQ has deleted."""
    store = SourceStore(tmp_path, begin=FILE_BYTES)
    for number in range(12):
        store.put("T", b"%x" % number * 300)
    return store


def test_records_are_read_over_the_ends_of_files(store: SourceStore) -> None:
    bodies, end = read(store)
    assert bodies == [b"%x" % number * 300 for number in range(12)]
    assert len(list_log_files([store.log])) == 3
    assert (end.physical_offset, end.problem) == (store.place, "")


def test_an_empty_file_that_was_made_ahead_changes_nothing(store: SourceStore) -> None:
    (store.log / f"{4 * FILE_BYTES:020}").write_bytes(bytes(FILE_BYTES))
    bodies, end = read(store)
    assert (len(bodies), end.problem) == (12, "")


def test_a_log_that_ends_with_a_full_file_ends_there(tmp_path: Path) -> None:
    store = SourceStore(tmp_path)
    while FILE_BYTES - store.place % FILE_BYTES > 200:
        store.put("T", b"x" * 50)
    store.write(b"".join(((FILE_BYTES - store.place).to_bytes(4, "big"), b"\xcb\xd4\x31\x94")))
    _, end = read(store)
    assert (end.physical_offset, end.problem) == (FILE_BYTES, "")


@pytest.mark.parametrize("cut", [1, 4, 8, 40, 90, 200])
def test_a_record_that_is_half_written_is_told_with_its_place(store: SourceStore, cut: int) -> None:
    place = store.place
    store.put("T", b"y" * 300)
    first = place - place % FILE_BYTES
    path = store.log / f"{first:020}"
    data = bytearray(path.read_bytes())
    data[place - first + cut :] = bytes(len(data) - (place - first + cut))
    path.write_bytes(data)
    bodies, end = read(store)
    assert len(bodies) == 12
    assert end.physical_offset == place
    if any(data[place - first : place - first + cut]):
        assert end.problem
        assert place < end.last_byte <= place + cut
        assert str(place) in str(end)
    else:
        assert not end.problem


@pytest.mark.parametrize("in_entries", [False, True])
def test_an_end_record_that_does_not_end_its_file_is_damage(
    tmp_path: Path, in_entries: bool
) -> None:
    store = SourceStore(tmp_path, in_entries=in_entries)
    for number in range(12):
        store.put("T", b"%x" % number * 300)
    path = store.log / f"{0:020}"
    data = bytearray(path.read_bytes())
    place = 0
    for _ in range(3):  # an end record where the fourth record stood, with whole ones behind it
        place += int.from_bytes(data[place + 4 * in_entries : place + 4 * in_entries + 4], "big")
    head = b"\xff\xff\xff\xff\0\0\0\x08" if in_entries else b"\0\0\0\x08\xcb\xd4\x31\x94"
    data[place : place + 8] = head
    path.write_bytes(data)
    reader = SourceLogReader(list_log_files([store.log]), in_entries=in_entries)
    assert len(list(reader.records())) == 3
    assert reader.end is not None
    assert reader.end.physical_offset == place
    left = FILE_BYTES - place
    assert f"an end record for 8 bytes where {left} are left" in reader.end.problem


def test_damage_in_the_middle_is_told_and_what_follows_is_counted(store: SourceStore) -> None:
    path = store.log / f"{2 * FILE_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # in the body of the first record
    path.write_bytes(data)
    bodies, end = read(store)
    assert 0 < len(bodies) < 12
    assert end.physical_offset == 2 * FILE_BYTES
    assert "crc" in end.problem
    assert end.last_byte == store.place - 2  # no properties: two zeros


def test_zeros_in_the_middle_are_no_end(store: SourceStore) -> None:
    path = store.log / f"{2 * FILE_BYTES:020}"
    path.write_bytes(bytes(FILE_BYTES))
    _, end = read(store)
    assert (end.physical_offset, end.last_byte) == (2 * FILE_BYTES, store.place - 2)
    assert "zeros" in end.problem


def test_a_record_of_another_place_ends_the_log(store: SourceStore) -> None:
    source = (store.log / f"{FILE_BYTES:020}").read_bytes()
    store.write(source[:395])
    _, end = read(store)
    assert "says physical offset 2048" in end.problem


def test_a_missing_file_is_named(store: SourceStore) -> None:
    (store.log / f"{2 * FILE_BYTES:020}").unlink()
    with pytest.raises(SourceError, match="from physical offset 4096 on is missing"):
        list_log_files([store.log])


def test_no_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no file of a commit log"):
        list_log_files([tmp_path])
    with pytest.raises(SourceError, match="No such file"):
        list_log_files([tmp_path / "none"])


def test_files_may_lie_in_several_folders(store: SourceStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    name = f"{2 * FILE_BYTES:020}"
    (store.log / name).rename(other / name)
    reader = SourceLogReader(list_log_files([store.log, other]))
    assert len(list(reader.records())) == 12


def test_the_reading_may_end_earlier(store: SourceStore) -> None:
    place = store.place
    store.put("T", b"z")
    bodies, end = read(store, until=place)
    assert (len(bodies), end.physical_offset, end.problem) == (12, place, "")


def test_a_record_larger_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.importing.commit_log.READ_BYTES", 128)
    store = SourceStore(tmp_path)
    for number in range(5):
        store.put("T", b"%d" % number * 700)
    bodies, end = read(store)
    assert [len(body) for body in bodies] == [700] * 5
    assert not end.problem
