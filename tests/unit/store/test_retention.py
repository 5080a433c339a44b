"""Forgetting the beginning of the log: what moves, what stays, and what stops it (docs/retention.md)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker.store import recent_sends
from broker.store.control import (
    AdvanceSchedule,
    DeleteTopic,
    DeliverTimers,
    ForgetBefore,
    RecallTimer,
)
from broker.store.kept_log import KeptLog
from broker.store.lookups import earliest_store_time, offset_by_time, query_by_key
from broker.store.needs import Need, oldest_need
from broker.store.reading import GetStatus, get_messages
from broker.store.recent_sends import AGE_MAX_MS, RecentSends
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.refusals import RefusalKind
from broker.store.retention import JUMP_MS, Retention
from broker.store.state import BrokerState, StateLimits
from broker.store.transactions import HALF_KEY, OP_KEY, TransactionVerdict, encode_op
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.raft.ids import Index, Position
from dledger.state_machine import ForgettingMachine
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from tests.unit.storage.descriptors import no_descriptors
from tests.unit.store.lone_broker import START_MS, LoneBroker


def forget(broker: LoneBroker, index: int) -> RefusalKind | None:
    """Let the broker forget what stands before an entry; return the reason if it was refused."""
    entry = broker.log.entries[index - 1]
    command = ForgetBefore(Index(index), Position(entry.position), "time")
    at = broker.command(command)
    refusal = broker.state.refusals.at(at)  # type: ignore[arg-type] # a physical offset
    return None if refusal is None else refusal.kind


def bounds(broker: LoneBroker, topic: str = "T") -> tuple[int, int]:
    return broker.state.queues.min_max(topic, QueueId(0))


def sent(count: int, **named: str) -> LoneBroker:
    """A broker with one message in each of the entries from 2 on."""
    broker = LoneBroker()
    for _ in range(count):
        broker.send(**named)
    return broker


def needed(broker: LoneBroker, state: BrokerState | None = None) -> Need | None:
    end = PhysicalOffset(broker.log.end_position)
    return oldest_need(state or broker.state, StoreTimeMs(broker.now_ms), end=end)


def later(broker: LoneBroker) -> None:
    """Let so much time pass that nobody repeats a send."""
    broker.now_ms += AGE_MAX_MS + 1


def test_a_new_log_begins_with_its_first_entry() -> None:
    broker = sent(1)
    assert isinstance(broker.state, ForgettingMachine)
    assert broker.state.keep_from == 1
    assert bounds(broker) == (0, 1)


def test_min_offsets_follow_what_is_forgotten_and_max_offsets_stay() -> None:
    broker = sent(6)
    assert forget(broker, 5) is None
    assert broker.state.keep_from == 5
    assert bounds(broker) == (3, 6)
    assert forget(broker, 8) is None  # the record of the first one
    assert bounds(broker) == (6, 6)
    broker.send()
    assert bounds(broker) == (6, 7)


@pytest.mark.parametrize("index", [1, 3, 5])
def test_the_beginning_never_moves_back(index: int) -> None:
    broker = sent(6)
    forget(broker, 5)
    before = broker.state.retention.dump()
    assert forget(broker, index) is None
    assert broker.state.retention.dump() == before
    assert (broker.state.keep_from, bounds(broker)) == (5, (3, 6))


def test_what_is_not_there_yet_cannot_be_forgotten() -> None:
    broker = sent(1)
    end = broker.log.end_position
    for command in (
        ForgetBefore(Index(99), end, "operator"),
        ForgetBefore(Index(2), Position(end + 10_000), "operator"),
    ):
        at = broker.command(command)
        refusal = broker.state.refusals.at(at)  # type: ignore[arg-type] # a physical offset
        assert refusal is not None
        assert refusal.kind is RefusalKind.OUT_OF_RANGE
    assert broker.state.keep_from == 1


def test_a_pull_below_the_beginning_is_sent_to_it_and_one_behind_it_is_served() -> None:
    broker = sent(6)
    forget(broker, 5)
    broker.log.first_position = broker.log.entries[4].position
    end = broker.log.end_position
    queue_id = QueueId(0)
    low = get_messages(
        broker.state, broker.log, "T", queue_id, offset=QueueOffset(1), count_max=32, log_end=end
    )
    assert (low.status, low.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 3)
    kept = get_messages(
        broker.state, broker.log, "T", queue_id, offset=QueueOffset(3), count_max=32, log_end=end
    )
    assert (kept.status, len(kept.records), kept.next_offset) == (GetStatus.FOUND, 3, 6)


def test_times_and_keys_find_nothing_that_is_forgotten_though_the_bytes_are_there() -> None:
    broker = LoneBroker()
    for n in range(4):
        broker.send(KEYS="k", UNIQ_KEY=f"u{n}")
        broker.now_ms += 1000
    later(broker)
    first_place = broker.state.queues.by_key[b"T", QueueId(0)].unit(QueueOffset(0)).physical_offset
    forget(broker, 4)
    state, queue_id = broker.state, QueueId(0)
    assert earliest_store_time(state, broker.log, "T", queue_id) == START_MS + 2000
    assert offset_by_time(state, broker.log, "T", queue_id, time_ms=0) == 2
    assert offset_by_time(state, broker.log, "T", queue_id, time_ms=0, is_upper=True) == 2
    found = query_by_key(state, broker.log, "T", "k", count_max=64, begin_ms=0, end_ms=2**62)
    assert len(found) == 2
    with pytest.raises(MessageGoneError, match="the log starts at entry 4"):
        read_message(KeptLog(broker.log, state.retention), first_place)


def test_a_queue_of_which_nothing_is_left_has_no_earliest_message() -> None:
    broker = sent(2)
    broker.send("U")
    forget(broker, 4)
    assert bounds(broker) == (2, 2)
    assert earliest_store_time(broker.state, broker.log, "T", QueueId(0)) is None
    assert offset_by_time(broker.state, broker.log, "T", QueueId(0), time_ms=0) == 2


def test_a_topic_made_anew_begins_at_zero_whatever_was_forgotten() -> None:
    broker = sent(4)
    forget(broker, 4)
    broker.command(DeleteTopic("T"))
    broker.send()
    assert bounds(broker) == (0, 1)


# What is needed.


def test_a_send_that_may_be_repeated_is_kept_for_a_minute() -> None:
    broker = sent(2)
    broker.send(UNIQ_KEY="u")
    broker.send()
    assert forget(broker, 4) is None
    assert forget(broker, 5) is RefusalKind.STILL_NEEDED
    assert b"u" in broker.state.recent_sends
    later(broker)
    assert forget(broker, 5) is None
    assert not len(broker.state.recent_sends)
    assert broker.state.keep_from == 5


def test_what_waits_is_looked_up_in_its_file_though_there_are_no_descriptors(
    tmp_path: Path,
) -> None:
    broker = LoneBroker(BrokerState(UnitFiles(tmp_path)))
    for _ in range(3):
        broker.send(names.SCHEDULE_TOPIC, 0, DELAY="1", REAL_TOPIC="T", REAL_QID="0")
    (waiting,) = broker.state.queues.of_topic(names.SCHEDULE_TOPIC)
    assert waiting.spill(0) == 3
    broker.state.close()
    with no_descriptors():
        assert forget(broker, 4) is RefusalKind.STILL_NEEDED
    broker.command(AdvanceSchedule(1, QueueOffset(0), QueueOffset(2)))
    with no_descriptors():
        assert forget(broker, 4) is None


def test_a_delayed_message_is_kept_until_it_is_delivered() -> None:
    broker = sent(2)
    broker.send(names.SCHEDULE_TOPIC, 0, DELAY="1", REAL_TOPIC="T", REAL_QID="0")
    broker.send()
    assert forget(broker, 4) is None
    assert forget(broker, 5) is RefusalKind.STILL_NEEDED
    broker.command(AdvanceSchedule(1, QueueOffset(0), QueueOffset(1)))
    assert forget(broker, 5) is None


@pytest.mark.parametrize("ends", ["delivered", "recalled"])
def test_a_timed_message_is_kept_while_it_is_pending(ends: str) -> None:
    broker = sent(2)
    broker.stage("T", 0, b"x" * (1 << 16))  # so that the timer is behind the first 64 KiB
    broker.commit()
    staged = broker.send(names.TIMER_TOPIC, TIMER_OUT_MS="5", REAL_TOPIC="T", REAL_QID="0")
    broker.send()
    place = staged.physical_offset(0)
    need = needed(broker)
    assert need is not None
    assert need.what == "a timed message that is not delivered"
    assert place - (1 << 16) < need.physical_offset <= place
    assert forget(broker, 4) is None  # the big one, in front of the timer's 64 KiB
    assert forget(broker, 6) is RefusalKind.STILL_NEEDED
    if ends == "delivered":
        broker.command(DeliverTimers([(5, place)]))
    else:
        broker.command(RecallTimer(5, b"12345678", [place]))
    assert needed(broker) is None
    assert forget(broker, 6) is None


def test_an_open_transaction_is_kept_and_its_verdict_outlives_it() -> None:
    broker = sent(2)
    broker.send(HALF_KEY.decode(), 0, REAL_TOPIC="T", __transactionId__="u")
    broker.send()
    assert forget(broker, 5) is RefusalKind.STILL_NEEDED
    body, properties = encode_op([QueueOffset(0)], TransactionVerdict.ROLLED_BACK)
    broker.staging.stage(
        OP_KEY, QueueId(0), body, properties, born_timestamp_ms=1, born_host=bytes(8)
    )
    broker.commit()
    assert forget(broker, 5) is None
    assert broker.state.transactions.verdict(QueueOffset(0)) is TransactionVerdict.ROLLED_BACK


def test_the_oldest_of_several_needs_is_named() -> None:
    broker = LoneBroker()
    broker.send(HALF_KEY.decode(), 0, REAL_TOPIC="T", __transactionId__="u")
    broker.send(names.SCHEDULE_TOPIC, 0, DELAY="1", REAL_TOPIC="T", REAL_QID="0")
    need = needed(broker)
    assert need is not None
    assert need.what == "a transaction that is open"


def test_needs_are_the_same_after_a_snapshot() -> None:
    broker = sent(1)
    broker.send(names.TIMER_TOPIC, TIMER_OUT_MS="5", REAL_TOPIC="T", REAL_QID="0")
    broker.send(HALF_KEY.decode(), 0, REAL_TOPIC="T", __transactionId__="u")
    twin = BrokerState()
    twin.restore(broker.state.snapshot())
    assert needed(broker, twin) == needed(broker) is not None
    twin.timers.deliver([(5, broker.state.timers.due(9, 9)[0].physical_offset)])
    assert twin.timers.oldest_pending() is None


def test_sends_are_needed_a_bounded_part_of_the_log_while_its_time_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_sends, "NEEDED_BYTES_MAX", 600)
    broker = LoneBroker()
    broker.now_ms += 20 * JUMP_MS
    broker.send(UNIQ_KEY="u")
    broker.now_ms -= 20 * JUMP_MS  # the clock is right again
    for n in range(10):
        broker.send(UNIQ_KEY=f"u{n}")
    assert broker.state.last_store_ms == broker.now_ms + 20 * JUMP_MS
    end = broker.log.end_position
    need = needed(broker)
    assert need is not None
    assert end - 600 <= need.physical_offset < end
    assert forget(broker, 12) is RefusalKind.STILL_NEEDED
    assert forget(broker, 4) is None
    for _ in range(4):
        broker.send()  # without a key
    assert needed(broker) is None, "the newest key is too far away"


@pytest.mark.parametrize("seals", [True, False])
def test_chained_sends_are_needed_a_bounded_part_of_the_log_too(
    monkeypatch: pytest.MonkeyPatch, *, seals: bool
) -> None:
    monkeypatch.setattr(recent_sends, "KEYS_MAX", 2 if seals else 1000)
    window = RecentSends()
    for n in range(9):
        window.add([b"%d" % n], [PhysicalOffset(n * 1000)], StoreTimeMs(5))
    now_ms = StoreTimeMs(5)
    assert window.oldest(now_ms, PhysicalOffset(9000)) == 0
    monkeypatch.setattr(recent_sends, "NEEDED_BYTES_MAX", 4500)
    assert window.oldest(now_ms, PhysicalOffset(9000)) == 4500
    assert window.oldest(now_ms, PhysicalOffset(12_500)) == 8000
    assert window.oldest(now_ms, PhysicalOffset(12_501)) is None


# Leaps of the log's time.


def test_a_leap_of_the_time_is_noted_until_nothing_from_before_it_is_kept() -> None:
    broker = sent(2)
    broker.now_ms += JUMP_MS
    broker.send()
    assert broker.state.retention.jump is None, "no longer than a pause may be"
    before_ms, digest = broker.now_ms, broker.state.retention.digest
    broker.now_ms += JUMP_MS + 1
    entry = len(broker.log.entries) + 1
    broker.send()
    position = broker.log.entries[-1].position
    jump = broker.state.retention.jump
    assert jump == (before_ms, before_ms + JUMP_MS + 1, position)
    assert broker.state.retention.digest != digest
    twin = BrokerState()
    twin.restore(broker.state.snapshot())
    assert (twin.retention.jump, twin.digests()) == (jump, broker.state.digests())
    later(broker)
    assert forget(broker, entry - 1) is None
    assert broker.state.retention.jump == jump
    assert forget(broker, entry) is None
    assert broker.state.retention.jump is None


def test_the_table_without_a_leap_is_what_it_was_and_is_read() -> None:
    broker = sent(4)
    forget(broker, 3)
    saved = broker.state.retention.dump()
    assert len(msgspec.msgpack.decode(saved)) == 6
    retention = Retention()
    retention.load(saved)
    assert retention.dump() == saved


# Room.


def test_a_snapshot_holds_only_what_is_kept() -> None:
    broker = LoneBroker(BrokerState(limits=StateLimits(index_segment_units=64)))
    for n in range(600):
        broker.send(UNIQ_KEY=f"u{n}")
    later(broker)
    broker.send()
    full_bytes = sum(map(len, broker.state.snapshot()))
    assert forget(broker, 595) is None
    left_bytes = sum(map(len, broker.state.snapshot()))
    assert left_bytes < full_bytes / 4
    twin = BrokerState()
    twin.restore(broker.state.snapshot())
    assert twin.digests() == broker.state.digests()
    assert twin.keep_from == broker.state.keep_from == 595
    assert twin.queues.min_max("T", QueueId(0)) == bounds(broker)


def test_files_of_forgotten_units_are_removed(tmp_path: Path) -> None:
    units = UnitFiles(tmp_path, file_bytes=200)
    segments = SegmentFiles(tmp_path)
    limits = StateLimits(
        resident_units_max=8, keep_units_max=2, spill_interval=1, index_segment_units=4
    )
    broker = LoneBroker(BrokerState(units, segments, limits))
    for n in range(100):
        broker.send(KEYS=f"k{n}")
    folders = (tmp_path / "consumequeue" / "T" / "0", tmp_path / "keyindex")
    before = [len(list(folder.iterdir())) for folder in folders]
    later(broker)
    assert forget(broker, 92) is None  # offset 90
    after = [len(list(folder.iterdir())) for folder in folders]
    assert before == [10, 25]
    assert after == [1, 3]
    assert bounds(broker) == (90, 100)
    units.close()
    segments.close()


def test_many_queues_are_searched_a_few_at_a_time_and_all_answers_are_right_at_once() -> None:
    broker = LoneBroker()
    for n in range(600):
        broker.stage("T", n)
    broker.commit()
    broker.send("U")
    assert forget(broker, 3) is None
    queues = broker.state.queues
    assert (
        sum(queue.min_offset for queue in queues.by_key.values()) == 254
    )  # of 256: not those of U and of the record
    assert queues.min_max("T", QueueId(0)) == (1, 1)
    queues.sweep()
    queues.sweep()
    assert sum(queue.min_offset for queue in queues.by_key.values()) == 600
    assert {queue.min_offset for queue in queues.of_topic("U")} == {0}


def test_a_snapshot_that_is_being_written_outlives_what_is_forgotten_meanwhile(
    tmp_path: Path,
) -> None:
    units, segments = UnitFiles(tmp_path, file_bytes=200), SegmentFiles(tmp_path)
    limits = StateLimits(
        resident_units_max=8, keep_units_max=2, spill_interval=1, index_segment_units=4
    )
    broker = LoneBroker(BrokerState(units, segments, limits))
    for n in range(100):
        broker.send(KEYS=f"k{n}")
    later(broker)
    digests = broker.state.digests()
    chunks = broker.state.snapshot()
    assert forget(broker, 92) is None
    broker.state.queues.sweep()
    folder = tmp_path / "consumequeue" / "T" / "0"
    assert len(list(folder.iterdir())) == 10, "its reader needs them"
    assert bounds(broker) == (90, 100)
    twin = BrokerState()
    twin.restore(chunks)
    assert twin.digests() == digests
    assert twin.queues.min_max("T", QueueId(0)) == (0, 100)
    del chunks
    broker.state.queues.sweep()
    assert len(list(folder.iterdir())) == 1
    broker.state.key_index.sweep()
    assert len(list((tmp_path / "keyindex").iterdir())) == 3
    units.close()
    segments.close()
