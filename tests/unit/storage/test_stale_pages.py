"""What stands far behind the end of a log is given up once, and only what is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.ids import Index, Position
from dledger.storage import stale_pages
from dledger.storage.posix import PosixDisk
from dledger.storage.scan import ChainEnd
from dledger.storage.segment import StorePaths
from dledger.storage.segment_list import SegmentList
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.stale_pages import KEPT_BYTES_MIN, StalePages, usual_kept_bytes
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk, SimFile

SEGMENT_BYTES = 1000


class GivenUp:
    """What a log gave up, as positions from and to; no byte behind the end of its file is."""

    def __init__(self, patch: pytest.MonkeyPatch, step_bytes: int = 1) -> None:
        self.ranges: list[tuple[int, int]] = []
        patch.setattr(stale_pages, "STEP_BYTES", step_bytes)

        def give_up(file: SimFile, offset: int, size: int) -> None:
            assert 0 <= offset < offset + size <= file.size()
            assert not offset % step_bytes
            first = int(Path(file.path).name) + offset
            self.ranges.append((first, first + size))

        patch.setattr(SimFile, "give_up_pages", give_up)


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> GivenUp:
    return GivenUp(monkeypatch)


def open_log(disk: Any, kept_bytes: int | None, *, syncs: bool = True) -> SegmentedLog:
    return SegmentedLog.open(
        disk,
        segment_size_bytes=SEGMENT_BYTES,
        cache_bytes_max=0,
        page_cache_bytes=kept_bytes,
        syncs=syncs,
    )


def write(log: SegmentedLog, *sizes: int) -> None:
    log.append(new_entries(log, max(1, log.last_id.term), list(sizes)))
    flush(log)


def test_a_short_log_gives_nothing_up(given_up: GivenUp) -> None:
    log = open_log(SimDisk(Random(0)), None)
    write(log, 300, 300, 300, 300)
    assert given_up.ranges == []


def test_a_large_machine_keeps_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = PosixDisk(tmp_path)
    assert usual_kept_bytes(disk) >= KEPT_BYTES_MIN == usual_kept_bytes(SimDisk(Random(0)))
    assert disk.memory_bytes() > 1 << 20
    monkeypatch.setattr(PosixDisk, "memory_bytes", lambda _: 64 << 30)
    assert usual_kept_bytes(disk) == 4 << 30


@given(
    st.lists(st.lists(st.integers(1, 700), min_size=1, max_size=4), max_size=8),
    st.integers(0, 3000),
    st.sampled_from([1, 500]),
    st.booleans(),
)
def test_all_bytes_are_given_up_once_when_so_many_follow(
    batches: list[list[int]], kept_bytes: int, step_bytes: int, syncs: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        given_up = GivenUp(patch, step_bytes)
        disk = SimDisk(Random(0))
        log = open_log(disk, kept_bytes, syncs=syncs)
        for sizes in batches:
            write(log, *sizes)
            bounds = [0, *(end for _, end in given_up.ranges)]
            assert [begin for begin, _ in given_up.ranges] == bounds[:-1], "no gap, nothing twice"
            assert log.end_position - kept_bytes - step_bytes < max(bounds[-1], 1)
            assert bounds[-1] <= max(0, log.end_position - kept_bytes)
        # What is there is as it was.
        assert open_log(disk, None).last_id == log.last_id


def test_a_log_that_was_opened_gives_up_what_comes(given_up: GivenUp) -> None:
    disk = SimDisk(Random(0))
    log = open_log(disk, None)
    write(log, 300, 300, 300, 300)
    end = log.end_position
    write(open_log(disk, 0), 100)
    assert given_up.ranges == [(end, end + 100 + 48)]


def test_bytes_that_were_cut_and_written_again_are_not_given_up_again(given_up: GivenUp) -> None:
    log = open_log(SimDisk(Random(0)), 0)
    write(log, 300, 300, 300, 300)
    end = log.end_position
    log.truncate_from(Index(2))
    write(log, 300, 300)
    assert given_up.ranges[-1][1] == end
    write(log, 600)
    assert given_up.ranges[-1] == (end, log.end_position)


def test_a_log_that_is_begun_anew_gives_up_what_it_gets(given_up: GivenUp) -> None:
    log = open_log(SimDisk(Random(0)), 0)
    write(log, 300)
    write(log, 300)
    before = ChainEnd(log.last_id.index, log.last_id.term, log.layout.position_of(Index(2)), 7)
    del given_up.ranges[:]
    log.begin_after(before)
    write(log, 200)
    assert given_up.ranges == [(before.position, log.end_position)]


def test_segments_that_are_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_pages, "STEP_BYTES", 1)
    disk = SimDisk(Random(0))
    log = open_log(disk, 0)
    pages = StalePages(log.end_position, 0)
    write(log, 600, 600, 600)
    row: SegmentList = log._row
    ranges = pages.take(row, log.end_position)
    assert [each.path for each in ranges] == [
        StorePaths("").data_path(row[place].first_position) for place in range(3)
    ]
    disk.remove(ranges[0].path)
    for each in ranges:
        each.give_up(disk)
    pages = StalePages(log.layout.position_of(Index(1)), 0)
    row.take_front(1)
    assert pages.take(row, log.end_position) == ranges[1:]


def noted(log: SegmentedLog, position: int) -> None:
    log.note_reader(Position(position))


def test_what_a_late_reader_is_about_to_read_stays_while_it_goes_on(
    given_up: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_pages, "READER_BYTES", 1000)
    log = open_log(SimDisk(Random(0)), 500)
    for place in range(0, 6000, 300):  # it reads half as fast as the log grows
        noted(log, place)
        write(log, 552)
        assert not given_up.ranges or given_up.ranges[-1][1] <= place
    assert given_up.ranges[-1][1] >= 4500, "what it has read, but for the last two thousand"
    for _ in range(4):  # and is seen no more
        write(log, 552)
    assert given_up.ranges[-1][1] == log.end_position - 500
    bounds = [0, *(end for _, end in given_up.ranges)]
    assert [begin for begin, _ in given_up.ranges] == bounds[:-1]


def test_a_reader_of_what_was_given_up_keeps_what_comes(
    given_up: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_pages, "READER_BYTES", 1000)
    log = open_log(SimDisk(Random(0)), 0)
    write(log, 552, 552)
    assert given_up.ranges[-1][1] == 1200
    for _ in range(5):
        noted(log, 0)
        write(log, 552)
    assert given_up.ranges[-1][1] == 1200


def test_much_is_given_up_in_several_batches(
    given_up: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_pages, "GIVEN_UP_BYTES_MAX", 900)
    log = open_log(SimDisk(Random(0)), 0)
    noted(log, 0)
    write(log, 552, 552, 552, 552)
    monkeypatch.setattr(stale_pages, "READER_BYTES", 0)
    ends = []
    for _ in range(6):
        write(log, 52)
        ends.append(given_up.ranges[-1][1] if given_up.ranges else 0)
    assert ends == [0, 900, 1800, 2700, 2900, 3000]


def test_the_system_is_told_and_the_bytes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int, int]] = []
    advise = os.posix_fadvise

    def note(descriptor: int, offset: int, size: int, advice: int) -> None:
        told.append((offset, size, advice))
        advise(descriptor, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", note)
    disk = PosixDisk(tmp_path)
    file = disk.open("x", create=True)
    file.write_at(0, (b"a" * 9000,))
    file.sync()
    file.give_up_pages(4096, 4096)
    assert told == [(4096, 4096, os.POSIX_FADV_DONTNEED)]
    assert file.read_at(0, 9000) == b"a" * 9000


def test_a_system_that_does_not_listen_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(stale_pages, "STEP_BYTES", 1)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    log = open_log(PosixDisk(tmp_path), 0)
    write(log, 300)
    assert log.durable_index == 1
