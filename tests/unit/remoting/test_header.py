"""Command headers, JSON and ROCKETMQ: round trips and hostile bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.remoting.errors import FieldError, FrameError
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import (
    EXT_ENTRIES_MAX,
    LANGUAGES,
    RemotingCommand,
    decode_command,
    encode_binary_command,
    encode_command,
    make_request,
    make_response,
)
from dledger_mq.remoting.requests import PullRequest, SendRequest, decode_request

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
commands = st.builds(
    RemotingCommand,
    code=int16,
    opaque=int32,
    flag=int32,
    language=st.sampled_from(LANGUAGES),
    version=int16,
    remark=st.none() | texts.filter(bool),
    ext=st.dictionaries(texts, texts, max_size=4),
    body=st.binary(max_size=20),
)


def only_frame(data: bytes) -> Frame:
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    return frame


def json_frame(header: object) -> Frame:
    return Frame(0, json.dumps(header).encode(), b"")


@given(commands)
def test_json_round_trip(command: RemotingCommand) -> None:
    data = encode_command(command)
    assert decode_command(only_frame(data)) == command
    header = json.loads(only_frame(data).header)
    assert list(header) == sorted(header)
    assert all(isinstance(value, str) for value in header["extFields"].values())


@given(commands)
def test_binary_round_trip(command: RemotingCommand) -> None:
    assert decode_command(only_frame(encode_binary_command(command))) == command


@given(commands)
def test_every_truncation_of_a_binary_header_is_refused(command: RemotingCommand) -> None:
    header = only_frame(encode_binary_command(command)).header
    for size in range(len(header)):
        with pytest.raises(FrameError):
            decode_command(Frame(1, header[:size], b""))


def read_or_refused(frame: Frame) -> bool:
    """Decode it; False for what is neither a request nor a refusal of ours. Other errors come out as they are."""
    try:
        request = decode_request(frame)
    except (FrameError, FieldError) as error:
        return bool(str(error))
    return isinstance(request, SendRequest | PullRequest | RemotingCommand)


@given(commands, st.data())
def test_flipped_bits_are_read_or_refused(command: RemotingCommand, data: st.DataObject) -> None:
    for kind, encoded in enumerate((encode_command(command), encode_binary_command(command))):
        header = bytearray(only_frame(encoded).header)
        bit = data.draw(st.integers(0, len(header) * 8 - 1))
        header[bit // 8] ^= 1 << bit % 8
        assert read_or_refused(Frame(kind, bytes(header), b""))


@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_any_header_is_read_or_refused(header: bytes, kind: int) -> None:
    assert read_or_refused(Frame(kind, header, b""))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"code":"x"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":99999999999}',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1} x',
        b'{"code":1,"x":' + b"[" * 100_000,
        b"[" * 100_000,
        b'{"code":310,"opaque":1,"x":' + b'{"a":' * 100_000,
        json.dumps(
            {"code": 1, "extFields": dict.fromkeys(map(str, range(EXT_ENTRIES_MAX + 1)), "")}
        ).encode(),
    ],
    ids=range(16),
)
def test_hostile_json_headers_are_frame_errors(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode_request(Frame(0, header, b""))


def test_values_become_text() -> None:
    ext = {"a": 5, "b": True, "c": False, "d": "x", "e": None, "f": 1.5, "g": 2.0, "h": -(2**63)}
    command = decode_command(json_frame({"code": 1, "extFields": ext}))
    assert command.ext == {
        "a": "5",
        "b": "true",
        "c": "false",
        "d": "x",
        "f": "1.5",
        "g": "2",
        "h": "-9223372036854775808",
    }


def test_what_clients_leave_out() -> None:
    command = decode_command(Frame(0, b'{"code":105}\n  ', b""))
    assert (command.opaque, command.flag, command.version, command.language) == (0, 0, 0, "JAVA")
    assert command.ext == {}
    assert (
        decode_command(json_frame({"code": 1, "extFields": None, "language": 9})).language == "GO"
    )


def test_an_ext_object_is_always_written() -> None:
    assert b'"extFields":{}' in encode_command(make_response(1, 0))
    assert b"remark" not in encode_command(make_response(1, 0))


def test_requests_and_responses() -> None:
    response = make_response(7, 3, "no")
    assert (response.opaque, response.is_response, response.remark) == (7, True, "no")
    request = make_request(105, 8, {"topic": "T"}, is_oneway=True)
    assert (request.is_oneway, request.is_response, request.version) == (True, False, 409)


def test_text_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(FrameError):
        encode_command(make_response(1, 1, "\ud800"))
    with pytest.raises(FrameError):
        encode_binary_command(make_request(200_050, 1))


SEND = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "TAGS\x01null\x02",
}


def test_a_binary_send_is_typed_too() -> None:
    command = RemotingCommand(code=310, opaque=5, ext=SEND, body=b"x")
    request = decode_request(only_frame(encode_binary_command(command)))
    assert isinstance(request, SendRequest)
    assert (request.fields.topic, request.fields.born_timestamp_ms) == ("topic", 1_700_000_000_000)
    assert request.fields.max_reconsume_times is None


def test_a_topic_called_null_is_a_topic() -> None:
    request = decode_request(
        json_frame({"code": 310, "opaque": 1, "extFields": {**SEND, "b": "null", "i": "null"}})
    )
    assert isinstance(request, SendRequest)
    assert (request.fields.topic, request.fields.properties) == ("null", "null")


@pytest.mark.parametrize("key", list("abefgh"))
def test_a_missing_field_of_a_send_is_named(key: str) -> None:
    ext = {name: value for name, value in SEND.items() if name != key}
    with pytest.raises(FieldError, match=f"the field {key} is missing") as caught:
        decode_request(json_frame({"code": 310, "opaque": 77, "extFields": ext}))
    assert caught.value.opaque == 77


@pytest.mark.parametrize(
    ("key", "value"),
    [("e", "x"), ("e", 2**31), ("g", 2**63), ("m", "maybe"), ("e", "1_0"), ("d", "٣")],
)
def test_an_impossible_field_of_a_send_is_named(key: str, value: object) -> None:
    with pytest.raises(FieldError, match=f"the field {key} "):
        decode_request(json_frame({"code": 320, "opaque": 1, "extFields": {**SEND, key: value}}))


@pytest.mark.parametrize(("code", "opaque"), [(11, 3), (361, 4)])
def test_pulls_of_both_codes(code: int, opaque: int) -> None:
    ext = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": 1,
        "queueOffset": "5",
        "maxMsgNums": 32,
        "sysFlag": 7,
        "commitOffset": "-1",
        "suspendTimeoutMillis": 15_000,
        "subVersion": str(2**62),
        "maxMsgBytes": "262144",
    }
    for header in (
        json_frame({"code": code, "opaque": opaque, "extFields": ext}),
        only_frame(
            encode_binary_command(
                RemotingCommand(code=code, opaque=opaque, ext={k: str(v) for k, v in ext.items()})
            )
        ),
    ):
        request = decode_request(header)
        assert isinstance(request, PullRequest)
        assert (request.code, request.opaque) == (code, opaque)
        assert request.fields.commit_offset == -1
        assert request.fields.sub_version == 2**62
        assert request.fields.max_msg_bytes == 262_144
        assert request.fields.subscription is None
    with pytest.raises(FieldError, match="queueOffset"):
        decode_request(
            json_frame({"code": code, "opaque": 1, "extFields": {**ext, "queueOffset": None}})
        )
