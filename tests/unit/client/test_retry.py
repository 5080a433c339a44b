"""The retry rule covers every row of the registry, and says what the table of codes promises."""

from __future__ import annotations

import pytest

from dledger_mq.client.retry import (
    BACKOFF_MAX_S,
    FEW_TRIES,
    QUICK_PAUSE_MAX_S,
    QUICK_S,
    SEND_STATUS,
    QuickAnswers,
    SendVerdict,
    backoff_s,
    judge,
)
from dledger_mq.remoting.codes import RESPONSES, ResponseCode, is_definite


@pytest.mark.parametrize("code", RESPONSES)
def test_every_code_has_a_verdict_that_agrees_with_its_row(code: ResponseCode) -> None:
    row, verdict = RESPONSES[code], judge(code)
    assert (verdict is SendVerdict.DONE) == (code in SEND_STATUS)
    if verdict is not SendVerdict.DONE:
        assert (verdict is not SendVerdict.GIVE_UP) == row.retriable
        assert is_definite(code) == row.definite


def test_the_ones_that_matter() -> None:
    assert judge(ResponseCode.SERVICE_NOT_AVAILABLE) is SendVerdict.AGAIN_ELSEWHERE
    assert judge(ResponseCode.SYSTEM_ERROR) is SendVerdict.AGAIN_ELSEWHERE
    assert judge(ResponseCode.SYSTEM_BUSY) is SendVerdict.AGAIN_HERE
    assert judge(ResponseCode.FLOW_CONTROL) is SendVerdict.AGAIN_HERE
    assert judge(ResponseCode.MESSAGE_ILLEGAL) is SendVerdict.GIVE_UP
    assert not is_definite(ResponseCode.SYSTEM_ERROR)
    assert is_definite(ResponseCode.SERVICE_NOT_AVAILABLE)


def test_a_missing_topic_is_not_asked_for_for_ever() -> None:
    code = ResponseCode.TOPIC_NOT_EXIST
    assert judge(code, FEW_TRIES - 1) is SendVerdict.AGAIN_ELSEWHERE
    assert judge(code, FEW_TRIES) is SendVerdict.GIVE_UP


def test_unknown_codes_end_the_matter_and_say_nothing() -> None:
    assert judge(4711) is SendVerdict.GIVE_UP
    assert not is_definite(4711)


def test_pauses_grow_to_their_limit() -> None:
    pauses = [backoff_s(tries) for tries in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.005
    assert pauses[-1] == BACKOFF_MAX_S


def test_pauses_after_answers_that_were_not_held_grow_until_there_is_something() -> None:
    quick = QuickAnswers()
    pauses = [quick.pause_s(0.0) for _ in range(20)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 0.01
    assert pauses[-1] == QUICK_PAUSE_MAX_S
    assert quick.pause_s(QUICK_S) == 0, "it was held"
    assert quick.pause_s(0.0) == pauses[0]
    quick.pause_s(0.0)
    quick.forget()
    assert quick.pause_s(0.0) == pauses[0]
