"""Old entries and parts of them are read as planned, verified, and never beyond what is committed."""

from __future__ import annotations

from random import Random

import pytest

from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import Index, Position
from dledger.storage import part_reader
from dledger.storage.part_cache import PART_BYTES, PartCache
from dledger.storage.part_reader import GAP_BYTES_MAX, READ_AHEAD_BYTES, LoadPlanner
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

BIG = 3 * PART_BYTES + 100


class Bench:
    """A log with nothing in memory; `read` counts the bytes of the last load."""

    def __init__(
        self, *sizes: int, segment_bytes: int = 1 << 22, cache_bytes: int = 1 << 30
    ) -> None:
        self.disk = SimDisk(Random(1))
        self.log = SegmentedLog.open(self.disk, segment_size_bytes=segment_bytes, cache_bytes_max=0)
        self.entries = list(self.log.append(new_entries(self.log, 1, list(sizes))))
        flush(self.log)
        self.cache = PartCache(cache_bytes)
        self.planner = LoadPlanner(self.log, self.cache)
        self.last = self.log.durable_index
        self.read = 0

    def load(self, *places: tuple[int, int], ahead: bool = True) -> None:
        load = self.planner.plan(places, self.last, ahead=ahead)
        load.run()
        load.put_into(self.cache)
        self.read = load.size_bytes

    def place(self, index: int, at: int, size: int) -> tuple[int, int]:
        return self.entries[index - 1].position + ENTRY_HEADER_BYTES + at, size

    def get(self, index: int, at: int, size: int) -> bytes | None:
        position, _ = self.place(index, at, size)
        span = self.planner.span(Index(index), Position(position), size)
        if span is None:
            return None
        start = position - span.position
        return span.data[start : start + size]


def body(entry: Entry, at: int, size: int) -> bytes:
    return entry.body[at : at + size]


def test_a_part_of_a_large_entry_is_read_alone_once_the_entry_was_verified() -> None:
    bench = Bench(10, BIG, 10)
    whole = bench.entries[1]
    assert bench.get(2, 0, 10) is None
    bench.load(bench.place(2, 0, 10))
    assert bench.read == whole.size_bytes, "its own checksum covers everything"
    assert bench.get(2, BIG - 5, 5) == body(whole, BIG - 5, 5)
    bench.cache.bytes_max = 0
    bench.load(bench.place(1, 0, 1))
    assert bench.get(2, 0, 10) is None, "pushed out"
    bench.cache.bytes_max = 1 << 30
    bench.load(bench.place(2, 2 * PART_BYTES, 10))
    assert bench.read == PART_BYTES
    assert bench.get(2, 2 * PART_BYTES, 10) == body(whole, 2 * PART_BYTES, 10)
    assert bench.get(2, 0, 10) is None


@pytest.mark.parametrize("segment_bytes", [1 << 22, 1])
def test_any_place_is_given_as_it_was_written(segment_bytes: int) -> None:
    random = Random(2)
    sizes = [random.choice((1, 100, PART_BYTES, BIG)) for _ in range(20)]
    bench = Bench(*sizes, segment_bytes=segment_bytes, cache_bytes=6 * PART_BYTES)
    for _ in range(300):
        index = random.randrange(20) + 1
        entry = bench.entries[index - 1]
        at = random.randrange(len(entry.body))
        size = random.randint(1, min(len(entry.body) - at, 2 * PART_BYTES))
        if bench.get(index, at, size) is None:
            bench.load(bench.place(index, at, size), ahead=random.random() < 0.5)
        found = bench.get(index, at, size)
        assert found in {None, body(entry, at, size)}
        assert bench.cache.size_bytes <= 6 * PART_BYTES
    assert found is not None


def test_what_is_wanted_together_and_stands_together_is_read_in_one_go() -> None:
    bench = Bench(*[1000] * 50)
    bench.load(bench.place(10, 0, 10), bench.place(14, 0, 10))
    assert bench.read == 5 * (1000 + ENTRY_HEADER_BYTES)
    assert bench.get(14, 0, 10) == body(bench.entries[13], 0, 10)
    assert bench.get(12, 0, 10) is None, "nobody wants it, so it was not verified"
    bench.load(bench.place(40, 0, 10))
    assert bench.read == 1000 + ENTRY_HEADER_BYTES, "nobody goes through the log there"


def test_what_is_not_wanted_may_be_damaged() -> None:
    bench = Bench(*[1000] * 50)
    (path,) = [path for path in bench.disk.paths() if "data" in path]
    bench.disk.flip_bit(path, bench.place(12, 0, 10)[0])
    bench.load(bench.place(10, 0, 10), bench.place(12, 0, 10), bench.place(14, 0, 10))
    assert bench.get(10, 0, 10) is not None
    assert bench.get(12, 0, 10) is None
    bench = Bench(*[1000] * 50)
    (path,) = [path for path in bench.disk.paths() if "data" in path]
    bench.disk.flip_bit(path, bench.place(12, 0, 10)[0])
    bench.load(bench.place(10, 0, 10), bench.place(14, 0, 10))
    assert bench.get(10, 0, 10) == body(bench.entries[9], 0, 10)
    assert bench.get(14, 0, 10) == body(bench.entries[13], 0, 10)


def test_what_stands_far_apart_is_read_apart_and_no_entry_twice() -> None:
    far = GAP_BYTES_MAX // 1000 + 2
    bench = Bench(*[1000] * 400)
    load = bench.planner.plan(
        [bench.place(index, 0, 10) for index in (10, 12, 12 + far, 13 + far)], bench.last
    )
    assert [plan.picks and len(plan.picks) for plan in load.entries] == [2, 2]
    assert load.size_bytes == 5 * (1000 + ENTRY_HEADER_BYTES)
    assert load.indexes == {10, 12, 12 + far, 13 + far}


def test_wanted_entries_of_two_segments_are_all_read() -> None:
    bench = Bench(*[1000] * 50, segment_bytes=5000)
    wanted = range(10, 30, 2)
    bench.load(*(bench.place(index, 0, 10) for index in wanted))
    found = [bench.get(index, 0, 10) for index in wanted]
    assert found == [body(bench.entries[index - 1], 0, 10) for index in wanted]


def test_who_goes_through_the_log_finds_more_of_it() -> None:
    bench = Bench(*[100_000] * 30)
    bench.load(bench.place(1, 0, 10))
    bench.load(bench.place(2, 0, 10))
    assert READ_AHEAD_BYTES - 100_100 < bench.read <= READ_AHEAD_BYTES
    bench.load(bench.place(8, 0, 10))
    assert bench.read == 0


def test_one_load_is_bounded_and_gives_what_is_wanted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_reader, "LOAD_BYTES_MAX", 10_000)
    monkeypatch.setattr(part_reader, "READ_AHEAD_BYTES", 10)
    bench = Bench(*[5001] * 5)
    bench.load(*(bench.place(index, 0, 10) for index in (1, 3, 5)))
    assert [bench.get(index, 0, 10) is not None for index in (1, 3, 5)] == [True, True, False]


def test_no_part_is_read_twice_by_one_load_and_no_load_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_reader, "LOAD_BYTES_MAX", 40 * PART_BYTES)
    count = 200
    bench = Bench(count * PART_BYTES, segment_bytes=1 << 25)
    bench.load(bench.place(1, 0, 1))
    parts = list(bench.cache._parts.items())
    for position, _ in parts[1::2]:
        del bench.cache._parts[position]
    every_second = [bench.place(1, number * PART_BYTES, 1) for number in range(1, count, 2)]
    load = bench.planner.plan(every_second, bench.last)
    places = [
        plan.position + number * PART_BYTES
        for plan in load.parts
        for number in range(len(plan.checksums))
    ]
    assert len(places) == len(set(places))
    assert load.size_bytes <= 40 * PART_BYTES + READ_AHEAD_BYTES
    assert places[0] == every_second[0][0]


def test_what_is_not_committed_is_not_read() -> None:
    bench = Bench(*[1000] * 10)
    bench.last = Index(5)
    bench.load(bench.place(4, 0, 10))
    bench.load(bench.place(5, 0, 10), bench.place(6, 0, 10))
    assert bench.read == 1000 + ENTRY_HEADER_BYTES
    assert bench.get(6, 0, 10) is None


def test_a_damaged_entry_does_not_come_into_memory() -> None:
    bench = Bench(1000, BIG)
    (path,) = [path for path in bench.disk.paths() if "data" in path]
    position, _ = bench.place(2, PART_BYTES + 5, 1)
    bench.disk.flip_bit(path, position)
    bench.load(bench.place(2, 0, 10))
    assert bench.get(2, 0, 10) is None
    bench.disk.flip_bit(path, position)
    bench.load(bench.place(2, 0, 10))
    assert bench.get(2, 0, 10) is not None


def test_a_part_that_was_damaged_since_the_entry_was_verified_is_found_out() -> None:
    bench = Bench(1000, BIG)
    bench.load(bench.place(2, 0, 10))
    bench.cache.bytes_max = 0
    bench.load(bench.place(1, 0, 1))
    bench.cache.bytes_max = 1 << 30
    (path,) = [path for path in bench.disk.paths() if "data" in path]
    position, _ = bench.place(2, PART_BYTES + 5, 1)
    bench.disk.flip_bit(path, position)
    bench.load(bench.place(2, PART_BYTES + 100, 10))
    assert bench.get(2, PART_BYTES + 100, 10) is None
    bench.load(bench.place(2, 0, 10))
    assert bench.get(2, 0, 10) == body(bench.entries[1], 0, 10), "the others are whole"


def test_an_entry_in_memory_is_given_whole_and_read_from_no_disk() -> None:
    bench = Bench(10)
    log = bench.log
    (newest,) = log.append(new_entries(log, 1, [BIG]))
    span = bench.planner.span(newest.index, Position(newest.position), 1)
    assert span == (newest.position + ENTRY_HEADER_BYTES, newest.body)
    assert bench.planner.plan([(newest.position, 100)], newest.index).indexes == set()
