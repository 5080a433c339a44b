"""Old entries and parts of the log are read as planned, verified, and never beyond what is committed."""

from __future__ import annotations

from random import Random

import pytest

from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry
from dledger.raft.ids import NO_TERM, Index, Position
from dledger.storage import part_reader
from dledger.storage.part_cache import PART_BYTES, PartCache
from dledger.storage.part_reader import READ_AHEAD_BYTES, LoadPlanner
from dledger.storage.scan import ChainEnd
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

BIG = 3 * PART_BYTES + 100
SMALL = 1000
SMALL_BYTES = SMALL + ENTRY_HEADER_BYTES


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
        self.planner.put(load)
        self.read = load.size_bytes

    def push_out(self) -> None:
        """Forget all bytes, and no checksum."""
        bytes_max, self.cache.bytes_max = self.cache.bytes_max, 0
        self.cache.put_body(Index(1 << 40), BodySpan(Position(0), b""))
        self.cache.bytes_max = bytes_max

    def place(self, index: int, at: int, size: int) -> tuple[int, int]:
        return self.entries[index - 1].position + ENTRY_HEADER_BYTES + at, size

    def get(self, index: int, at: int, size: int) -> bytes | None:
        """Return bytes of an entry as both ways give them, which is the same."""
        position, _ = self.place(index, at, size)
        pieces = self.planner.views([(position, position + size)])
        span = self.planner.span(Index(index), Position(position), size)
        if span is None:
            assert pieces is None
            return None
        start = position - span.position
        found = bytes(span.data[start : start + size])
        assert pieces is None or b"".join(pieces) == found
        return found

    def flip(self, position: int) -> None:
        place = self.log.file_place(Position(position))
        self.disk.flip_bit(place.path, place.offset)


def body(entry: Entry, at: int, size: int) -> bytes:
    return entry.body[at : at + size]


def test_a_part_is_read_alone_once_its_entries_were_verified() -> None:
    bench = Bench(10, BIG, 10)
    whole = bench.entries[1]
    assert bench.get(2, 0, 10) is None
    bench.load(bench.place(2, PART_BYTES, 10))
    assert bench.read == whole.size_bytes, "its own checksum covers everything"
    assert bench.get(2, BIG - 5, 5) == body(whole, BIG - 5, 5)
    bench.push_out()
    bench.log.read_resident = lambda *_: None  # type: ignore[method-assign]
    assert bench.get(2, PART_BYTES, 10) is None
    bench.load(bench.place(2, PART_BYTES, 10))
    assert bench.read == PART_BYTES
    assert bench.get(2, PART_BYTES, 10) == body(whole, PART_BYTES, 10)
    assert bench.get(2, 2 * PART_BYTES, 10) is None


def test_a_part_that_the_system_has_in_memory_needs_no_load_once_it_was_verified() -> None:
    bench = Bench(10, BIG, 10)
    bench.load(bench.place(2, PART_BYTES, 10))
    bench.push_out()
    assert PART_BYTES // PART_BYTES not in bench.cache
    assert bench.get(2, PART_BYTES, 10) == body(bench.entries[1], PART_BYTES, 10)
    assert bench.get(2, BIG - 5, 5) is None, "of the last part the log has only a stretch"


def test_who_does_not_find_a_part_in_memory_says_where_it_reads() -> None:
    bench = Bench(BIG)
    noted: list[Position] = []
    bench.log.note_reader = lambda position: noted.append(position)  # type: ignore[method-assign]
    assert bench.get(1, PART_BYTES + 10, 100) is None
    assert set(noted) == {PART_BYTES}
    bench.load(bench.place(1, PART_BYTES + 10, 100))
    del noted[:]
    assert bench.get(1, PART_BYTES + 10, 100) is not None
    assert noted == []


@pytest.mark.parametrize("segment_bytes", [1 << 22, 100_000, 1])
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
        assert bench.get(index, at, size) == body(entry, at, size)
        assert bench.cache.size_bytes <= 6 * PART_BYTES


def test_all_entries_that_stand_in_a_wanted_part_are_read_in_one_go() -> None:
    bench = Bench(*[SMALL] * 300)
    bench.load(bench.place(100, 0, 10), bench.place(104, 0, 10))
    assert PART_BYTES < bench.read < PART_BYTES + 2 * SMALL_BYTES
    assert bench.get(102, 0, 10) == body(bench.entries[101], 0, 10)
    assert bench.get(300, 0, 10) is None
    bench.load(bench.place(110, 0, 10))
    assert bench.read == 0


def test_what_is_not_wanted_may_be_damaged() -> None:
    bench = Bench(*[SMALL] * 50)
    bench.flip(bench.place(12, 0, 10)[0])
    bench.load(bench.place(10, 0, 10), bench.place(12, 0, 10), bench.place(14, 0, 10))
    assert bench.get(10, 0, 10) == body(bench.entries[9], 0, 10)
    assert bench.get(12, 0, 10) is None
    position, size = bench.place(14, 0, 10)
    span = bench.planner.span(Index(14), Position(position), size)
    assert span is not None
    assert bytes(span.data) == bench.entries[13].body
    assert bench.get(13, 0, 10) is None, "nobody wanted it"


def test_what_stands_far_apart_is_read_apart_and_nothing_twice() -> None:
    bench = Bench(*[SMALL] * 400)
    places = [bench.place(index, 0, 10) for index in (10, 12, 300, 302)]
    load = bench.planner.plan(places, bench.last)
    assert [len(plan.picks) for plan in load.entries] == [2, 2]
    assert load.numbers == {place // PART_BYTES for place, _ in places}
    assert load.size_bytes < 2 * (PART_BYTES + 2 * SMALL_BYTES)


def test_wanted_entries_of_several_segments_are_all_read() -> None:
    bench = Bench(*[SMALL] * 50, segment_bytes=5000)
    wanted = range(10, 30, 2)
    bench.load(*(bench.place(index, 0, 10) for index in wanted))
    found = [bench.get(index, 0, 10) for index in wanted]
    assert found == [body(bench.entries[index - 1], 0, 10) for index in wanted]


def test_who_goes_through_the_log_finds_more_of_it() -> None:
    bench = Bench(*[100_000] * 30)
    bench.load(bench.place(1, 0, 10))
    assert bench.read < 2 * 100_100
    bench.load(bench.place(2, 0, 10))
    assert READ_AHEAD_BYTES <= bench.read <= READ_AHEAD_BYTES + 2 * 100_100
    bench.load(bench.place(8, 0, 10))
    assert bench.read == 0


def test_one_load_is_bounded_and_gives_what_is_wanted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_reader, "LOAD_BYTES_MAX", 2 * PART_BYTES)
    monkeypatch.setattr(part_reader, "READ_AHEAD_BYTES", PART_BYTES)
    bench = Bench(*[PART_BYTES] * 9)
    bench.load(*(bench.place(index, 0, 10) for index in (1, 4, 8)))
    assert [bench.get(index, 0, 10) is not None for index in (1, 4, 8)] == [True, True, False]


def test_no_part_is_read_twice_by_one_load_and_no_load_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_reader, "LOAD_BYTES_MAX", 40 * PART_BYTES)
    count = 200
    bench = Bench(count * PART_BYTES, segment_bytes=1 << 25)
    bench.load(bench.place(1, 0, 1))
    for number in range(1, count, 2):
        del bench.cache._kept[number]
    every_second = [bench.place(1, number * PART_BYTES, 1) for number in range(1, count, 2)]
    load = bench.planner.plan(every_second, bench.last)
    numbers = [
        plan.position // PART_BYTES + each
        for plan in load.parts
        for each in range(len(plan.checksums))
    ]
    assert load.entries == []
    assert len(numbers) == len(set(numbers))
    assert load.size_bytes <= 40 * PART_BYTES + READ_AHEAD_BYTES
    assert numbers[0] == 1


def test_what_is_not_committed_is_not_read() -> None:
    bench = Bench(*[SMALL] * 10)
    bench.last = Index(5)
    bench.load(bench.place(4, 0, 10))
    assert bench.read == 5 * SMALL_BYTES
    bench.load(bench.place(5, 0, 10), bench.place(6, 0, 10))
    assert bench.read == 0
    assert bench.get(6, 0, 10) is None
    bench.last = Index(10)
    bench.load(bench.place(6, 0, 10))
    assert bench.get(10, 0, 10) == body(bench.entries[9], 0, 10)


def test_a_damaged_entry_does_not_come_into_memory() -> None:
    bench = Bench(SMALL, BIG)
    position, _ = bench.place(2, PART_BYTES + 5, 1)
    bench.flip(position)
    bench.load(bench.place(2, 0, 10))
    assert bench.get(2, 0, 10) is None
    bench.flip(position)
    bench.load(bench.place(2, 0, 10))
    assert bench.get(2, 0, 10) is not None


@pytest.mark.parametrize("is_resident", [True, False])
def test_a_part_that_was_damaged_since_it_was_verified_is_found_out(is_resident: bool) -> None:
    bench = Bench(SMALL, BIG)
    bench.load(bench.place(2, 0, 10))
    bench.push_out()
    if not is_resident:
        bench.log.read_resident = lambda *_: None  # type: ignore[method-assign]
    bench.flip(bench.place(2, PART_BYTES + 5, 1)[0])
    assert bench.get(2, PART_BYTES + 100, 10) is None
    bench.load(bench.place(2, PART_BYTES + 100, 10))
    assert bench.get(2, PART_BYTES + 100, 10) is None
    bench.load(bench.place(1, 0, 10))
    assert bench.get(2, 0, 10) == body(bench.entries[1], 0, 10), "the others are whole"


def test_an_entry_in_memory_is_given_whole_and_read_from_no_disk() -> None:
    bench = Bench(10)
    log = bench.log
    (newest,) = log.append(new_entries(log, 1, [BIG]))
    span = bench.planner.span(newest.index, Position(newest.position), 1)
    assert span == (newest.position + ENTRY_HEADER_BYTES, newest.body)
    assert bench.planner.plan([(newest.position, 100)], newest.index).numbers == set()
    start = newest.position + ENTRY_HEADER_BYTES
    assert bench.planner.views([(start + 5, start + 9)]) == [newest.body[5:9]]
    assert bench.planner.views([(start - 1, start + 9)]) is None, "not the body alone"
    assert bench.planner.views([(start, start + BIG + 1)]) is None


def test_a_log_that_begins_anew_takes_all_that_was_read_with_it() -> None:
    bench = Bench(SMALL, BIG)
    bench.load(bench.place(2, PART_BYTES, 10))
    late = bench.planner.plan([bench.place(1, 0, 10)], bench.last)
    late.run()
    assert bench.cache.size_bytes > BIG
    bench.log.begin_after(ChainEnd(Index(9), NO_TERM, Position(1 << 20), 7))
    bench.planner.put(late)
    assert (bench.cache.size_bytes, bench.cache.checksum(1)) == (0, None)
