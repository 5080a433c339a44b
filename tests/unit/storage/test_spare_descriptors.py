"""A store goes on writing when its process has no descriptors left; what only reads leaves it those that it keeps."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.errors import DiskFailedError
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId, Term
from dledger.storage.hard_state import HardStateStore
from dledger.storage.posix import SPARE_COUNT, PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from tests.unit.storage.descriptors import no_descriptors

SEGMENT_BYTES = 1000


def open_log(path: Path, spare_count: int = SPARE_COUNT) -> SegmentedLog:
    disk = PosixDisk(path, spare_count=spare_count)
    log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=0)
    log.append(new_entries(log, 1, [100] * 25))
    flush(log)
    return log


def test_a_log_begins_segments_and_is_cut_into_finished_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with no_descriptors():
        log.append(new_entries(log, 1, [100] * 20))
        flush(log)
        log.truncate_from(Index(9))
        log.append(new_entries(log, 2, [100] * 20))
        flush(log)
    entries = log.entries(Index(1), Index(29))
    log.close()
    again = SegmentedLog.open(
        PosixDisk(tmp_path), segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=0
    )
    assert again.entries(Index(1), Index(29)) == entries
    assert again.last_id.term == 2
    again.close()


@pytest.mark.parametrize("cut_at", [None, 9])
def test_without_such_descriptors_it_stops(tmp_path: Path, cut_at: int | None) -> None:
    log = open_log(tmp_path, spare_count=0)
    if cut_at is None:
        log.append(new_entries(log, 1, [100] * 20))
    else:
        log.truncate_from(Index(cut_at))
    with no_descriptors(), pytest.raises(DiskFailedError, match="Too many open files"):
        flush(log)
    log.close()


def test_votes_are_kept(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path, spare_count=SPARE_COUNT)
    log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=0)
    store = HardStateStore.open(disk, last_id=log.last_id)
    with no_descriptors():
        for term in range(1, 50):
            store.save(HardState(Term(term), NodeId("n1")))
    assert HardStateStore.open(PosixDisk(tmp_path), last_id=log.last_id).state.term == 49
    log.close()


@pytest.fixture(params=[0, 300])
def _open_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """So many descriptors that the process has open already."""
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(request.param)]
    yield
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.usefixtures("_open_before")
def test_what_is_only_read_takes_none_of_them_and_they_come_back(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path, spare_count=2)
    disk.open("x", create=True).close()
    with no_descriptors() as taken:
        with pytest.raises(OSError, match="Too many open files"):
            disk.open("x")
        files = [disk.open(f"y{number}", create=True) for number in range(2)]
        with pytest.raises(OSError, match="Too many open files"):
            disk.open("z", create=True)
        for file in files:
            file.close()
        disk.open("z", create=True).close()
        os.close(taken.pop())
        disk.open("z", create=True).close()
        assert len(disk._spare._held) == 2, "those that were given back are held again"


class TakenMeanwhile(list[int]):
    """The descriptors that are held, of which another thread takes the last one right after somebody has looked."""

    def __bool__(self) -> bool:
        if not len(self):
            return False
        os.close(self.pop())
        return True


def test_threads_that_share_the_last_one_are_told_what_the_system_said(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path, spare_count=1)
    held, disk._spare._held = disk._spare._held, TakenMeanwhile(disk._spare._held)
    held.clear()
    with no_descriptors():
        file = disk.open("x", create=True)
        with pytest.raises(OSError, match="Too many open files"):
            disk.open("y", create=True)
    file.close()


@pytest.mark.usefixtures("only_new_garbage")
def test_they_go_with_the_disk(tmp_path: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()
    before = count()
    disk = PosixDisk(tmp_path, spare_count=5)
    assert count() == before + 5
    del disk
    gc.collect()
    assert count() == before
