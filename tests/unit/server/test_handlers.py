"""What the registered handlers say of themselves agrees with how their requests are decoded and waited for."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from broker.server.requests.questions import Question
from broker.server.requests.request import Handler, Where
from broker.service.conclusions import RequestKind
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from dledger_mq.remoting.requests import PullRequest, SendRequest, decode_request
from tests.architecture.requests_page import handlers

EXT = {
    # a send with letters, and with names
    **dict.fromkeys("aefgh", "0"),
    "b": "T",
    "producerGroup": "P",
    "topic": "T",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "0",
    "flag": "0",
    # a pull
    **dict.fromkeys(("queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis"), "0"),
    "consumerGroup": "G",
}
HANDLERS = handlers()
OF_EACH = pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: str(handler.code))


def decoded_as(code: int) -> type:
    decoder = FrameDecoder()
    decoder.feed(encode_command(make_request(code, 1, EXT)))
    (frame,) = decoder.frames()
    command = decode_request(frame)
    for kind in (SendRequest, PullRequest):
        if isinstance(command, kind):
            return kind
    return RemotingCommand


@OF_EACH
def test_it_takes_what_its_code_is_decoded_to(handler: Handler[Any]) -> None:
    assert get_type_hints(handler.serve)["command"] is decoded_as(handler.code)


@OF_EACH
def test_its_kind_is_that_of_what_it_takes(handler: Handler[Any]) -> None:
    assert (handler.kind is RequestKind.SEND) == (decoded_as(handler.code) is SendRequest)
    assert (handler.kind is RequestKind.QUESTION) == (handler.request_type is Question)


@OF_EACH
def test_only_leaders_are_confirmed_and_asked_questions(handler: Handler[Any]) -> None:
    if handler.is_confirmed or handler.kind is RequestKind.QUESTION:
        assert handler.where is Where.LEADER


ANSWERED_BY_AN_ENTRY_OR_CONFIRMED_BY_ITSELF = {
    *(10, 310, 320),  # what a send lacks is confirmed by itself
    *(14, 15, 29, 30, 31, 32),  # confirmed by itself, after its fields were checked
    *(17, 18, 200, 225),  # answered by an entry, or refused for its own fields
    *(41, 42, 200_151),  # answered by an entry, whatever is applied
}


@OF_EACH
def test_no_leader_answers_from_what_is_applied_before_it_is_confirmed(
    handler: Handler[Any],
) -> None:
    """It may lead no more: then what it lacks may be there, and what it has may be old."""
    if handler.where is Where.LEADER:
        is_left_out = handler.code in ANSWERED_BY_AN_ENTRY_OR_CONFIRMED_BY_ITSELF
        assert handler.is_confirmed is not is_left_out


def test_they_come_in_the_order_of_their_codes() -> None:
    codes = [handler.code for handler in HANDLERS]
    assert codes == sorted(set(codes))
