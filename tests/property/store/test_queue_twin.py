"""A consume queue against a list, and lookup by time against a linear search."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.consume_queue import ConsumeQueue
from broker.store.not_in_memory import FilesNotLoadedError, NotLoadedError
from broker.store.queue_search import Search
from broker.store.unit_files import UnitFiles
from broker.store.unit_stores import UNIT, MemoryUnitStore, QueueKey
from dledger.raft.ids import Position
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs

steps = st.lists(
    st.tuples(st.just("append"), st.integers(1, 500))
    | st.tuples(st.just("spill"), st.integers(0, 5))
    | st.tuples(st.just("trim"), st.integers(0, 4000))
    | st.tuples(st.just("trim to message"), st.integers(0, 20)),
    max_size=40,
)


@given(steps, st.integers(0, 40), st.integers(0, 40))
def test_a_queue_is_a_list(steps: list[tuple[str, int]], first: int, count: int) -> None:
    with TemporaryDirectory() as folder:
        files = UnitFiles(Path(folder), file_bytes=60)
        for store in (MemoryUnitStore(), files):
            check_against_a_list(ConsumeQueue((b"T", QueueId(0)), store), steps, first, count)
        files.close()


class ColdFiles(UnitFiles):
    """Units of which the system has none in memory."""

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> None:
        return None


@given(steps, st.integers(0, 40), st.integers(0, 40))
@example([("append", 5)] * 3 + [("spill", 0), ("trim to message", 1)], 0, 0)
def test_a_queue_that_is_trimmed_beside_the_loop_is_a_list(
    steps: list[tuple[str, int]], first: int, count: int
) -> None:
    with TemporaryDirectory() as folder:
        files = ColdFiles(Path(folder), file_bytes=60)
        check_against_a_list(TrimmedBeside((b"T", QueueId(0)), files), steps, first, count)
        files.close()


class TrimmedBeside(ConsumeQueue):
    """A queue that never waits when it is trimmed, and lets a thread search."""

    def trim(self, beginning: Position, *, without_waiting: bool = False) -> None:
        try:
            super().trim(beginning, without_waiting=True)
        except FilesNotLoadedError as error:
            error.warm()
            super().trim(beginning, without_waiting=True)
        self.release()


def check_against_a_list(
    queue: ConsumeQueue, steps: list[tuple[str, int]], first: int, count: int
) -> None:
    twin: list[tuple[int, int, int]] = []
    untrimmed = ConsumeQueue((b"T", QueueId(0)), MemoryUnitStore())
    position = least = trimmed_to = 0
    for what, number in steps:
        if what == "append":
            twin.append((position, number, -number))
            queue.append(*twin[-1])
            untrimmed.append(*twin[-1])
            position += number
        elif what.startswith("trim"):
            if what != "trim":
                number = twin[number][0] if number < len(twin) else position
            trimmed_to = max(trimmed_to, number)
            queue.trim(Position(trimmed_to))
            kept = [n for n in range(len(twin)) if twin[n][0] >= trimmed_to]
            least = kept[0] if kept else len(twin)
        else:
            queue.spill(number)
            assert len(queue.tail) <= 20 * max(number, 0)
    assert queue.max_offset == len(twin)
    assert (queue.min_offset, queue.put_bytes) == (least, position)
    assert queue.digest() == untrimmed.digest()
    assert [tuple(queue.unit(n)) for n in range(least, len(twin))] == twin[least:]
    if least <= first <= len(twin):
        assert list(UNIT.iter_unpack(queue.units(first, count))) == twin[first : first + count]


@given(st.lists(st.integers(0, 20), max_size=20).map(sorted), st.integers(-1, 21), st.data())
def test_k1_k2_search_is_a_linear_search(
    times: list[int], time_ms: int, data: st.DataObject
) -> None:
    queue = ConsumeQueue((b"T", 0), MemoryUnitStore())
    for n in range(len(times)):
        queue.append(n, 1, 0)
    least = data.draw(st.integers(0, len(times)))
    queue.trim(least)
    lower = next((n for n in range(least, len(times)) if times[n] >= time_ms), len(times))
    upper = max((n for n in range(least, len(times)) if times[n] <= time_ms), default=least)
    assert queue.offset_by_time(time_ms, lambda at, _: StoreTimeMs(times[at])) == lower
    assert (
        queue.offset_by_time(time_ms, lambda at, _: StoreTimeMs(times[at]), is_upper=True) == upper
    )
    assert found_in_parts(queue, times, time_ms, data) == lower


def found_in_parts(
    queue: ConsumeQueue, times: list[int], time_ms: int, data: st.DataObject
) -> QueueOffset:
    """Search by time where each record is read once only, and the queue is trimmed and grows meanwhile."""
    search, loaded = Search(), set[int]()

    def store_time(at: int, _size_bytes: int) -> StoreTimeMs:
        if at not in loaded:
            loaded.add(at)
            raise NotLoadedError([])
        loaded.remove(at)  # it leaves memory at once
        return StoreTimeMs(times[at])

    for _ in range(64):
        try:
            return queue.offset_by_time(time_ms, store_time, search=search)  # type: ignore[arg-type]
        except NotLoadedError:
            if times and times[-1] >= time_ms and data.draw(st.booleans()):
                times.append(times[-1])  # behind what is found
                queue.append(len(times) - 1, 1, 0)  # type: ignore[arg-type]  # a place
    raise AssertionError("it does not end")
