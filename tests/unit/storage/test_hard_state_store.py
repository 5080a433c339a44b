"""Term and vote survive everything, or the node does not start."""

from __future__ import annotations

from random import Random

import pytest

from dledger.errors import CorruptionError, DiskFailedError, DiskFullError
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Term
from dledger.storage.hard_state import HardStateStore
from dledger.testing.sim_disk import SimDisk

EMPTY = EntryId(NO_TERM, NO_INDEX)
FILE = "log/hard_state"
OLD = HardState(Term(3), NodeId("n0"))
NEW = HardState(Term(4), NodeId("n2"))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(Random(0))
    open_store(disk).save(OLD)
    return disk


def open_store(disk: SimDisk, last_id: EntryId = EMPTY) -> HardStateStore:
    return HardStateStore.open(disk, "log", last_id=last_id)


def test_a_saved_state_survives_a_crash(disk: SimDisk) -> None:
    disk.crash(keep=0.0)
    assert open_store(disk).state == OLD


def test_a_crash_at_any_step_of_a_save_leaves_the_old_or_the_new_state() -> None:
    for seed in range(200):
        disk = SimDisk(Random(seed))
        store = open_store(disk)
        store.save(OLD)
        getattr(disk, ("fail_sync", "fail_write")[seed % 2])(seed // 2 % 6 + 1)
        try:
            store.save(NEW)
        except DiskFailedError:
            disk.crash()
            state = open_store(disk).state
            assert state in (OLD, NEW)
        else:
            disk.crash(keep=0.0)
            state = open_store(disk).state
            assert state == NEW
        # Whatever was read once stays: a vote that a node has acted upon is never taken back.
        disk.crash(keep=0.0)
        assert open_store(disk).state == state


def test_a_state_read_after_a_killed_save_is_durable(disk: SimDisk) -> None:
    store = open_store(disk)
    disk.fail_sync(2)  # the folder's
    with pytest.raises(DiskFailedError):
        store.save(NEW)
    disk.restart()
    assert open_store(disk).state == NEW
    disk.crash(keep=0.0)
    assert open_store(disk).state == NEW


def test_after_a_failed_save_nothing_is_saved_any_more(disk: SimDisk) -> None:
    store = open_store(disk)
    disk.fail_sync()
    for _ in range(2):
        with pytest.raises(DiskFailedError):
            store.save(NEW)
    assert store.state == OLD


def test_a_full_disk_refuses_and_changes_nothing(disk: SimDisk) -> None:
    store = open_store(disk)
    disk.capacity_bytes = len(disk.content(FILE)) + 3
    with pytest.raises(DiskFullError):
        store.save(NEW)
    assert disk.paths() == [FILE]
    assert open_store(disk).state == OLD
    disk.capacity_bytes = None
    store.save(NEW)
    assert open_store(disk).state == NEW


def test_every_damage_is_refused(disk: SimDisk) -> None:
    whole = disk.content(FILE)
    for byte in range(len(whole)):
        disk.flip_bit(FILE, byte, byte % 8)
        with pytest.raises(CorruptionError) as caught:
            open_store(disk)
        assert caught.value.path == FILE
        disk.flip_bit(FILE, byte, byte % 8)
        disk.overwrite(FILE, whole[:byte])
        with pytest.raises(CorruptionError):
            open_store(disk)
        disk.overwrite(FILE, whole)
    assert open_store(disk).state == OLD


def test_a_missing_file_is_a_fresh_start_only_for_an_empty_log(disk: SimDisk) -> None:
    disk.lose(FILE)
    assert open_store(disk).state == HardState(NO_TERM, None)
    with pytest.raises(CorruptionError, match="the vote is lost"):
        open_store(disk, EntryId(Term(1), Index(5)))


def test_a_file_older_than_the_log_is_refused(disk: SimDisk) -> None:
    assert open_store(disk, EntryId(Term(3), Index(9))).state == OLD
    with pytest.raises(CorruptionError, match="older than the log's last entry 9@4"):
        open_store(disk, EntryId(Term(4), Index(9)))


def test_what_a_crash_left_aside_is_swept_away(disk: SimDisk) -> None:
    disk.open(FILE + ".aside", create=True).write_at(0, (b"half",))
    assert open_store(disk).state == OLD
    assert disk.paths() == [FILE]
