"""The key index against a list twin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

import pytest
from crc32c import crc32c
from msgspec import structs

from broker.store import key_index
from broker.store.errors import NoRoomError
from broker.store.key_index import (
    KeyIndex,
    MemorySegmentStore,
    ReadPart,
    Walks,
    key_hash,
    key_seed,
)
from broker.store.not_in_memory import FilesNotLoadedError
from broker.store.saved import ByteSource
from dledger.state_machine import SnapshotRefusedError


def index_of(
    segment_units: int, units: list[tuple[str, int, int]], store: MemorySegmentStore | None = None
) -> KeyIndex:
    index = KeyIndex(store or MemorySegmentStore(), segment_units)
    keys = [(key.encode(), key_seed(b"T"), at, store_ms) for key, at, store_ms in units]
    for first in range(0, len(units), 23):
        index.add(*zip(*keys[first : first + 23], strict=True))
    return index


def query(index: KeyIndex, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
    return list(islice(index.candidates("T", key, begin_ms, end_ms), count))


UNITS = [(f"k{n % 7}", n * 100, 1000 + n) for n in range(100)]


@pytest.mark.parametrize("segment_units", [1, 2, 8, 64, 128])
def test_queries_give_the_newest_first_whatever_the_segments(segment_units: int) -> None:
    index = index_of(segment_units, UNITS)
    for key in ("k0", "k3", "absent"):
        for begin_ms, end_ms in ((0, 2000), (1010, 1050), (1050, 1010), (1099, 1099)):
            expected = [at for k, at, t in reversed(UNITS) if k == key and begin_ms <= t <= end_ms]
            assert query(index, key, 64, begin_ms, end_ms) == expected
            assert query(index, key, 2, begin_ms, end_ms) == expected[:2]


@pytest.mark.parametrize("segment_units", [1, 2, 8, 64, 128])
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_search_goes_on_before_a_place(segment_units: int, *, is_cold: bool) -> None:
    # A place may have several keys, also the same one twice.
    units = [(f"k{n % 7}", n // 3 * 100, 1000 + n) for n in range(100)]
    units += [("k3", 99 // 3 * 100, 1100), ("k3", 99 // 3 * 100, 1100)]
    index = index_of(segment_units, units, ColdSegments() if is_cold else None)

    def ask(before: int) -> list[int]:
        walks = Walks() if is_cold else None
        for _ in range(1000):
            try:
                return list(index.candidates("T", key, begin_ms, 5000, before=before, walks=walks))
            except FilesNotLoadedError as error:
                error.warm()
        raise AssertionError("it does not end")

    for key in ("k0", "k3", "absent"):
        for before in (*range(0, 3500, 50), -1):
            for begin_ms in (0, 1050):
                expected = [
                    at for k, at, t in reversed(units) if k == key and at < before and t >= begin_ms
                ]
                assert ask(before) == expected, before


def test_a_page_far_back_takes_few_looks() -> None:
    """A key with very many messages: each page begins where the one before has ended."""
    looks = 0

    class Counted(MemorySegmentStore):
        def read(self, number: int, offset: int, size: int) -> bytes:
            nonlocal looks
            looks += 1
            return super().read(number, offset, size)

    units = [("k", n, 1000 + n) for n in range(5 * 1024 + 100)]
    index = index_of(1024, units, Counted())
    for before in (4000, 1500, 3):
        looks = 0
        found = list(islice(index.candidates("T", "k", 0, 2**62, before=before), 3))
        assert found == list(range(before - 1, before - 4, -1))
        assert looks <= 30, before


class ColdSegments(MemorySegmentStore):
    """Segments of which nothing is in memory."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        raise AssertionError("it is read while somebody waits for it")

    def read_resident(self, number: int, offset: int, size: int) -> None:
        return None

    def read_beside(self, number: int, work: Callable[[ReadPart], None]) -> None:
        work(lambda offset, size: self._segments[number][offset : offset + size])


def query_beside(index: KeyIndex, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
    """Query as whoever can wait for the disk."""
    walks = Walks()
    for _ in range(1000):
        try:
            return list(islice(index.candidates("T", key, begin_ms, end_ms, walks=walks), count))
        except FilesNotLoadedError as error:
            error.warm()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("steps", [1, 3, 1024])
@pytest.mark.parametrize("segments", [1, 2, 64])
@pytest.mark.parametrize("segment_units", [1, 2, 8, 64, 128])
def test_segments_that_are_walked_beside_the_loop_give_the_same(
    segment_units: int, segments: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "SEGMENTS_WALKED", segments)
    monkeypatch.setattr(key_index, "STEPS_WALKED", steps)
    index = index_of(segment_units, UNITS, ColdSegments())
    twin = index_of(segment_units, UNITS)
    for key in ("k0", "k3", "absent"):
        for begin_ms, end_ms in ((0, 2000), (1010, 1050), (1050, 1010), (1099, 1099)):
            for count in (64, 2):
                asked = (key, count, begin_ms, end_ms)
                assert query_beside(index, *asked) == query(twin, *asked)


def test_a_query_begins_anew_where_the_index_was_replaced_meanwhile() -> None:
    old, new = (index_of(8, units, ColdSegments()) for units in (UNITS[:60], UNITS[40:]))
    walks = Walks()
    with pytest.raises(FilesNotLoadedError) as found:
        list(old.candidates("T", "k3", 0, 2000, walks=walks))
    found.value.warm()
    wanted = query_beside(new, "k3", 64, 0, 2000)
    found_now: list[int] = []
    for _ in range(1000):
        try:
            found_now = list(new.candidates("T", "k3", 0, 2000, walks=walks))
        except FilesNotLoadedError as error:
            error.warm()
        else:
            break
    assert found_now == wanted != query_beside(old, "k3", 64, 0, 2000)


def test_segments_that_wait_for_room_are_not_read_beside() -> None:
    class NoRoom(ColdSegments):
        def write(self, number: int, segment: bytes) -> None:
            raise NoRoomError("no room")

    index, twin = index_of(8, UNITS, NoRoom()), index_of(8, UNITS)
    assert index.unwritten_count == 12
    assert query_beside(index, "k3", 64, 0, 2000) == query(twin, "k3", 64, 0, 2000)


def test_segments_for_which_there_is_no_room_stay_in_memory_until_there_is() -> None:
    class FullStore(MemorySegmentStore):
        room_count = 2

        def write(self, number: int, segment: bytes) -> None:
            if not self.room_count:
                raise NoRoomError("no room")
            self.room_count -= 1
            super().write(number, segment)

    store = FullStore()
    index, twin = index_of(8, UNITS, store), index_of(8, UNITS)
    assert index.unwritten_count == 10
    assert query(index, "k3", 64, 0, 2000) == query(twin, "k3", 64, 0, 2000)
    assert list(index.saved_units()) == list(twin.saved_units())
    index.trim(UNITS[8 * 4][1])
    assert index.unwritten_count == 8
    store.room_count = 100
    more = [(b"k%d" % n, key_seed(b"T"), 10_000 + n, 2000) for n in range(8)]
    index.add(*zip(*more, strict=True))
    twin.trim(UNITS[8 * 4][1])
    twin.add(*zip(*more, strict=True))
    assert index.unwritten_count == 0
    assert list(index.saved_units()) == list(twin.saved_units())


def test_digests_do_not_depend_on_segments() -> None:
    digests = {index_of(size, UNITS).digest() for size in (1, 2, 16, 128)}
    assert len(digests) == 1
    assert index_of(16, UNITS[:-1]).digest() not in digests


def test_the_hash_is_that_of_topic_and_key() -> None:
    assert key_hash("T", "k") == crc32c(b"k", crc32c(b"T#"))
    assert key_hash("T", "k") != key_hash("U", "k")


def test_trim_forgets_segments_that_the_log_no_longer_covers() -> None:
    index = index_of(8, UNITS)
    index.trim(2000)
    assert query(index, "k0", 64, 0, 9999)[-1] >= 1600
    assert query(index, "k0", 64, 0, 9999)[0] == 9800
    digest = index.digest()
    index.trim(9900)
    assert query(index, "k0", 64, 0, 9999) == [9800]
    index.trim(10**9)
    assert query(index, "k0", 64, 0, 9999) == []
    assert index.digest() == digest
    index.add([b"k0"], [key_seed(b"T")], [2 * 10**9], [9999])
    assert query(index, "k0", 64, 0, 9999) == [2 * 10**9]


def test_the_newest_unit_is_remembered() -> None:
    index = index_of(8, UNITS)
    assert (index.last_physical_offset, index.last_store_ms) == (9900, 1099)


@pytest.mark.parametrize("size", [0, 3, 100])
def test_segment_sizes_are_powers_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        KeyIndex(MemorySegmentStore(), size)


def test_a_segment_has_the_bytes_of_the_format() -> None:
    store = MemorySegmentStore()
    index = KeyIndex(store, 2)
    index.add([b"a", b"b"], [key_seed(b"T")] * 2, [0x1000, 0x1100], [0x2000, 0x2001])
    assert store.read(0, 0, 56).hex() == (
        "00000000"
        "00000002"  # both hashes are odd: slot 1, whose newest unit is number 2
        "00000000"
        "00000001"  # unit 2 goes on to unit 1
        "91bca1c9"
        "0000000000001000"
        "0000000000002000"
        "82ec523d"
        "0000000000001100"
        "0000000000002001"
    )


def test_a_snapshot_whose_row_names_another_newest_unit_is_refused() -> None:
    index = index_of(8, UNITS[:5])
    row, units = index.row(), b"".join(index.saved_units())
    fresh = KeyIndex(MemorySegmentStore(), 8)
    wrong = structs.replace(row, last_store_ms=row.last_store_ms + 1)
    with pytest.raises(SnapshotRefusedError, match="newest unit"):
        deque(fresh.load_steps(wrong, ByteSource(iter([units]))), maxlen=0)
    fresh = KeyIndex(MemorySegmentStore(), 8)
    deque(fresh.load_steps(row, ByteSource(iter([units]))), maxlen=0)
    assert fresh.row() == row


@pytest.mark.parametrize(("physical_offset", "store_ms"), [(5000, 1098), (9899, 1100)])
def test_a_key_out_of_the_logs_order_stops_the_fold(physical_offset: int, store_ms: int) -> None:
    index = index_of(8, UNITS)
    with pytest.raises(AssertionError, match="comes after one"):
        index.add([b"k"], [1], [physical_offset], [store_ms])
    assert index.row() == index_of(8, UNITS).row()
