"""Questions are answered once, and in time: with what was found out, or so that the client asks again."""

from __future__ import annotations

import pytest

from broker.server.requests.questions import Question, Questions
from broker.server.requests.request import HOLD_MS
from broker.service.asking_again import LATE_MS
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.group_bodies import decode_consumer_list
from dledger_mq.remoting.header import RemotingCommand
from tests.unit.server.pending import pending
from tests.unit.server.test_router import FakeOrigin


def ask(
    questions: Questions, code: int, language: str, version: int, *, deadline_ms: int = 10
) -> tuple[Question, FakeOrigin]:
    origin = FakeOrigin()
    command = RemotingCommand(code=code, opaque=7, language=language, version=version)
    question = pending(origin, code, command=command, opaque=7, deadline_ms=deadline_ms)
    assert isinstance(question, Question)
    questions.add(question)
    return question, origin


@pytest.mark.parametrize(
    ("code", "language", "version", "told"),
    [
        (14, "GO", 317, (14, {}, "why")),
        (14, "CPP", 333, (0, {"offset": "-2"}, "why")),
        (14, "JAVA", 121, (0, {"offset": "-2"}, "why")),
        (38, "GO", 317, (14, {}, "why")),
    ],
)
def test_at_the_end_of_its_time_the_client_is_told_in_its_own_way(
    code: int, language: str, version: int, told: tuple[int, dict[str, str], str]
) -> None:
    questions = Questions()
    _, origin = ask(questions, code, language, version)
    questions.expire(9, "why")
    assert origin.sent == []
    questions.expire(10, "why")
    questions.expire(11, "why")
    (answered,) = origin.answers()
    assert (answered.opaque, answered.code, answered.ext, answered.remark) == (7, *told)


def test_a_java_client_of_release_4_is_not_refused_before_it_has_given_up() -> None:
    questions = Questions()
    question, origin = ask(questions, 14, "JAVA", 409, deadline_ms=HOLD_MS)
    question.give_up(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader is known")
    for now_ms in (HOLD_MS, 5_000, LATE_MS - 1):
        questions.expire(now_ms, "why")
    assert origin.sent == []
    questions.expire(LATE_MS, "why")
    (answered,) = origin.answers()
    assert (answered.code, answered.remark) == (14, "why")


def test_until_then_it_may_yet_be_told_the_truth() -> None:
    questions = Questions()
    question, origin = ask(questions, 14, "JAVA", 409)
    questions.expire(10, "why")
    assert origin.sent == []
    question.answer(ResponseCode.SUCCESS, ext={"offset": "3"})
    assert [answered.ext for answered in origin.answers()] == [{"offset": "3"}]


def test_a_node_client_gets_an_empty_list() -> None:
    questions = Questions()
    _, origin = ask(questions, 38, "JAVA", 121)
    questions.expire(10, "why")
    (answered,) = origin.answers()
    assert (answered.code, decode_consumer_list(answered.body)) == (0, [])


def test_what_was_found_out_in_time_is_the_only_answer() -> None:
    questions = Questions()
    question, origin = ask(questions, 14, "CPP", 333)
    question.answer(ResponseCode.SUCCESS, ext={"offset": "3"})
    question.answer(ResponseCode.SUCCESS, ext={"offset": "4"})
    question.give_up(ResponseCode.SYSTEM_BUSY, "busy")
    questions.expire(10, "why")
    assert [answered.ext for answered in origin.answers()] == [{"offset": "3"}]


def test_one_that_is_open_is_not_overlooked_among_answered_ones() -> None:
    questions = Questions()
    first, _ = ask(questions, 14, "GO", 317, deadline_ms=10)
    _, origin = ask(questions, 14, "GO", 317, deadline_ms=11)
    first.answer(ResponseCode.SUCCESS)
    questions.expire(11, "why")
    assert [answered.code for answered in origin.answers()] == [14]
