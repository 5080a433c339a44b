"""The log over a disk that fills up, fails, or is slow while the log goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from dledger.errors import (
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    PeerProtocolError,
    UsageError,
)
from dledger.raft.entry import Entry
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, Position, Term
from dledger.storage.hard_state import HardStateStore
from dledger.storage.posix import PosixDisk
from dledger.storage.sealed_index import FILES_MAX
from dledger.storage.segment import INDEX_STEP_BYTES, Segment
from dledger.storage.segment_list import OPEN_SEGMENTS_MAX
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.write_batch import WRITE_BATCH_BYTES_MAX, WriteBatch
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

SEGMENT_BYTES = 1000


def open_log(disk: SimDisk, *, cache_bytes_max: int = 0, syncs: bool = True) -> SegmentedLog:
    return SegmentedLog.open(
        disk, segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=cache_bytes_max, syncs=syncs
    )


def append(log: SegmentedLog, *sizes: int) -> list[Entry]:
    return list(log.append(new_entries(log, max(1, log.last_id.term), list(sizes))))


def all_entries(log: SegmentedLog) -> list[Entry]:
    return log.entries(Index(1), Index(log.last_id.index + 1))


def take(log: SegmentedLog) -> WriteBatch:
    batch = log.take_writes()
    assert batch is not None
    return batch


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


def test_a_batch_is_one_write_one_sync_and_its_units(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 10)
    flush(log)
    before = disk.statistics()
    append(log, 10, 20, 30)
    flush(log)
    after = disk.statistics()
    assert after.sync_count - before.sync_count == 1
    assert after.write_count - before.write_count == 2


@pytest.mark.slow
def test_a_batch_ends_at_its_bound_and_at_the_segments_end(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 300, 300, 300, 5000, 100)
    counts = []
    while (batch := log.take_writes()) is not None:
        counts.append((batch.entry_count, batch.size_bytes))
        batch.run()
        log.written(batch)
    assert counts == [(2, 696), (1, 348), (1, 5048), (1, 148)]
    assert all_entries(log) == entries
    large = SegmentedLog.open(SimDisk(Random(1)), segment_size_bytes=1 << 24)
    append(large, *[WRITE_BATCH_BYTES_MAX // 3] * 5)
    sizes = []
    while (batch := large.take_writes()) is not None:
        sizes.append(batch.entry_count)
        batch.run()
        large.written(batch)
    assert sizes == [2, 2, 1]


def test_the_log_goes_on_while_a_batch_is_out(disk: SimDisk) -> None:
    log = open_log(disk)
    first = append(log, 100, 100)
    batch = take(log)
    second = append(log, 100)
    assert all_entries(log) == first + second
    batch.run()
    assert log.durable_index == 0, "durable only once reported"
    assert log.written(batch) == first[-1].id
    flush(log)
    assert log.durable_id == second[-1].id


def test_entries_truncated_while_they_were_written_are_not_durable(disk: SimDisk) -> None:
    log = open_log(disk)
    first = append(log, 100, 100, 100)
    batch = take(log)
    log.truncate_from(Index(2))
    other = log.append(new_entries(log, 5, [50]))
    batch.run()
    assert log.written(batch) == first[0].id
    assert all_entries(log) == [first[0], *other]
    flush(log)
    assert log.durable_id == other[0].id
    disk.crash(keep=0.0)
    assert all_entries(open_log(disk)) == [first[0], *other]


def test_truncating_what_was_never_written_needs_no_disk(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 10)
    flush(log)
    append(log, 10, 10)
    log.truncate_from(Index(2))
    assert not log.has_writes
    assert log.take_writes() is None


def test_a_truncation_over_segments_removes_their_files(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, *[600] * 6)
    flush(log)
    assert len(disk.list("data")) == 6
    log.truncate_from(Index(3))
    flush(log)
    assert disk.list("data") == disk.list("index")
    # The segment of the first removed entry stays, empty.
    assert [int(name) for name in disk.list("data")] == [each.position for each in entries[:3]]
    disk.crash(keep=0.0)
    log = open_log(disk)
    assert all_entries(log) == entries[:2]
    log.truncate_from(Index(1))
    again = append(log, 10)
    flush(log)
    assert all_entries(open_log(disk)) == again


def test_units_are_withheld_without_syncs(disk: SimDisk) -> None:
    """A unit proves that its entry was durable, so an entry that was not synced has none."""
    log = open_log(disk, syncs=False)
    entries = append(log, 100, 100)
    flush(log)
    assert log.durable_id == entries[-1].id
    index = disk.list("index")[0]
    assert not disk.content(f"index/{index}").strip(b"\0")
    log.flush_index()
    assert disk.content(f"index/{index}").strip(b"\0")
    disk.crash(keep=0.0)
    assert all_entries(open_log(disk)) == entries


def test_no_room_for_the_first_segment_leaves_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    disk.capacity_bytes = 500
    append(log, 10)
    batch = take(log)
    with pytest.raises(DiskFullError, match="no room for 1000 bytes"):
        batch.run()
    assert disk.paths() == []
    assert log.failure is None


def test_no_room_to_roll_leaves_no_half_segment_and_the_batch_can_run_later(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 600)
    flush(log)
    files = disk.paths()
    entries += append(log, 600)
    batch = take(log)
    for capacity in (66_537, 66_537 + 1200):  # no room for the data file, then none for the index
        disk.capacity_bytes = capacity
        with pytest.raises(DiskFullError):
            batch.run()
        assert disk.paths() == files
    assert all_entries(log) == entries, "reads go on"
    disk.capacity_bytes = None
    batch.run()
    assert log.written(batch) == entries[-1].id
    assert all_entries(open_log(disk)) == entries


def test_a_disk_without_room_for_another_name_is_a_full_disk(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 600)
    flush(log)
    entries += append(log, 600)
    batch = take(log)
    disk.capacity_bytes = 0
    with pytest.raises(DiskFullError, match="no room"):
        batch.run()
    disk.capacity_bytes = None
    batch.run()
    assert log.written(batch) == entries[-1].id


def test_room_for_the_seal_is_made_before_the_next_segment(disk: SimDisk) -> None:
    """An index that was made again on opening has just its units, and no room after them."""
    entries = append(log := open_log(disk), 600)
    flush(log)
    disk.restart()
    disk.overwrite(f"index/{0:020d}", b"")
    log = open_log(disk)
    entries += append(log, 600)
    used = sum(len(disk.content(path)) for path in disk.paths())
    disk.capacity_bytes = used + SEGMENT_BYTES + INDEX_STEP_BYTES
    batch = take(log)
    with pytest.raises(DiskFullError, match="index"):
        batch.run()
    disk.capacity_bytes = None
    batch.run()
    assert log.written(batch) == entries[-1].id
    assert all_entries(open_log(disk)) == entries


def test_room_that_does_not_do_is_given_back(disk: SimDisk) -> None:
    """The vote must find some, and what is freed must not be eaten up bit by bit."""
    append(log := open_log(disk), 100)
    flush(log)
    disk.restart()
    log = open_log(disk)
    disk.capacity_bytes = (
        sum(len(disk.content(path)) for path in disk.paths()) + 700
    )  # a segment needs 852 more
    append(log, 10)
    batch = take(log)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            batch.run()
        assert disk.free_bytes() == 700
    HardStateStore.open(disk, last_id=log.last_id, may_forget=True).save(HardState(Term(7), None))


def test_room_for_the_index_is_made_before_an_entry_is_written(disk: SimDisk) -> None:
    log = SegmentedLog.open(disk, segment_size_bytes=200_000)
    append(log, *[0] * 2040)
    flush(log)
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths())
    more = append(log, *[0] * 20)
    batch = take(log)
    with pytest.raises(DiskFullError, match="index"):
        batch.run()
    data = disk.content(f"data/{0:020d}")
    assert not data[more[0].position :].strip(b"\0")
    disk.capacity_bytes = None
    batch.run()
    assert log.written(batch) == more[-1].id


def test_an_opened_log_makes_its_room_with_the_first_write(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 100)
    flush(log)
    disk.restart()
    disk.capacity_bytes = 0
    log = open_log(disk)
    assert all_entries(log) == entries, "a full disk can be opened and read"
    append(log, 10)
    with pytest.raises(DiskFullError):
        take(log).run()


@pytest.mark.parametrize("fault", ["fail_sync", "fail_write"])
def test_a_failed_write_or_sync_ends_all_writing(disk: SimDisk, fault: str) -> None:
    log = open_log(disk)
    entries = append(log, 10)
    flush(log)
    entries += append(log, 20)
    batch = take(log)
    getattr(disk, fault)()
    with pytest.raises(DiskFailedError, match="Errno 5"):
        batch.run()
    assert log.failure is not None
    assert log.durable_id == entries[0].id
    for refused in (
        batch.run,
        log.take_writes,
        log.flush_index,
        lambda: append(log, 1),
        lambda: log.truncate_from(Index(1)),
    ):
        with pytest.raises(DiskFailedError):
            refused()
    assert all_entries(log) == entries, "reads go on"


def test_a_batch_whose_error_another_sync_of_its_file_was_told_is_not_durable(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a lost page once for each open file: an entry was written back while a batch ran."""
    log = open_log(disk)
    entries = append(log, 10)
    flush(log)
    index_before = disk.content(f"index/{0:020d}")
    append(log, 20)
    batch = take(log)
    sync_data = Segment.sync_data

    def sync_after_another(segment: Segment) -> None:
        disk.fail_sync()
        with pytest.raises(DiskFailedError):
            log.mend(entries[0])
        sync_data(segment)

    monkeypatch.setattr(Segment, "sync_data", sync_after_another)
    with pytest.raises(DiskFailedError):
        batch.run()
    assert not batch.is_done
    assert disk.content(f"index/{0:020d}") == index_before, (
        "a unit proves that its entry is durable"
    )


def test_a_failed_read_is_told_and_does_no_harm(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 10)
    flush(log)
    disk.fail_read()
    with pytest.raises(OSError, match="read failure"):
        all_entries(log)
    assert all_entries(log) == entries


def test_a_flip_on_a_running_disk_is_found_by_the_read(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 10, 10)
    flush(log)
    for byte in range(entries[1].position, entries[1].end_position):
        disk.flip_bit(f"data/{0:020d}", byte)
        with pytest.raises(CorruptionError) as caught:
            all_entries(log)
        assert entries[1].position <= caught.value.byte_offset < entries[1].end_position
        disk.flip_bit(f"data/{0:020d}", byte)
    assert all_entries(log) == entries


def test_a_file_cut_under_a_running_log_is_found_by_the_read(disk: SimDisk) -> None:
    log = open_log(disk)
    entries = append(log, 10, 10)
    flush(log)
    for size in range(entries[-1].end_position):
        disk.overwrite(f"data/{0:020d}", disk.content(f"data/{0:020d}")[:-1])
        disk.open(f"data/{0:020d}").truncate(entries[-1].end_position - 1 - size)
        with pytest.raises(CorruptionError):
            all_entries(log)


def test_entries_of_another_history_are_refused_whole(disk: SimDisk) -> None:
    leader, follower = open_log(disk), open_log(SimDisk(Random(1)))
    entries = append(leader, 10, 20, 30)
    follower.append(new_entries(follower, 1, [11]))
    for wrong in (entries[1:], [entries[0]]):
        with pytest.raises(PeerProtocolError):
            follower.append(wrong)
    follower.truncate_from(Index(1))
    flipped = Entry(
        entries[2].index,
        entries[2].term,
        entries[2].position,
        entries[2].kind,
        b"x" * 30,
        entries[2].header,
    )
    with pytest.raises(PeerProtocolError, match="body crc"):
        follower.append([*entries[:2], flipped])
    assert follower.last_id.index == 0
    assert follower.append(entries) == tuple(entries)


def test_a_segment_size_of_nothing_is_refused(disk: SimDisk) -> None:
    with pytest.raises(UsageError, match="segment_size_bytes=0"):
        SegmentedLog.open(disk, segment_size_bytes=0)


def test_the_cache_keeps_what_is_not_durable_whatever_its_bound(disk: SimDisk) -> None:
    log = open_log(disk, cache_bytes_max=500)
    entries = append(log, *[100] * 20)
    disk.fail_read()
    assert all_entries(log) == entries, "from memory: the disk has nothing yet"
    flush(log)
    assert log._cache.size_bytes <= 500
    assert len(log._cache) == 3
    disk.fail_read()
    assert log.entries(Index(18), Index(21)) == entries[17:]
    disk.forget_faults()
    assert all_entries(log) == entries, "half from disk, half from memory"


def test_reading_old_entries_leaves_the_cache_alone(disk: SimDisk) -> None:
    log = open_log(disk, cache_bytes_max=500)
    entries = append(log, *[100] * 20)
    flush(log)
    entries += append(log, 100)
    held = [index for index in range(1, 22) if log._cache.get(index) is not None]
    assert all_entries(log) == entries
    assert [index for index in range(1, 22) if log._cache.get(index) is not None] == held


@pytest.mark.slow
def test_few_files_are_open_however_many_segments_there_are(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path)
    log = SegmentedLog.open(disk, segment_size_bytes=100, cache_bytes_max=0)
    entries = append(log, *[60] * (OPEN_SEGMENTS_MAX + 20))
    flush(log)

    def open_files() -> int:
        return sum(1 for each in Path("/proc/self/fd").iterdir() if str(tmp_path) in _target(each))

    assert open_files() <= OPEN_SEGMENTS_MAX + FILES_MAX + 3
    assert all_entries(log) == entries
    assert open_files() <= OPEN_SEGMENTS_MAX + FILES_MAX + 3
    log.close()
    assert open_files() == 0
    log = SegmentedLog.open(disk, segment_size_bytes=100, cache_bytes_max=0)
    assert open_files() <= 2
    assert all_entries(log) == entries
    assert open_files() <= OPEN_SEGMENTS_MAX + FILES_MAX + 3
    log.close()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


@pytest.mark.slow
def test_batches_run_in_another_thread_while_the_owner_appends_truncates_and_reads(
    tmp_path: Path,
) -> None:
    """The two share nothing but what is written down in write_batch.py."""
    random = Random(3)
    log = SegmentedLog.open(PosixDisk(tmp_path), segment_size_bytes=20_000, cache_bytes_max=2_000)
    expected: list[Entry] = []
    for _ in range(60):
        batch = log.take_writes()
        thread = threading.Thread(target=batch.run) if batch is not None else None
        if thread is not None:
            thread.start()
        for _ in range(5):
            sizes = [random.randrange(2000) for _ in range(random.randrange(6))]
            expected += log.append(new_entries(log, log.last_id.term + 1, sizes))
            if expected and random.random() < 0.2:
                keep = random.randrange(len(expected) // 2, len(expected))
                log.truncate_from(Index(keep + 1))
                del expected[keep:]
            if expected:
                first = random.randrange(len(expected))
                assert log.entries(Index(first + 1), Index(len(expected) + 1)) == expected[first:]
        if thread is not None:
            thread.join(timeout=60)
            assert batch is not None
            log.written(batch)
    flush(log)
    log.close()
    log = SegmentedLog.open(PosixDisk(tmp_path), segment_size_bytes=20_000, cache_bytes_max=0)
    assert all_entries(log) == expected
    assert log.entry_at(Position(expected[-1].position)) == expected[-1]
    log.close()
