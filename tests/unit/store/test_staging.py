"""The leader's view ahead of the fold."""

from __future__ import annotations

import pytest

from broker.store.control import DeleteTopic, PutTopic
from broker.store.parse import parse_records
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger_mq.message.errors import RecordError
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.record import decode_records
from tests.unit.store.lone_broker import BORN, HOST, START_MS, LoneBroker

pytestmark = pytest.mark.usefixtures("each_stage")

V6 = pack_host("2001:db8::1", 10911)


def test_what_is_staged_is_what_a_reader_finds() -> None:
    staging = Staging(BrokerState(), HOST)
    places = [
        staging.stage(
            b"TopicTest",
            3,
            b"hello",
            b"TAGS\x01TagA\x02",
            born_timestamp_ms=5,
            born_host=BORN,
            sys_flag=1,
            flag=-7,
            reconsume_times=2,
            prepared_transaction_offset=9,
        ),
        staging.stage(b"TopicTest", 3, b"", b"", born_timestamp_ms=6, born_host=BORN),
    ]
    assert places == [0, 1]
    assert staging.staged_count == 2
    staged = staging.build_entry(1000, START_MS)
    assert staging.staged_count == 0
    first, second = decode_records(staged.body)
    assert (first.topic, first.queue_id, first.body, first.properties) == (
        "TopicTest",
        3,
        b"hello",
        b"TAGS\x01TagA\x02",
    )
    assert (first.born_timestamp_ms, first.born_host) == (5, BORN)
    assert (first.store_timestamp_ms, first.store_host) == (START_MS, HOST)
    assert (first.sys_flag, first.flag, first.reconsume_times) == (1, -7, 2)
    assert first.prepared_transaction_offset == 9
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.physical_offset == 1048
    assert [staged.queue_offset(n) for n in places] == [0, 1]
    assert [staged.physical_offset(n) for n in places] == [1048, 1048 + first.size_bytes]


def test_thousands_of_empty_properties_are_staged_and_folded() -> None:
    broker = LoneBroker()
    broker.staging.stage(
        b"T",
        0,
        b"body",
        b"TAGS\x01\x02" * 4000 + b"KEYS\x01\x02" * 1000 + b"UNIQ_KEY\x01k\x02",
        born_timestamp_ms=5,
        born_host=BORN,
    )
    broker.commit()
    assert b"k" in broker.state.recent_sends
    queue = broker.state.queues.get("T", 0)
    assert queue is not None
    assert queue.unit(0).tag_hash == 0


def test_a_record_has_the_bytes_of_the_format() -> None:
    state = BrokerState()
    queue = state.queues.create((b"TopicTest", 3))
    for _ in range(7):
        queue.append(0, 100, 0)
    staging = Staging(state, HOST)
    staging.stage(
        b"TopicTest",
        3,
        b"hello",
        b"TAGS\x01TagA\x02",
        born_timestamp_ms=1_700_000_000_000,
        born_host=BORN,
    )
    # docs/formats/message.md, "Values to check against"
    assert staging.build_entry(952, 1_700_000_000_001).body.hex().upper() == (
        "00000073DAA320A73610A6860000000300000000000000000000000700000000"
        "000003E8000000000000018BCFE568007F0000010000C3500000018BCFE56801"
        "7F00000100002A9F0000000000000000000000000000000568656C6C6F09546F"
        "70696354657374000A54414753015461674102"
    )


@pytest.mark.parametrize("store_host", [HOST, V6])
@pytest.mark.parametrize("born_host", [BORN, V6])
@pytest.mark.parametrize("topic", [b"T", b"%RETRY%" + b"g" * 240, "中文".encode()])
@pytest.mark.parametrize("sys_flag", [0, 0x30, 0x4, 0x8, 0xC])
def test_every_shape_is_parsed_as_it_was_staged(
    store_host: bytes, born_host: bytes, topic: bytes, sys_flag: int
) -> None:
    staging = Staging(BrokerState(), store_host)
    for n in range(3):
        staging.stage(
            topic,
            n % 2,
            b"x" * n,
            b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01TagA\x02",
            born_timestamp_ms=1,
            born_host=born_host,
            sys_flag=sys_flag,
        )
    staged = staging.build_entry(500, START_MS)
    assert parse_records(staged.body, 548) == staged.records
    for message in decode_records(staged.body):
        assert len(message.born_host) == len(born_host)
        assert len(message.store_host) == len(store_host)


def test_offsets_go_on_over_entries_that_are_not_applied_yet() -> None:
    broker = LoneBroker()
    broker.send("T")
    position, found = broker.log.end_position, []
    for index in range(3, 6):
        broker.stage("T")
        broker.stage("U")
        staged = broker.staging.build_entry(position, broker.now_ms)
        broker.staging.proposed(staged, EntryId(Term(1), Index(index)))
        found.append((staged.queue_offset(0), staged.queue_offset(1)))
        position = Position(position + ENTRY_HEADER_BYTES + len(staged.body))
    assert found == [(1, 0), (2, 1), (3, 2)]


def test_a_withdrawn_entry_gives_its_offsets_back() -> None:
    broker = LoneBroker()
    broker.send("T")
    for _ in range(2):
        broker.stage("T", UNIQ_KEY="k", KEYS="a")
        broker.stage("U")
        staged = broker.staging.build_entry(broker.log.end_position, broker.now_ms)
        assert [staged.queue_offset(0), staged.queue_offset(1)] == [1, 0]
        broker.staging.withdraw(staged)
    broker.send("T")
    assert broker.state.refusals.count == 0
    assert broker.state.queues.min_max("T", 0) == (0, 2)


def test_what_an_entry_leaves_behind_counts_as_if_it_were_staged_alone() -> None:
    left = [("T", b"12345", "a"), ("a longer topic", b"1", "bcd")]
    broker, alone = LoneBroker(), LoneBroker()
    assert alone.staging.staged_bytes == 0
    broker.stage("T", body=b"goes first")
    for topic, body, tag in left:
        broker.stage(topic, body=body, TAGS=tag)
        alone.stage(topic, body=body, TAGS=tag)
    staged = broker.staging.build_entry(broker.log.end_position, broker.now_ms, 1)
    assert len(staged.records) == 1
    assert broker.staging.staged_count == alone.staging.staged_count == 2
    assert broker.staging.staged_bytes == alone.staging.staged_bytes > 0


def test_a_control_record_carries_its_command_and_no_properties() -> None:
    broker = LoneBroker()
    broker.staging.stage_control(DeleteTopic("T"), broker.now_ms)
    [message] = decode_records(broker.commit().body)
    assert (message.properties, message.born_host) == (b"", HOST)
    assert message.born_timestamp_ms == broker.now_ms


def test_a_lost_leader_forgets_what_it_assigned() -> None:
    broker = LoneBroker()
    broker.send("T")
    broker.stage("T")
    staged = broker.staging.build_entry(broker.log.end_position, broker.now_ms)
    broker.staging.proposed(staged, EntryId(Term(1), Index(3)))
    broker.stage("T")
    broker.staging.discard()
    assert broker.staging.staged_count == 0
    assert broker.staging.staged_bytes == 0
    assert broker.send("T").queue_offset(0) == 1


def test_store_times_never_decrease() -> None:
    broker = LoneBroker()
    broker.send("T")
    broker.now_ms -= 5000
    assert broker.send("T").store_ms == START_MS
    successor = Staging(broker.state, HOST)
    successor.stage(b"T", 0, b"", b"", born_timestamp_ms=0, born_host=BORN)
    assert successor.build_entry(0, START_MS - 9000).store_ms == START_MS


def test_a_topic_deleted_in_the_same_entry_begins_again() -> None:
    broker = LoneBroker()
    broker.send("T", 0)
    broker.send("T", 1)
    broker.stage("T", 0)
    broker.staging.stage_control(DeleteTopic("T"), broker.now_ms)
    broker.staging.stage_control(PutTopic(TopicConfig("T")), broker.now_ms)
    places = [broker.stage("T", 0), broker.stage("T", 1), broker.stage("T", 0)]
    staged = broker.commit()
    assert [staged.queue_offset(place) for place in places] == [0, 0, 1]
    assert broker.state.refusals.count == 0
    assert broker.state.queues.min_max("T", 0) == (0, 2)
    assert broker.send("T", 1).queue_offset(0) == 1


def test_a_withdrawn_delete_deletes_nothing() -> None:
    broker = LoneBroker()
    broker.send("T")
    broker.staging.stage_control(DeleteTopic("T"), broker.now_ms)
    broker.stage("T")
    broker.staging.withdraw(broker.staging.build_entry(broker.log.end_position, broker.now_ms))
    assert broker.send("T").queue_offset(0) == 1


def test_a_topic_that_cannot_be_deleted_goes_on() -> None:
    broker = LoneBroker()
    broker.send("SCHEDULE_TOPIC_XXXX")
    broker.staging.stage_control(DeleteTopic("SCHEDULE_TOPIC_XXXX"), broker.now_ms)
    broker.stage("SCHEDULE_TOPIC_XXXX")
    staged = broker.commit()
    assert staged.queue_offset(1) == 1
    assert broker.state.queues.min_max("SCHEDULE_TOPIC_XXXX", 0) == (0, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": b""},
        {"topic": b"\xff"},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"properties": b"x" * 32_768},
        {"sys_flag": 2**31},
        {"flag": 2**31},
        {"flag": -(2**31) - 1},
        {"reconsume_times": -1},
        {"born_timestamp_ms": 2**63},
        {"born_timestamp_ms": -1},
        {"prepared_transaction_offset": 2**64},
        {"born_host": b"1234"},
    ],
)
def test_what_does_not_fit_a_record_is_refused_alone(wrong: dict[str, object]) -> None:
    staging = Staging(BrokerState(), HOST)
    good: dict[str, object] = {
        "topic": b"T",
        "queue_id": 0,
        "body": b"",
        "properties": b"",
        "born_timestamp_ms": 0,
        "born_host": BORN,
        "flag": -(2**31),
    }
    staging.stage(**good | {"properties": b"x" * 32_767, "flag": 2**31 - 1})  # type: ignore[arg-type] # as below
    staging.stage(**good)  # type: ignore[arg-type] # the cases name the fields
    with pytest.raises(RecordError):
        staging.stage(**good | wrong)  # type: ignore[arg-type] # as above
    assert staging.staged_count == 2
    assert len(decode_records(staging.build_entry(0, START_MS).body)) == 2


def test_only_the_entry_that_was_built_last_can_be_withdrawn() -> None:
    broker = LoneBroker()
    broker.stage("T")
    first = broker.staging.build_entry(broker.log.end_position, broker.now_ms)
    broker.stage("T")
    broker.staging.build_entry(broker.log.end_position, broker.now_ms)
    with pytest.raises(AssertionError, match="the record withdrawn has 0"):
        broker.staging.withdraw(first)


def test_an_entry_takes_no_more_than_is_staged() -> None:
    broker = LoneBroker()
    broker.stage("T")
    with pytest.raises(AssertionError, match="2 of 1 messages"):
        broker.staging.build_entry(broker.log.end_position, broker.now_ms, 2)
