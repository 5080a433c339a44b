"""Parts of snapshots that are served where they stand: nothing is believed that is not what was written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from dledger.errors import CorruptionError, EntryDamagedError
from dledger.storage.parts_in_use import FILES_MAX, PAGE_BYTES, PartOnDisk, PartsInUse
from dledger.storage.snapshot_parts import LOST_SUFFIX, part_names
from dledger.storage.snapshots import SnapshotStore
from dledger.testing.sim_disk import SimDisk, SimFile
from tests.unit.storage.test_snapshot_parts import Taker, sealed

SIZE = 5 * PAGE_BYTES + 100
DATA = Random(7).randbytes(SIZE)


class Served:
    """One part on a disk, from which something is served."""

    def __init__(self, count: int = 1) -> None:
        self.disk = SimDisk(Random(1))
        self.taker = Taker(self.disk)
        self.taker.parts = [sealed(DATA) for _ in range(count)]
        self.taker.take()
        self.store = SnapshotStore(self.disk)
        self.parts = self.hold()
        self.part = self.parts[0]

    @property
    def in_use(self) -> PartsInUse:
        return self.store.in_use

    def hold(self) -> list[PartOnDisk]:
        chunks = self.store.sealed_chunks(self.store.newest_first()[0][0])
        return [chunk for chunk in chunks if not isinstance(chunk, bytes)]

    def path(self, nth: int, number: int = 1) -> str:
        return f"snapshots/{part_names(number)[nth]}"

    def flip(self, nth: int, byte: int = 3 * PAGE_BYTES) -> None:
        self.disk.flip_bit(self.path(nth), byte, 2)


Read = Callable[[PartOnDisk, int, int], bytes]
READS = [
    pytest.param(PartOnDisk.read, id="read"),
    pytest.param(PartOnDisk.read_beside, id="beside"),
]


@pytest.mark.parametrize("read", READS)
def test_any_bytes_can_be_read(read: Read) -> None:
    rng = Random(3)
    part = Served().part
    for _ in range(60):
        offset = rng.randrange(SIZE)
        size = rng.randint(0, min(SIZE - offset, rng.choice((20, 9000, SIZE))))
        assert read(part, offset, size) == DATA[offset : offset + size]
    assert b"".join(part.chunks()) == DATA


def test_nothing_is_read_before_somebody_asks_and_all_of_it_before_the_first_answer() -> None:
    served = Served()
    read_before = served.disk.content(served.path(0))
    assert not served.part.is_verified
    assert served.part.read_resident(0, 20) is None
    assert served.part.read(20, 20) == DATA[20:40]
    assert served.part.is_verified
    assert served.part.read_resident(SIZE - 20, 20) == DATA[-20:]
    assert served.disk.content(served.path(0)) == read_before


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_known", [False, True])
def test_of_a_damaged_file_nothing_is_given(read: Read, *, is_known: bool) -> None:
    """Before the first use, in bytes that nobody asks for; after it, in those that are asked for."""
    served = Served()
    if is_known:
        assert read(served.part, 0, 20) == DATA[:20]
    served.flip(0)
    first = 3 * PAGE_BYTES - 40 if is_known else 0
    assert read(served.part, first, 200) == DATA[first : first + 200]
    assert not served.store.has_part(served.part.stored)
    assert not served.in_use.lost


@pytest.mark.parametrize("is_known", [False, True])
def test_where_both_files_are_damaged_the_part_is_lost_and_set_aside(*, is_known: bool) -> None:
    served = Served()
    if is_known:
        served.part.read(0, 20)
    served.flip(0)
    served.flip(1)
    at = 3 * PAGE_BYTES - 20
    with pytest.raises(OSError, match="twin") as found:
        served.part.read_beside(at, 100)
    assert found.value.errno == errno.EIO
    for _ in range(2):
        with pytest.raises(EntryDamagedError, match="twin"):
            served.part.read(at, 100)
    assert served.part.read_resident(at, 100) is None
    lost = served.in_use.set_lost_aside()
    assert lost is not None
    assert lost.path == served.path(1)
    served.disk.crash()
    again = SnapshotStore(served.disk)
    assert {served.path(nth) + LOST_SUFFIX for nth in (0, 1)} <= set(served.disk.paths())
    with pytest.raises(CorruptionError, match="no such file"):
        list(again.sealed_chunks(again.newest_first()[0][0]))


@pytest.mark.parametrize("nth", [0, 1])
def test_what_was_set_aside_for_a_bad_moment_of_the_device_comes_back_with_the_next_start(
    nth: int,
) -> None:
    """A node that is alone, and whose log has lost its beginning, would have nothing else."""
    served = Served()
    served.flip(0)
    served.flip(1)
    with pytest.raises(CorruptionError):
        served.part.verify()
    served.in_use.set_lost_aside()
    served.disk.flip_bit(served.path(nth) + LOST_SUFFIX, 3 * PAGE_BYTES, 2)  # it is whole again
    served.store = SnapshotStore(served.disk)
    (part,) = served.hold()
    assert part.read(0, SIZE) == DATA
    assert served.path(nth) in served.disk.paths()
    assert not served.store.has_part(part.stored), "the other file is written anew"
    served.disk.crash()
    served.store = SnapshotStore(served.disk)
    (part,) = served.hold()
    assert part.read(0, SIZE) == DATA


def test_what_is_set_aside_goes_with_the_last_snapshot_that_names_it() -> None:
    served = Served()
    served.flip(0)
    served.flip(1)
    with pytest.raises(CorruptionError):
        served.part.verify()
    served.in_use.set_lost_aside()
    served.taker.store, served.taker.parts = SnapshotStore(served.disk), [sealed(b"other")]
    served.taker.take()
    assert served.path(0) + LOST_SUFFIX in served.disk.paths()
    served.taker.take()
    assert served.path(0) + LOST_SUFFIX not in served.disk.paths()


@pytest.mark.parametrize("nth", [0, 1])
def test_a_file_that_is_gone_is_seen_before_anything_is_read(nth: int) -> None:
    served = Served()
    served.disk.remove(served.path(nth))
    store = SnapshotStore(served.disk)
    (part,) = (
        chunk
        for chunk in store.sealed_chunks(store.newest_first()[0][0])
        if not isinstance(chunk, bytes)
    )
    assert not store.has_part(part.stored)
    assert b"".join(part.chunks()) == DATA


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_a_file_that_the_file_system_calls_damaged_is_left_for_its_twin(
    monkeypatch: pytest.MonkeyPatch, *, code: int
) -> None:
    served = Served()
    real_open = served.disk.open

    def refuse_one(path: str, *, create: bool = False) -> SimFile:
        if path == served.path(0):
            raise OSError(code, "as a test wants it", path)
        return real_open(path, create=create)

    monkeypatch.setattr(served.disk, "open", refuse_one)
    assert served.part.read(0, SIZE) == DATA
    assert not served.store.has_part(served.part.stored)


@pytest.mark.parametrize("read", READS)
def test_a_lack_of_descriptors_says_nothing_of_the_bytes(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served()
    real_open = served.disk.open

    def refuse(path: str, *, create: bool = False) -> SimFile:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(served.disk, "open", refuse)
    with pytest.raises((EntryDamagedError, OSError), match="Too many open files"):
        read(served.part, 0, 20)
    assert served.store.has_part(served.part.stored)
    monkeypatch.setattr(served.disk, "open", real_open)
    assert read(served.part, 0, 20) == DATA[:20]


def test_a_read_that_fails_once_costs_nothing_but_a_new_part() -> None:
    served = Served()
    served.part.read(0, 20)
    served.disk.fail_read(1)
    assert served.part.read(SIZE - 50, 50) == DATA[-50:]
    assert not served.in_use.lost


def test_a_part_stays_as_long_as_somebody_holds_it() -> None:
    """A queue's beginning moves on within a part: no snapshot names it any more, and the rest is still served."""
    served = Served()
    served.taker.store, served.taker.parts = served.store, [sealed(b"other")]
    for _ in range(3):
        served.taker.take()
    assert served.part.read(SIZE - 50, 50) == DATA[-50:]
    served.parts.clear()
    del served.part
    served.taker.take()
    assert served.path(0) not in served.disk.paths()
    assert served.path(1) not in served.disk.paths()


def test_a_part_is_given_out_for_a_check_once_unless_it_could_not_be_read() -> None:
    served = Served(3)
    one = served.in_use.unverified()
    assert one is served.parts[0]
    served.parts[1].read(0, 1)
    assert served.in_use.unverified() is served.parts[2]
    served.in_use.put_back(one)
    assert served.in_use.unverified() is one
    assert served.in_use.unverified() is None
    assert served.hold() == served.parts
    assert served.in_use.unverified() is None


def test_few_files_stay_open() -> None:
    served = Served(FILES_MAX + 3)
    for _ in range(2):
        for part in served.parts:
            assert part.read(SIZE - 7, 7) == DATA[-7:]
    assert len(served.in_use._files) == FILES_MAX
