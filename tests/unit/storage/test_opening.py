"""Opening a log after every kind of damage: what is cut, what is mended, what is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.errors import CorruptionError, DiskFailedError
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.write_batch import UNIT_WRITES_UNSYNCED_MAX, WRITE_BATCH_BYTES_MAX
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

FIRST = "data/00000000000000000000"
FIRST_INDEX = "index/00000000000000000000"
SEGMENT_BYTES = 400
LARGE = 1 << 15


def open_log(disk: SimDisk, segment_bytes: int = SEGMENT_BYTES) -> SegmentedLog:
    return SegmentedLog.open(disk, segment_size_bytes=segment_bytes)


def written(disk: SimDisk, sizes: list[int], segment_bytes: int = LARGE) -> list[Entry]:
    """A log of durable entries, left by a killed process."""
    log = open_log(disk, segment_bytes)
    for size in sizes:
        log.append(new_entries(log, 1 + log.last_id.index // 2, [size]))
        flush(log)
    disk.restart()
    return log.entries(Index(1), Index(len(sizes) + 1))


def found(disk: SimDisk, segment_bytes: int = LARGE) -> list[Entry]:
    log = open_log(disk, segment_bytes)
    return log.entries(Index(1), Index(log.last_id.index + 1))


def notes(disk: SimDisk, segment_bytes: int = LARGE) -> str:
    return "; ".join(open_log(disk, segment_bytes).recovery_notes)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(0))


def test_a_clean_end_is_kept(disk: SimDisk) -> None:
    entries = written(disk, [10, 600, 0])
    assert notes(disk) == ""
    assert found(disk) == entries


def torn(disk: SimDisk) -> tuple[list[Entry], list[Entry]]:
    """Two durable entries, and three of a write whose sync failed."""
    durable = written(disk, [100, 100])
    log = open_log(disk, LARGE)
    more = log.append(new_entries(log, 3, [100, 700, 100]))
    batch = log.take_writes()
    assert batch is not None
    disk.fail_sync()
    with pytest.raises(DiskFailedError):
        batch.run()
    disk.restart()
    return durable, list(more)


def test_a_torn_tail_is_cut_to_the_last_whole_entry_not_further(disk: SimDisk) -> None:
    durable, more = torn(disk)
    whole = disk.content(FIRST)
    for size in range(durable[-1].end_position, more[-1].end_position + 1, 7):
        disk.overwrite(FIRST, whole[:size])
        expected = durable + [each for each in more if each.end_position <= size]
        assert found(disk) == expected
        assert disk.content(FIRST)[expected[-1].end_position :] == b""


def test_a_lost_sector_within_a_torn_write_is_no_corruption(disk: SimDisk) -> None:
    """Whole entries may follow within the reach of the same batch."""
    durable, more = torn(disk)
    content = bytearray(disk.content(FIRST))
    content[more[1].position + 60 : more[1].position + 100] = bytes(40)
    disk.overwrite(FIRST, bytes(content))
    assert "row D" in notes(disk)
    assert found(disk) == [*durable, more[0]]


def test_a_cut_tail_never_comes_back(disk: SimDisk) -> None:
    """Not even when the entry that was written over it has the same length."""
    durable, more = torn(disk)
    disk.flip_bit(FIRST, more[0].position + 60)
    log = open_log(disk, LARGE)
    replacement = log.append(new_entries(log, 9, [100]))
    flush(log)
    disk.crash(keep=0.0)
    assert found(disk) == [*durable, *replacement]


def test_entries_that_were_whole_but_not_synced_are_durable_after_opening(disk: SimDisk) -> None:
    """A failed sync leaves pages that look written; a second sync does nothing for them."""
    durable, more = torn(disk)
    assert found(disk) == durable + more
    disk.crash(keep=0.0)
    assert found(disk) == durable + more


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_after_opening_a_power_cut_takes_no_proof_away(disk: SimDisk, index: str) -> None:
    """Damage that comes after it must not pass for a torn tail: other members were told of these entries."""
    entries = written(disk, [100, 100, 100, 100])
    if index == "lost":
        disk.overwrite(FIRST_INDEX, b"")
    assert found(disk) == entries
    disk.crash(keep=0.0)
    disk.flip_bit(FIRST, entries[1].position + 60)
    with pytest.raises(CorruptionError, match="recovery row E"):
        open_log(disk, LARGE)


def test_a_power_cut_takes_only_the_newest_proofs_away(disk: SimDisk) -> None:
    entries = written(disk, [20] * (UNIT_WRITES_UNSYNCED_MAX + 3))
    disk.crash(keep=0.0)
    disk.flip_bit(FIRST, entries[UNIT_WRITES_UNSYNCED_MAX - 1].position + 60)
    with pytest.raises(CorruptionError, match="recovery row E"):
        open_log(disk, LARGE)


def test_a_refusal_leaves_its_proofs_durable(disk: SimDisk) -> None:
    """What is refused waits for other members; until they have sent the entry the power may fail."""
    entries = written(disk, [100, 100, 100, 100])
    disk.flip_bit(FIRST, entries[2].position + 60)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="recovery row E"):
            open_log(disk, LARGE)
        disk.crash(keep=0.0)


@pytest.mark.parametrize("nth", [4, 5])
def test_an_index_that_cannot_be_made_again_keeps_its_proofs(disk: SimDisk, nth: int) -> None:
    entries = written(disk, [100, 100, 100, 100])
    units = disk.content(FIRST_INDEX)[: 2 * INDEX_UNIT_BYTES]
    disk.overwrite(FIRST_INDEX, units)
    # What was found of the index, the cut to the entries, and those that it does not know come before.
    disk.fail_write(nth)
    with pytest.raises(OSError, match=FIRST_INDEX):
        open_log(disk, LARGE)
    disk.restart()
    assert disk.content(FIRST_INDEX)[: len(units)] == units
    assert found(disk) == entries


def test_an_empty_last_segment_is_kept(disk: SimDisk) -> None:
    """A crash between creation and first write: no bytes, or only zeros."""
    entries = written(disk, [100, 100, 100], SEGMENT_BYTES)
    for size in (0, SEGMENT_BYTES):
        last = f"data/{entries[2].position:020d}"
        disk.overwrite(last, bytes(size))
        index = f"index/{entries[2].position:020d}"
        disk.overwrite(index, b"")
        log = open_log(disk)
        assert log.last_id == entries[1].id
        log.append(entries[2:])
        flush(log)
        disk.restart()
        assert found(disk, SEGMENT_BYTES) == entries


@pytest.mark.slow
def test_every_flipped_bit_of_durable_entries_is_refused(disk: SimDisk) -> None:
    entries = written(disk, [3, 20])
    for byte in range(entries[-1].end_position):
        for bit in range(8):
            disk.flip_bit(FIRST, byte, bit)
            with pytest.raises(CorruptionError) as caught:
                open_log(disk, LARGE)
            assert caught.value.path == FIRST
            damaged = entries[0] if byte < entries[0].end_position else entries[1]
            assert caught.value.byte_offset == damaged.position
            disk.flip_bit(FIRST, byte, bit)
    assert found(disk) == entries


def test_every_truncation_of_durable_entries_is_refused(disk: SimDisk) -> None:
    entries = written(disk, [3, 20])
    content = disk.content(FIRST)
    for size in range(entries[-1].end_position):
        disk.overwrite(FIRST, content[:size])
        with pytest.raises(CorruptionError, match="row E"):
            open_log(disk, LARGE)


def test_a_longer_file_is_cut(disk: SimDisk) -> None:
    entries = written(disk, [3, 20])
    content = disk.content(FIRST)
    disk.overwrite(FIRST, content + b"more")
    assert "row C" in notes(disk)
    assert found(disk) == entries


def test_every_flipped_bit_of_the_index_is_mended(disk: SimDisk) -> None:
    entries = written(disk, [3, 20, 5])
    for byte in range(32 * 3):
        for bit in range(0, 8, 3):
            disk.flip_bit(FIRST_INDEX, byte, bit)
            assert "row B" in notes(disk)
            assert found(disk) == entries
            assert notes(disk) == ""


def test_a_missing_or_empty_or_garbled_index_is_made_again(disk: SimDisk) -> None:
    entries = written(disk, [3, 20, 5])
    whole = disk.content(FIRST_INDEX)[: 32 * 3]

    def lose() -> None:
        disk.lose(FIRST_INDEX)

    damages: list[Callable[[], None]] = [lose]
    damages += [
        lambda content=content: disk.overwrite(FIRST_INDEX, content)  # type: ignore[misc]
        for content in (b"", whole[:40], bytes(96), b"\xff" * 4096, whole[32:], whole + b"x" * 64)
    ]
    for damage in damages:
        damage()
        assert found(disk) == entries
        assert disk.content(FIRST_INDEX)[: 32 * 3] == whole
        assert notes(disk) == ""


def test_units_lost_in_the_middle_do_not_hide_a_later_proof(disk: SimDisk) -> None:
    """Sectors of the index reach the disk in any order; a later unit proves all before it."""
    entries = written(disk, [3, 20, 5])
    units = disk.content(FIRST_INDEX)[: 32 * 3]
    disk.overwrite(FIRST_INDEX, bytes(64) + units[64:])
    disk.flip_bit(FIRST, entries[1].position + 50)
    with pytest.raises(CorruptionError, match="row E") as caught:
        open_log(disk, LARGE)
    assert caught.value.byte_offset == entries[1].position


@pytest.mark.slow
def test_damage_far_before_whole_entries_is_refused_even_without_an_index(disk: SimDisk) -> None:
    """A batch starts only when the one before is durable, and has a bounded reach."""
    third = WRITE_BATCH_BYTES_MAX // 3 + 1000
    entries = written(disk, [10, third, third, third, third], 1 << 25)
    disk.lose(FIRST_INDEX)
    disk.flip_bit(FIRST, entries[1].position + 1000)
    with pytest.raises(CorruptionError, match="row F") as caught:
        open_log(disk, 1 << 25)
    assert caught.value.byte_offset == entries[1].position


def test_an_older_copy_of_the_data_is_refused(disk: SimDisk) -> None:
    written(disk, [10, 10])
    older = disk.content(FIRST)
    log = open_log(disk, LARGE)
    log.append(new_entries(log, 5, [10, 10]))
    flush(log)
    newer_index = disk.content(FIRST_INDEX)
    # Older: fewer entries than the index remembers.
    disk.overwrite(FIRST, older)
    with pytest.raises(CorruptionError, match="row E"):
        open_log(disk, LARGE)
    # Of another history: as many entries, of another term.
    disk.overwrite(FIRST_INDEX, b"")
    log = open_log(disk, LARGE)
    log.append(new_entries(log, 7, [10, 10]))
    flush(log)
    disk.overwrite(FIRST_INDEX, newer_index)
    with pytest.raises(CorruptionError, match="row G") as caught:
        open_log(disk, LARGE)
    assert caught.value.byte_offset == 2 * 58


def rolled(disk: SimDisk) -> list[Entry]:
    """Four segments of two entries, all but the last sealed."""
    return written(disk, [120, 130, 140, 150, 120, 100, 90, 80], SEGMENT_BYTES)


def names(disk: SimDisk) -> list[str]:
    return disk.list("data")


def test_finished_segments_are_sealed_and_trimmed(disk: SimDisk) -> None:
    entries = rolled(disk)
    assert [int(name) for name in names(disk)] == [each.position for each in entries[::2]]
    assert len(disk.content(FIRST)) == entries[2].position
    assert len(disk.content(FIRST_INDEX)) == 3 * 32
    assert found(disk, SEGMENT_BYTES) == entries


def test_a_lost_seal_is_made_again(disk: SimDisk) -> None:
    entries = rolled(disk)
    sealed = disk.content(FIRST_INDEX)
    for content in (b"", sealed[:-32], sealed[:-1], sealed[:64] + b"\xff" * 32, bytes(4096)):
        disk.overwrite(FIRST_INDEX, content)
        assert "row R" in notes(disk, SEGMENT_BYTES)
        assert disk.content(FIRST_INDEX) == sealed
        assert found(disk, SEGMENT_BYTES) == entries


def test_a_lost_trim_is_done_again(disk: SimDisk) -> None:
    entries = rolled(disk)
    content = disk.content(FIRST)
    disk.overwrite(FIRST, content + bytes(100))
    assert "row Q" in notes(disk, SEGMENT_BYTES)
    assert disk.content(FIRST) == content
    disk.overwrite(FIRST, content + bytes(100))
    disk.lose(FIRST_INDEX)
    assert "row R" in notes(disk, SEGMENT_BYTES)
    assert disk.content(FIRST) == content
    assert found(disk, SEGMENT_BYTES) == entries


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_missing_segment_is_refused(disk: SimDisk, place: int) -> None:
    rolled(disk)
    missing = names(disk)[place]
    disk.lose(f"data/{missing}")
    with pytest.raises(CorruptionError, match="missing"):
        open_log(disk)
    disk.lose(f"index/{missing}")
    with pytest.raises(CorruptionError, match="missing"):
        open_log(disk)


def test_a_missing_last_segment_is_refused(disk: SimDisk) -> None:
    rolled(disk)
    missing = names(disk)[-1]
    disk.lose(f"data/{missing}")
    with pytest.raises(CorruptionError, match="missing, but its index"):
        open_log(disk)
    disk.lose(f"index/{missing}")
    with pytest.raises(CorruptionError, match="row H"):
        open_log(disk)


def test_a_shortened_finished_segment_is_refused(disk: SimDisk) -> None:
    rolled(disk)
    content = disk.content(FIRST)
    disk.overwrite(FIRST, content[:-1])
    with pytest.raises(CorruptionError, match="row S") as caught:
        open_log(disk)
    assert (caught.value.path, caught.value.byte_offset) == (FIRST, len(content) - 1)


def test_a_damaged_finished_segment_without_a_seal_is_refused(disk: SimDisk) -> None:
    entries = rolled(disk)
    disk.lose(FIRST_INDEX)
    disk.flip_bit(FIRST, entries[1].position + 50)
    with pytest.raises(CorruptionError, match="row T") as caught:
        open_log(disk)
    assert caught.value.byte_offset == entries[1].position


def test_a_finished_segment_of_another_history_is_refused(disk: SimDisk) -> None:
    rolled(disk)
    other = SimDisk(Random(1))
    log = open_log(other)
    for size in (120, 130, 140, 150, 120):
        log.append(new_entries(log, 9, [size]))
        flush(log)
    second = names(disk)[1]
    assert names(other)[1] == second
    for folder in ("data", "index"):
        disk.overwrite(f"{folder}/{second}", other.content(f"{folder}/{second}"))
    with pytest.raises(CorruptionError, match="row V"):
        open_log(disk)


def test_another_history_after_an_older_index_is_refused(disk: SimDisk) -> None:
    """The index is not sealed, and remembers other entries than those that stand there."""
    entries = rolled(disk)
    other = SimDisk(Random(1))
    log = open_log(other)
    log.append(new_entries(log, 9, [120, 130]))
    flush(log)
    disk.overwrite(FIRST_INDEX, other.content(FIRST_INDEX))
    with pytest.raises(CorruptionError, match="row U") as caught:
        open_log(disk)
    assert caught.value.byte_offset == entries[0].position


def test_an_empty_index_without_data_is_swept_away(disk: SimDisk) -> None:
    entries = rolled(disk)
    path = f"index/{entries[-1].end_position + 1000:020d}"
    disk.open(path, create=True).write_at(0, (bytes(64),))
    assert found(disk, SEGMENT_BYTES) == entries
    assert not disk.exists(path)


def test_names_that_are_no_segments_are_left_alone(disk: SimDisk) -> None:
    entries = rolled(disk)
    for name in ("data/notes.txt", "data/0001", "data/0000000000000000000x"):
        disk.open(name, create=True)
    assert found(disk, SEGMENT_BYTES) == entries
    assert "notes.txt" in disk.list("data")


def test_damage_in_a_finished_body_is_found_when_it_is_read(disk: SimDisk) -> None:
    entries = rolled(disk)
    disk.flip_bit(FIRST, entries[1].position + 60)
    log = open_log(disk)
    assert log.entries(Index(1), Index(2)) == entries[:1]
    assert log.entries(Index(3), Index(9)) == entries[2:]
    with pytest.raises(CorruptionError, match="body crc") as caught:
        log.entries(Index(2), Index(3))
    assert caught.value.path == FIRST
    assert caught.value.byte_offset == entries[1].position + 40


def test_another_segment_size_changes_nothing_that_is_there(disk: SimDisk) -> None:
    entries = rolled(disk)
    log = open_log(disk, 2 * SEGMENT_BYTES)
    log.append(new_entries(log, 9, [300, 300]))
    flush(log)
    disk.restart()
    for size in (SEGMENT_BYTES, 100):
        assert found(disk, size)[: len(entries)] == entries


@pytest.mark.usefixtures("only_new_garbage")
def test_a_refused_log_leaves_no_file_open(tmp_path: Path) -> None:
    """It is opened again and again while it is mended."""
    disk = PosixDisk(tmp_path)
    log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES)
    log.append(new_entries(log, 1, [100] * 12))
    flush(log)
    log.close()
    last = max((tmp_path / "data").iterdir())
    last.write_bytes(b"")
    before = open_files()
    for _ in range(3):
        with pytest.raises(CorruptionError):
            SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES)
    assert open_files() == before


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
