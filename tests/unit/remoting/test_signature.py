"""Signatures are those of RocketMQ's own class, byte for byte; the vectors were made by AclClientRPCHook of 4.9.8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.signature import (
    ACCESS_KEY,
    SIGNATURE,
    SigningKey,
    is_signed_with,
    sign,
    signed_content,
)

VECTORS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data/acl/java_client_signatures.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
KEY = SigningKey("12345678")


def command_of(vector: dict[str, Any]) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex(vector["frame"]))
    (frame,) = decoder.frames()
    return decode_command(frame)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_what_java_signed_is_recognised_and_made_alike(vector: dict[str, Any]) -> None:
    command = command_of(vector)
    assert is_signed_with(SigningKey(vector["secret_key"]), command.ext, command.body)
    unsigned = {key: value for key, value in command.ext.items() if key != SIGNATURE}
    made = sign(
        unsigned,
        command.body,
        access_key=vector["access_key"],
        key=SigningKey(vector["secret_key"]),
        security_token=unsigned.get("SecurityToken"),
    )
    assert made == command.ext
    assert made[SIGNATURE] == vector["signature"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_whatever_is_altered_is_not_recognised(vector: dict[str, Any]) -> None:
    command, secret = command_of(vector), vector["secret_key"]
    key = SigningKey(secret)
    altered = [
        (command.ext, command.body + b"!"),
        (command.ext | {SIGNATURE: ""}, command.body),
        (command.ext | {SIGNATURE: command.ext[SIGNATURE][:-1]}, command.body),
        (command.ext | {SIGNATURE: "\u00e4" * 28}, command.body),
        (command.ext | {"zz": "1"}, command.body),
        *((command.ext | {key: value + "1"}, command.body) for key, value in command.ext.items()),
    ]
    recognised = [ext for ext, body in altered if is_signed_with(key, ext, body)]
    assert recognised == []
    assert not is_signed_with(SigningKey(secret + "1"), command.ext, command.body)


@pytest.mark.parametrize("left_out", ["_UNIQUE_KEY_QUERY", "SecurityToken"])
def test_a_field_that_some_clients_do_not_sign_may_be_left_out(left_out: str) -> None:
    ext = {"topic": "T", ACCESS_KEY: "RocketMQ", left_out: "true"}
    for without, is_taken in ((left_out, True), ("topic", False)):
        content = signed_content(ext, without=(SIGNATURE, without))
        signature = KEY.signature(content, b"body").decode()
        assert is_signed_with(KEY, ext | {SIGNATURE: signature}, b"body") is is_taken


def _as_java_compares(name: str) -> list[int]:
    """The 16-bit units of a string, by which `String.compareTo` goes."""
    data = name.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXTS, TEXTS, max_size=8))
def test_fields_are_signed_in_javas_order(ext: dict[str, str]) -> None:
    names = sorted((name for name in ext if name != SIGNATURE), key=_as_java_compares)
    assert signed_content(ext) == "".join(ext[name] for name in names).encode()
