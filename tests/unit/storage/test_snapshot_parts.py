"""Parts of snapshots: durable before they are named, kept as long as they are, two files of each."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from dledger.codec.snapshot import SnapshotMeta
from dledger.errors import CorruptionError
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import KeptPart, SealedPart
from dledger.storage.api import File
from dledger.storage.snapshot_parts import number_of, part_names
from dledger.storage.snapshots import SnapshotFile, SnapshotStore, SnapshotWriter
from dledger.storage.whole_snapshot import GIVEN_BYTES_MAX
from dledger.testing.sim_disk import SimDisk

LARGE = bytes(range(256)) * 1500


def sealed(data: bytes) -> SealedPart:
    return SealedPart(lambda: iter([data[:7], data[7:]] if data[7:] else [data]))


A, B, C = b"first part", LARGE, b"third"


class Taker:
    """Takes snapshots of a state of some parts with bytes between them."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.store = SnapshotStore(disk)
        self.parts = [sealed(data) for data in (A, B, C)]
        self.index = 0

    def meta(self) -> SnapshotMeta:
        return SnapshotMeta(Index(self.index), Term(3), Position(self.index * 100), 0xCAFE, 0xD1CE)

    def chunks(self) -> Iterator[bytes | SealedPart]:
        yield b"head"
        for part in self.parts:
            yield part
            yield b"<%d>" % self.index

    def begin(self) -> SnapshotWriter:
        self.index += 1
        writer = self.store.begin(self.meta(), has_parts=True)
        for item in self.store.with_parts(self.chunks()):
            writer.add([item])
        return writer

    def take(self) -> SnapshotFile:
        return self.begin().finish()

    def wanted(self) -> bytes:
        return b"".join(
            b"".join(chunk.chunks()) if isinstance(chunk, SealedPart) else chunk
            for chunk in self.chunks()
        )

    def part_files(self) -> list[str]:
        return [name for name in self.disk.list("snapshots") if number_of(name) is not None]


def content(disk: SimDisk, place: int = 0) -> bytes:
    store = SnapshotStore(disk)
    return b"".join(store.chunks(store.newest_first()[0][place]))


def test_parts_are_written_once_and_read_back_at_their_places() -> None:
    taker = Taker(SimDisk(Random(1)))
    first = taker.take()
    assert content(taker.disk) == taker.wanted()
    files = taker.part_files()
    assert len(files) == 6
    second = taker.take()
    assert taker.part_files() == files
    assert content(taker.disk) == taker.wanted()
    assert first.size_bytes == second.size_bytes < 300


def bytes_of(chunks: Iterable[bytes | KeptPart]) -> bytes:
    return b"".join(
        chunk if isinstance(chunk, bytes) else b"".join(chunk.chunks()) for chunk in chunks
    )


def kept_in(chunks: Iterable[bytes | KeptPart]) -> list[KeptPart]:
    return [chunk for chunk in chunks if not isinstance(chunk, bytes)]


def test_parts_stand_in_the_place_of_their_bytes() -> None:
    taker = Taker(SimDisk(Random(1)))
    snapshot = taker.take()
    chunks = list(taker.store.sealed_chunks(snapshot))
    stored = [part.stored for part in kept_in(chunks)]
    assert stored == [part.stored for part in taker.parts]
    assert [part.state_bytes for part in stored] == [len(A), len(B), len(C)]
    assert bytes_of(chunks) == taker.wanted()


def test_parts_go_with_the_last_snapshot_that_names_them() -> None:
    taker = Taker(SimDisk(Random(1)))
    taker.take()
    gone = taker.parts.pop(0).stored
    assert gone is not None
    taker.take()
    assert set(part_names(gone.number)) <= set(taker.part_files())
    taker.take()
    assert not set(part_names(gone.number)) & set(taker.part_files())
    assert content(taker.disk, 1)
    assert content(taker.disk, 0) == taker.wanted()


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_moment_leaves_whole_snapshots_and_no_file_that_nobody_names(
    seed: int,
) -> None:
    rng = Random(seed)
    taker = Taker(SimDisk(rng))
    taken: dict[int, bytes] = {}
    for _ in range(12):
        taker.parts = taker.parts[rng.randint(0, 2) :] + [
            sealed(rng.randbytes(rng.choice((3, 50_000)))) for _ in range(rng.randint(0, 2))
        ]
        end = rng.choice(("finished", "written", "abandoned"))
        writer = taker.begin()
        wanted = taker.wanted()
        if end == "finished":
            writer.finish()
            taken[taker.index] = wanted
        elif end == "abandoned":
            writer.abandon()
        if rng.random() < 0.5:
            taker.disk.crash()
            taker.store = SnapshotStore(taker.disk)
        elif end == "written":
            writer.abandon()
        good, bad = taker.store.newest_first()
        assert not bad
        newest = sorted(taken)[-2:]
        assert sorted(each.meta.index for each in good) == newest
        named: set[str] = set()
        for snapshot in good:
            chunks = list(taker.store.sealed_chunks(snapshot))
            assert bytes_of(chunks) == taken[snapshot.meta.index]
            stored = [part.stored for part in kept_in(chunks)]
            del chunks  # what somebody holds stays
            named.update(name for each in stored for name in part_names(each.number))
        assert named == set(taker.part_files())


def flip(disk: SimDisk, name: str) -> None:
    disk.flip_bit(f"snapshots/{name}", 20, 3)


@pytest.mark.parametrize("nth", [0, 1])
def test_one_damaged_file_of_a_part_costs_nothing_and_the_next_snapshot_heals_it(nth: int) -> None:
    taker = Taker(SimDisk(Random(1)))
    snapshot = taker.take()
    damaged = taker.parts[1].stored
    assert damaged is not None
    flip(taker.disk, part_names(damaged.number)[nth])
    assert b"".join(taker.store.chunks(snapshot)) == taker.wanted()
    taker.take()
    healed = taker.parts[1].stored
    # What nobody has read nobody knows to be damaged.
    assert (healed != damaged) == (nth == 0)
    assert content(taker.disk) == taker.wanted()


@pytest.mark.parametrize("how", ["flipped", "removed", "cut", "swapped"])
def test_a_part_whose_both_files_are_damaged_is_named_by_place(how: str) -> None:
    disk = SimDisk(Random(1))
    taker = Taker(disk)
    taker.take()
    damaged, other = taker.parts[0].stored, taker.parts[2].stored
    assert damaged is not None
    assert other is not None
    for name, from_other in zip(part_names(damaged.number), part_names(other.number), strict=True):
        path = f"snapshots/{name}"
        if how == "flipped":
            flip(disk, name)
        elif how == "removed":
            disk.remove(path)
        elif how == "cut":
            disk.open(path).truncate(damaged.size_bytes - 1)
        else:
            file = disk.open(path)
            file.truncate(0)
            file.write_at(0, [disk.content(f"snapshots/{from_other}")])
    store = SnapshotStore(disk)
    with pytest.raises(CorruptionError, match=r"snapshots/0+1\.twin"):
        store.verify(store.newest_first()[0][0])


def test_no_part_is_removed_while_a_snapshot_cannot_be_read() -> None:
    """Which parts it names is unknown, and it may be read again: the device had a bad moment."""
    disk = SimDisk(Random(1))
    taker = Taker(disk)
    taker.take()
    taker.parts = [sealed(b"other")]
    taker.take()
    files = taker.part_files()
    disk.fail_read(1)
    store = SnapshotStore(disk)
    assert taker.part_files() == files
    assert len(store.newest_first()[0]) == 2
    for snapshot in store.newest_first()[0]:
        store.verify(snapshot)


def test_no_part_is_removed_while_a_snapshot_is_written_that_may_name_it() -> None:
    """Another member's snapshot may come meanwhile, and take the place of one that named it."""
    disk = SimDisk(Random(1))
    taker = Taker(disk)
    taker.take()
    taker.take()
    taker.index = 70
    writer = taker.begin()
    other = SimDisk(Random(2))
    for index in (50, 60):
        whole = SnapshotStore(other).begin(
            SnapshotMeta(Index(index), Term(3), Position(9000), 1, 2)
        )
        whole.add([b"x"])
        whole.finish()
        copy = taker.store.begin_copy(Index(index))
        copy.add(other.content(f"snapshots/{index:020d}"))
        copy.finish()
    writer.finish()
    assert len(taker.part_files()) == 6
    assert content(disk) == taker.wanted()


def test_other_members_get_one_file_without_parts() -> None:
    """The very file that a version without parts would have written; at any place, and to several at once."""
    taker = Taker(SimDisk(Random(1)))
    snapshot = taker.take()
    plain = SimDisk(Random(2))
    old = SnapshotStore(plain).begin(snapshot.meta)
    for chunk in taker.store.chunks(snapshot):
        old.add([chunk])
    written = old.finish()
    wanted = plain.content(written.path)
    whole = taker.store.whole(snapshot)
    assert whole.size_bytes == len(wanted)
    rng = Random(3)
    for offset in [0, GIVEN_BYTES_MAX, *(rng.randrange(len(wanted)) for _ in range(30))]:
        assert whole.part(offset) == wanted[offset : offset + GIVEN_BYTES_MAX]
    assert whole.part(len(wanted)) == b""
    flip(taker.disk, part_names(1)[0])
    assert whole.part(0) == wanted[:GIVEN_BYTES_MAX]
    flip(taker.disk, part_names(1)[1])
    with pytest.raises(CorruptionError):
        whole.part(0)


def test_a_copy_that_names_parts_of_another_member_is_refused() -> None:
    taker = Taker(SimDisk(Random(1)))
    snapshot = taker.take()
    copy = SnapshotStore(SimDisk(Random(2))).begin_copy(snapshot.meta.index)
    copy.add(taker.disk.content(snapshot.path))
    with pytest.raises(CorruptionError, match="another member"):
        copy.finish()


def test_a_full_disk_leaves_nothing_of_a_part() -> None:
    disk = SimDisk(Random(1), capacity_bytes=500_000)
    taker = Taker(disk)
    writer = taker.store.begin(SnapshotMeta(Index(1), Term(1), Position(1), 0, 0), has_parts=True)
    items = list(taker.store.with_parts(taker.chunks()))
    with pytest.raises(OSError, match="space"):
        writer.add(items)
    writer.abandon()
    assert disk.list("snapshots") == []
    assert taker.parts[0].stored is None


def test_what_the_device_does_not_give_of_a_part_is_given_out_from_its_second_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taker = Taker(SimDisk(Random(1)))
    whole = taker.store.whole(taker.take())
    stored = taker.parts[1].stored
    assert stored is not None
    unreadable, open_file = part_names(stored.number)[0], taker.disk.open

    def opened(path: str, *, create: bool = False) -> File:
        if path.endswith(unreadable):
            raise OSError(errno.EIO, "simulated")
        return open_file(path, create=create)

    monkeypatch.setattr(taker.disk, "open", opened)
    given = b""
    while len(given) < whole.size_bytes:
        given += whole.part(len(given))
    assert LARGE[7:] in given
