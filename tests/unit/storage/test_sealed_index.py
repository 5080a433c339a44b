"""Entries of finished segments, looked up in their index files: never a wrong place, whatever happened to the files."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path
from random import Random
from types import NoneType

import pytest

from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.errors import CorruptionError, DiskFailedError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage import sealed_index
from dledger.storage.examination import (
    PAGE_BYTES,
    PAGE_UNITS,
    LostIndex,
    PageTable,
    Rebuilt,
)
from dledger.storage.posix import PosixDisk
from dledger.storage.sealed_index import WRITTEN_MAX, WrittenEntries
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush
from dledger.testing.sim_disk import SimDisk, SimFile
from tests.unit.storage.descriptors import no_descriptors

BODY = b"abcd"
ENTRY_BYTES = ENTRY_HEADER_BYTES + len(BODY)
SEGMENT_ENTRIES = 2 * PAGE_UNITS + 100
SEGMENT_BYTES = SEGMENT_ENTRIES * ENTRY_BYTES
SECOND = f"{SEGMENT_BYTES:020d}"
COUNT = 3 * SEGMENT_ENTRIES + 50
MIDDLE = Index(SEGMENT_ENTRIES + PAGE_UNITS + 7)
"""An entry in the second page of the second segment."""


def open_log(disk: SimDisk | PosixDisk, segment_bytes: int = SEGMENT_BYTES) -> SegmentedLog:
    return SegmentedLog.open(disk, segment_size_bytes=segment_bytes, cache_bytes_max=0)


def term_of(index: int) -> Term:
    """Several terms begin in the first two segments, and none in the third."""
    return Term(1 + min(index, 2 * SEGMENT_ENTRIES) // 100)


def fill(log: SegmentedLog, count: int) -> None:
    last, position = log.last_id.index, log.end_position
    log.append(
        [
            Entry(
                Index(last + place),
                term_of(last + place),
                Position(position + (place - 1) * ENTRY_BYTES),
                EntryKind.NORMAL,
                BODY,
            )
            for place in range(1, count + 1)
        ]
    )
    flush(log)


@pytest.fixture
def disk() -> SimDisk:
    """A log of three finished segments and an open one."""
    made = SimDisk(Random(0))
    log = open_log(made)
    fill(log, COUNT)
    log.close()
    return made


def check_all(log: SegmentedLog, count: int = COUNT) -> None:
    """Every entry is found by number and by byte, with its term, and reads as it was written."""
    layout = log.layout
    for index in range(1, count + 1):
        position = (index - 1) * ENTRY_BYTES
        assert layout.position_of(Index(index)) == position
        assert layout.index_at(Position(position + 17)) == index
        assert layout.term_of(Index(index)) == term_of(index)
    entries = log.entries(Index(1), Index(count + 1))
    assert [entry.index for entry in entries] == list(range(1, count + 1))


def test_a_log_answers_the_same_before_and_after_it_is_opened_again(disk: SimDisk) -> None:
    other = SimDisk(Random(0))
    running = open_log(other)
    fill(running, COUNT)
    opened = open_log(disk)
    assert opened.recovery_notes == ()
    check_all(running)
    check_all(opened)
    assert opened.layout.runs() == running.layout.runs()
    assert opened.layout.open_index == running.layout.open_index == 3 * SEGMENT_ENTRIES + 1


def test_opening_reads_the_edges_of_finished_segments_only(disk: SimDisk) -> None:
    read: dict[str, int] = {}
    count_read, read_at = SimDisk.count_read, type(disk.open("data/" + SECOND)).read_at

    def counted(file: object, offset: int, size: int) -> bytes:
        data = read_at(file, offset, size)  # type: ignore[arg-type]
        path = file.path  # type: ignore[attr-defined]
        read[path] = read.get(path, 0) + len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(disk.open("data/" + SECOND)), "read_at", counted)
        open_log(disk)
    assert count_read is SimDisk.count_read
    # A probe of a unit and a header for each step of the search for each of the six terms that begin here.
    probes_max = 4 + 7 * (SEGMENT_ENTRIES.bit_length() + 2)
    assert 0 < read["index/" + SECOND] <= probes_max * INDEX_UNIT_BYTES
    assert 0 < read["data/" + SECOND] <= probes_max * ENTRY_HEADER_BYTES


@pytest.mark.parametrize("byte", [0, 40, PAGE_BYTES + 21, PAGE_BYTES + 24, 2 * PAGE_BYTES + 28])
def test_an_index_that_was_damaged_before_its_first_use_is_made_again(
    disk: SimDisk, byte: int
) -> None:
    path = "index/" + SECOND
    disk.flip_bit(path, byte)
    log = open_log(disk)
    check_all(log)
    if not log.recovery_notes:  # what no probe of opening has met
        assert [(event, fields["path"]) for event, fields in log.notes] == [("index-rebuilt", path)]
        again = open_log(disk)
        assert "row R" in "; ".join(again.recovery_notes)
    last = open_log(disk)
    check_all(last)
    assert (last.recovery_notes, last.notes) == ((), [])


def test_an_index_that_is_damaged_after_it_was_verified_is_made_again(disk: SimDisk) -> None:
    log = open_log(disk)
    assert log.layout.position_of(Index(SEGMENT_ENTRIES + 3)) == (SEGMENT_ENTRIES + 2) * ENTRY_BYTES
    disk.flip_bit("index/" + SECOND, PAGE_BYTES + 20)
    check_all(log)
    assert [event for event, _ in log.notes] == ["index-rebuilt"]


def fail_index_reads(disk: SimDisk, patch: pytest.MonkeyPatch, code: int, times: int) -> None:
    """Let the next `times` reads of the second segment's index fail."""
    left = [times]
    count_read = disk.count_read

    def failing(path: str) -> None:
        if path == "index/" + SECOND and left[0]:
            left[0] -= 1
            raise OSError(code, "simulated", path)
        count_read(path)

    patch.setattr(disk, "count_read", failing)


@pytest.mark.parametrize("is_verified", [False, True])
def test_an_index_that_the_device_does_not_give_is_made_again(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, is_verified: bool
) -> None:
    log = open_log(disk)
    if is_verified:
        verify(log)
    fail_index_reads(disk, monkeypatch, errno.EIO, 2)
    check_all(log)
    assert [event for event, _ in log.notes] == ["index-rebuilt"]


@pytest.mark.parametrize("is_verified", [False, True])
def test_one_read_that_fails_is_no_damage(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, is_verified: bool
) -> None:
    log = open_log(disk)
    if is_verified:
        verify(log)
    before = disk.content("index/" + SECOND)
    fail_index_reads(disk, monkeypatch, errno.EIO, 1)
    check_all(log)
    assert log.notes == []
    assert disk.content("index/" + SECOND) == before


def verify(log: SegmentedLog) -> None:
    while (part := log.unverified()) is not None:
        log.examined(part, part.examination.run())


def refuse_to_open(disk: SimDisk, patch: pytest.MonkeyPatch, code: int) -> None:
    """Let no file be opened any more."""

    def refuse(path: str, *, create: bool = False) -> SimFile:
        raise OSError(code, "simulated", path)

    patch.setattr(disk, "open", refuse)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
@pytest.mark.parametrize("is_verified", [False, True])
def test_a_lack_of_descriptors_or_memory_is_no_damage(
    disk: SimDisk, code: int, is_verified: bool
) -> None:
    log = open_log(disk)
    if is_verified:
        verify(log)
    before = disk.content("index/" + SECOND)
    with pytest.MonkeyPatch.context() as patch:
        refuse_to_open(disk, patch, code)
        with pytest.raises(OSError, match="simulated"):
            log.layout.position_of(MIDDLE)
        part = log._index.sealed.find(MIDDLE)
        with pytest.raises(OSError, match="simulated"):
            part.examination.run()
    assert (log.failure, log.notes) == (None, [])
    assert disk.content("index/" + SECOND) == before
    check_all(log)
    assert open_log(disk).recovery_notes == ()


def test_the_data_of_a_damaged_index_is_not_lost_while_it_cannot_be_opened(disk: SimDisk) -> None:
    disk.flip_bit("index/" + SECOND, PAGE_BYTES + 20)
    log = open_log(disk)
    before = disk.content("index/" + SECOND)
    real_open = disk.open

    def refuse_data(path: str, *, create: bool = False) -> SimFile:
        if path.startswith("data/"):
            raise OSError(errno.EMFILE, "simulated", path)
        return real_open(path, create=create)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "open", refuse_data)
        with pytest.raises(OSError, match="simulated"):
            log.layout.position_of(MIDDLE)
    assert disk.content("index/" + SECOND) == before
    check_all(log)
    assert [event for event, _ in log.notes] == ["index-rebuilt"]


def test_open_files_serve_look_ups_when_no_more_can_be_opened(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(disk)
    verify(log)
    assert log.layout.position_of(MIDDLE) == (MIDDLE - 1) * ENTRY_BYTES
    with pytest.MonkeyPatch.context() as patch:
        refuse_to_open(disk, patch, errno.EMFILE)
        first = Index(SEGMENT_ENTRIES + 2)
        assert log.layout.position_of(first) == (first - 1) * ENTRY_BYTES


def test_where_descriptors_are_short_a_look_up_takes_one_of_another_segment(tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path)
    made = open_log(disk)
    fill(made, COUNT)
    made.close()
    log = open_log(disk)
    verify(log)
    assert log.layout.position_of(Index(2)) == ENTRY_BYTES
    with no_descriptors():
        assert log.layout.position_of(MIDDLE) == (MIDDLE - 1) * ENTRY_BYTES
        assert log.layout.position_of(Index(3)) == 2 * ENTRY_BYTES
    assert log.notes == []


def test_index_files_are_closed_with_their_segments(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_index, "FILES_MAX", 2)
    log = open_log(disk)
    check_all(log)
    assert [part.first_index for part in log._pages._files] == [
        SEGMENT_ENTRIES + 1,
        2 * SEGMENT_ENTRIES + 1,
    ]
    log.truncate_from(Index(2 * SEGMENT_ENTRIES + 5))
    assert len(log._pages._files) == 1
    log.close()
    assert not log._pages._files


def test_where_index_and_data_are_damaged_the_next_start_knows_it(disk: SimDisk) -> None:
    """A start believes the edges; what was found since must not be forgotten with the process."""
    log = open_log(disk)
    disk.flip_bit("index/" + SECOND, PAGE_BYTES + 20)
    damaged_byte = PAGE_UNITS * ENTRY_BYTES + 50
    disk.flip_bit("data/" + SECOND, damaged_byte)
    with pytest.raises(DiskFailedError, match=f"both damaged.*index/{SECOND}.*data/{SECOND}"):
        log.layout.position_of(MIDDLE)
    assert log.unverified() is not None, "the background task would no longer stop the node"
    with pytest.raises(DiskFailedError, match=r"must be restarted.*both damaged"):
        fill(log, 1)
    disk.fail_read()
    with pytest.raises(DiskFailedError, match="both damaged"):
        log.layout.index_at(Position(SEGMENT_BYTES + 900 * ENTRY_BYTES // 2))  # without a read
    disk.forget_faults()
    disk.crash(keep=0.0)
    with pytest.raises(CorruptionError, match="recovery row T"):
        open_log(disk)


def test_the_chain_is_told_without_a_look_at_the_units_where_segments_meet(disk: SimDisk) -> None:
    whole = open_log(disk)
    check_all(whole)
    log = open_log(disk)
    last, first = Index(SEGMENT_ENTRIES), Index(SEGMENT_ENTRIES + 1)
    assert log.chain_crc_of(last) == whole.chain_crc_of(last)
    assert log.chain_crc_before(first) == whole.chain_crc_of(last)
    assert log.layout.position_of(first) == SEGMENT_BYTES
    assert log.unverified() is not None


def test_what_is_cut_off_is_open_again(disk: SimDisk) -> None:
    log = open_log(disk)
    copy = log.layout.copy()
    for layout in (log, copy):
        layout.truncate_from(MIDDLE)
    assert log.layout.open_index == copy.open_index == SEGMENT_ENTRIES + 1
    assert copy.position_of(Index(MIDDLE - 1)) == (MIDDLE - 2) * ENTRY_BYTES
    flush(log)
    fill(log, COUNT - MIDDLE + 1)
    check_all(log)
    check_all(open_log(disk))


def test_a_segment_that_is_cut_while_its_end_is_written_stays_open(disk: SimDisk) -> None:
    log = open_log(disk)
    last = log.last_id.index
    fill(log, 4 * SEGMENT_ENTRIES - last)
    roll = [
        Entry(Index(4 * SEGMENT_ENTRIES + 1), Term(99), log.end_position, EntryKind.NORMAL, BODY)
    ]
    log.append(roll)
    batch = log.take_writes()
    assert batch is not None
    batch.run()
    log.truncate_from(Index(3 * SEGMENT_ENTRIES + 9))
    log.written(batch)
    assert log.take_finished() is None
    flush(log)
    assert log.layout.open_index == 3 * SEGMENT_ENTRIES + 1
    check_all(log, 3 * SEGMENT_ENTRIES + 8)


def test_a_finished_segment_leaves_a_copy_of_the_layout_too(disk: SimDisk) -> None:
    log = open_log(disk)
    copy = log.layout.copy()
    for index in range(COUNT + 1, 5 * SEGMENT_ENTRIES):
        copy.append(term_of(index), ENTRY_BYTES)
        log.append([Entry(Index(index), term_of(index), log.end_position, EntryKind.NORMAL, BODY)])
        batch = log.take_writes()
        assert batch is not None
        batch.run()
        log.written(batch)
        finished = log.take_finished()
        if finished is not None:
            copy.finish(finished)
        assert copy.open_index == log.layout.open_index
    assert copy.open_index == 4 * SEGMENT_ENTRIES + 1
    assert copy.columns(Index(1), Index(5 * SEGMENT_ENTRIES)) == log.layout.columns(
        Index(1), Index(5 * SEGMENT_ENTRIES)
    )


def running_log(segment_count: int) -> tuple[SimDisk, SegmentedLog, int]:
    """Make a log that has just finished so many segments itself; return its number of entries, too."""
    disk, count = SimDisk(Random(0)), segment_count * SEGMENT_ENTRIES + 50
    log = open_log(disk)
    fill(log, count)
    return disk, log, count


def test_what_this_process_has_written_needs_not_be_read_before_it_is_believed() -> None:
    disk, log, _ = running_log(2)
    disk.flip_bit("index/" + SECOND, PAGE_BYTES + 20)
    with pytest.MonkeyPatch.context() as patch:
        refuse_to_open(disk, patch, errno.EIO)
        for index in (MIDDLE, Index(SEGMENT_ENTRIES + 1), Index(2 * SEGMENT_ENTRIES)):
            position = Position((index - 1) * ENTRY_BYTES)
            assert log.layout.position_of(index) == position
            assert log.layout.index_at(Position(position + 17)) == index
    assert log.notes == []
    verify(log)
    assert [event for event, _ in log.notes] == ["index-rebuilt"], "it is read all the same"
    check_all(log, 2 * SEGMENT_ENTRIES + 50)


def test_the_entries_of_a_few_written_segments_stay_in_memory_only_until_they_were_read() -> None:
    _, log, count = running_log(WRITTEN_MAX + 2)
    parts = log._index.sealed.parts()
    assert [type(part._known) for part in parts] == [NoneType] * 2 + [WrittenEntries] * WRITTEN_MAX
    assert log.unverified() is parts[-1]
    verify(log)
    assert {type(part._known) for part in parts} == {PageTable}
    check_all(log, count)


def test_a_cut_into_a_segment_that_was_just_written() -> None:
    disk, log, count = running_log(2)
    log.truncate_from(MIDDLE)
    flush(log)
    fill(log, count - MIDDLE + 1)
    check_all(log, count)
    check_all(open_log(disk), count)


def test_examinations_find_what_look_ups_would(disk: SimDisk) -> None:
    disk.flip_bit("index/" + SECOND, PAGE_BYTES + 20)
    log = open_log(disk)
    found = []
    while (part := log.unverified()) is not None:
        finding = part.examination.run()
        found.append((part.first_index, type(finding)))
        log.examined(part, finding)
    assert found == [
        (2 * SEGMENT_ENTRIES + 1, PageTable),
        (SEGMENT_ENTRIES + 1, Rebuilt),
        (1, PageTable),
    ]
    check_all(log)


def test_an_examination_that_comes_too_late_changes_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    part = log.unverified()
    assert part is not None
    log.truncate_from(Index(2 * SEGMENT_ENTRIES + 5))
    flush(log)
    finding = part.examination.run()
    assert isinstance(finding, LostIndex)
    log.examined(part, finding)
    check_all(log, 2 * SEGMENT_ENTRIES + 4)
    check_all(open_log(disk), 2 * SEGMENT_ENTRIES + 4)


def test_pages_in_memory_are_bounded(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_index, "PAGES_MAX", 2)
    log = open_log(disk)
    check_all(log)
    assert len(log._pages._pages) == 2


def test_memory_does_not_grow_with_the_entries_of_finished_segments(disk: SimDisk) -> None:
    tracemalloc.start()
    try:
        log = open_log(disk)
        copy = log.layout.copy()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copy.last_index == COUNT
    # The open end has 50 entries; a second index of 20 bytes for each of the others would be 36 KB.
    assert held < 3 * SEGMENT_ENTRIES * 20
