"""Who may do what: RocketMQ's order of checks, hostile senders, and what is logged of them."""

from __future__ import annotations

import json
import logging

import pytest

from broker.access.guard import AccessGuard
from broker.access.plain_acl import join_files, parse_file
from broker.access.rules import Needs, Permission
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_binary_command,
    encode_command,
    make_request,
)
from dledger_mq.remoting.requests import SendRequest, decode_request
from dledger_mq.remoting.signature import SigningKey, sign

RULES = """
globalWhiteRemoteAddresses: [10.9.*]
accounts:
- {accessKey: producer, secretKey: secret-of-p, topicPerms: [T=PUB]}
- {accessKey: consumer, secretKey: secret-of-c, topicPerms: [T=SUB], groupPerms: [g=SUB]}
- {accessKey: anybody, secretKey: secret-of-a, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB, topicPerms: [X=DENY]}
- {accessKey: admin-1, secretKey: secret-of-1, admin: true}
- {accessKey: admin-2, secretKey: secret-of-2, admin: true, topicPerms: [T=PUB]}
- {accessKey: trusted, secretKey: secret-of-t, whiteRemoteAddress: 10.8.0.1}
"""
SECRETS = {
    "producer": "secret-of-p",
    "consumer": "secret-of-c",
    "anybody": "secret-of-a",
    "admin-1": "secret-of-1",
    "admin-2": "secret-of-2",
    "trusted": "secret-of-t",
}
SEND = {"a": "P", "b": "T", "e": "0", "f": "0", "g": "1", "h": "0", "i": "K\x01v\x02"}
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0",
    "commitOffset": "0", "suspendTimeoutMillis": "0",
}  # fmt: skip
STRANGER = "10.0.0.1:5"
WORDS = "org.apache.rocketmq.acl.common.AclException: "


class Bench:
    def __init__(self) -> None:
        rules, _ = join_files([parse_file("x.yml", RULES)])
        self.guard = AccessGuard(rules)

    def refusal(
        self, command: RemotingCommand, address: str = STRANGER, *, binary: bool = False
    ) -> str:
        """What a request is answered with; empty: it may be carried out."""
        frame = frame_of((encode_binary_command if binary else encode_command)(command))
        return (self.guard.refusal(address, frame, decode_command(frame)) or "").removeprefix(WORDS)


def frame_of(data: bytes) -> Frame:
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    return frame


def signed(
    key: str, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    fields = sign(ext or {}, body, access_key=key, key=SigningKey(SECRETS[key]))
    return make_request(code, 1, fields, body)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("key", "code", "ext", "expected"),
    [
        ("producer", 310, SEND, ""),
        ("producer", 320, SEND, ""),
        ("producer", 37, {}, ""),
        ("producer", 310, SEND | {"b": "U"}, "No default permission for topic:U"),
        ("producer", 320, SEND | {"b": "U"}, "No default permission for topic:U"),
        ("producer", 310, SEND | {"b": "%RETRY%g"}, "No default permission for group:g"),
        ("producer", 310, SEND | {"b": "%DLQ%g"}, "No default permission for topic:%DLQ%g"),
        ("producer", 310, SEND | {"b": "RMQ_SYS_TRACE_TOPIC"}, ""),
        ("producer", 11, PULL, "No default permission for topic:T"),
        ("producer", 30, {"topic": "T"}, ""),
        ("producer", 30, {"topic": "U"}, "No default permission for topic:U"),
        ("producer", 33, {"offset": "0"}, "No default permission for all topics"),
        ("producer", 28, {}, ""),
        ("producer", 17, {}, "Need admin permission for request code=17, but accessKey=producer is not"),
        ("producer", 200, {}, "Need admin permission for request code=200, but accessKey=producer is not"),
        ("consumer", 11, PULL, ""),
        ("consumer", 11, PULL | {"consumerGroup": "h"}, "No default permission for group:h"),
        ("consumer", 11, PULL | {"topic": "%RETRY%g"}, ""),
        ("consumer", 11, PULL | {"topic": "%RETRY%h"}, "No default permission for group:h"),
        ("consumer", 310, SEND, "No default permission for topic:T"),
        ("consumer", 310, SEND | {"b": "%RETRY%g"}, ""),
        ("consumer", 310, SEND | {"b": "%RETRY%h", "a": "g"}, "No default permission for group:h"),
        ("consumer", 36, {"group": "h"}, "No default permission for group:h"),
        ("consumer", 15, {"consumerGroup": "h", "topic": "T"}, "No default permission for group:h"),
        ("consumer", 37, {}, "No default permission for any topic"),
        ("anybody", 310, SEND | {"b": "U"}, ""),
        ("anybody", 310, SEND | {"b": "X"}, "No default permission for topic:X"),
        ("anybody", 33, {"offset": "0"}, "No default permission for all topics"),
        ("admin-1", 17, {}, ""),
        ("admin-1", 310, SEND, ""),
        ("admin-1", 33, {"offset": "0"}, ""),
        ("admin-2", 17, {}, ""),
        ("admin-2", 310, SEND, ""),
        ("admin-2", 310, SEND | {"b": "U"}, "No default permission for topic:U"),
    ],
)  # fmt: skip
def test_rights(
    bench: Bench, key: str, code: int, ext: dict[str, str], expected: str, *, binary: bool
) -> None:
    assert bench.refusal(signed(key, code, ext), binary=binary) == expected


@pytest.mark.parametrize("binary", [False, True])
def test_hostile_senders(bench: Bench, *, binary: bool) -> None:
    good = signed("producer", 310, SEND, b"body")
    wrong = "Check signature failed for accessKey=producer"
    unsigned = {key: value for key, value in good.ext.items() if key != "Signature"}
    refusals = [
        bench.refusal(RemotingCommand(code=310, ext=ext, body=body), binary=binary)
        for ext, body in (
            (good.ext, b"body"),
            (SEND, b"body"),
            (SEND | {"AccessKey": "", "Signature": ""}, b"body"),  # C++ without credentials
            (good.ext | {"AccessKey": "nobody"}, b"body"),
            (unsigned, b"body"),
            (good.ext | {"Signature": ""}, b"body"),
            (good.ext | {"Signature": "AAAA"}, b"body"),
            (good.ext, b"bodY"),
            (good.ext, b""),
            (good.ext | {"b": "U"}, b"body"),
            (good.ext | {"new": "field"}, b"body"),
            (good.ext | {"AccessKey": "anybody"}, b"body"),
        )
    ]
    assert refusals == [
        "", "No accessKey is configured", "No accessKey is configured", "No acl config for nobody",
        wrong, wrong, wrong, wrong, wrong, wrong, wrong, "Check signature failed for accessKey=anybody",
    ]  # fmt: skip
    assert bench.guard.refused_count == 11


@pytest.mark.parametrize(
    ("address", "key", "is_let_in"),
    [
        ("10.9.1.1:5", "", True),
        ("10.8.0.1:5", "trusted", True),
        ("10.8.0.1:5", "producer", False),
        ("10.8.0.2:5", "trusted", False),
        ("[::ffff:10.9.1.1]:5", "", True),
    ],
)
def test_addresses_that_need_no_signature(
    bench: Bench, address: str, key: str, *, is_let_in: bool
) -> None:
    refusal = bench.refusal(make_request(17, 1, {"AccessKey": key}), address)
    assert (refusal == "") is is_let_in


def test_what_a_body_names_decides(bench: Bench) -> None:
    def heartbeat(group: str, topic: str) -> bytes:
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": topic, "subString": "*"}],
        }
        return json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()

    def lock(group: str) -> bytes:
        return json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": []}).encode()

    refusals = [
        bench.refusal(signed("consumer", code, {}, body))
        for code, body in (
            (34, heartbeat("g", "T")),
            (34, heartbeat("h", "T")),
            (34, heartbeat("g", "U")),
            (34, b"{"),
            (41, lock("g")),
            (41, lock("h")),
            (42, lock("h")),
        )
    ]
    assert refusals[:3] == [
        "",
        "No default permission for group:h",
        "No default permission for topic:U",
    ]
    assert refusals[3].startswith("the request cannot be read: not a heartbeat")
    other = "No default permission for group:h"
    assert refusals[4:] == ["", other, other]


HEADERS = (
    '{"code":%(code)d,"opaque":1,"extFields":%(good)s,"code":310}',
    '{"code":310,"opaque":1,"extFields":%(good)s,"code":%(code)d}',
    '{"code":310,"opaque":1,"extFields":%(bad)s,"extFields":%(good)s}',
    '{"code":310,"opaque":1,"extFields":%(good)s,"extFields":%(bad)s}',
    '{"code":310,"opaque":1,"extFields":%(twice)s}',
    '{"code":310,"opaque":1,"extFields":%(escaped)s}',
)


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_says_a_thing_twice_is_judged_by_what_is_acted_on(
    bench: Bench, header: str
) -> None:
    """Whoever alters a signed request must not have one thing checked and another one done."""
    good = json.dumps(signed("producer", 310, SEND, b"x").ext)
    bad = json.dumps(signed("producer", 310, SEND, b"x").ext | {"b": "U"})
    texts = {
        "code": 30,
        "good": good,
        "bad": bad,
        "twice": f'{good[:-1]}, "b": "U"}}',
        "escaped": f'{good[:-1]}, "\\u0062": "U"}}',
    }
    frame = frame_of(encode_frame((header % texts).encode(), b"x"))
    command = decode_command(frame)
    refused = bench.guard.refusal(STRANGER, frame, command)
    acted_on = decode_request(frame)
    is_the_signed_send = isinstance(acted_on, SendRequest) and acted_on.fields.topic == "T"
    assert (refused is None) == is_the_signed_send


def test_rights_are_combined_as_in_rocketmq() -> None:
    both = Permission.PUB | Permission.SUB
    table = {
        (owned, needed): owned.allows(needed)
        for owned in (
            Permission.DENY,
            Permission.PUB,
            Permission.SUB,
            both,
            Permission.DENY | both,
            Permission.NONE,
        )
        for needed in (Permission.PUB, Permission.SUB, Permission.ANY)
    }
    assert [pair for pair, is_allowed in table.items() if is_allowed] == [
        (Permission.PUB, Permission.PUB),
        (Permission.PUB, Permission.ANY),
        (Permission.SUB, Permission.SUB),
        (Permission.SUB, Permission.ANY),
        (both, Permission.PUB),
        (both, Permission.SUB),
        (both, Permission.ANY),
    ]


def test_all_that_a_request_needs_must_be_there(bench: Bench) -> None:
    account = bench.guard.rules.accounts["consumer"]
    needs = Needs(
        resources=(("T", Permission.SUB), ("%RETRY%g", Permission.SUB), ("U", Permission.SUB))
    )
    assert account.why_not(needs, 11) == "No default permission for topic:U"


def test_many_refusals_are_few_lines(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dledger")
    unsigned = make_request(17, 1)
    for _ in range(20_000):
        bench.refusal(unsigned, "10.0.0.7:1")
        if bench.guard.refused_count > len(caplog.records):  # the first that was not written
            break
    assert bench.guard.refused_count > len(caplog.records)
    assert caplog.records[0].getMessage() == (
        "request-refused host=10.0.0.7 code=17 why='No accessKey is configured'"
    )
    assert "secret" not in caplog.text


def test_a_refusal_is_one_line_whatever_the_key(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dledger")
    bench.refusal(
        make_request(17, 1, {"AccessKey": "a\n2026 ERROR all is lost\x1b[2J"}), "10.0.0.7:1"
    )
    (record,) = caplog.records
    assert record.getMessage() == (
        "request-refused host=10.0.0.7 code=17 "
        r"why='No acl config for a\n2026 ERROR all is lost\x1b[2J'"
    )
