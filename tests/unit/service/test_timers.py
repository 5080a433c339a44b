"""Due times and recall handles: rules N1 to N5, N13, N14, C21."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.service.refusal import Refusal
from broker.service.timers import RecallRules, TimerRules
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.recall_handle import HandleError, RecallHandle
from dledger_mq.remoting.codes import ResponseCode

NOW_MS = 1_700_000_000_123
RULES = TimerRules(259_200_000, lambda: NOW_MS)


def due(**named: str) -> int | ResponseCode:
    decided = RULES.due_ms(encode_properties(named))
    return decided.code if isinstance(decided, Refusal) else decided


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"TIMER_DELAY_SEC": "2"}, NOW_MS + 2000),
        ({"TIMER_DELAY_MS": "7"}, NOW_MS + 7),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 1)}, NOW_MS + 1),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "7"}, NOW_MS + 2000),
        ({"TIMER_DELIVER_MS": "x", "TIMER_DELAY_MS": "7"}, NOW_MS + 7),
        ({"TIMER_DELIVER_MS": "x", "TIMER_DELAY_SEC": "7"}, NOW_MS + 7000),
        ({"TIMER_DELAY_MS": "+7"}, NOW_MS + 7),
        ({}, 0),
    ],
)
def test_n1_the_first_property_that_is_there_decides(named: dict[str, str], expected: int) -> None:
    assert due(**named) == expected


@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", " 1", "9" * 19, "9" * 30, "--1", "\uff11"])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_n1_what_is_no_number_is_illegal(name: str, text: str) -> None:
    decided = RULES.due_ms(b"%b\x01%b\x02" % (name.encode(), text.encode()))
    if not text:
        assert decided == 0, "an empty property is none"
    else:
        assert isinstance(decided, Refusal)
        assert decided.code == ResponseCode.MESSAGE_ILLEGAL


def test_n2_a_message_that_had_its_due_time_goes_at_once() -> None:
    assert due(TIMER_OUT_MS="1", TIMER_DELAY_SEC="5") == 0
    assert due(TIMER_OUT_MS="1", TIMER_DELAY_SEC="x") == 0


@pytest.mark.parametrize("ahead_ms", [0, -1, -(10**9)])
def test_n3_due_now_or_past_means_at_once(ahead_ms: int) -> None:
    assert due(TIMER_DELIVER_MS=str(NOW_MS + ahead_ms)) == 0
    assert due(TIMER_DELAY_MS=str(ahead_ms)) == 0


def test_n4_three_days_at_most() -> None:
    assert due(TIMER_DELAY_SEC="259200") == NOW_MS + 259_200_000
    assert due(TIMER_DELAY_MS="259200001") == ResponseCode.MESSAGE_ILLEGAL
    assert due(TIMER_DELIVER_MS=str(NOW_MS + 259_200_001)) == ResponseCode.MESSAGE_ILLEGAL
    assert due(TIMER_DELAY_SEC="9223372036854775") == ResponseCode.MESSAGE_ILLEGAL


def test_n5_nothing_is_rounded() -> None:
    assert due(TIMER_DELIVER_MS=str(NOW_MS + 1234)) == NOW_MS + 1234
    assert due(TIMER_DELIVER_MS="1700000001000") == 1_700_000_001_000


names = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=60)


@given(names, names, st.integers(0, 10**16), names)
def test_n14_handles_come_back(topic: str, broker: str, due_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, due_ms, key)
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


def test_c21_n14_the_text_is_rocketmqs() -> None:
    text = RecallHandle("T", "broker-a", 1_700_000_000_000, "0A0B").encode()
    assert base64.urlsafe_b64decode(text) == b"v1 T broker-a 1700000000001 0A0B"


def encoded(plain: str) -> str:
    return base64.urlsafe_b64encode(plain.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        "\u00e4",
        "A" * 5000,
        base64.urlsafe_b64encode(b"v1 T b \xff k").decode(),
        *map(encoded, ["v1 T b 1", "v2 T b 1 k", "v1 T b x k", "v1 T b -1 k", "v1  b 1 k"]),
        *map(encoded, ["v1 T b 0 k", "v1 T b 99999999999999999999999 k", ""]),
        encoded(f"v1 T b {'1'.zfill(20)}{'0' * 30} k"),
    ],
)
def test_n14_what_is_no_handle(text: str) -> None:
    with pytest.raises(HandleError):
        RecallHandle.decode(text)


def recall(topic: str, text: str, *, enabled: bool = True) -> RecallHandle | ResponseCode:
    rules = RecallRules(enabled, "broker-a", {"T", "U", "rmq_sys_dledger_locks"}.__contains__)
    decided = rules.decide(topic, text)
    return ResponseCode(decided.code) if isinstance(decided, Refusal) else decided


def test_n13_n14_who_may_recall_what() -> None:
    handle = RecallHandle("T", "broker-a", 5, "k")
    good = handle.encode()
    other = RecallHandle("T", "broker-b", 5, "k").encode()
    assert recall("T", good) == handle
    assert recall("T", good, enabled=False) == ResponseCode.NO_PERMISSION
    assert recall("V", good) == ResponseCode.TOPIC_NOT_EXIST
    assert recall("U", good) == ResponseCode.ILLEGAL_OPERATION
    assert recall("T", other) == ResponseCode.ILLEGAL_OPERATION
    assert recall("T", "garbage") == ResponseCode.ILLEGAL_OPERATION
    assert recall("rmq_sys_dledger_locks", good) == ResponseCode.NO_PERMISSION
