"""What each request needs: RocketMQ 4.9's map, and what it leaves open."""

from __future__ import annotations

import json

import pytest

from broker.access.needs import ADMIN_CODES, CODES_WITH_RESOURCES, needs_of
from broker.access.rules import EVERY_TOPIC, SOME_TOPIC, Permission
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import encode_binary_command, encode_command, make_request
from dledger_mq.remoting.requests import decode_request
from tests.architecture.requests_page import handlers

PUB, SUB, ANY = Permission.PUB, Permission.SUB, Permission.ANY
LETTERS = {"a": "P", "b": "T", "e": "0", "f": "0", "g": "1", "h": "0"}
WORDS = {
    "producerGroup": "P", "topic": "T", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0",
    "commitOffset": "0", "suspendTimeoutMillis": "0",
}  # fmt: skip
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {"topic": "T", "subString": "*"},
                {"topic": "%RETRY%g", "subString": "*"},
            ],
        }
    ],
}


def needed(
    code: int, ext: dict[str, str], body: object = None, *, binary: bool = False
) -> list[tuple[str, Permission]]:
    encode = encode_binary_command if binary else encode_command
    decoder = FrameDecoder()
    decoder.feed(
        encode(make_request(code, 1, ext, b"" if body is None else json.dumps(body).encode()))
    )
    (frame,) = decoder.frames()
    needs = needs_of(decode_request(frame), frame.body)
    assert not needs.is_admin
    return list(needs.resources)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("code", "ext", "body", "expected"),
    [
        (10, WORDS, None, [("T", PUB)]),
        (310, LETTERS, None, [("T", PUB)]),
        (320, LETTERS, None, [("T", PUB)]),
        (310, LETTERS | {"b": "%RETRY%other", "a": "own"}, None, [("%RETRY%other", SUB)]),
        (310, LETTERS | {"i": "TRAN_MSG\x01true\x02"}, None, [("T", PUB)]),
        (324, WORDS, None, [("T", PUB)]),
        (325, LETTERS, None, [("T", PUB)]),
        (11, PULL, None, [("T", SUB), ("%RETRY%g", SUB)]),
        (361, PULL, None, [("T", SUB), ("%RETRY%g", SUB)]),
        (12, {"topic": "T", "key": "k"}, None, [("T", SUB)]),
        (14, {"consumerGroup": "g", "topic": "T", "queueId": "0"}, None, [("%RETRY%g", SUB), ("T", SUB)]),
        (15, {"consumerGroup": "g", "topic": "T"}, None, [("%RETRY%g", SUB), ("T", SUB)]),
        (29, {"topic": "T"}, None, [("T", ANY)]),
        (30, {"topic": "T"}, None, [("T", ANY)]),
        (31, {"topic": "T"}, None, [("T", ANY)]),
        (32, {"topic": "T"}, None, [("T", ANY)]),
        (33, {"offset": "1"}, None, [(EVERY_TOPIC, SUB)]),
        (34, {}, HEARTBEAT, [("%RETRY%g", SUB), ("T", SUB), ("%RETRY%g", SUB)]),
        (35, {"clientID": "c", "producerGroup": "P", "consumerGroup": "g"}, None, [("%RETRY%g", SUB)]),
        (35, {"clientID": "c", "producerGroup": "P", "consumerGroup": ""}, None, []),
        (36, {"group": "g", "offset": "1"}, None, [("%RETRY%g", SUB)]),
        (37, {"producerGroup": "P"}, None, [(SOME_TOPIC, PUB)]),
        (38, {"consumerGroup": "g"}, None, [("%RETRY%g", SUB)]),
        (41, {}, {"consumerGroup": "g", "clientId": "c", "mqSet": []}, [("%RETRY%g", SUB)]),
        (42, {}, {"consumerGroup": "g", "clientId": "c", "mqSet": []}, [("%RETRY%g", SUB)]),
        (370, {"topic": "T", "recallHandle": "x"}, None, [("T", PUB)]),
        (28, {}, None, []),
        (9999, {"topic": "T"}, None, []),
    ],
)  # fmt: skip
def test_rights_of_topics_and_groups(
    code: int,
    ext: dict[str, str],
    body: object,
    expected: list[tuple[str, Permission]],
    *,
    binary: bool,
) -> None:
    assert needed(code, ext, body, binary=binary) == expected


def test_a_checked_subscription_needs_what_it_subscribes() -> None:
    body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "subString": "*"}}
    assert needed(46, {}, body) == [("%RETRY%g", SUB), ("T", SUB)]


@pytest.mark.parametrize("code", sorted(ADMIN_CODES))
def test_changes_need_an_administrator(code: int) -> None:
    assert needs_of(make_request(code, 1), b"").is_admin


def test_rocketmqs_own_administrative_codes_are_among_them() -> None:
    assert {17, 25, 200, 207, 215} <= ADMIN_CODES


@pytest.mark.parametrize(
    ("code", "error"), [(34, BodyError), (41, BodyError), (15, FieldError), (30, FieldError)]
)
def test_what_says_not_what_it_is_about_is_refused(code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        needs_of(make_request(code, 1), b"{")


READS = {
    21, 26, 28, 43, 45, 52, 201, 202, 203, 204, 208, 300, 303, 305, 308, 315, 317, 321, 328, 343, 345, 351, 352, 400,
    907, 1007,
}  # fmt: skip
"""Codes for which a known account is enough, as in RocketMQ: they show figures and names, no messages."""


def test_every_code_that_a_broker_takes_was_thought_of() -> None:
    """A new code joins one of three sets; which one decides who may send it."""
    taken = {handler.code for handler in handlers()} & set(RequestCode)
    assert taken - ADMIN_CODES - CODES_WITH_RESOURCES - READS == set()
