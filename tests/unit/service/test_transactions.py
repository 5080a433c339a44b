"""END_TRANSACTION, rule by rule (rules O4 to O11)."""

from __future__ import annotations

import msgspec
import pytest

from broker.service.refusal import Refusal
from broker.service.timers import TimerRules
from broker.service.transactions import (
    CommitPlan,
    Ending,
    EndRules,
    Recorded,
    RollbackPlan,
    answer_to_ending,
    ending_of,
    is_undecided,
)
from broker.store.transactions import VERDICTS_KEPT, Transactions, TransactionVerdict, encode_op
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.properties import decode_properties, encode_properties
from dledger_mq.message.record import StoredMessage, decode_record, encode_record
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FieldError

HOST = pack_host("127.0.0.1", 10911)
BORN_MS = 1_700_000_000_000
R = ResponseCode
COMMIT, ROLLBACK = TransactionVerdict.COMMITTED, TransactionVerdict.ROLLED_BACK


def half_message(
    queue_offset: int = 0, topic: str = "RMQ_SYS_TRANS_HALF_TOPIC", **changes: str | None
) -> StoredMessage:
    pairs = {
        "UNIQ_KEY": "u",
        "TRAN_MSG": "true",
        "PGROUP": "p",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "__transactionId__": "u",
    }
    named = {k: v for k, v in (pairs | changes).items() if v is not None}
    return decode_record(
        encode_record(
            topic=topic.encode(),
            queue_id=0,
            queue_offset=queue_offset,
            physical_offset=500,
            sys_flag=1,
            born_timestamp_ms=BORN_MS,
            born_host=HOST,
            store_timestamp_ms=BORN_MS + 1,
            store_host=HOST,
            body=b"body",
            properties=encode_properties(named),
            flag=9,
            reconsume_times=0,
        )
    )


def op(queue_offset: int, verdict: TransactionVerdict) -> StoredMessage:
    body, properties = encode_op([queue_offset], verdict)
    return decode_record(
        encode_record(
            topic=b"RMQ_SYS_TRANS_OP_HALF_TOPIC",
            queue_id=0,
            queue_offset=0,
            physical_offset=900,
            sys_flag=0,
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=1,
            store_host=HOST,
            body=body,
            properties=properties,
        )
    )


def ending(
    wanted: TransactionVerdict = COMMIT,
    *,
    group: str = "p",
    queue_offset: int = 0,
    physical_offset: int = 500,
    is_check: bool = False,
) -> Ending:
    return Ending(group, queue_offset, physical_offset, wanted, is_check)


def decide(
    wanted: Ending,
    half: StoredMessage | None = None,
    *,
    recorded: TransactionVerdict | None = None,
    age_ms: int = 10,
) -> CommitPlan | RollbackPlan | Recorded | Refusal:
    message = half or half_message()
    table = Transactions()
    table.begin(message)
    if recorded is not None:
        table.end(op(message.queue_offset, recorded))
    rules = EndRules(
        lambda: table,
        timeout_ms=6000,
        delay_level_max=18,
        timers=TimerRules(1_000_000, lambda: BORN_MS + age_ms),
        load=lambda offset: message if offset == message.physical_offset else None,
    )
    return rules.decide(wanted, BORN_MS + age_ms)


def test_o4_the_header() -> None:
    ext = {
        "producerGroup": "p",
        "tranStateTableOffset": "7",
        "commitLogOffset": "500",
        "commitOrRollback": "8",
        "msgId": "u",
    }
    assert ending_of(ext) == ending(queue_offset=7)
    back = ext | {"commitOrRollback": "12", "fromTransactionCheck": "true"}
    assert ending_of(back) == ending(ROLLBACK, queue_offset=7, is_check=True)
    for name in ("producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback"):
        assert not is_undecided({k: v for k, v in ext.items() if k != name})
        with pytest.raises(FieldError, match=name):
            ending_of({k: v for k, v in ext.items() if k != name})


@pytest.mark.parametrize("value", ["0", "4", "-1", "x", ""])
def test_o5_unknown_or_any_other_value_decides_nothing(value: str) -> None:
    assert is_undecided({"commitOrRollback": value})


@pytest.mark.parametrize("value", ["8", "12"])
def test_o5_commit_and_rollback_decide(value: str) -> None:
    assert not is_undecided({"commitOrRollback": value})


@pytest.mark.parametrize(
    ("wanted", "half"),
    [
        (ending(physical_offset=499), None),
        (ending(physical_offset=-1), None),
        (ending(), half_message(topic="T")),
    ],
    ids=["nothing there", "no place", "not a half message"],
)
def test_o6_no_half_message(wanted: Ending, half: StoredMessage | None) -> None:
    refusal = decide(wanted, half)
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.SYSTEM_ERROR
    assert "find prepared transaction message failed" in refusal.remark


@pytest.mark.parametrize(
    ("immunity", "age_ms", "is_check", "late"),
    [
        ("5", 5001, False, True),
        ("5", 5000, False, False),
        ("5", 5001, True, False),
        ("-1", 6001, False, True),
        ("-1", 6000, False, False),
        ("soon", 6001, False, True),
        (None, 10**9, False, False),
    ],
)
def test_o7_beyond_its_immunity_only_a_check_decides(
    immunity: str | None, age_ms: int, is_check: bool, late: bool
) -> None:
    half = half_message(CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)
    plan = decide(ending(is_check=is_check), half, age_ms=age_ms)
    assert isinstance(plan, Refusal) is late
    if isinstance(plan, Refusal):
        assert plan.code == R.ILLEGAL_OPERATION


def test_o7_what_is_decided_is_told_at_any_time() -> None:
    half = half_message(CHECK_IMMUNITY_TIME_IN_SECONDS="5")
    assert decide(ending(), half, recorded=COMMIT, age_ms=10**9) == Recorded(COMMIT)


@pytest.mark.parametrize("recorded", [None, COMMIT])
@pytest.mark.parametrize(
    ("wanted", "half", "text"),
    [
        (ending(group="q"), None, "group"),
        (ending(), half_message(PGROUP=None), "group"),
        (ending(queue_offset=1), None, "state table offset"),
    ],
    ids=["group", "no group", "queue offset"],
)
def test_o8_header_and_half_message_agree(
    wanted: Ending, half: StoredMessage | None, text: str, recorded: TransactionVerdict | None
) -> None:
    refusal = decide(wanted, half, recorded=recorded)
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.SYSTEM_ERROR
    assert text in refusal.remark


def test_o8_the_physical_offset_too() -> None:
    message = half_message()
    rules = EndRules(
        Transactions, timeout_ms=1, delay_level_max=18, timers=None, load=lambda _: message
    )
    refusal = rules.decide(ending(physical_offset=501), BORN_MS)
    assert isinstance(refusal, Refusal)
    assert "commit log offset" in refusal.remark


def test_o8_what_looks_like_the_half_message_is_none() -> None:
    """Somebody's message may hold the bytes of a record, with the place at which they stand."""
    table = Transactions()
    table.begin(half_message())
    forged = msgspec.structs.replace(half_message(), physical_offset=700, body=b"forged")
    rules = EndRules(
        lambda: table, timeout_ms=1, delay_level_max=18, timers=None, load=lambda _: forged
    )
    refusal = rules.decide(ending(physical_offset=700), BORN_MS)
    assert isinstance(refusal, Refusal)
    assert "none at 700" in refusal.remark


def test_o9_commit() -> None:
    plan = decide(ending())
    assert isinstance(plan, CommitPlan)
    assert (plan.topic, plan.queue_id) == (b"T", 3)
    assert plan.sys_flag == 8 | 1
    assert decode_properties(plan.properties) == {
        "UNIQ_KEY": "u",
        "TRAN_MSG": "true",
        "PGROUP": "p",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "__transactionId__": "u",
        "WAIT": "false",
    }


@pytest.mark.parametrize(("delay", "level"), [("3", 3), ("99", 18), ("0", 0), ("-1", 0)])
def test_o9_a_delay_is_honoured_on_commit(delay: str, level: int) -> None:
    plan = decide(ending(), half_message(DELAY=delay))
    assert isinstance(plan, CommitPlan)
    if level:
        assert (plan.topic, plan.queue_id) == (b"SCHEDULE_TOPIC_XXXX", level - 1)
    else:
        assert (plan.topic, plan.queue_id) == (b"T", 3)


@pytest.mark.parametrize(
    ("wish", "out_ms"),
    [
        ({"TIMER_DELAY_MS": "500"}, BORN_MS + 510),
        ({"TIMER_DELAY_SEC": "1"}, BORN_MS + 1010),
        ({"TIMER_DELIVER_MS": str(BORN_MS + 700)}, BORN_MS + 700),
        ({"TIMER_DELIVER_MS": str(BORN_MS)}, None),
    ],
)
def test_o9_a_due_time_is_honoured_on_commit(wish: dict[str, str], out_ms: int | None) -> None:
    plan = decide(ending(), half_message(**wish))
    assert isinstance(plan, CommitPlan)
    if out_ms is None:
        assert (plan.topic, plan.queue_id) == (b"T", 3)
    else:
        assert (plan.topic, plan.queue_id) == (b"rmq_sys_wheel_timer", 0)
        assert decode_properties(plan.properties)["TIMER_OUT_MS"] == str(out_ms)


def test_o9_a_due_time_while_the_timer_is_switched_off_leaves_it_open() -> None:
    half = half_message(TIMER_DELAY_MS="500")
    table = Transactions()
    table.begin(half)
    rules = EndRules(
        lambda: table, timeout_ms=1, delay_level_max=18, timers=None, load=lambda _: half
    )
    refusal = rules.decide(ending(), BORN_MS)
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.SYSTEM_ERROR


@pytest.mark.parametrize("changes", [{"REAL_TOPIC": None}, {"REAL_QID": None}, {"REAL_QID": "x"}])
def test_o9_a_half_message_that_names_no_target(changes: dict[str, str | None]) -> None:
    refusal = decide(ending(), half_message(**changes))
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.SYSTEM_ERROR


def test_o11_rollback() -> None:
    plan = decide(ending(ROLLBACK))
    assert isinstance(plan, RollbackPlan)
    assert plan.half.queue_offset == 0


@pytest.mark.parametrize(
    ("wanted", "recorded", "code", "number"),
    [
        (COMMIT, COMMIT, R.SUCCESS, "8"),
        (ROLLBACK, ROLLBACK, R.SUCCESS, "12"),
        (ROLLBACK, TransactionVerdict.GIVEN_UP, R.SUCCESS, "12"),
        (ROLLBACK, COMMIT, R.TRANSACTION_SHOULD_COMMIT, "8"),
        (COMMIT, ROLLBACK, R.TRANSACTION_SHOULD_ROLLBACK, "12"),
        (COMMIT, TransactionVerdict.GIVEN_UP, R.TRANSACTION_SHOULD_ROLLBACK, "12"),
    ],
)
def test_a_repeated_or_contradictory_end_is_told_the_recorded_one(
    wanted: TransactionVerdict, recorded: TransactionVerdict, code: ResponseCode, number: str
) -> None:
    assert decide(ending(wanted), recorded=recorded) == Recorded(recorded)
    answer = answer_to_ending(wanted=wanted, recorded=recorded)
    assert (answer[0], answer[2]) == (code, {"commitOrRollback": number})
    assert (answer[1] is None) == (code == R.SUCCESS)


def test_beyond_the_memory_of_verdicts_it_is_refused_clearly() -> None:
    message = half_message()
    rules = EndRules(
        Transactions, timeout_ms=1, delay_level_max=18, timers=None, load=lambda _: message
    )
    refusal = rules.decide(ending(), BORN_MS)
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.SYSTEM_ERROR
    assert str(VERDICTS_KEPT) in refusal.remark


def test_an_open_transaction_has_no_recorded_end_to_answer_with() -> None:
    with pytest.raises(AssertionError, match="has not ended"):
        answer_to_ending(wanted=COMMIT, recorded=TransactionVerdict.OPEN)
