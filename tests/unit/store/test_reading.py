"""Reading by queue offset (section D, worked examples AC), by place, by key, by time."""

from __future__ import annotations

from itertools import count

import pytest

from broker.store import lookups
from broker.store.key_index import key_seed
from broker.store.lookups import (
    KeyKind,
    earliest_store_time,
    offset_by_time,
    query_by_key,
    store_time_at,
)
from broker.store.reading import GetLimits, GetResult, GetStatus, get_messages
from broker.store.record_reader import MessageGoneError, RecordReader, read_message
from broker.store.staging import Staging
from dledger import EntryDamagedError
from dledger_mq.message.hashes import tags_code
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.record import decode_record
from tests.unit.store.lone_broker import START_MS, LoneBroker

KIB = b"x" * 1024
FAR = 1 << 60


def filled(count: int, body: bytes = KIB, tags: tuple[str, ...] = ("TagA",)) -> LoneBroker:
    broker = LoneBroker()
    for n in range(count):
        broker.stage("T", 0, body, TAGS=tags[n % len(tags)])
        if n % 7 == 6:
            broker.commit()
    if broker.staging.staged_count:
        broker.commit()
    return broker


def get(broker: LoneBroker, offset: int, **named: object) -> GetResult:
    given: dict[str, object] = {"count_max": 32, "log_end": broker.log.end_position} | named
    return get_messages(broker.state, broker.log, "T", 0, offset=offset, **given)  # type: ignore[arg-type] # cases name fields


def trimmed(count: int, min_offset: int) -> LoneBroker:
    broker = filled(count)
    queue = broker.state.queues.get("T", 0)
    if queue is not None:
        queue.trim(queue.unit(min_offset).physical_offset)
    return broker


@pytest.mark.parametrize(
    ("case", "minimum", "maximum", "offset", "status", "next_offset"),
    [
        ("AC1", 0, 0, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        ("AC2", 0, 0, 5, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        ("AC3", 0, 10, 10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        ("AC4", 0, 10, 11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        ("AC5", 4, 10, 0, GetStatus.OFFSET_TOO_SMALL, 4),
    ],
)
def test_worked_examples_outside_the_queue(
    case: str, minimum: int, maximum: int, offset: int, status: GetStatus, next_offset: int
) -> None:
    result = get(trimmed(maximum, minimum), offset)
    assert (result.status, result.next_offset) == (status, next_offset), case
    assert (result.min_offset, result.max_offset) == (minimum, maximum), "D22"
    assert result.records == ()


def test_ac6_a_filter_that_matches_nothing_examines_800_units() -> None:
    result = get(filled(2000, b""), 0, tag_hashes={tags_code("other")})
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


@pytest.mark.parametrize(
    ("case", "count", "body", "named", "found", "next_offset"),
    [
        ("AC7", 100, KIB, {"count_max": 64}, 32, 32),
        ("AC8", 100, KIB, {"count_max": 10}, 10, 10),
        ("AC9", 100, KIB, {"limits": GetLimits(memory_span_bytes=-FAR)}, 8, 8),
        ("AC10", 3, b"x" * 300 * 1024, {}, 1, 1),
        (
            "D14",
            1000,
            b"",
            {"count_max": 900, "limits": GetLimits(count_max_in_memory=5000)},
            900,
            900,
        ),
        ("D16 bytes", 100, KIB, {"bytes_max": 3500}, 3, 3),
        ("D16 in memory", 100, b"x" * 60_000, {}, 4, 4),
        ("D16 on disk", 100, b"x" * 30_000, {"limits": GetLimits(memory_span_bytes=-FAR)}, 2, 2),
        ("D18", 2, KIB, {"bytes_max": 1}, 1, 1),
        ("none asked", 2, KIB, {"count_max": 0}, 1, 1),
    ],
)
def test_worked_examples_of_full_batches(
    case: str, count: int, body: bytes, named: dict[str, object], found: int, next_offset: int
) -> None:
    result = get(filled(count, body), 0, **named)
    assert result.status is GetStatus.FOUND, case
    assert (len(result.records), result.next_offset) == (found, next_offset), case


def test_ac11_a_tag_filter_steps_over_others() -> None:
    result = get(filled(3, tags=("TagA", "TagB")), 0, tag_hashes={tags_code("TagA")})
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 3)
    assert [decode_record(bytes(r)).queue_offset for r in result.records] == [0, 2]


def test_g6_colliding_tags_pass() -> None:
    result = get(filled(1, tags=("Aa",)), 0, tag_hashes={tags_code("BB")})
    assert result.status is GetStatus.FOUND


def test_d19_skipped_messages_count_as_examined() -> None:
    result = get(filled(5, tags=("TagB",)), 1, tag_hashes={tags_code("TagA")})
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)


def test_records_are_the_stored_bytes_and_are_fetched_once_per_entry() -> None:
    broker = filled(14)
    broker.log.fetched = 0
    result = get(broker, 0)
    assert b"".join(result.records) == broker.log.entries[1].body + broker.log.entries[2].body
    assert broker.log.fetched == 2


def test_d9_messages_gone_from_the_log() -> None:
    broker = filled(14)
    broker.log.first_position = broker.log.end_position
    result = get(broker, 0)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 14)


def test_d21_bytes_behind() -> None:
    broker = filled(14)
    last = get(broker, 13)
    assert last.bytes_behind == len(last.records[0])
    assert get(broker, 0, count_max=1).bytes_behind > 14 * 1024


# By place


def test_t1_a_message_is_read_by_its_physical_offset() -> None:
    broker = LoneBroker()
    broker.stage("T", 0, b"first")
    broker.stage("U", 3, b"second")
    staged = broker.commit()
    message = read_message(broker.log, staged.physical_offset(1))
    assert (message.topic, message.queue_id, message.body) == ("U", 3, b"second")


@pytest.mark.parametrize("offset", [-1, 0, 47, 49, 100, 149, 190, 10**9])
def test_t1_places_where_no_record_starts_are_not_found(offset: int) -> None:
    broker = LoneBroker()
    broker.send("T", 0, b"\0\0\0\x80" * 40)
    with pytest.raises(MessageGoneError):
        read_message(broker.log, offset)


def test_t1_bytes_that_look_like_a_record_are_checked() -> None:
    inner = bytes(LoneBroker().send("T").body)
    broker = LoneBroker()
    staged = broker.send("T", 0, inner)
    with pytest.raises(MessageGoneError):
        read_message(broker.log, staged.physical_offset(0) + 88)


# By time


def at_times(*times: int) -> LoneBroker:
    broker = LoneBroker()
    for time_ms in times:
        broker.now_ms = START_MS + time_ms
        broker.send("T")
    return broker


def test_k1_k2_k4_times_are_read_from_the_records() -> None:
    broker = at_times(10, 20, 20, 30)
    by_time = [
        offset_by_time(broker.state, broker.log, "T", 0, time_ms=START_MS + t)
        for t in (0, 15, 20, 31)
    ]
    assert by_time == [0, 1, 1, 4]
    assert (
        offset_by_time(broker.state, broker.log, "T", 0, time_ms=START_MS + 20, is_upper=True) == 2
    )
    assert offset_by_time(broker.state, broker.log, "none", 0, time_ms=START_MS) == 0
    assert earliest_store_time(broker.state, broker.log, "T", 0) == START_MS + 10
    assert earliest_store_time(broker.state, broker.log, "none", 0) is None
    assert store_time_at(broker.state, broker.log, "T", 0, offset=3) == START_MS + 30
    assert store_time_at(broker.state, broker.log, "T", 0, offset=4) is None


def test_times_of_records_with_ipv6_hosts() -> None:
    broker = LoneBroker()
    broker.staging = Staging(broker.state, pack_host("::2", 1))
    broker.staging.stage(
        b"T", 0, b"", b"", born_timestamp_ms=1, born_host=pack_host("2001:db8::1", 1)
    )
    broker.commit()
    assert earliest_store_time(broker.state, broker.log, "T", 0) == START_MS


# By key


def found_bodies(broker: LoneBroker, key: str, **named: object) -> list[bytes]:
    given: dict[str, object] = {"count_max": 64, "begin_ms": 0, "end_ms": FAR} | named
    records = query_by_key(broker.state, broker.log, "T", key, **given)  # type: ignore[arg-type] # cases name fields
    return [decode_record(bytes(record)).body for record in records]


def with_keys() -> LoneBroker:
    broker = LoneBroker()
    for n in range(5):
        broker.now_ms = START_MS + n
        broker.stage("T", 0, b"%d" % n, KEYS=f"order{n % 2} all", UNIQ_KEY=f"u{n}")
        broker.stage("U", 0, b"other topic", KEYS="all")
        broker.commit()
    return broker


def test_t2_messages_are_found_by_key_in_log_order() -> None:
    broker = with_keys()
    assert found_bodies(broker, "order0") == [b"0", b"2", b"4"]
    assert found_bodies(broker, "all") == [b"0", b"1", b"2", b"3", b"4"]
    assert found_bodies(broker, "all", count_max=2) == [b"3", b"4"], "the newest"
    assert found_bodies(broker, "all", begin_ms=START_MS + 1, end_ms=START_MS + 2) == [b"1", b"2"]
    assert found_bodies(broker, "order0 all") == []


def test_t2_unique_keys() -> None:
    broker = with_keys()
    assert found_bodies(broker, "u3", kind=KeyKind.UNIQUE) == [b"3"]
    assert found_bodies(broker, "u3") == [b"3"]
    assert found_bodies(broker, "u3", kind=KeyKind.KEYS) == []
    assert found_bodies(broker, "all", kind=KeyKind.KEYS, count_max=1) == [b"4"]
    assert found_bodies(broker, "all", kind=KeyKind.UNIQUE) == []


def test_pages_give_each_message_once_while_others_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = LoneBroker()

    def store(count: int) -> list[bytes]:
        bodies = []
        for _ in range(count):
            broker.now_ms += 1
            number = next(numbers)
            key = ("k", "k k", "other", "k u")[number % 4]  # one has it twice, one is found by none
            broker.stage("T", number % 3, b"%d" % number, KEYS=key, UNIQ_KEY=f"u{number}")
            if number % 5 == 0:
                broker.commit()
            if key != "other":
                bodies.append(b"%d" % number)
        broker.stage("T", 0, b"end", KEYS="other")
        broker.commit()
        return bodies

    numbers = count()
    wanted = store(300)
    monkeypatch.setattr(lookups, "QUERY_BYTES_MAX", 4000)
    found: list[bytes] = []
    before = None
    while page := query_by_key(
        broker.state,
        broker.log,
        "T",
        "k",
        count_max=64,
        begin_ms=0,
        end_ms=FAR,
        before=before,
    ):
        assert sum(map(len, page)) <= 4000
        records = [decode_record(bytes(record)) for record in page]
        found[:0] = [record.body for record in records]
        before = records[0].physical_offset
        store(7)
    assert found == wanted


def test_one_large_message_is_a_page() -> None:
    broker = LoneBroker()
    for number in range(3):
        broker.send("T", 0, b"%d" % number + bytes(lookups.QUERY_BYTES_MAX), KEYS="k")
    assert [body[:1] for body in found_bodies(broker, "k")] == [b"2"]


def test_t3_at_most_64_results() -> None:
    broker = LoneBroker()
    for _ in range(70):
        broker.stage("T", KEYS="k")
    broker.commit()
    assert len(found_bodies(broker, "k", count_max=1000)) == 64


def test_t3_changed_collisions_of_hashes_are_not_given() -> None:
    broker = LoneBroker()
    staged = broker.send("T", 0, b"not it", KEYS="other")
    offset = staged.physical_offset(0)
    broker.state.key_index.add([b"k"], [key_seed(b"T")], [offset], [START_MS])
    assert found_bodies(broker, "k") == []


def test_keys_of_messages_gone_from_the_log_are_stepped_over() -> None:
    broker = with_keys()
    broker.log.first_position = broker.log.entries[3].position
    assert found_bodies(broker, "all") == [b"2", b"3", b"4"]


def test_a_reader_keeps_the_entry_it_read_last() -> None:
    broker = LoneBroker()
    broker.stage("T")
    broker.stage("T")
    staged = broker.commit()
    reader = RecordReader(broker.log)
    broker.log.fetched = 0
    for place in (0, 1, 0):
        reader.read_at(staged.physical_offset(place))
    assert broker.log.fetched == 1


def test_a_damaged_entry_ends_the_batch_before_it_and_is_never_skipped() -> None:
    broker = filled(21)
    second = broker.log.entries[-2].index
    broker.log.damaged = {second}
    got = get(broker, 5)
    assert (got.status, got.next_offset, len(got.records)) == (GetStatus.FOUND, 7, 2)
    with pytest.raises(EntryDamagedError):
        get(broker, 7)
    broker.log.damaged.clear()
    got = get(broker, 7)
    assert (got.next_offset, len(got.records)) == (21, 14)


def test_a_query_by_key_does_not_answer_without_an_entry_that_may_have_it() -> None:
    broker = with_keys()
    broker.log.damaged = {entry.index for entry in broker.log.entries}
    with pytest.raises(EntryDamagedError):
        found_bodies(broker, "order1")
