"""Snapshots on disk: whole or not at all, the newest two, damage is named by place."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from dledger.codec.snapshot import HEAD_BYTES, SnapshotFormatError, SnapshotMeta, decode_head
from dledger.errors import CorruptionError
from dledger.raft.ids import Index, Position, Term
from dledger.storage import snapshots
from dledger.storage.api import Disk, File
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import ASIDE_SUFFIX, SnapshotCopy, SnapshotStore, SnapshotWriter
from dledger.testing.sim_disk import SimDisk

CHUNKS = [b"a" * 1000, b"b" * 10, b"c"]


def meta(index: int) -> SnapshotMeta:
    return SnapshotMeta(Index(index), Term(3), Position(index * 100), 0xCAFE, 0xD1CE)


def write(disk: Disk, index: int, chunks: list[bytes] = CHUNKS) -> None:
    writer = SnapshotStore(disk).begin(meta(index))
    for chunk in chunks:
        writer.add([chunk])
    writer.finish()


def content(disk: Disk, place: int = 0) -> bytes:
    store = SnapshotStore(disk)
    good, _ = store.newest_first()
    return b"".join(store.chunks(good[place]))


def test_what_was_written_is_read_back_and_the_newest_two_stay() -> None:
    disk = SimDisk(Random(1))
    for index in (5, 9, 12):
        write(disk, index, [b"%d" % index])
    good, bad = SnapshotStore(disk).newest_first()
    assert [each.meta for each in good] == [meta(12), meta(9)]
    assert not bad
    assert content(disk) == b"12"
    assert content(disk, 1) == b"9"


@pytest.mark.parametrize("is_copy", [False, True])
def test_what_comes_stays_though_those_that_were_refused_end_later(*, is_copy: bool) -> None:
    """A state that is fetched where the own ones are damaged, or taken on the way through the log, may end earlier."""
    disk = SimDisk(Random(1))
    for index in (90, 120):
        write(disk, index)
    source = SimDisk(Random(2))
    store = SnapshotStore(disk)
    for name in disk.list("snapshots"):
        store.refuse(f"snapshots/{name}")
    kept = []
    for index in (5, 9, 12):
        if is_copy:
            write(source, index)
            file = source.open(f"snapshots/{index:020d}")
            copy = store.begin_copy(Index(index))
            copy.add(file.read_at(0, file.size()))
            copy.finish()
        else:
            writer = store.begin(meta(index))
            writer.add(CHUNKS)
            writer.finish()
        kept.append([int(name) for name in disk.list("snapshots")])
    assert kept == [[5, 120], [5, 9], [9, 12]]


def test_a_large_chunk_is_cut_into_frames() -> None:
    disk = SimDisk(Random(1))
    data = bytes(range(256)) * 10_000
    write(disk, 1, [data])
    assert content(disk) == data


def test_an_empty_state_is_a_snapshot_too() -> None:
    disk = SimDisk(Random(1))
    write(disk, 1, [])
    assert content(disk) == b""


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_leaves_the_old_one_whole_and_never_a_half_one(seed: int) -> None:
    disk = SimDisk(Random(seed))
    write(disk, 5)
    store = SnapshotStore(disk)
    writer = store.begin(meta(9))
    writer.add(CHUNKS)
    disk.crash()
    good, bad = SnapshotStore(disk).newest_first()
    assert [each.meta.index for each in good] == [5]
    assert not bad
    assert content(disk) == b"".join(CHUNKS)
    assert disk.list("snapshots") == ["00000000000000000005"]


@pytest.mark.parametrize("seed", range(8))
def test_a_finished_snapshot_survives_a_crash(seed: int) -> None:
    disk = SimDisk(Random(seed))
    write(disk, 5)
    disk.crash()
    assert content(disk) == b"".join(CHUNKS)


def test_an_abandoned_snapshot_leaves_nothing() -> None:
    disk = SimDisk(Random(1))
    writer = SnapshotStore(disk).begin(meta(1))
    writer.add(CHUNKS)
    writer.abandon()
    assert disk.list("snapshots") == []


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_snapshot_leaves_the_log_its_room(is_copy: bool) -> None:
    """Without it the vote and the next segment fail, whenever a large state is tried to be written."""
    disk = SimDisk(Random(1), capacity_bytes=10_000)
    store = SnapshotStore(disk, spare_bytes=4000)
    write(disk, 3, [b"x" * 1000])
    writer: SnapshotCopy | SnapshotWriter
    if is_copy:
        writer = copy = store.begin_copy(Index(7))
        add = partial(copy.add, bytes(500))
    else:
        writer = own = store.begin(meta(7))
        add = partial(own.add, [bytes(500)])
    while disk.free_bytes() >= 5000:
        add()
    with pytest.raises(OSError, match="room"):
        exhaust(add)
    assert 4000 <= disk.free_bytes() < 5000
    writer.abandon()
    assert disk.list("snapshots") == [f"{3:020d}"]


def open_count() -> int:
    """Return how many descriptors this process has open."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("only_new_garbage")
def test_a_snapshot_that_finds_no_room_for_its_head_leaves_no_file_open(tmp_path: Path) -> None:
    """A full disk may stay full for weeks, and every try would take a descriptor."""
    disk = PosixDisk(str(tmp_path))
    store = SnapshotStore(disk, spare_bytes=1 << 60)
    before = open_count()
    for _ in range(3):
        with pytest.raises(OSError, match="room"):
            store.begin(meta(3))
    assert open_count() == before
    assert disk.list("snapshots") == []


def test_an_own_snapshot_and_a_copy_of_the_same_entry_do_not_write_one_file() -> None:
    """A member whose log reaches the entry while it fetches takes one of its own there."""
    disk = SimDisk(Random(1))
    store = SnapshotStore(disk)
    copy = store.begin_copy(Index(7))
    copy.add(b"x" * 5000)
    writer = store.begin(meta(7))
    writer.add(CHUNKS)
    copy.add(b"y" * 5000)
    copy.abandon()
    writer.finish()
    assert content(disk) == b"".join(CHUNKS)
    assert disk.list("snapshots") == [f"{7:020d}"]


def copied(disk: SimDisk) -> SnapshotCopy:
    """Return a copy of a whole snapshot that is not finished yet."""
    other = SimDisk(Random(2))
    write(other, 7)
    copy = SnapshotStore(disk).begin_copy(Index(7))
    copy.add(other.content(f"snapshots/{7:020d}"))
    return copy


@pytest.mark.parametrize("failing", [SimDisk.fail_read, SimDisk.fail_sync, SimDisk.fail_write])
def test_a_copy_that_cannot_be_finished_leaves_nothing(
    failing: Callable[[SimDisk], None],
) -> None:
    disk = SimDisk(Random(1))
    copy = copied(disk)
    failing(disk)
    with pytest.raises(OSError, match="simulated"):
        copy.finish()
    assert copy.has_ended
    assert disk.list("snapshots") == []


def test_a_copy_whose_sync_has_failed_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk has of it is unknown, though it can be read back."""
    monkeypatch.setattr(snapshots, "SYNC_BYTES", 100)
    disk = SimDisk(Random(1))
    copy = SnapshotStore(disk).begin_copy(Index(7))
    disk.fail_sync()
    with pytest.raises(OSError, match="simulated"):
        copy.add(bytes(200))
    assert copy.has_ended
    assert disk.list("snapshots") == []


def test_a_finished_copy_is_not_given_up() -> None:
    disk = SimDisk(Random(1))
    copy = copied(disk)
    whole = copy.finish()
    own = SnapshotStore(disk).begin(meta(7))
    copy.abandon()
    assert disk.list("snapshots") == [f"{7:020d}", f"{7:020d}{ASIDE_SUFFIX}"]
    own.abandon()
    assert whole.meta == meta(7)


def exhaust(add: Callable[[], None]) -> None:
    for _ in range(20):
        add()


def test_every_changed_byte_is_noticed_and_named() -> None:
    disk = SimDisk(Random(1))
    write(disk, 7)
    path = "snapshots/00000000000000000007"
    file = disk.open(path)
    whole = file.read_at(0, file.size())
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        file.write_at(0, [bytes(changed)])
        store = SnapshotStore(disk)
        good, bad = store.newest_first()
        if good:
            with pytest.raises(CorruptionError, match=r"snapshots/0+7, byte") as caught:
                store.verify(good[0])
            assert caught.value.byte_offset <= place + 1 or place >= len(whole) - 8
        else:
            assert place < HEAD_BYTES
            assert bad[0].path.endswith(path)
    file.write_at(0, [whole])
    for size in range(HEAD_BYTES, len(whole)):
        file.truncate(0)
        file.write_at(0, [whole[:size]])
        store = SnapshotStore(disk)
        with pytest.raises(CorruptionError):
            store.verify(store.newest_first()[0][0])
    file.write_at(0, [whole, b"x"])
    with pytest.raises(CorruptionError, match="beyond the end"):
        SnapshotStore(disk).verify(SnapshotStore(disk).newest_first()[0][0])


@pytest.mark.parametrize("nth_read", [1, 2, 3])
def test_what_the_device_does_not_give_is_as_damaged(nth_read: int) -> None:
    disk = SimDisk(Random(1))
    write(disk, 5)
    write(disk, 7)
    store = SnapshotStore(disk)
    disk.fail_read(nth_read)
    good, bad = store.newest_first()
    if nth_read <= 2:
        assert len(good) == len(bad) == 1
        assert "does not give it" in str(bad[0])
        return
    with pytest.raises(CorruptionError, match=r"snapshots/0+7.*does not give it"):
        store.verify(good[0])
    store.verify(good[0])


def test_a_file_that_the_device_does_not_open_is_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An inode may be damaged as well as what it names; the older snapshot is still there."""
    disk = SimDisk(Random(1))
    write(disk, 5)
    write(disk, 7)
    open_file = disk.open

    def refuse_newest(path: str) -> File:
        if path.endswith("7"):
            raise OSError(errno.EUCLEAN, "Structure needs cleaning", path)
        return open_file(path)

    monkeypatch.setattr(disk, "open", refuse_newest)
    store = SnapshotStore(disk)
    good, (bad,) = store.newest_first()
    assert [each.meta.index for each in good] == [5]
    assert "does not give it" in str(bad)


def test_a_snapshot_under_another_name_is_refused() -> None:
    disk = SimDisk(Random(1))
    write(disk, 7)
    disk.rename("snapshots/00000000000000000007", "snapshots/00000000000000000008")
    good, bad = SnapshotStore(disk).newest_first()
    assert not good
    assert "index 7 in a file named 8" in str(bad[0])


def test_a_head_that_is_too_short_is_no_head() -> None:
    with pytest.raises(SnapshotFormatError, match="48 bytes"):
        decode_head(b"DLSS")
