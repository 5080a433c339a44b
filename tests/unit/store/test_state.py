"""The fold: what it refuses, what it stops at, and that nothing is half done."""

from __future__ import annotations

import pytest

from broker.store.errors import MisplacedRecordError, OutOfOrderError
from broker.store.refusals import FoldRefusal, RefusalKind
from broker.store.state import SPILL_SHARES, BrokerState, StateLimits
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger_mq.message.errors import RecordError
from dledger_mq.message.names import TIMER_TOPIC
from dledger_mq.message.record import encode_record
from tests.unit.store.lone_broker import BORN, HOST, START_MS, FakeLog, LoneBroker


def record(at: int, queue_offset: int = 0, topic: bytes = b"T", **fields: int) -> bytes:
    given = {"sys_flag": 0} | fields
    return encode_record(
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        physical_offset=at,
        sys_flag=given["sys_flag"],
        born_timestamp_ms=START_MS,
        born_host=BORN,
        store_timestamp_ms=START_MS,
        store_host=HOST,
        body=b"body",
        properties=b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02",
    )


def fold(*bodies: bytes) -> BrokerState:
    log, state = FakeLog(), BrokerState()
    for body in bodies:
        log.append(body)
    state.apply(log.entries)
    return state


def test_records_go_to_their_queues() -> None:
    first = record(48)
    state = fold(first + record(48 + len(first), 1))
    queue = state.queues.get("T", 0)
    assert queue is not None
    assert [unit.physical_offset for unit in (queue.unit(0), queue.unit(1))] == [
        48,
        48 + len(first),
    ]
    assert state.last_store_ms == START_MS
    assert (state.put_count, state.put_bytes) == (2, 2 * len(first))
    assert state.topic_put_totals("T") == (2, 2 * len(first))
    assert state.topic_put_totals("U") == (0, 0)


def test_t3_unique_key_and_each_key_are_indexed() -> None:
    state = fold(record(48))
    for key in ("u", "a", "b"):
        assert list(state.key_index.candidates("T", key, 0, 2**62)) == [48]
    assert list(state.key_index.candidates("T", "a b", 0, 2**62)) == []


def test_noops_and_configurations_only_advance() -> None:
    log, state = FakeLog(), BrokerState()
    log.append(b"", EntryKind.NOOP)
    log.append(b"not records", EntryKind.CONFIGURATION)
    state.apply(log.entries)
    fresh = BrokerState().digests()
    assert state.applied_index == 2
    assert state.digests() == fresh


def test_applying_twice_is_detected() -> None:
    log, state = FakeLog(), BrokerState()
    log.append(record(48))
    state.apply(log.entries)
    before = state.digest()
    with pytest.raises(OutOfOrderError, match="entry 1 was given after entry 1"):
        state.apply(log.entries)
    assert state.digest() == before


def test_a_gap_is_detected() -> None:
    log, state = FakeLog(), BrokerState()
    log.append(record(48))
    log.append(record(48 * 2 + len(log.entries[0].body), 1))
    with pytest.raises(OutOfOrderError, match="entry 2 was given after entry 0"):
        state.apply(log.entries[1:])


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1],
        lambda body: body + b"\0",
        lambda body: body[:4] + b"\0\0\0\0" + body[8:],
        lambda body: b"\x7f\xff\xff\xff" + body[4:],
        lambda body: body.replace(b"\x01T\x00", b"\x01\xff\x00"),
        lambda body: body[:84] + b"\xff\xff\xff\xff" + body[88:],
    ],
)
def test_bytes_that_are_no_records_stop_the_fold_with_nothing_done(damage) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    first = record(48)
    body = first + damage(record(48 + len(first), 1))
    log, state = FakeLog(), BrokerState()
    log.append(body)
    before = state.digests()
    with pytest.raises(RecordError):
        state.apply(log.entries)
    assert state.digests() == before
    assert state.applied_index == 0


def test_a_record_that_stands_elsewhere_stops_the_fold() -> None:
    with pytest.raises(MisplacedRecordError, match="at physical offset 48 says 49"):
        fold(record(49))


@pytest.mark.parametrize("queue_offset", [1, 7, -1])
def test_zz7_a_wrong_queue_offset_is_a_recorded_alarm_and_no_unit(queue_offset: int) -> None:
    state = fold(record(48, queue_offset))
    assert state.queues.min_max("T", 0) == (0, 0)
    assert state.refusals.alarm_count == 1
    refusal = state.refusals.at(48)
    assert refusal == FoldRefusal(
        1,
        48,
        RefusalKind.WRONG_QUEUE_OFFSET,
        f"(b'T', 0): queue offset {queue_offset}, the next is 0",
    )


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_prepared_and_rolled_back_messages_are_in_no_queue(sys_flag: int) -> None:
    first = record(48, sys_flag=sys_flag)
    state = fold(first + record(48 + len(first), 0))
    assert state.queues.min_max("T", 0) == (0, 1)
    assert state.refusals.count == 0


def test_committed_transaction_messages_are_ordinary() -> None:
    assert fold(record(48, sys_flag=0x8)).queues.min_max("T", 0) == (0, 1)


def test_an_empty_body_is_an_entry_without_messages() -> None:
    assert fold(b"").applied_index == 1


def test_the_latest_store_time_never_goes_back() -> None:
    first = record(48)
    earlier = first[:56] + (START_MS - 1).to_bytes(8, "big") + first[64:]
    at = 48 + len(first) + 48
    body = earlier[:20] + (1).to_bytes(8, "big") + at.to_bytes(8, "big") + earlier[36:]
    assert fold(first, body).last_store_ms == START_MS


def test_what_the_leader_staged_spares_the_parse_and_changes_nothing() -> None:
    parsing, sparing = LoneBroker(), LoneBroker(parses=False)
    for broker in (parsing, sparing):
        for n in range(20):
            broker.stage("T", n % 3, b"x" * n, UNIQ_KEY=f"u{n}", TAGS=f"t{n % 2}")
        broker.commit()
    assert parsing.state.digests() == sparing.state.digests()


def test_an_entry_of_another_leader_is_parsed_although_one_was_staged() -> None:
    broker = LoneBroker()
    broker.stage("mine")
    staged = broker.staging.build_entry(broker.log.end_position, broker.now_ms)
    broker.staging.proposed(staged, EntryId(Term(1), Index(2)))
    at = broker.log.end_position
    other = Entry(
        Index(2),
        Term(2),
        Position(at),
        EntryKind.NORMAL,
        record(at + ENTRY_HEADER_BYTES, topic=b"theirs"),
    )
    broker.staging.discard()
    broker.state.apply([other])
    assert broker.state.queues.min_max("theirs", 0) == (0, 1)
    assert broker.state.queues.min_max("mine", 0) == (0, 0)


def test_digests_name_the_components() -> None:
    assert list(BrokerState().digests()) == [
        "queues",
        "key_index",
        "topics",
        "groups",
        "offsets",
        "locks",
        "schedule",
        "recent_sends",
        "transactions",
        "timers",
        "sinks",
        "retention",
        "settings",
        "refusals",
    ]


def test_the_tables_of_a_snapshot_keep_the_names_of_its_format() -> None:
    """Stores of today hold them: a new name is a new version of the format."""
    assert set(BrokerState().tables()) == {
        "topics",
        "groups",
        "offsets",
        "locks",
        "schedule",
        "recent_sends",
        "transactions",
        "timers",
        "sinks",
        "retention",
        "settings",
        "refusals",
        "marks",
    }


def test_once_in_an_interval_old_units_leave_memory() -> None:
    limits = StateLimits(resident_units_max=4, spill_interval=6 * SPILL_SHARES)
    broker = LoneBroker(BrokerState(limits=limits))
    for _ in range(5):
        broker.send("T")
    queue = broker.state.queues.get("T", 0)
    assert queue is not None
    assert queue.tail_first == 0, "nobody has looked yet"
    broker.send("T")
    assert queue.tail_first == 4, "two stay"


def test_a_restored_state_goes_on_with_the_timers_that_were_pending() -> None:
    broker, restored = LoneBroker(), BrokerState()
    due_ms = broker.now_ms + 60_000
    broker.send(TIMER_TOPIC, TIMER_OUT_MS=str(due_ms), REAL_TOPIC="T", REAL_QID="0")
    restored.restore(broker.state.snapshot())
    assert restored.timers.next_due_ms() == due_ms
    assert restored.digest() == broker.state.digest()


def test_what_was_staged_for_another_place_is_never_folded() -> None:
    broker = LoneBroker()
    broker.stage("T")
    staged = broker.staging.build_entry(broker.log.end_position + 1, broker.now_ms)
    entry = broker.log.append(staged.body)
    broker.staging.proposed(staged, entry.id)
    with pytest.raises(AssertionError, match="records from"):
        broker.state.apply([entry])


def test_terms_never_fall_along_the_log() -> None:
    log, state = FakeLog(), BrokerState()
    log.append(b"", EntryKind.NOOP, term=2)
    state.apply(log.entries)
    with pytest.raises(AssertionError, match="term 1 after one of 2"):
        state.apply([log.append(b"", EntryKind.NOOP, term=1)])
