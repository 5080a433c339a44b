"""Laws of forgetting: wherever the log is forgotten, cut and restored, all replicas show the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.control import ForgetBefore
from broker.store.kept_log import KeptLog
from broker.store.lookups import earliest_store_time, offset_by_time, query_by_key
from broker.store.needs import oldest_need
from broker.store.reading import GetStatus, get_messages
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.retention import ForgetCause
from broker.store.state import BrokerState
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from tests.property.store.scripts import TOPICS, commit_steps, entries
from tests.property.store.test_fold_laws import TIGHT
from tests.property.store.test_snapshots import MIDDLE, restored
from tests.unit.store.lone_broker import FakeLog, LoneBroker

pytestmark = pytest.mark.slow

causes: st.SearchStrategy[ForgetCause] = st.sampled_from(["time", "size", "disk", "operator"])
rounds = st.lists(
    st.tuples(entries, st.none() | st.tuples(st.integers(0, 12), causes)), min_size=1, max_size=8
)
"""Entries, and after each perhaps how many entries before the end shall be kept."""

Rounds = list[tuple[tuple[list[object], int], tuple[int, ForgetCause] | None]]


def run(rounds: Rounds) -> LoneBroker:
    """Commit what the rounds say; forget with every second, and late, so that old sends are not needed."""
    broker = LoneBroker()
    for (steps, pause_ms), forgetting in rounds:
        commit_steps(broker, steps, pause_ms)
        if forgetting is not None:
            kept, cause = forgetting
            broker.now_ms += 61_000
            first = broker.log.entries[max(0, len(broker.log.entries) - 1 - kept)]
            broker.command(ForgetBefore(first.index, first.position, cause))
    return broker


def reads(state: BrokerState, log: FakeLog) -> object:
    """Everything that clients read of the log."""
    found: list[object] = []
    for topic in TOPICS:
        for queue_id in map(QueueId, range(3)):
            low, high = state.queues.min_max(topic, queue_id)
            found.append((low, high, earliest_store_time(state, log, topic, queue_id)))
            found.append(
                [
                    offset_by_time(state, log, topic, queue_id, time_ms=time_ms, is_upper=is_upper)
                    for time_ms in (0, log_ms(state), 2**50)
                    for is_upper in (False, True)
                ]
            )
            for offset in map(QueueOffset, range(high + 2)):
                got = get_messages(
                    state,
                    log,
                    topic,
                    queue_id,
                    offset=offset,
                    count_max=3,
                    log_end=log.end_position,
                )
                assert got.status is not GetStatus.MESSAGE_WAS_REMOVING
                found.append((got.status, got.next_offset, [bytes(each) for each in got.records]))
        found += [
            [
                bytes(each)
                for each in query_by_key(
                    state, log, topic, key, count_max=64, begin_ms=0, end_ms=2**62
                )
            ]
            for key in ("k1", "k2", "k3", "u1", "u2")
        ]
    return found


def log_ms(state: BrokerState) -> int:
    return state.last_store_ms - 30_000


@given(rounds, st.data())
def test_a_replica_that_folded_from_the_start_shows_what_one_shows_that_came_by_snapshot(
    rounds: Rounds, data: st.DataObject
) -> None:
    broker = run(rounds)
    log, whole = broker.log, broker.state
    replicas = [BrokerState(), BrokerState(limits=TIGHT), BrokerState(limits=MIDDLE)]
    for entry in log.entries:
        for number, replica in enumerate(replicas):
            replica.apply([entry])
            if data.draw(st.integers(0, 3), label=f"snapshot of {number} at {entry.index}") == 0:
                replicas[number] = restored(replica, data.draw(st.sampled_from([TIGHT, MIDDLE])))
    expected = reads(whole, log)
    kept = FakeLog(log.entries)
    kept.first_position = whole.retention.position
    for replica in replicas:
        assert replica.digests() == whole.digests()
        assert replica.keep_from == whole.keep_from
        assert reads(replica, log) == expected
        assert reads(replica, kept) == expected
        now_ms, end = StoreTimeMs(broker.now_ms), PhysicalOffset(log.end_position)
        assert oldest_need(replica, now_ms, end=end) == oldest_need(whole, now_ms, end=end)


@given(rounds)
def test_what_is_forgotten_only_grows_by_whole_entries(rounds: Rounds) -> None:
    broker = run(rounds)
    state = BrokerState()
    before = (state.keep_from, state.retention.position)
    for entry in broker.log.entries:
        state.apply([entry])
        now = (state.keep_from, state.retention.position)
        assert now >= before
        assert state.keep_from <= state.applied_index
        first = broker.log.entries[state.keep_from - 1]
        assert first.position == state.retention.position
        before = now
    assert state.digests() == broker.state.digests()


@given(rounds)
def test_what_waits_can_still_be_read_when_the_bytes_are_gone(rounds: Rounds) -> None:
    broker = run(rounds)
    state, kept = broker.state, FakeLog(broker.log.entries)
    kept.first_position = state.retention.position
    reader = RecordReader(KeptLog(kept, state.retention))
    waiting = [each.physical_offset for each in state.schedule.due(2**40, 1000)]
    waiting += [each.physical_offset for each in state.timers.due(2**60, 1000)]
    waiting += [each.physical_offset for each in state.transactions]
    assert [reader.message_at(place).physical_offset for place in waiting] == waiting
    forgotten = broker.log.entries[: state.keep_from - 1]
    assert all(is_gone(reader, PhysicalOffset(entry.position + 48)) for entry in forgotten)


def is_gone(reader: RecordReader, place: PhysicalOffset) -> bool:
    try:
        reader.read_at(place)
    except MessageGoneError:
        return True
    return False
