"""Reads beside the loop: how many at a time, who waits for which, and what becomes of damage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import pytest

from dledger.errors import CompactedError, EntryDamagedError, OutOfRangeError
from dledger.raft.effects import AppendEntries, Commit
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import Index, Position
from dledger.raft.log_layout import LogLayout
from dledger.runtime.cold_reads import LOADS_MAX, WAITING_MIN, ColdReads
from dledger.runtime.log_reader import LogReader
from dledger.storage.part_cache import PART_BYTES, PartCache
from dledger.storage.part_reader import Load
from dledger.testing.sim_disk import SimDisk, SimFile
from tests.unit.engine.scripted import entry, give, persist, scripted


class ManualThreads:
    """Threads that run when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.is_running = False

    def begin(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        self.begun.append((work, done))

    def run_first(self) -> None:
        work, done = self.begun.pop(0)
        self.is_running = True
        work()
        self.is_running = False
        done()


class Bench:
    """The reads of a member with committed entries, none of them in memory."""

    def __init__(self, *sizes: int, verifies: bool = True) -> None:
        self.disk = SimDisk(Random(1))
        self.engine = scripted(self.disk, cache_bytes_max=0)
        position = 0
        for index, size in enumerate(sizes, 1):
            made = entry(index, body=bytes([index]) * size, position=position)
            give(self.engine, AppendEntries((made,)))
            position += made.size_bytes
        while self.engine.has_unsaved:
            persist(self.engine)
        while verifies and (part := self.engine.log.unverified()):
            self.engine.log.examined(part, part.examination.run())
        give(self.engine, Commit(Index(len(sizes))))
        self.engine.node.commit_index = Index(len(sizes))  # type: ignore[misc]  # a scripted node
        driver = SimpleNamespace(
            engine=self.engine,
            applied_index=Index(len(sizes)),
            read=lambda first, end, bytes_max: self.engine.read(first, end, bytes_max, 0),
        )
        standing = SimpleNamespace(driver=driver, running=driver, node_id="n0")
        self.reader = LogReader(standing, None)  # type: ignore[arg-type]  # what is used of them
        self.threads = ManualThreads()
        self.reader.cold = ColdReads(
            self.engine.log,
            PartCache(1 << 30),
            self.threads,
            commit_index=lambda: self.reader.commit_index,
        )
        self.done: list[int] = []

    def at(self, index: int, offset: int = 0) -> Position:
        start = self.engine.log.layout.position_of(Index(index))
        return Position(start + ENTRY_HEADER_BYTES + offset)

    def load(self, *indexes: int) -> None:
        number = indexes[0]
        self.reader.load([(self.at(each), 1) for each in indexes], lambda: self.done.append(number))

    def views(self, *runs: tuple[int, int]) -> list[memoryview] | None:
        return self.reader.views(runs, self.reader.committed_position)

    def has(self, index: int) -> bool:
        return self.reader.span_at(self.at(index), 1, only_memory=True) is not None


def test_as_many_read_at_a_time_as_may_and_the_others_in_their_order() -> None:
    bench = Bench(*[20_000] * 20)
    for index in (1, 5, 9, 13):
        bench.load(index)
    assert len(bench.threads.begun) == LOADS_MAX
    bench.threads.run_first()
    assert (bench.done, len(bench.threads.begun)) == ([1], LOADS_MAX)
    while bench.threads.begun:
        bench.threads.run_first()
    assert bench.done == [1, 5, 9, 13]
    assert all(bench.has(index) for index in bench.done)


def test_on_a_disk_that_hangs_only_those_wait_that_are_wanted() -> None:
    bench = Bench(*[20_000] * 20)
    cold = bench.reader.running_cold
    for index in (1, 5):
        bench.load(index)
    let_go: list[int] = []
    for number in range(1000):
        cold.load([(bench.at(9), 1)], lambda n=number: let_go.append(n), lambda: False)  # type: ignore[misc]  # the loop's
        assert len(cold._waiting) <= WAITING_MIN
    bench.load(13)
    bench.threads.run_first()
    assert let_go == list(range(1000))
    while bench.threads.begun:
        bench.threads.run_first()
    assert bench.done == [1, 5, 13]
    assert not bench.has(9)


def test_a_look_up_that_fails_holds_nobody_up() -> None:
    bench = Bench(*[20_000] * 20)
    cold = bench.reader.running_cold

    def refuse(*_given: object) -> Load:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold.planner, "plan", refuse)
        bench.load(1)
    assert (bench.done, bench.threads.begun) == ([1], [])
    bench.load(5)
    bench.threads.run_first()
    assert bench.done == [1, 5]
    assert bench.has(5)


class ColdIndex:
    """Notes what is read of index files on the loop; the system has none of them in memory."""

    def __init__(self, threads: ManualThreads, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_the_loop: list[str] = []
        read_at, read_resident = SimFile.read_at, SimFile.read_resident

        def noted(file: SimFile, offset: int, size: int) -> bytes:
            if file.path.startswith("index/") and not threads.is_running:
                self.on_the_loop.append(file.path)
            return read_at(file, offset, size)

        def resident(file: SimFile, offset: int, size: int) -> bytes | None:
            return None if file.path.startswith("index/") else read_resident(file, offset, size)

        monkeypatch.setattr(SimFile, "read_at", noted)
        monkeypatch.setattr(SimFile, "read_resident", resident)


def body_of_500(index: int) -> tuple[Position, int]:
    """Return where a body of 500 bytes stands in a log of such ones, without looking it up."""
    return Position((index - 1) * (ENTRY_HEADER_BYTES + 500) + ENTRY_HEADER_BYTES), 500


@pytest.mark.parametrize("verifies", [True, False])
def test_where_entries_stand_is_looked_up_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, *, verifies: bool
) -> None:
    """Also in a segment whose index was not verified yet, which a thread then reads whole."""
    bench = Bench(*[500] * 80, verifies=verifies)
    indexes = [3, 40, 41]
    places = [body_of_500(index) for index in indexes]
    index = ColdIndex(bench.threads, monkeypatch)
    for place in places:
        assert bench.reader.span_at(*place, only_memory=True) is None
    bench.reader.load(places, lambda: bench.done.append(1))
    while bench.threads.begun:
        bench.threads.run_first()
    assert bench.done == [1]
    for (position, size), number in zip(places, indexes, strict=True):
        span = bench.reader.span_at(position, size, only_memory=True)
        assert span is not None
        assert span.data[position - span.position] == number
    assert index.on_the_loop == []


def test_a_damaged_page_of_an_index_is_met_on_the_loop_which_makes_the_index_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(*[500] * 80)
    place = body_of_500(40)
    ColdIndex(bench.threads, monkeypatch)
    path = bench.engine.log.file_place(place[0]).path.replace("data/", "index/")
    bench.disk.flip_bit(path, 40)
    bench.reader.load([place], lambda: bench.done.append(1))
    while bench.threads.begun:
        bench.threads.run_first()
    assert bench.done == [1]
    assert bench.reader.span_at(*place, only_memory=True) is not None
    assert [event for event, _ in bench.engine.log.notes] == ["index-rebuilt"]


def test_other_files_are_read_in_turn() -> None:
    bench = Bench(*[20_000] * 20)
    read: list[str] = []
    bench.load(1)
    bench.load(5)
    for name, is_wanted in (("a", True), ("b", False)):
        bench.reader.read_beside(
            lambda name=name: read.append(name),  # type: ignore[misc]  # each its own
            lambda name=name: bench.done.append(ord(name)),  # type: ignore[misc]
            lambda is_wanted=is_wanted: is_wanted,  # type: ignore[misc]
        )
    assert len(bench.threads.begun) == LOADS_MAX
    while bench.threads.begun:
        bench.threads.run_first()
    assert read == ["a"]
    assert sorted(bench.done) == [1, 5, ord("a"), ord("b")]


def test_what_another_one_reads_is_waited_for_and_not_read_again() -> None:
    bench = Bench(*[PART_BYTES] * 3)
    bench.load(1, 2)
    bench.load(2)
    bench.load(3)
    assert len(bench.threads.begun) == 1, "the second waits for the first, the third for its turn"
    bench.threads.run_first()
    assert bench.done == [1, 2]
    bench.threads.run_first()
    assert bench.done == [1, 2, 3]
    bench.load(3)
    assert bench.done == [1, 2, 3, 3], "there is nothing to read"
    assert bench.reader.cold is not None
    assert bench.reader.cold.load_count == 2


def test_what_is_not_wanted_any_more_when_its_turn_comes_is_not_read() -> None:
    bench = Bench(*[20_000] * 20)
    wanted = {13: True}
    for index in (1, 5, 9, 13):
        bench.reader.load(
            [(bench.at(index), 1)],
            lambda index=index: bench.done.append(index),  # type: ignore[misc]  # each its own
            lambda index=index: wanted.get(index, index < 9),  # type: ignore[misc]
        )
    bench.threads.run_first()
    assert bench.done == [1, 9], "who is not wanted any more is still called"
    while bench.threads.begun:
        bench.threads.run_first()
    assert bench.done == [1, 9, 5, 13]
    assert not bench.has(9)
    assert bench.reader.running_cold.load_count == 3


def test_what_is_read_on_the_loop_is_kept_for_others() -> None:
    bench = Bench(PART_BYTES * 3)
    assert not bench.has(1)
    span = bench.reader.span_at(bench.at(1, 5), 10)
    assert span is not None
    assert len(span.data) == PART_BYTES * 3
    assert bench.has(1)
    assert bench.threads.begun == []


def test_on_the_loop_a_part_is_read_alone_once_the_entry_was_verified() -> None:
    bench = Bench(PART_BYTES * 3, 1000)
    bench.reader.span_at(bench.at(1), 10)
    cache = bench.reader.running_cold.cache
    cache.bytes_max = 0
    bench.reader.span_at(bench.at(2), 10)
    assert 1 not in cache
    bench.engine.log.read_resident = lambda *_: None  # type: ignore[method-assign]
    assert bench.reader.span_at(bench.at(1, PART_BYTES + 7), 10, only_memory=True) is None
    span = bench.reader.span_at(bench.at(1, PART_BYTES + 7), 10)
    assert span is not None
    assert (span.position, len(span.data)) == (PART_BYTES, PART_BYTES)


def test_what_cannot_be_viewed_is_left_to_the_ordinary_way() -> None:
    bench = Bench(1000, 1000)
    run = (int(bench.at(1, 5)), int(bench.at(1, 15)))
    assert bench.views(run) is None
    bench.load(1)
    bench.threads.run_first()
    assert bench.views(run) == [b"\x01" * 10]
    assert bench.views() is None
    assert bench.views((-1, 5)) is None
    assert bench.views(run, (run[0], 1 << 40)) is None
    bench.engine.node.commit_index = Index(1)  # type: ignore[misc]  # a scripted node
    assert bench.views(run) == [b"\x01" * 10]
    assert bench.views((bench.at(2), bench.at(2, 5))) is None, "not committed"


def test_stretches_are_of_what_is_committed_and_end_before_what_is_not_in_memory() -> None:
    bench = Bench(1000, PART_BYTES, 1000)
    end = bench.reader.committed_position
    first, last = bench.at(1, 5), bench.at(3, 5)
    assert bench.reader.stretches([first, last], [10, 10], end) == ([], [])
    bench.load(1)
    bench.threads.run_first()
    positions, data = bench.reader.stretches([first, last], [10, 10], end)
    assert data[0][first - positions[0] :][:10] == b"\x01" * 10
    assert last >= positions[-1] + len(data[-1]), "it is not in memory"
    for starts in ([], [-1], [first, 1 << 40]):
        assert bench.reader.stretches(starts, [10] * len(starts), end) == ([], [])
    bench.engine.node.commit_index = Index(1)  # type: ignore[misc]  # a scripted node
    end = bench.reader.committed_position
    assert bench.reader.stretches([first], [10], end).data == data[:1]
    assert bench.reader.stretches([first, last], [10, 10], end) == ([], []), "not committed"


def test_a_damaged_entry_is_asked_for_as_ever_and_given_when_it_is_back() -> None:
    bench = Bench(1000, PART_BYTES * 3)
    (whole,) = bench.engine.log.entries(Index(2), Index(3))
    bench.reader.span_at(bench.at(2), 10)
    bench.reader.running_cold.cache.bytes_max = 0
    bench.reader.span_at(bench.at(1), 10)
    place = bench.engine.log.file_place(bench.at(2, 5))
    bench.disk.flip_bit(place.path, place.offset)
    bench.load(2)
    bench.threads.run_first()
    assert bench.done == [2]
    with pytest.raises(EntryDamagedError, match="entry 2 is damaged"):
        bench.reader.span_at(bench.at(2), 10)
    assert bench.engine.live_repair.missing_count == 1
    assert bench.engine.live_repair.mend(whole)
    span = bench.reader.span_at(bench.at(2), 10)
    assert span is not None
    assert bytes(span.data[:10]) == whole.body[:10]


def test_places_outside_the_committed_log_are_refused() -> None:
    bench = Bench(1000, 1000)
    bench.engine.node.commit_index = Index(1)  # type: ignore[misc]  # a scripted node
    with pytest.raises((OutOfRangeError, EntryDamagedError)):
        bench.reader.span_at(bench.at(2), 1)
    with pytest.raises(OutOfRangeError):
        bench.reader.span_at(Position(1 << 40), 1)
    with pytest.raises((CompactedError, OutOfRangeError)):
        bench.reader.span_at(Position(-1), 1)


@pytest.mark.parametrize("read", [LogReader.entry_at, lambda reader, at: reader.span_at(at, 1)])
def test_a_place_that_cannot_be_looked_up_is_refused_by_an_error_of_the_log(
    read: Callable[[LogReader, Position], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads for itself tries again later, and knows no errors of the machine."""

    def refuse(*_given: object) -> Index:
        raise OSError(errno.EMFILE, "Too many open files")

    bench = Bench(1000, 1000)
    place = bench.at(1)
    monkeypatch.setattr(LogLayout, "index_at", refuse)
    with pytest.raises(EntryDamagedError, match=r"byte 48 cannot be read now: .*Too many open"):
        read(bench.reader, place)
    assert bench.engine.failure is None


def test_a_place_in_a_header_gives_the_beginning_of_the_body() -> None:
    bench = Bench(1000)
    span = bench.reader.span_at(Position(0), 1)
    assert span is not None
    assert (span.position, len(span.data)) == (ENTRY_HEADER_BYTES, 1000)


def test_the_whole_log_can_be_read_by_places_of_any_size() -> None:
    sizes = [1, 1000, PART_BYTES * 2, 10]
    bench = Bench(*sizes)
    whole: list[Entry] = bench.engine.log.entries(Index(1), Index(5))
    random = Random(3)
    for _ in range(100):
        each = random.choice(whole)
        at = random.randrange(len(each.body))
        span = bench.reader.span_at(bench.at(each.index, at), 100)
        assert span is not None
        start = bench.at(each.index, at) - span.position
        assert span.data[start : start + 100][:1] == each.body[at : at + 1]
