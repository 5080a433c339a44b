"""Transactions as they stand in the log (rules O)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from broker.store import transactions as module
from broker.store.control import CheckTransactions, ResumeTransaction
from broker.store.refusals import RefusalKind
from broker.store.state import BrokerState
from broker.store.transactions import (
    IMMUNITY_MAX_MS,
    Transactions,
    TransactionVerdict,
    decode_op,
    encode_op,
    immunity_of,
)
from tests.unit.store.lone_broker import START_MS, LoneBroker

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ENDED = (
    TransactionVerdict.COMMITTED,
    TransactionVerdict.ROLLED_BACK,
    TransactionVerdict.GIVEN_UP,
)


def begin(broker: LoneBroker, key: str, **more: str) -> int:
    """A half message; gives its half queue offset."""
    staged = broker.send(
        HALF, 0, b"half", REAL_TOPIC="T", REAL_QID="1", __transactionId__=key, UNIQ_KEY=key, **more
    )
    return staged.queue_offset(0)


def end(broker: LoneBroker, verdict: TransactionVerdict, *offsets: int) -> RefusalKind | None:
    body, properties = encode_op(list(offsets), verdict)
    place = broker.staging.stage(
        OP.encode(), 0, body, properties, born_timestamp_ms=1, born_host=bytes(8)
    )
    refusal = broker.state.refusals.at(broker.commit().physical_offset(place))
    return refusal.kind if refusal else None


def due(broker: LoneBroker, now_ms: int, limit: int = 100) -> list[int]:
    found = broker.state.transactions.due(now_ms, timeout_ms=6000, interval_ms=30_000, limit=limit)
    return [half.queue_offset for half in found]


def check(broker: LoneBroker, at_ms: int, *offsets: int) -> None:
    broker.command(CheckTransactions(list(offsets), at_ms))


def test_o2_a_half_message_is_open_and_in_no_queue_of_its_topic() -> None:
    broker = LoneBroker()
    offset = begin(broker, "u")
    table = broker.state.transactions
    half = table.get(offset)
    assert half is not None
    assert (half.key, half.check_count, half.store_ms) == ((b"T", b"u"), 0, START_MS)
    assert table.newest((b"T", b"u"), 8) == [half]
    assert table.verdict(offset) is TransactionVerdict.OPEN
    assert (len(table), list(table)) == (1, [half])
    assert broker.state.queues.get("T", 1) is None


@pytest.mark.parametrize("verdict", ENDED)
def test_o10_o11_an_op_record_ends_it_and_is_remembered(verdict: TransactionVerdict) -> None:
    broker = LoneBroker()
    first, second = begin(broker, "a"), begin(broker, "b")
    assert end(broker, verdict, first) is None
    table = broker.state.transactions
    assert table.get(first) is None
    assert table.newest((b"T", b"a"), 8) == []
    assert table.verdict(first) is verdict
    assert table.verdict(second) is TransactionVerdict.OPEN
    assert due(broker, START_MS + 2**40) == [second]


def test_one_op_record_may_end_several() -> None:
    broker = LoneBroker()
    offsets = [begin(broker, str(n)) for n in range(3)]
    assert end(broker, TransactionVerdict.GIVEN_UP, *offsets) is None
    assert len(broker.state.transactions) == 0


def test_ending_what_is_not_open_is_an_alarm_and_changes_nothing() -> None:
    broker = LoneBroker()
    offset = begin(broker, "a")
    still_open = begin(broker, "b")
    end(broker, TransactionVerdict.COMMITTED, offset)
    before = broker.state.transactions.digest
    assert end(broker, TransactionVerdict.ROLLED_BACK, offset) is RefusalKind.STALE_RESOLUTION
    assert end(broker, TransactionVerdict.ROLLED_BACK, 99) is RefusalKind.STALE_RESOLUTION
    assert (
        end(broker, TransactionVerdict.ROLLED_BACK, still_open, still_open)
        is RefusalKind.STALE_RESOLUTION
    )
    assert broker.state.transactions.verdict(offset) is TransactionVerdict.COMMITTED
    assert broker.state.transactions.digest == before
    assert broker.state.refusals.alarm_count == 3


def test_o13_bytes_of_an_op_record() -> None:
    body, properties = encode_op([7], TransactionVerdict.COMMITTED)
    assert body == b"7,"
    assert properties == b"TAGS\x01d\x02TRAN_VERDICT\x01COMMIT\x02"
    assert decode_op(body, properties) == ([7], TransactionVerdict.COMMITTED)
    assert decode_op(b"7,8,", properties) == ([7, 8], TransactionVerdict.COMMITTED)


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        (b"7,", b"TAGS\x01d\x02"),
        (b"7,", b"TRAN_VERDICT\x01MAYBE\x02"),
        (b"", b"TRAN_VERDICT\x01COMMIT\x02"),
        (b"x,", b"TRAN_VERDICT\x01COMMIT\x02"),
        (b"-1,", b"TRAN_VERDICT\x01COMMIT\x02"),
        (b"7,,8,", b"TRAN_VERDICT\x01COMMIT\x02"),
        (b"1" * 19, b"TRAN_VERDICT\x01COMMIT\x02"),
        (b"1," * 5000, b"TRAN_VERDICT\x01COMMIT\x02"),
    ],
)
def test_what_is_no_op_record_is_refused(body: bytes, properties: bytes) -> None:
    assert decode_op(body, properties) is None
    broker = LoneBroker()
    place = broker.staging.stage(
        OP.encode(), 0, body, properties, born_timestamp_ms=1, born_host=bytes(8)
    )
    refusal = broker.state.refusals.at(broker.commit().physical_offset(place))
    assert refusal is not None
    assert refusal.kind is RefusalKind.MALFORMED


def test_a_half_message_without_its_names_is_open_all_the_same() -> None:
    broker = LoneBroker()
    broker.send(HALF, 0, b"half")
    half = broker.state.transactions.get(0)
    assert half is not None
    assert half.key is None
    assert end(broker, TransactionVerdict.GIVEN_UP, 0) is None


def test_only_queue_0_of_the_half_topic_counts() -> None:
    broker = LoneBroker()
    broker.send(HALF, 1, b"half", REAL_TOPIC="T", REAL_QID="1", __transactionId__="u")
    assert len(broker.state.transactions) == 0


def test_o17_first_check_after_the_time_out_then_every_interval() -> None:
    broker = LoneBroker()
    offset = begin(broker, "a")
    assert due(broker, START_MS + 5999) == []
    assert due(broker, START_MS + 6000) == [offset]
    check(broker, START_MS + 6100, offset)
    assert due(broker, START_MS + 36_099) == []
    assert due(broker, START_MS + 36_100) == [offset]
    half = broker.state.transactions.get(offset)
    assert half is not None
    assert half.check_count == 1


def test_o17e_immunity_of_its_own() -> None:
    broker = LoneBroker()
    patient = begin(broker, "a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    usual = begin(broker, "b", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
    hasty = begin(broker, "c", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert due(broker, START_MS + 1000) == [hasty]
    assert due(broker, START_MS + 6000) == [usual, hasty]
    assert due(broker, START_MS + 60_000) == [usual, hasty, patient]
    check(broker, START_MS + 60_000, patient)
    assert due(broker, START_MS + 89_999) == [usual, hasty]
    end(broker, TransactionVerdict.ROLLED_BACK, hasty)
    assert due(broker, START_MS + 90_000) == [usual, patient]


@pytest.mark.parametrize("immunity", [{}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "6"}])
def test_checks_that_begin_anew(immunity: dict[str, str]) -> None:
    broker = LoneBroker()
    offset, other = begin(broker, "a", **immunity), begin(broker, "b", **immunity)
    check(broker, START_MS + 7000, offset)
    broker.command(ResumeTransaction(offset, START_MS + 8000))
    half = broker.state.transactions.get(offset)
    assert half is not None
    assert half.check_count == 0
    assert due(broker, START_MS + 13_999) == [other]
    assert due(broker, START_MS + 14_000) == [other, offset]
    digest = broker.state.transactions.digest
    end(broker, TransactionVerdict.COMMITTED, offset)
    assert due(broker, START_MS + 14_000) == [other]
    assert broker.state.transactions.digest != digest
    before = broker.state.transactions.digest
    broker.command(ResumeTransaction(offset, START_MS + 9000))
    assert broker.state.transactions.digest == before


@pytest.mark.parametrize(
    ("value", "ms"),
    [("5", 5000), ("0", 0), ("-1", None), ("x", None), ("9" * 18, IMMUNITY_MAX_MS)],
)
def test_o17e_immunity_values(value: str, ms: int | None) -> None:
    assert immunity_of(b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01%b\x02" % value.encode()) == ms


def test_at_most_the_limit_is_due_at_once() -> None:
    broker = LoneBroker()
    for n in range(4):
        begin(broker, str(n), **({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"} if n % 2 else {}))
    check(broker, START_MS, 0)
    assert due(broker, START_MS + 90_000, limit=2) == [2, 0]
    assert due(broker, START_MS + 90_000, limit=0) == []


def test_checks_of_what_has_ended_do_not_matter_and_time_never_goes_back() -> None:
    broker = LoneBroker()
    first, second = begin(broker, "a"), begin(broker, "b")
    check(broker, START_MS + 50_000, first)
    end(broker, TransactionVerdict.COMMITTED, first)
    check(broker, START_MS + 7000, first, second)  # a leader whose clock is behind
    assert broker.state.refusals.count == 0
    assert due(broker, START_MS + 79_999) == []
    assert due(broker, START_MS + 80_000) == [second]


def test_the_memory_of_verdicts_is_bounded_but_never_that_of_open_ones() -> None:
    with patch.object(module, "VERDICTS_KEPT", 4):
        broker = LoneBroker()
        for n in range(6):
            begin(broker, str(n))
        for n in (0, 1, 2, 3, 5):
            assert end(broker, TransactionVerdict.COMMITTED, n) is None
        table = broker.state.transactions
        verdicts = [table.verdict(n) for n in range(-1, 7)]
        done = TransactionVerdict.COMMITTED
        assert verdicts == [None, None, None, done, done, TransactionVerdict.OPEN, done, None]
        begin(broker, "6")
        assert [table.verdict(n) for n in range(7)] == [
            *(None, None, None, done),
            *(TransactionVerdict.OPEN, done, TransactionVerdict.OPEN),
        ]


def test_a_transaction_that_was_sent_twice_is_found_under_its_newest_half() -> None:
    broker = LoneBroker()
    first, second = begin(broker, "u"), begin(broker, "u")
    end(broker, TransactionVerdict.ROLLED_BACK, first)
    (found,) = broker.state.transactions.newest((b"T", b"u"), 8)
    assert found.queue_offset == second


def test_the_open_halves_under_one_key_are_found_newest_first_also_after_a_snapshot() -> None:
    broker = LoneBroker()
    halves = [begin(broker, "u") for _ in range(4)]
    for ended, left in ((1, [3, 2, 0]), (3, [2, 0]), (0, [2]), (2, [])):
        end(broker, TransactionVerdict.COMMITTED, halves[ended])
        restored = BrokerState()
        restored.restore(broker.state.snapshot())
        for state in (broker.state, restored):
            for limit in (1, 8):
                found = state.transactions.newest((b"T", b"u"), limit)
                assert [half.queue_offset for half in found] == [halves[n] for n in left][:limit]


def test_open_ones_are_counted_by_topic_also_after_a_snapshot() -> None:
    broker = LoneBroker()
    halves = [begin(broker, "u"), begin(broker, "v")]
    broker.send(HALF, 0, b"half")  # it does not say for which topic it is
    wanted = ({b"T": 2, b"": 1}, {b"T": 1, b"": 1}, {b"": 1})
    for ended, counts in zip((None, *halves), wanted, strict=True):
        if ended is not None:
            end(broker, TransactionVerdict.COMMITTED, ended)
        restored = BrokerState()
        restored.restore(broker.state.snapshot())
        assert broker.state.transactions.open_counts == counts
        assert restored.transactions.open_counts == counts


def test_the_digest_tells_verdicts_and_checks_apart() -> None:
    digests = set()
    for act in (
        None,
        TransactionVerdict.COMMITTED,
        TransactionVerdict.ROLLED_BACK,
        TransactionVerdict.GIVEN_UP,
        "check",
    ):
        broker = LoneBroker()
        begin(broker, "u")
        if isinstance(act, TransactionVerdict):
            end(broker, act, 0)
        elif act:
            check(broker, 1, 0)
        digests.add(broker.state.transactions.digest)
    assert len(digests) == 5
    assert Transactions().digest == 0
