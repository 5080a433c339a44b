"""Damage in the indexes of finished segments is found soon after a start, though nobody asks for their entries."""

from __future__ import annotations

import errno
import threading
from random import Random

import pytest
import trio

from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.errors import DiskFailedError
from dledger.raft.ids import Index
from dledger.runtime import index_checks, scrubbing
from dledger.runtime.index_checks import check_indexes
from dledger.runtime.scrubbing import scrub
from dledger.storage.examination import Examination, PageTable
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk, SimFile
from tests.unit.engine.scripted import ScriptedEngine, scripted
from tests.unit.runtime.conftest import PATIENCE_S, wait_until

SEGMENT_BYTES = 4096
MIDDLE_BYTE = 7 * INDEX_UNIT_BYTES + 20


class DriverOfEngine:
    """What the task needs of a driver: its engine, and to wake it."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.wake_count = 0

    def wake(self) -> None:
        self.wake_count += 1


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(Random(0))
    log = SegmentedLog.open(made, segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=0)
    for _ in range(60):
        log.append(new_entries(log, 1, [200]))
        flush(log)
    log.close()
    return made


def finished(disk: SimDisk) -> list[str]:
    return sorted(path for path in disk.paths() if path.startswith("index/"))[:-1]


async def test_every_index_is_read_after_a_start_and_damage_is_mended(disk: SimDisk) -> None:
    damaged = finished(disk)[1]
    disk.flip_bit(damaged, MIDDLE_BYTE)
    driver = DriverOfEngine(scripted(disk))
    log = driver.engine.log
    assert log.unverified() is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_indexes, driver)
        await wait_until(lambda: log.unverified() is None)
        nursery.cancel_scope.cancel()
    assert [(event, fields["path"]) for event, fields in log.notes] == [("index-rebuilt", damaged)]
    assert driver.wake_count == len(finished(disk))
    assert [each.index for each in log.entries(Index(1), Index(61))] == list(range(1, 61))


async def test_where_the_entries_are_damaged_too_the_node_stops(disk: SimDisk) -> None:
    damaged = finished(disk)[1]
    disk.flip_bit(damaged, MIDDLE_BYTE)
    disk.flip_bit(damaged.replace("index/", "data/"), 8 * 248 + 60)
    driver = DriverOfEngine(scripted(disk))
    with pytest.raises(DiskFailedError, match="both damaged"), trio.fail_after(PATIENCE_S):
        await check_indexes(driver)  # type: ignore[arg-type]
    assert isinstance(driver.engine.failure, DiskFailedError)


async def test_a_lack_of_descriptors_is_waited_for(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_checks, "RETRY_S", 0.001)
    driver = DriverOfEngine(scripted(disk))
    log = driver.engine.log
    real_open, refused = disk.open, 0

    def refuse_some(path: str, *, create: bool = False) -> SimFile:
        nonlocal refused
        if refused < 5:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        return real_open(path, create=create)

    monkeypatch.setattr(disk, "open", refuse_some)
    before = {path: disk.content(path) for path in disk.paths()}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_indexes, driver)
        await wait_until(lambda: log.unverified() is None)
        nursery.cancel_scope.cancel()
    assert refused == 5
    assert (driver.engine.failure, log.notes) == (None, [])
    assert {path: disk.content(path) for path in disk.paths()} == before


async def test_the_scrubber_waits_for_descriptors_too(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "RETRY_S", 0.001)
    driver = DriverOfEngine(scripted(disk, cache_bytes_max=0))
    real_open, refused, read = disk.open, 0, set[str]()

    def refuse_some(path: str, *, create: bool = False) -> SimFile:
        nonlocal refused
        if refused < 5:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        read.add(path)
        return real_open(path, create=create)

    monkeypatch.setattr(disk, "open", refuse_some)
    data = {path.replace("index/", "data/") for path in finished(disk)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrub, driver, 1 << 30)
        await wait_until(lambda: data <= read)
        nursery.cancel_scope.cancel()
    assert (refused, driver.engine.failure) == (5, None)
    assert not driver.engine.live_repair.missing_count


async def test_a_read_that_hangs_does_not_hold_the_end(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def hang(_examination: Examination) -> PageTable:
        begun.set()
        ends.wait(120)
        raise OSError(errno.EIO, "simulated")

    monkeypatch.setattr(Examination, "run", hang)
    driver = DriverOfEngine(scripted(disk))
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check_indexes, driver)
                await wait_until(begun.is_set)
                nursery.cancel_scope.cancel()
    finally:
        ends.set()


async def test_a_segment_that_is_finished_later_is_read_later(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_checks, "IDLE_S", 0.001)
    driver = DriverOfEngine(scripted(disk))
    log = driver.engine.log
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_indexes, driver)
        await wait_until(lambda: log.unverified() is None)
        for _ in range(40):
            log.append(new_entries(log, 1, [200]))
            flush(log)
        assert log.unverified() is not None
        await wait_until(lambda: log.unverified() is None)
        nursery.cancel_scope.cancel()
    assert log.notes == []
