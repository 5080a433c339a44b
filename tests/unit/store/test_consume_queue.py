"""Consume queues: units, spilling, lookup by time."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from broker.store.consume_queue import ConsumeQueue, ConsumeQueues
from broker.store.errors import NoRoomError
from broker.store.queue_gathering import STEP_QUEUES, QueueGathering
from broker.store.saved import QueueRow
from broker.store.unit_stores import UNIT_BYTES, MemoryUnitStore, QueueKey
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs


def queue_of(count: int, store: MemoryUnitStore | None = None) -> ConsumeQueue:
    queue = ConsumeQueue((b"T", 0), store or MemoryUnitStore())
    for n in range(count):
        queue.append(1000 + n * 100, 100, n)
    return queue


def test_a_unit_has_the_bytes_of_the_format() -> None:
    queue = ConsumeQueue((b"TopicTest", 3), MemoryUnitStore())
    queue.append(1000, 0x73, 2598919)
    # docs/formats/message.md, "Values to check against"
    assert bytes(queue.units(0, 1)).hex().upper() == "00000000000003E800000073000000000027A807"


@pytest.mark.parametrize("keep", [0, 1, 4, 9, 10, 11])
def test_units_are_the_same_wherever_they_are_kept(keep: int) -> None:
    whole, spilled = queue_of(10), queue_of(10)
    spilled.spill(keep)
    for first in range(11):
        for count in range(12):
            assert bytes(spilled.units(first, count)) == bytes(whole.units(first, count))
    assert [spilled.unit(n) for n in range(10)] == [whole.unit(n) for n in range(10)]
    assert spilled.digest() == whole.digest()


def test_units_for_which_there_is_no_room_stay_in_memory() -> None:
    """A full disk must not stop the fold, which would stop every replica at the same message."""

    class FullStore(MemoryUnitStore):
        is_full = True

        def append(self, key: QueueKey, first: int, units: bytes) -> None:
            if self.is_full:
                raise NoRoomError("no room")
            super().append(key, first, units)

    store = FullStore()
    queue, whole = queue_of(10, store), queue_of(12)
    assert queue.spill(2) == 0
    assert queue.tail_first == 0
    queue.append(2000, 100, 10)
    queue.append(2100, 100, 11)
    store.is_full = False
    assert queue.spill(2) == 10
    assert bytes(queue.units(0, 12)) == bytes(whole.units(0, 12))
    assert queue.digest() == whole.digest()


def test_a_queue_goes_on_after_a_spill() -> None:
    queue = queue_of(5)
    queue.spill(2)
    queue.append(7000, 10, 5)
    queue.spill(1)
    assert queue.max_offset == 6
    assert queue.unit(5).physical_offset == 7000
    assert queue.unit(2).physical_offset == 1200
    whole = queue_of(5)
    whole.append(7000, 10, 5)
    assert queue.digest() == whole.digest()


@pytest.mark.parametrize("offset", [-1, 3, 10])
def test_reading_outside_the_queue_is_refused(offset: int) -> None:
    queue = queue_of(10)
    queue.trim(1400)
    with pytest.raises(IndexError, match=r"not within 4\.\.10"):
        queue.unit(offset)
    if offset != 10:
        with pytest.raises(IndexError):
            queue.units(offset, 1)


def test_a_view_of_units_does_not_keep_the_queue_from_growing() -> None:
    queue = queue_of(3)
    view = queue.units(0, 3)
    queue.append(9000, 1, 0)
    assert len(view) == 60


@pytest.mark.parametrize(
    ("first_position", "min_offset"),
    [(0, 0), (1000, 0), (1001, 1), (1100, 1), (1900, 9), (5000, 10)],
)
def test_trim_moves_min_to_the_first_message_still_in_the_log(
    first_position: int, min_offset: int
) -> None:
    queue = queue_of(10)
    queue.spill(3)
    queue.trim(first_position)
    assert (queue.min_offset, queue.max_offset) == (min_offset, 10)


# Store times 10 20 20 20 30: equal ones are where the bounds differ (K1, K2).
TIMES = {1000: 10, 1100: 20, 1200: 20, 1300: 20, 1400: 30}


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [(5, 0, 0), (10, 0, 0), (11, 1, 0), (20, 1, 3), (21, 4, 3), (30, 4, 4), (31, 5, 4)],
)
def test_k1_k2_offset_by_time(time_ms: int, lower: int, upper: int) -> None:
    queue = queue_of(5)
    queue.spill(2)

    def store_time(physical_offset: int, size_bytes: int) -> int:
        assert size_bytes == 100
        return TIMES[physical_offset]

    assert queue.offset_by_time(time_ms, store_time) == lower
    assert queue.offset_by_time(time_ms, store_time, is_upper=True) == upper


def test_k1_result_stays_within_min_and_max() -> None:
    queue = queue_of(5)
    queue.trim(1200)
    times = TIMES.__getitem__
    assert queue.offset_by_time(5, lambda at, _: StoreTimeMs(times(at))) == 2
    assert queue.offset_by_time(5, lambda at, _: StoreTimeMs(times(at)), is_upper=True) == 2


def queues_of() -> ConsumeQueues:
    return ConsumeQueues(MemoryUnitStore(), lambda topic: topic == b"S")


def test_queues_by_topic() -> None:
    queues = queues_of()
    for key in ((b"A", 1), (b"B", 0), (b"A", 0)):
        queues.create(key).append(0, 100, 0)
    assert [queue.key for queue in queues.of_topic("A")] == [(b"A", 1), (b"A", 0)]
    assert queues.min_max("A", 1) == (0, 1)
    assert queues.min_max("A", 7) == (0, 0)
    assert queues.get("C", 0) is None
    assert queues.create((b"S", 0)).special
    assert len(list(queues)) == 4


def test_a_dropped_topic_begins_again_at_zero() -> None:
    queues = queues_of()
    queue = queues.create((b"A", 0))
    queue.append(0, 100, 0)
    queue.spill(0)
    queues.drop_topic("A")
    queues.drop_topic("never seen")
    assert queues.min_max("A", 0) == (0, 0)
    again = queues.create((b"A", 0))
    again.append(500, 100, 0)
    again.spill(0)
    assert again.unit(0).physical_offset == 500


def test_spilling_bounds_what_is_in_memory() -> None:
    queues = queues_of()
    for n in range(10):
        queue = queues.create((b"A", n))
        for _ in range(100):
            queue.append(0, 1, 0)
    queues.spill_some(100, 1000, records=1000, interval=1000)
    assert sum(len(queue.tail) for queue in queues) <= 100 * 20
    before = [queue.tail_first for queue in queues]
    queues.spill_some(100, 1000, records=1000, interval=1000)
    assert [queue.tail_first for queue in queues] == before


class CountingStore(MemoryUnitStore):
    """A store that counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.write_count = 0

    def append(self, key: QueueKey, first: QueueOffset, units: bytes) -> None:
        super().append(key, first, units)
        self.write_count += 1


def test_many_queues_that_are_full_at_once_spill_a_few_at_a_time_and_stay_bounded() -> None:
    """The fold stands still while units are written, so it must not be all of them in one go."""
    store = CountingStore()
    queues = ConsumeQueues(store, lambda topic: False)
    count, interval, records = 1000, 8192, 128
    limits = {"resident_max": 8000, "keep_max": 65536}  # four units of each queue stay
    filled = [queues.create((b"T", QueueId(number))) for number in range(count)]
    for queue in filled:
        for _ in range(8):
            queue.append(0, 1, 0)
    most = 0
    for number in range(400):
        for place in range(records):
            filled[(number * records + place) % count].append(0, 1, 0)
        before = store.write_count
        queues.spill_some(**limits, records=records, interval=interval)
        most = max(most, store.write_count - before)
        held = sum(len(queue.tail) for queue in filled) // UNIT_BYTES
        assert held <= limits["resident_max"] + 2 * interval, f"{held} units after {number} calls"
    assert 0 < most <= 1 + 2 * records // 4
    assert all(queue.tail_first for queue in filled), "a queue was never looked at"


def test_a_queue_that_is_gone_when_its_turn_comes_writes_nothing() -> None:
    store = CountingStore()
    queues = ConsumeQueues(store, lambda topic: False)
    for topic in (b"A", b"B"):
        queue = queues.create((topic, QueueId(0)))
        for _ in range(9):
            queue.append(0, 1, 0)
    limits = {"resident_max": 4, "keep_max": 2}
    queues.spill_some(**limits, records=1, interval=2)
    assert store.write_count == 1
    queues.drop_topic("A")
    queues.drop_topic("B")
    for _ in range(4):
        queues.spill_some(**limits, records=1, interval=2)
    assert store.write_count == 1


def plain_digest(queues: ConsumeQueues) -> int:
    """The digest of all queues as docs/adr/0063 has it, computed from nothing but the queues."""
    total: int = 0
    for key in sorted(queues.by_key):
        queue = queues.by_key[key]
        total = crc32c(
            key[0] + struct.pack(">qqI", key[1], queue.max_offset, queue.digest()), total
        )
    return total


def test_the_digest_of_all_queues_follows_every_change() -> None:
    queues = ConsumeQueues(MemoryUnitStore(), lambda _topic: False)
    assert queues.digest() == plain_digest(queues)
    for topic, queue_id in ((b"T", 1), (b"A", 0), (b"T", 0), (b"Z", 9)):
        queue = queues.create((topic, queue_id))
        assert queues.digest() == plain_digest(queues)
        queue.append(1000, 100, 0)
        assert queues.digest() == plain_digest(queues)
    queue.spill(0)
    queue.append(2000, 100, 0)
    before = queues.digest()
    assert before == plain_digest(queues)
    queues.drop_topic("T")
    assert before != queues.digest() == plain_digest(queues)
    queues.create((b"T", 1))  # begins anew under the key of one that is gone
    assert queues.digest() == plain_digest(queues)
    queues.create((b"B", 0)).append(1, 1, 1)
    assert queues.digest() == plain_digest(queues)


def test_queues_that_are_sorted_in_steps_are_those_that_are_there() -> None:
    """A topic that was deleted before its queue was ever sorted counted in the digest once a snapshot was gathered."""
    queues = ConsumeQueues(MemoryUnitStore(), lambda _topic: False)
    for key in ((b"T", 1), (b"Z", 0), (b"A", 0)):
        queues.create(key).append(1000, 100, 0)
    queues.drop_topic("T")
    for _ in queues.sort_steps():
        queues.create((b"B", len(queues.by_key)))
    assert queues.digest() == plain_digest(queues)
    queues.drop_topic("B")
    queues.create((b"Z", 1))
    for _ in queues.sort_steps():
        pass
    assert queues.digest() == plain_digest(queues)
    assert not list(queues.sort_steps())


def test_no_step_of_gathering_goes_through_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count, not a time: rows that are drawn in one step, with more queues than one step may have."""
    drawn: list[int] = [0]
    row = ConsumeQueue.row

    def counted(queue: ConsumeQueue) -> QueueRow:
        drawn[-1] += 1
        return row(queue)

    monkeypatch.setattr(ConsumeQueue, "row", counted)
    queues = ConsumeQueues(MemoryUnitStore(), lambda _topic: False)
    made = [queues.create((b"T", number)) for number in range(3 * STEP_QUEUES)]
    gathering = QueueGathering(queues)
    drawn.extend(0 for _ in gathering.beforehand())
    assert sum(drawn) == len(made)
    for queue in made[: 2 * STEP_QUEUES]:
        queue.append(1000, 100, 0)
    drawn.extend(0 for _ in gathering.at_the_moment())
    assert sum(drawn) == len(made) + 2 * STEP_QUEUES
    assert max(drawn) == STEP_QUEUES
