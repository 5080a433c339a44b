"""What held at a time: offsets, transactions, locks and timers, from the nearest snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.control import (
    CommitOffsets,
    LockQueues,
    OffsetCommit,
    PopMessages,
    UnlockQueues,
)
from broker.store.locks import LOCK_LIVE_MS
from broker.story.errors import StoryError
from broker.story.moment import moment_at
from broker.story.past import (
    LockRow,
    OffsetRow,
    TransactionRow,
    WaitingRow,
    locks,
    offsets,
    transactions,
    waiting,
)
from broker.story.places import StorePlaces
from broker.story.real_topics import of_topic
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.pipeline.stores import write_snapshot, write_store
from tests.unit.store.lone_broker import START_MS, LoneBroker
from tests.unit.story.story_stores import SEGMENT_BYTES, cut_beginning, new_broker, nothing

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
ZERO = QueueId(0)


def commit(broker: LoneBroker, offset: int) -> None:
    broker.command(CommitOffsets([OffsetCommit("g", "T", ZERO, QueueOffset(offset), "c")]))


def night() -> LoneBroker:
    """A broker that took a message each second, ten of them; what else happens is at 4.5 s and 8.5 s."""
    broker = new_broker("T")
    for second in range(10):
        broker.now_ms = START_MS + 1000 * second
        broker.send(UNIQ_KEY=f"{second}")
        broker.now_ms += 500
        if second == 4:
            commit(broker, 3)
            broker.send(HALF, 0, UNIQ_KEY="h", REAL_TOPIC="T", REAL_QID="0", __transactionId__="h")
            broker.command(LockQueues("g", "holder", [("T", ZERO)]))
            broker.send("SCHEDULE_TOPIC_XXXX", 1, DELAY="2", REAL_TOPIC="T", REAL_QID="0")
            broker.send("rmq_sys_wheel_timer", 0, TIMER_OUT_MS=str(START_MS + 60_000))
        if second == 8:
            broker.command(UnlockQueues("g", "holder", [("T", ZERO)]))
            commit(broker, 9)
    return broker


@pytest.mark.parametrize("snapshots", [[], [5], [5, 18]], ids=["none", "early", "late, too"])
def test_what_held_then_is_the_same_from_any_snapshot(snapshots: list[int], tmp_path: Path) -> None:
    broker = night()
    sealed = write_store(tmp_path, broker.log.entries)
    for index in snapshots:
        write_snapshot(tmp_path, sealed, index)
    with moment_at(StorePlaces(tmp_path), START_MS + 4499, nothing) as then:
        assert then.at_ms == START_MS + 4000
        assert list(offsets(then.state, None, None)) == []
        assert list(locks(then.state, None, None)) == []
        assert not then.is_last
    with moment_at(StorePlaces(tmp_path), START_MS + 7999, nothing) as then:
        assert list(offsets(then.state, "g", "T")) == [OffsetRow("g", "T", 0, 3, 8, 5, 0)]
        assert list(offsets(then.state, "other", None)) == []
        stored = START_MS + 4500
        (half,) = transactions(then.state, None)
        assert half == TransactionRow("T", "h", 0, half.physical_offset, stored, 0, None)
        assert list(transactions(then.state, "U")) == []
        assert list(locks(then.state, None, "T")) == [
            LockRow("g", "T", 0, "holder", stored + LOCK_LIVE_MS)
        ]
        due = [(each.due_ms, each.level) for each in waiting(then.state)]
        assert due == [(stored + 5000, 2), (START_MS + 60_000, None)]
        assert isinstance(next(waiting(then.state)), WaitingRow)
    with moment_at(StorePlaces(tmp_path), START_MS + 10**9, nothing) as then:
        assert then.is_last
        assert then.index == len(sealed)
        assert [each.lag for each in offsets(then.state, None, None)] == [1]
        assert list(locks(then.state, None, None)) == []


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_what_waits_is_read_for_its_topic(at_once: int, tmp_path: Path) -> None:
    broker = new_broker("T")
    due: dict[str, list[int]] = {}
    for number in range(40):
        place, topic = START_MS + 60_000 - number % 7, f"T{number % 3}"
        broker.send("rmq_sys_wheel_timer", 0, TIMER_OUT_MS=str(place), REAL_TOPIC=topic)
        due.setdefault(topic, []).append(place)
        for _ in range(number % 5):
            broker.send()
    broker.send("SCHEDULE_TOPIC_XXXX", 1, DELAY="2", REAL_TOPIC="T1", REAL_QID="0")
    write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    places = StorePlaces(tmp_path)
    with moment_at(places, START_MS + 10**9, nothing) as then:
        found = list(of_topic(places, waiting(then.state), "T1", at_once))
        assert [each.due_ms for each in found[1:]] == sorted(due["T1"])
        assert {each.topic for each in found} == {"T1"}
        assert [each.level for each in found[:2]] == [2, None]
        assert list(of_topic(places, waiting(then.state), "T", at_once)) == []
        lost = iter([WaitingRow(START_MS, 10**9, None)])
        with pytest.raises(StoryError, match="has no message at 1000000000"):
            list(of_topic(places, lost, "T1", at_once))


def test_what_is_popped_counts_as_in_flight(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send()
    offset = QueueOffset
    broker.command(PopMessages("g", "T", ZERO, None, offset(0), offset(1), [offset(0)], [], 5000))
    write_store(tmp_path, broker.log.entries)
    with moment_at(StorePlaces(tmp_path), broker.now_ms, nothing) as then:
        assert [each.in_flight for each in offsets(then.state, None, None)] == [1]


def test_before_the_oldest_snapshot_of_a_log_without_beginning_nothing_can_be_told(
    tmp_path: Path,
) -> None:
    broker = night()
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    cut_beginning(tmp_path, sealed, 15)
    with (
        pytest.raises(StoryError, match="give the state of no time"),
        moment_at(StorePlaces(tmp_path), START_MS, nothing),
    ):
        pass
    write_snapshot(tmp_path, sealed, len(sealed))
    with (
        pytest.raises(StoryError, match=r"give the state from 2023-11-14T22:13:29\+00:00 on"),
        moment_at(StorePlaces(tmp_path), START_MS, nothing),
    ):
        pass
