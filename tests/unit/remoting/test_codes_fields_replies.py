"""The registries of codes, single fields, and the answers that are made from templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import (
    REQUESTS,
    RESPONSES,
    RequestCode,
    ResponseCode,
    unsupported_remark,
)
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.replies import SendReplies, pull_reply_head
from tests.stages import stage


def read(data: bytes) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    assert decoder.pending_bytes == 0
    return decode_command(frame)


def test_every_code_has_its_row() -> None:
    assert set(REQUESTS) == set(RequestCode)
    assert set(RESPONSES) == set(ResponseCode)


def test_go_can_read_every_code_that_is_sent_to_it() -> None:
    """Go reads a header's code as int16: all answers fit, and so do requests, but pop's.

    Those five go from clients to brokers only, and RocketMQ itself numbers them so.
    """
    beyond_int16 = {code for code in RequestCode if not -(2**15) <= code < 2**15}
    assert beyond_int16 == {200050, 200051, 200053, 200054, 200151}
    assert all(-(2**15) <= code < 2**15 for code in ResponseCode)


def test_what_a_sender_may_conclude() -> None:
    assert not RESPONSES[ResponseCode.FLUSH_SLAVE_TIMEOUT].definite
    assert not RESPONSES[ResponseCode.SYSTEM_ERROR].definite
    javas = {17, 14, 1, 16, 204, 205, 2, 1500}  # what Java clients send again
    assert all(RESPONSES[ResponseCode(code)].retriable for code in javas)
    assert unsupported_remark(9) == " request type 9 not supported"


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | st.text(st.characters(codec="utf-8")),
)
def test_send_replies(opaque: int, queue_id: int, offset: int, transaction_id: str | None) -> None:
    data = SendReplies('region %d "x"', trace_on=False).encode(
        opaque,
        msg_id=b"7F00",
        queue_id=queue_id,
        queue_offset=offset,
        transaction_id=transaction_id,
    )
    command = read(data)
    expected = {
        "MSG_REGION": 'region %d "x"',
        "TRACE_ON": "false",
        "msgId": "7F00",
        "queueId": str(queue_id),
        "queueOffset": str(offset),
    }
    if transaction_id is not None:
        expected["transactionId"] = transaction_id
    assert (command.code, command.opaque, command.is_response) == (0, opaque, True)
    assert command.ext == expected
    assert (command.version, command.language, command.body) == (409, "JAVA", b"")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1) | st.just(-1),
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**63 - 1),
        )
    )
)
def test_plain_replies_are_those_that_are_encoded_one_by_one(
    answers: list[tuple[int, int, int, int]],
) -> None:
    replies = SendReplies('region %d "x", "msgId":"%b"')
    records = [
        ((b"T", queue_id), queue_offset, offset, 100, 0, False, None)
        for _, offset, queue_id, queue_offset in answers
    ]
    joined = replies.join_plain(b"7F00", records, [opaque for opaque, *_ in answers])
    with stage(is_compiled=False):
        assert replies.join_plain(b"7F00", records, [opaque for opaque, *_ in answers]) == joined
    assert joined == b"".join(
        replies.encode(
            opaque,
            msg_id=b"7F00%016X" % offset,
            queue_id=queue_id,
            queue_offset=queue_offset,
        )
        for opaque, offset, queue_id, queue_offset in answers
    )


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_pull_replies_have_all_four_offsets(code: int) -> None:
    head = pull_reply_head(
        9, code, next_begin_offset=5, min_offset=1, max_offset=2**62, body_bytes=4
    )
    command = read(head + b"body")
    assert (command.code, command.opaque, command.body) == (code, 9, b"body")
    assert command.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "1",
        "maxOffset": str(2**62),
    }
    assert command.remark


def test_fields() -> None:
    ext = {
        "n": "-5",
        "big": str(2**63 - 1),
        "yes": "TRUE",
        "one": "1",
        "no": "0",
        "empty": "",
        "t": "x",
    }
    assert fields.int32(ext, "n") == -5
    assert fields.int64(ext, "big") == 2**63 - 1
    assert fields.int32(ext, "empty", 7) == fields.int32(ext, "absent", 7) == 7
    assert fields.int64(ext, "absent", None) is None
    assert fields.boolean(ext, "yes") is fields.boolean(ext, "one") is True
    assert fields.boolean(ext, "no") is False
    assert fields.boolean(ext, "absent", default=True) is True
    assert fields.text(ext, "empty") == ""
    assert fields.optional_text(ext, "empty") is None


@pytest.mark.parametrize(
    "value", ["x", "1.0", "--1", "-", "1 ", "1_0", "0x1", "9" * 30, str(2**31), "²"]
)
def test_what_is_no_number(value: str) -> None:
    with pytest.raises(FieldError, match="the field n"):
        fields.int32({"n": value}, "n")


def test_missing_fields_are_named() -> None:
    for reader in (fields.text, fields.int32, fields.int64, fields.boolean):
        with pytest.raises(FieldError, match="the field n is missing"):
            reader({}, "n")
    with pytest.raises(FieldError, match="not true or false"):
        fields.boolean({"n": "maybe"}, "n")
