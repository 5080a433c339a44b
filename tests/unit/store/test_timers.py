"""Messages with due times of their own, in the fold (rules N)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from broker.store import timer_files
from broker.store.control import DeliverTimers, RecallTimer
from broker.store.errors import NoRoomError
from broker.store.far_timers import FarTimers, FarUnits, MemoryFarTimers
from broker.store.record_reader import read_message
from broker.store.refusals import RefusalKind
from broker.store.saved import ByteSource
from broker.store.schedule import delivery
from broker.store.state import BrokerState, StateLimits
from broker.store.timer_files import TimerFiles
from broker.store.timers import OUTCOMES_MAX, RECALLED_MAX, PendingTimer, Timers, recall_key
from dledger.state_machine import SnapshotRefusedError
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import decode_properties
from tests.unit.storage.descriptors import no_descriptors
from tests.unit.store.lone_broker import START_MS, LoneBroker

TOPIC = "rmq_sys_wheel_timer"


def wait_for(broker: LoneBroker, due_ms: int, key: str = "u") -> int:
    """Send as the send service does; return the physical offset."""
    staged = broker.send(
        TOPIC, 0, b"later", TIMER_OUT_MS=str(due_ms), REAL_TOPIC="T", REAL_QID="2", UNIQ_KEY=key
    )
    return staged.physical_offset(0)


def dues(broker: LoneBroker, now_ms: int, limit: int = 10) -> list[int]:
    return [timer.due_ms for timer in broker.state.timers.due(now_ms, limit)]


def recall(broker: LoneBroker, due_ms: int, offsets: list[int], key: str = "u") -> bool | None:
    command = RecallTimer(due_ms, recall_key(b"T", key.encode()), offsets)
    return broker.state.timers.was_recalled(broker.command(command))


def test_n7_due_messages_come_in_the_order_of_their_times() -> None:
    broker = LoneBroker()
    for ahead_ms in (30, 10, 20, 10):
        wait_for(broker, START_MS + ahead_ms)
    timers = broker.state.timers
    assert timers.count == 4
    assert timers.next_due_ms() == START_MS + 10
    assert dues(broker, START_MS + 9) == []
    assert dues(broker, START_MS + 20) == [START_MS + 10, START_MS + 10, START_MS + 20]
    assert dues(broker, START_MS + 60, 2) == [START_MS + 10] * 2
    first, second = timers.due(START_MS + 10, 10)
    assert first.physical_offset < second.physical_offset, "in log order among equals"


def test_delivery_and_progress_are_one_entry_and_restore_the_message() -> None:
    broker = LoneBroker()
    offset = wait_for(broker, START_MS + 10)
    message = read_message(broker.log, offset)
    found = delivery(message)
    assert found is not None
    assert (found.topic, found.queue_id) == (b"T", 2)
    assert decode_properties(found.properties)["TIMER_OUT_MS"] == str(START_MS + 10)
    broker.stage(found.topic.decode(), found.queue_id, message.body)
    broker.staging.stage_control(DeliverTimers([(START_MS + 10, offset)]), broker.now_ms)
    broker.commit()
    assert broker.state.timers.count == 0
    assert broker.state.queues.min_max("T", 2) == (0, 1)
    assert broker.state.refusals.count == 0


def test_a_second_delivery_is_an_alarm_and_the_others_count() -> None:
    broker = LoneBroker()
    one, two = wait_for(broker, START_MS + 1), wait_for(broker, START_MS + 2)
    broker.command(DeliverTimers([(START_MS + 1, one)]))
    at = broker.command(DeliverTimers([(START_MS + 1, one), (START_MS + 2, two)]))
    refusal = broker.state.refusals.at(at)
    assert refusal is not None
    assert refusal.kind is RefusalKind.STALE_PROGRESS
    assert broker.state.refusals.alarm_count == 1
    assert broker.state.timers.count == 0


def test_n15_a_recalled_message_never_falls_due() -> None:
    broker = LoneBroker()
    offset = wait_for(broker, START_MS + 10)
    assert recall(broker, START_MS + 10, [offset]) is True
    assert dues(broker, START_MS + 60) == []
    assert broker.state.timers.count == 0


def test_n16_the_answer_tells_the_truth() -> None:
    broker = LoneBroker()
    one, two = wait_for(broker, START_MS + 1), wait_for(broker, START_MS + 2, "v")
    broker.command(DeliverTimers([(START_MS + 1, one)]))
    assert recall(broker, START_MS + 1, [one]) is False, "it was delivered"
    assert recall(broker, START_MS + 2, [], "v") is False, "it is still pending"
    assert recall(broker, START_MS + 2, [two], "v") is True
    assert recall(broker, START_MS + 2, [], "v") is True, "asked again after a lost answer"
    assert broker.state.refusals.count == 0


def test_a_recall_takes_back_all_that_the_producer_sent_under_the_key() -> None:
    broker = LoneBroker()
    offsets = [wait_for(broker, START_MS + 1), wait_for(broker, START_MS + 1)]
    assert recall(broker, START_MS + 1, offsets) is True
    assert broker.state.timers.count == 0


@pytest.mark.parametrize("text", ["x", "-1", "9" * 19, "\uff11"])
def test_a_record_without_a_due_time_is_refused(text: str) -> None:
    broker = LoneBroker()
    broker.send(TOPIC, 0, TIMER_OUT_MS=text)
    broker.send(TOPIC, 0)
    assert [refusal.kind for refusal in broker.state.refusals.newest] == [RefusalKind.MALFORMED] * 2
    assert broker.state.timers.count == 0


def test_memory_is_bounded_and_the_far_future_is_on_disk(tmp_path: Path) -> None:
    far = TimerFiles(tmp_path)
    state = BrokerState(limits=StateLimits(near_timers_max=8), far_timers=far)
    broker, twin = LoneBroker(state), LoneBroker()
    for number in range(100):
        due_ms = START_MS + number * 37 % 100
        wait_for(broker, due_ms, str(number))
        wait_for(twin, due_ms, str(number))
        assert state.timers.near_count <= 8
    assert state.digests() == twin.state.digests()
    assert list(state.timers.units()) == list(twin.state.timers.units())
    delivered = []
    while due := state.timers.due(START_MS + 1000, 3):
        delivered += [timer.due_ms for timer in due]
        command = DeliverTimers([(timer.due_ms, timer.physical_offset) for timer in due])
        broker.command(command)
        twin.command(command)
    assert delivered == [START_MS + number for number in range(100)]
    assert state.digests() == twin.state.digests()
    assert state.refusals.count == 0
    far.close()


def test_what_is_remembered_is_bounded() -> None:
    timers = Timers()
    for number in range(max(RECALLED_MAX, OUTCOMES_MAX) + 5):
        timers.add(PendingTimer(number, number))
        timers.recall(number, b"12345678", [number], physical_offset=number)
    assert (len(timers._recalled), len(timers._outcomes)) == (RECALLED_MAX, OUTCOMES_MAX)
    assert timers.was_recalled(0) is None


def restore(timers: Timers, head: bytes, units: Iterator[bytes]) -> None:
    timers.load(head)
    deque(timers.load_unit_steps(ByteSource(units)), maxlen=0)


def test_a_snapshot_keeps_what_is_pending_and_recalled() -> None:
    one, other = Timers(near_max=8), Timers(near_max=4)
    for number in range(50):
        one.add(PendingTimer(number * 7 % 50, number))
    one.recall(7, b"12345678", [1], physical_offset=900)
    restore(other, one.dump(), one.saved_units())
    assert list(other.units()) == list(one.units())
    assert (other.count, other.digest) == (one.count, one.digest)
    assert other.near_count <= 4
    for timers in (one, other):
        timers.recall(7, b"12345678", [], physical_offset=901)
        assert timers.was_recalled(901) is True
        timers.deliver([(14, 2)])
        assert timers.next_due_ms() == 0
    assert other.digest == one.digest
    with pytest.raises(msgspec.DecodeError):
        one.load(msgspec.msgpack.encode((-1, [], 0)))
    for wrong in (b"\x01" * 31, unit(2) + unit(1), unit(1) + unit(1)):
        with pytest.raises(SnapshotRefusedError):
            restore(other, msgspec.msgpack.encode((2, [], 0)), iter([wrong]))


def test_a_snapshot_is_of_one_moment_however_slowly_it_is_read(tmp_path: Path) -> None:
    one, other = Timers(TimerFiles(tmp_path), near_max=8), Timers(near_max=100)
    for number in range(10_000):
        one.add(PendingTimer(number, number))
    head, units = one.dump(), one.saved_units()
    digest = one.digest
    one.deliver([(number, PhysicalOffset(number)) for number in range(9_000)])
    restore(other, head, units)
    assert (other.count, other.digest) == (10_000, digest)
    assert [timer.due_ms for timer in other.due(10**6, 10**6)] == list(range(other.near_count))
    other.deliver([(number, PhysicalOffset(number)) for number in range(9_000)])
    assert list(other.units()) == list(one.units())


# A contract for both stores of far timers.


@pytest.fixture(params=["memory", "files"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> FarTimers:
    return MemoryFarTimers() if request.param == "memory" else TimerFiles(tmp_path)


def unit(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(8)


def test_far_timers_keep_order(far: FarTimers) -> None:
    assert far.first() is None
    assert far.take_first(3) == []
    assert list(far.frozen()) == []
    far.add([unit(5), unit(1)])
    far.add([unit(3)])
    assert list(far.frozen()) == [unit(1), unit(3), unit(5)]
    assert far.discard(unit(3))
    assert not far.discard(unit(3))
    frozen = far.frozen()
    far.add([unit(2)])
    assert list(frozen) == [unit(1), unit(5)]
    assert far.discard(unit(2))
    assert far.first() == unit(1)
    assert far.take_first(1) == [unit(1)]
    assert far.take_first(9) == [unit(5)]
    assert far.first() is None
    far.add([unit(7)])
    far.clear()
    assert list(far.frozen()) == []


def test_files_of_an_earlier_process_are_wiped(tmp_path: Path) -> None:
    before = TimerFiles(tmp_path)
    before.add([unit(1)])
    before.close()
    after = TimerFiles(tmp_path)
    assert list(after.frozen()) == []
    after.close()


def test_without_room_nothing_is_written_and_nothing_needs_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = TimerFiles(tmp_path)
    free_bytes = 1000
    monkeypatch.setattr(timer_files, "free_bytes", lambda _: free_bytes)
    with pytest.raises(NoRoomError, match="1000 bytes"):
        far.add([unit(1)])
    assert (far.first(), far.take_first(3), far.discard(unit(1))) == (None, [], False)
    assert list(far.frozen()) == []
    assert not (tmp_path / "timers").exists()
    free_bytes = 1 << 40
    far.add([unit(2), unit(1)])
    free_bytes = 1000
    with pytest.raises(NoRoomError):
        far.add([unit(3)])
    assert far.take_first(9) == [unit(1), unit(2)]
    far.close()


def test_an_error_of_the_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "timers").write_text("in the way")
    with pytest.raises(OSError, match="timers"):
        TimerFiles(tmp_path).add([unit(1)])
    far = TimerFiles(tmp_path / "other")
    far.add([unit(1)])
    with pytest.raises(OSError, match=r"pending\.sqlite"):
        far.add([unit(1)])
    far.close()


def test_without_descriptors_far_timers_stay_in_memory_until_there_are_some(tmp_path: Path) -> None:
    far = TimerFiles(tmp_path)
    units = FarUnits(far)
    with no_descriptors():
        units.add_all([unit(3), unit(1)])
        assert units.first() == unit(1)
        assert list(units.frozen()) == [unit(1), unit(3)]
        with pytest.raises(NoRoomError, match="Too many open files"):
            far.add([unit(7)])
    assert far.first() is None
    units.add_all([unit(2)])
    assert far.first() == unit(1)
    assert units.take_first(3) == [unit(1), unit(2), unit(3)]
    far.close()


@pytest.mark.slow
def test_a_snapshot_of_far_timers_needs_no_descriptor(tmp_path: Path) -> None:
    count = 200_000
    far = TimerFiles(tmp_path)
    far.add([unit(number) for number in range(count)])
    with no_descriptors():
        assert list(far.frozen()) == [unit(number) for number in range(count)]
    far.close()
