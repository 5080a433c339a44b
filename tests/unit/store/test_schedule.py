"""Delayed messages (rules M)."""

from __future__ import annotations

import pytest

from broker.store.control import AdvanceSchedule, SetDelayLevels
from broker.store.record_reader import read_message
from broker.store.refusals import RefusalKind
from broker.store.schedule import (
    DELAY_LEVELS_TEXT,
    DueMessage,
    delivery,
    level_of,
    parse_delay_levels,
)
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.record import StoredMessage
from tests.unit.store.lone_broker import START_MS, LoneBroker

TOPIC = "SCHEDULE_TOPIC_XXXX"


def delay(broker: LoneBroker, level: int, topic: str = "T", queue_id: int = 2) -> None:
    """Send as the send service does: to the queue of the level, with the place to restore (M3)."""
    broker.send(
        TOPIC,
        level - 1,
        b"later",
        DELAY=str(level),
        REAL_TOPIC=topic,
        REAL_QID=str(queue_id),
        UNIQ_KEY="u",
        TAGS="TagA",
    )


def advance(broker: LoneBroker, level: int, first: int, end: int) -> RefusalKind | None:
    at = broker.command(AdvanceSchedule(level, first, end))
    refusal = broker.state.refusals.at(at)
    return refusal.kind if refusal else None


def test_m1_levels() -> None:
    delays = parse_delay_levels(DELAY_LEVELS_TEXT)
    assert len(delays) == 18
    assert (delays[0], delays[2], delays[4], delays[17]) == (1000, 10_000, 60_000, 7_200_000)
    assert parse_delay_levels("1d 2s") == [86_400_000, 2000]


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "-1s", "1.5s", "\uff11s"])
def test_m1_levels_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="level"):
        parse_delay_levels(text)


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"", 0),
        (b"DELAY\x013\x02", 3),
        (b"DELAY\x01-1\x02", 0),
        (b"DELAY\x01x\x02", 0),
        (b"DELAY\x01" + b"9" * 30, 0),
    ],
)
def test_level_of_properties(properties: bytes, level: int) -> None:
    assert level_of(properties) == level


def test_m2_levels_above_the_last_mean_the_last() -> None:
    schedule = LoneBroker().state.schedule
    assert schedule.clamp(99) == 18
    assert schedule.delay_ms(99) == 7_200_000
    assert schedule.delay_ms(0) == 1000


def test_m4_the_unit_carries_the_due_time_from_the_record() -> None:
    broker = LoneBroker()
    delay(broker, 3)
    queue = broker.state.queues.get(TOPIC, 2)
    assert queue is not None
    assert queue.unit(0).tag_hash == START_MS + 10_000


def test_messages_without_a_level_have_a_tag_hash_there_too() -> None:
    broker = LoneBroker()
    broker.send(TOPIC, 0, TAGS="TagA")
    queue = broker.state.queues.get(TOPIC, 0)
    assert queue is not None
    assert queue.unit(0).tag_hash == 2598919


def test_m6_due_messages_come_by_due_time_and_in_order_within_a_level() -> None:
    broker = LoneBroker()
    for level in (2, 1, 1, 3):
        delay(broker, level)
        broker.now_ms += 1
    schedule = broker.state.schedule
    assert schedule.due(START_MS + 1000, 10) == []
    found = schedule.due(START_MS + 5000, 10)
    assert [(due.level, due.queue_offset) for due in found] == [(1, 0), (1, 1), (2, 0)]
    assert schedule.due(START_MS + 5000, 2) == found[:2]
    assert [due.level for due in schedule.due(START_MS + 60_000, 10)] == [1, 1, 2, 3]


def test_the_next_due_time_is_that_of_the_first_waiting_message() -> None:
    broker = LoneBroker()
    assert broker.state.schedule.next_due_ms() is None
    delay(broker, 3)
    broker.now_ms += 1
    delay(broker, 1)
    assert broker.state.schedule.next_due_ms() == START_MS + 1001
    assert advance(broker, 1, 0, 1) is None
    assert broker.state.schedule.next_due_ms() == START_MS + 10_000
    assert advance(broker, 3, 0, 1) is None
    assert broker.state.schedule.next_due_ms() is None


def test_a_busy_level_does_not_keep_back_the_others() -> None:
    broker = LoneBroker()
    delay(broker, 3)
    broker.now_ms += 9_500
    for _ in range(5):
        delay(broker, 1)
    found = broker.state.schedule.due(START_MS + 20_000, 2)
    assert [due.level for due in found] == [3, 1]


def test_m6_a_due_time_beyond_the_delay_means_now() -> None:
    broker = LoneBroker()
    delay(broker, 3)
    assert len(broker.state.schedule.due(START_MS - 3_600_000, 10)) == 1, "the clock was set back"


def test_levels_may_be_replaced_and_waiting_messages_follow_m6() -> None:
    broker = LoneBroker()
    delay(broker, 18)
    assert broker.state.schedule.due(START_MS + 1, 10) == []
    broker.command(SetDelayLevels([1000, 2000]))
    assert broker.state.schedule.delay_ms(2) == 2000
    assert [due.level for due in broker.state.schedule.due(START_MS + 1, 10)] == [18]


def test_m12_progress_begins_at_zero_and_is_advanced_by_a_record() -> None:
    broker = LoneBroker()
    for _ in range(3):
        delay(broker, 1)
    schedule = broker.state.schedule
    assert schedule.progress(1) == 0
    assert advance(broker, 1, 0, 2) is None
    assert schedule.progress(1) == 2
    assert dict(schedule.progress_table()) == {1: 2}
    assert [due.queue_offset for due in schedule.due(START_MS + 1000, 10)] == [2]
    assert schedule.due(START_MS + 1000, 10, after={1: 3}) == []


def test_progress_never_goes_back_nor_beyond_the_queue() -> None:
    broker = LoneBroker()
    for _ in range(3):
        delay(broker, 1)
    advance(broker, 1, 0, 2)
    assert advance(broker, 1, 1, 3) is RefusalKind.STALE_PROGRESS
    assert broker.state.refusals.alarm_count == 1
    assert advance(broker, 1, 2, 4) is RefusalKind.OUT_OF_RANGE
    assert advance(broker, 1, 3, 2) is RefusalKind.OUT_OF_RANGE
    assert advance(broker, 7, 0, 0) is RefusalKind.OUT_OF_RANGE
    assert broker.state.schedule.progress(1) == 2


def test_m11_progress_is_corrected_to_what_the_log_still_holds() -> None:
    broker = LoneBroker()
    for _ in range(3):
        delay(broker, 1)
    queue = broker.state.queues.get(TOPIC, 0)
    assert queue is not None
    queue.trim(queue.unit(2).physical_offset)
    assert [due.queue_offset for due in broker.state.schedule.due(START_MS + 1000, 10)] == [2]
    assert advance(broker, 1, 2, 3) is None


def stored(broker: LoneBroker, due: DueMessage) -> StoredMessage:
    return read_message(broker.log, due.physical_offset)


def test_m7_the_delivery_restores_topic_and_queue_and_keeps_the_text() -> None:
    broker = LoneBroker()
    delay(broker, 1, "RealTopic", 5)
    (due,) = broker.state.schedule.due(START_MS + 1000, 10)
    found = delivery(stored(broker, due))
    assert found is not None
    assert (found.topic, found.queue_id) == (b"RealTopic", 5)
    assert decode_properties(found.properties) == {
        "DELAY": "1",
        "REAL_TOPIC": "RealTopic",
        "REAL_QID": "5",
        "UNIQ_KEY": "u",
        "TAGS": "TagA",
        "WAIT": "false",
    }


@pytest.mark.parametrize(
    "named",
    [
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "T"},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T", "REAL_QID": "9" * 12},
    ],
)
def test_m8_what_cannot_be_delivered(named: dict[str, str]) -> None:
    broker = LoneBroker()
    broker.send(TOPIC, 0, DELAY="1", **named)
    (due,) = broker.state.schedule.due(START_MS + 1000, 10)
    assert delivery(stored(broker, due)) is None


def test_delivery_and_progress_stand_in_one_entry() -> None:
    broker = LoneBroker()
    delay(broker, 1)
    (due,) = broker.state.schedule.due(START_MS + 1000, 10)
    message = stored(broker, due)
    found = delivery(message)
    assert found is not None
    broker.now_ms += 1000
    broker.staging.stage(
        found.topic,
        found.queue_id,
        message.body,
        found.properties,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
    )
    broker.staging.stage_control(AdvanceSchedule(1, 0, 1), broker.now_ms)
    before = broker.state.applied_index
    broker.commit()
    assert broker.state.applied_index == before + 1
    assert broker.state.queues.min_max("T", 2) == (0, 1)
    assert broker.state.schedule.due(broker.now_ms, 10) == []
