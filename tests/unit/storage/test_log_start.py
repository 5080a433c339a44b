"""A log without its beginning: what is dropped, what a crash on the way leaves, and what opening refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from dledger.errors import CompactedError, CorruptionError, DiskFailedError
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger.storage.log_start import LOG_START_NAME, FrontDrop
from dledger.storage.scan import ChainEnd
from dledger.storage.segment import StorePaths
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.survey import survey
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

SEGMENT_BYTES = 400
COUNT = 24
STEPS_MAX = 120
"""More writes and syncs than any of these changes of the files takes."""


def open_log(disk: SimDisk) -> SegmentedLog:
    return SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES, cache_bytes_max=0)


def written(disk: SimDisk, count: int = COUNT) -> SegmentedLog:
    """A log of durable entries in segments of three."""
    log = open_log(disk)
    for number in range(count):
        log.append(new_entries(log, 1 + number // 7, [80]))
        flush(log)
    return log


def all_of(log: SegmentedLog) -> list[Entry]:
    return log.entries(log.layout.first_index, Index(log.last_id.index + 1))


def end_of(entries: Sequence[Entry], index: int, log: SegmentedLog) -> ChainEnd:
    """The entry with this index, as the place that a log may follow."""
    entry = entries[index - 1]
    return ChainEnd(entry.index, entry.term, entry.end_position, log.chain_crc_of(entry.index))


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


def test_whole_segments_are_dropped_and_the_rest_is_as_it_was(disk: SimDisk) -> None:
    log = written(disk)
    entries = all_of(log)
    assert log.kept_from(Index(12)) == 10, "entries 10 to 12 share a segment"
    drop = log.drop_before(Index(12))
    assert drop is not None
    assert all_of(log) == entries[9:], "forgotten at once, before any file is touched"
    drop.run()
    for each in (log, open_log(disk)):
        assert each.layout.first_index == 10
        assert each.layout.first_position == entries[9].position
        assert each.layout.term_of(Index(9)) == entries[8].term
        assert all_of(each) == entries[9:]
        with pytest.raises(CompactedError, match=r"entry 9 is no longer kept: .* entry 10"):
            each.entries(Index(9), Index(12))
        with pytest.raises(CompactedError):
            each.entry_at(Position(0))
    names = [path for path in disk.paths() if path.startswith(("data/", "index/"))]
    assert all(int(path[-20:]) >= entries[9].position for path in names)


def test_a_log_without_its_beginning_goes_on(disk: SimDisk) -> None:
    log = written(disk)
    drop = log.drop_before(Index(10))
    assert drop is not None
    drop.run()
    log.append(new_entries(log, 9, [80, 80, 80, 80]))
    flush(log)
    log.truncate_from(Index(27))
    log.append(new_entries(log, 10, [10]))
    flush(log)
    found = all_of(log)
    log.flush_index()
    log.close()
    again = open_log(disk)
    assert again.recovery_notes == ()
    assert all_of(again) == found
    more = again.drop_before(Index(20))
    assert more is not None
    more.run()
    assert all_of(open_log(disk)) == [entry for entry in found if entry.index >= 19]


def test_what_is_not_whole_before_the_place_and_the_last_two_segments_stay(disk: SimDisk) -> None:
    log = written(disk)
    assert log.drop_before(Index(3)) is None
    assert log.drop_before(Index(1)) is None
    assert log.kept_from(Index(COUNT + 1)) == 19
    log.drop_before(Index(COUNT + 1))
    assert log.layout.first_index == 19
    assert log.drop_before(Index(COUNT + 1)) is None
    assert open_log(SimDisk(Random(0))).drop_before(Index(5)) is None


def crashes(disk: SimDisk, act: Callable[[], object], nth: int, keep: float | None) -> bool:
    """Stop the machine at the n-th step of an act, cut the power; return whether it got to the end."""
    disk.stop_at(nth)
    try:
        act()
    except (OSError, DiskFailedError):
        is_done = False
    else:
        is_done = True
    disk.crash(keep=keep)
    return is_done


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_crash_at_any_step_of_a_drop_leaves_the_log_before_or_after_it(keep: float) -> None:
    for nth in range(1, STEPS_MAX):
        disk = SimDisk(Random(nth))
        log = written(disk)
        entries = all_of(log)
        drop = log.drop_before(Index(10))
        assert drop is not None
        is_done = crashes(disk, drop.run, nth, keep)
        again = open_log(disk)
        first = again.layout.first_index
        assert first == 10 if is_done else first in {1, 10}
        assert all_of(again) == entries[first - 1 :]
        assert survey(disk, StorePaths("")).missing() == []
        again.append(new_entries(again, 9, [80]))
        flush(again)
        assert len(all_of(open_log(disk))) == len(entries) - first + 2
    assert is_done


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_drop_that_failed_may_be_run_again(disk: SimDisk, nth: int) -> None:
    drop = written(disk).drop_before(Index(10))
    assert drop is not None
    disk.fail_write(nth)
    with pytest.raises(OSError, match="simulated"):
        drop.run()
    drop.run()
    assert open_log(disk).layout.first_index == 10


def begun_anew(disk: SimDisk, index: int) -> tuple[SegmentedLog, list[Entry]]:
    """A leader's entries, and a short log of another member that follows one of them from now on, in memory."""
    leader = written(SimDisk(Random(1)))
    entries = all_of(leader)
    log = written(disk, 11)
    log.begin_after(end_of(entries, index, leader))
    return log, entries


def test_a_log_that_is_begun_anew_is_empty_behind_its_place(disk: SimDisk) -> None:
    log, entries = begun_anew(disk, 16)
    assert log.last_id == EntryId(entries[15].term, Index(16))
    assert (log.durable_index, log.durable_id.index) == (0, 0), "nothing of it is on disk yet"
    assert all_of(log) == []
    flush(log)
    assert log.durable_index == 16
    again = open_log(disk)
    assert (again.last_id, again.durable_index) == (log.last_id, 16)
    assert again.end_position == entries[15].end_position
    again.append(entries[16:])
    flush(again)
    again.close()
    assert all_of(open_log(disk)) == entries[16:]


def test_entries_come_with_the_same_batch_and_may_be_cut_again(disk: SimDisk) -> None:
    log, entries = begun_anew(disk, 16)
    log.append(entries[16:20])
    log.truncate_from(Index(19))
    log.append(entries[18:])
    flush(log)
    assert all_of(open_log(disk)) == entries[16:]


def test_an_entry_that_does_not_follow_the_place_is_refused(disk: SimDisk) -> None:
    log, entries = begun_anew(disk, 16)
    flush(log)
    with pytest.raises(Exception, match="does not follow"):
        log.append(entries[17:])
    stranger = written(SimDisk(Random(2))).entries(Index(1), Index(2))
    with pytest.raises(Exception, match="does not follow"):
        log.append(stranger)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_crash_at_any_step_of_a_new_beginning_leaves_the_old_log_or_the_new_one(
    keep: float,
) -> None:
    """The old one whole: what it confirmed must not be half gone. The new one: nothing of the old is left."""
    for nth in range(1, STEPS_MAX):
        disk = SimDisk(Random(nth))
        log, entries = begun_anew(disk, 16)
        log.append(entries[16:])
        is_done = crashes(disk, partial(flush, log), nth, keep)
        again = open_log(disk)
        found = all_of(again)
        if again.layout.first_index == 1:
            assert not is_done
            assert found == entries[:11]
        else:
            assert again.layout.first_index == 17
            assert found == entries[16 : 16 + len(found)]
            assert not is_done or len(found) == len(entries) - 16
        assert survey(disk, StorePaths("")).missing() == []
    assert is_done


def test_a_place_in_the_middle_of_the_old_files_brings_nothing_of_them_back(disk: SimDisk) -> None:
    """The old log's tail may reach beyond the new place, with segments of later names."""
    log = begun_anew(disk, 2)[0]
    flush(log)
    assert all_of(open_log(disk)) == []
    assert open_log(disk).last_id.index == 2


def reopened(disk: SimDisk) -> CorruptionError:
    with pytest.raises(CorruptionError) as raised:
        open_log(disk)
    return raised.value


def dropped(disk: SimDisk) -> FrontDrop:
    drop = written(disk).drop_before(Index(10))
    assert drop is not None
    drop.run()
    disk.restart()
    return drop


def test_a_lost_start_is_refused_with_the_first_segment(disk: SimDisk) -> None:
    dropped(disk)
    disk.lose(LOG_START_NAME)
    assert "missing; the first segment is 1152" in reopened(disk).problem


def test_a_damaged_start_is_refused_by_its_place(disk: SimDisk) -> None:
    dropped(disk)
    disk.flip_bit(LOG_START_NAME, 20)
    error = reopened(disk)
    assert (error.path, error.byte_offset) == (LOG_START_NAME, 36)


def test_a_lost_first_segment_is_refused_and_nothing_is_removed(disk: SimDisk) -> None:
    drop = dropped(disk)
    disk.lose(StorePaths("").data_path(drop.start.position))
    before = disk.paths()
    assert "missing; the first segment is" in reopened(disk).problem
    assert disk.paths() == before


def test_all_segments_lost_are_noticed(disk: SimDisk) -> None:
    dropped(disk)
    for path in disk.paths():
        if path.startswith(("data/", "index/")):
            disk.lose(path)
    assert "missing, as are all segments" in reopened(disk).problem


def test_a_start_of_another_history_is_refused(disk: SimDisk) -> None:
    drop = dropped(disk)
    other = ChainEnd(drop.start.index, Term(2), drop.start.position, drop.start.chain_crc ^ 1)
    strange = SimDisk(Random(5))
    log = written(strange, 1)
    log.begin_after(other)
    flush(log)
    disk.overwrite(LOG_START_NAME, strange.content(LOG_START_NAME))
    assert "does not continue the segment before" in reopened(disk).problem


def test_a_survey_sees_the_log_from_its_start_on(disk: SimDisk) -> None:
    drop = dropped(disk)
    disk.flip_bit(StorePaths("").data_path(drop.start.position), 200)
    found = survey(disk, StorePaths(""))
    assert [(each.first_index, each.last_index) for each in found.missing()] == []
    disk.flip_bit(StorePaths("").index_path(drop.start.position), 70)
    found = survey(disk, StorePaths(""))
    assert [(each.first_index, each.last_index) for each in found.missing()] == [(11, 11)]
    assert found.before.index == 9
