"""Files of units and segments: layout, names that are never paths, wiping."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.store import unit_files
from broker.store.errors import NoRoomError
from broker.store.unit_files import OPEN_FILES_MAX, SegmentFiles, UnitFiles, folder_name
from dledger import EntryDamagedError


def unit(n: int) -> bytes:
    return n.to_bytes(20, "big")


def test_files_are_laid_out_as_rocketmq_does(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path)
    files.append((b"%RETRY%g", 3), 0, b"".join(map(unit, range(300_001))))
    files.close()
    folder = tmp_path / "consumequeue" / "%RETRY%g" / "3"
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sizes == {"00000000000000000000": 6_000_000, "00000000000006000000": 20}


def test_units_are_read_back_across_files(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path, file_bytes=60)
    key = (b"T", 0)
    files.append(key, 0, b"".join(map(unit, range(4))))
    files.append(key, 4, b"".join(map(unit, range(4, 11))))
    for first in range(11):
        for count in range(1, 12 - first):
            assert files.read(key, first, count) == b"".join(map(unit, range(first, first + count)))
    files.close()


def test_paths_are_remembered_and_follow_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_files, "PATHS_MAX", 2)
    files = UnitFiles(tmp_path, file_bytes=60)
    beside = files.beside()
    key = (b"T", 0)
    for number in range(9):
        files.append(key, number, unit(number))
        beside.append(key, number, unit(100 + number))
    assert (len(files._paths), len(beside._paths)) == (1, 1), "three files, two of them forgotten"
    for count in range(1, 9):
        assert files.read(key, 0, count) == b"".join(map(unit, range(count)))
    beside.take_place_of(files)
    assert beside.read(key, 6, 3) == b"".join(map(unit, range(106, 109)))
    assert files.read(key, 0, 9) == b"".join(map(unit, range(9)))
    assert (
        tmp_path / "consumequeue" / "T" / "0" / "00000000000000000000"
    ).read_bytes() == b"".join(map(unit, range(100, 103)))
    beside.close()
    files.close()


def test_what_is_not_in_memory_is_brought_there_by_work_for_any_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = UnitFiles(tmp_path, file_bytes=60)
    key = (b"T", 0)
    files.append(key, 0, b"".join(map(unit, range(8))))
    assert files.read_resident(key, 2, 5) == files.read(key, 2, 5)
    assert files.read_resident(key, 6, 3) is None, "the last was not written: who reads it is told"
    warm, asked, read = files.warming(key, 2, 5), [], []

    def not_there(_descriptor: int, _buffers: object, _offset: int, flags: int) -> int:
        asked.append(flags)
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    pread = os.pread
    monkeypatch.setattr(os, "preadv", not_there)
    monkeypatch.setattr(os, "pread", lambda *given: read.append(pread(*given)))
    assert files.read_resident(key, 2, 5) is None
    assert asked == [os.RWF_NOWAIT]
    files.drop(key)
    warm()
    assert read == [], "the files are gone, which says nothing to this one"
    monkeypatch.undo()
    files.append(key, 2, b"".join(map(unit, range(2, 8))))
    monkeypatch.setattr(os, "pread", lambda *given: read.append(pread(*given)))
    warm()
    assert b"".join(read) == b"".join(map(unit, range(2, 7)))
    files.close()


def test_what_was_not_written_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path)
    files.append((b"T", 0), 0, unit(0))
    with pytest.raises(OSError, match="40 were written"):
        files.read((b"T", 0), 0, 2)
    files.close()


def test_no_room_is_told_and_what_was_half_written_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_bytes = 30
    pwrite = os.pwrite

    def write_what_fits(descriptor: int, data: memoryview, offset: int) -> int:
        if offset >= room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[: room_bytes - offset], offset)

    monkeypatch.setattr(os, "pwrite", write_what_fits)
    units, segments = UnitFiles(tmp_path), SegmentFiles(tmp_path)
    writes: tuple[Callable[[], object], ...] = (
        lambda: units.append((b"T", 0), 0, unit(0) + unit(1)),
        lambda: segments.write(0, unit(0) + unit(1)),
    )
    for write in writes:
        with pytest.raises(NoRoomError, match="No space left"):
            write()
    room_bytes = 1000
    units.append((b"T", 0), 0, unit(0) + unit(1))
    segments.write(0, unit(0) + unit(1))
    assert units.read((b"T", 0), 0, 2) == segments.read(0, 0, 40) == unit(0) + unit(1)
    units.close()
    segments.close()


def test_a_dropped_queue_begins_again(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path)
    files.append((b"T", 0), 0, unit(1))
    files.drop((b"T", 0))
    files.append((b"T", 0), 0, unit(2))
    assert files.read((b"T", 0), 0, 1) == unit(2)
    files.close()


def test_a_start_wipes_what_the_last_run_left(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("not ours")
    first = UnitFiles(tmp_path)
    first.append((b"T", 0), 0, unit(1))
    first.close()
    UnitFiles(tmp_path).close()
    assert list((tmp_path / "consumequeue").iterdir()) == []
    assert (tmp_path / "other").read_text() == "not ours"


def test_many_queues_need_few_descriptors(tmp_path: Path) -> None:
    files = UnitFiles(tmp_path)
    for n in range(OPEN_FILES_MAX * 2):
        files.append((b"T", n), 0, unit(n))
    assert all(files.read((b"T", n), 0, 1) == unit(n) for n in range(OPEN_FILES_MAX * 2))
    assert len(files._files._open) <= OPEN_FILES_MAX
    files.close()


@pytest.mark.parametrize(
    "topic",
    [
        b"",
        b".",
        b"..",
        b"../../etc/passwd",
        b"/abs",
        b"a/b",
        b"a\0b",
        b"=",
        b"\xff\xfe",
        b"x" * 300,
        "中文".encode(),
    ],
)
def test_no_topic_becomes_a_path(topic: bytes) -> None:
    name = folder_name(topic)
    assert name
    assert len(name) <= 255
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")


def test_no_two_topics_share_a_folder() -> None:
    topics = [
        b"a",
        b"a=2E",
        b"a.",
        b"=",
        b"",
        b"A",
        b"a=",
        b"=#",
        b"%RETRY%a",
        b"x" * 256,
        b"x" * 257,
    ]
    assert len({folder_name(topic) for topic in topics}) == len(topics)


def test_segments(tmp_path: Path) -> None:
    files = SegmentFiles(tmp_path)
    files.write(0, b"abcdef")
    files.write(1, b"ghi")
    assert files.read(0, 2, 3) == b"cde"
    files.drop(0)
    assert [path.name for path in (tmp_path / "keyindex").iterdir()] == [f"{1:020}"]
    assert files.read(1, 0, 3) == b"ghi"
    files.close()


class ShortSystem:
    """Gives out as many descriptors for files as `left` says, and those that are closed, unless others take them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, others_take: bool = False) -> None:
        self.left = 0
        self._others_take = others_take
        self._open, self._close = os.open, os.close
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "close", self.close)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if not self.left:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        descriptor = self._open(path, flags, mode)
        self.left -= 1
        return descriptor

    def close(self, descriptor: int) -> None:
        self._close(descriptor)
        self.left += not self._others_take


def test_where_descriptors_are_short_one_file_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = UnitFiles(tmp_path)
    with monkeypatch.context() as patch:
        system = ShortSystem(patch)
        system.left = 2
        for n in range(5):
            files.append((b"T", n), 0, unit(n))
        assert [files.read((b"T", n), 0, 1) for n in range(5)] == [unit(n) for n in range(5)]
        files.close()
        assert system.left == 2


def test_without_any_descriptor_nothing_is_lost_and_everybody_may_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, segments = UnitFiles(tmp_path), SegmentFiles(tmp_path)
    units.append((b"T", 0), 0, unit(0))
    segments.write(0, unit(0))
    units.close()
    segments.close()
    reads: tuple[Callable[[], bytes], ...] = (
        lambda: units.read((b"T", 0), 0, 1),
        lambda: segments.read(0, 0, 20),
    )
    with monkeypatch.context() as patch:
        ShortSystem(patch)
        assert [read() for read in reads] == [unit(0), unit(0)], "one is held for that"
        units.close()
        segments.close()
    with monkeypatch.context() as patch:
        ShortSystem(patch, others_take=True)
        for read in reads:
            with pytest.raises(EntryDamagedError, match="cannot be read now"):
                read()
        with pytest.raises(NoRoomError, match="Too many open files"):
            units.append((b"T", 0), 1, unit(1))
        with pytest.raises(NoRoomError, match="Too many open files"):
            segments.write(1, unit(1))
    assert [read() for read in reads] == [unit(0), unit(0)]
    units.append((b"T", 0), 1, unit(1))
    assert units.read((b"T", 0), 0, 2) == unit(0) + unit(1)
    units.close()
    segments.close()


def test_units_and_segments_are_read_beside_with_descriptors_of_their_own(tmp_path: Path) -> None:
    units, segments = UnitFiles(tmp_path, file_bytes=60), SegmentFiles(tmp_path)
    units.append((b"T", 0), 0, b"".join(map(unit, range(8))))
    segments.write(3, b"0123456789")
    for files in (units, segments):
        files.close()
    assert units.read_beside((b"T", 0), 2, 5) == b"".join(map(unit, range(2, 7)))
    found: list[bytes] = []
    segments.read_beside(3, lambda read: found.append(read(2, 4)))
    assert found == [b"2345"]
    assert segments.read_resident(3, 2, 4) in {b"2345", None}, (
        "the file system may not be able to tell"
    )
    assert segments.read_resident(3, 8, 4) is None, "it ends before"
    for gone in (
        lambda: units.read_beside((b"U", 0), 0, 1),
        lambda: segments.read_beside(4, print),
    ):
        with pytest.raises(FileNotFoundError):
            gone()
