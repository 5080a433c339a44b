"""Every recorded frame of a real client is read as its index says."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

from dledger_mq.message.batch import split_batch
from dledger_mq.message.properties import decode_properties
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.group_bodies import decode_lock_request
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    Heartbeat,
    MessageModel,
    decode_heartbeat,
)
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.requests import PullRequest, SendRequest, decode_request, send_request_of

FRAMES = Path(__file__).resolve().parents[2] / "golden" / "frames"


class Recorded(NamedTuple):
    """One frame and its description."""

    name: str
    data: bytes
    header: dict[str, object]
    body: str | None


def recorded_frames() -> list[Recorded]:
    """All frames in the order of the index."""
    index = (FRAMES / "INDEX.md").read_text()
    frames = []
    for section in index.split("\n## ")[1:]:
        name = section.split("\n", 1)[0].strip()
        header = re.search(r"```json\n(.*?)\n```", section, re.DOTALL)
        body = re.search(r"Body:\n\n```\n(.*?)\n```", section, re.DOTALL)
        assert header is not None
        frames.append(
            Recorded(
                name,
                (FRAMES / name).read_bytes(),
                json.loads(header.group(1)),
                None if body is None else body.group(1),
            )
        )
    return frames


def frame_bytes(name: str) -> bytes:
    """The bytes of one recorded frame."""
    return (FRAMES / f"{name}.bin").read_bytes()


RECORDED = recorded_frames()


def only_frame(data: bytes) -> Frame:
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    assert decoder.pending_bytes == 0
    return frame


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_all_frames_are_in_the_index() -> None:
    assert len(RECORDED) == 52


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_the_header_is_what_the_index_says(recorded: Recorded) -> None:
    command = decode_command(only_frame(recorded.data))
    header = recorded.header
    assert (command.code, command.opaque, command.flag) == (
        header["code"],
        header["opaque"],
        header["flag"],
    )
    assert (command.language, command.version) == (header["language"], header["version"])
    ext = header["extFields"]
    assert isinstance(ext, dict)
    assert command.ext == {name: as_text(value) for name, value in ext.items()}
    if recorded.body is not None:
        assert command.body.decode().rstrip("\n") == recorded.body


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_a_recorded_command_is_read_as_it_was_written(recorded: Recorded) -> None:
    command = decode_command(only_frame(recorded.data))
    assert decode_command(only_frame(encode_command(command))) == command


@pytest.mark.parametrize(
    "recorded",
    [item for item in RECORDED if item.header["code"] in (10, 11, 310)],
    ids=lambda recorded: recorded.name,
)
def test_the_typed_pass_agrees_with_the_general_one(recorded: Recorded) -> None:
    frame = only_frame(recorded.data)
    request = decode_request(frame)
    assert isinstance(request, SendRequest | PullRequest)
    command = decode_command(frame)
    assert (request.code, request.opaque, request.version) == (
        command.code,
        command.opaque,
        command.version,
    )
    if isinstance(request, SendRequest):
        general = send_request_of(command).fields
        for name in general.__struct_fields__:
            assert getattr(request.fields, name) == getattr(general, name), name
    else:
        assert as_text(request.fields.queue_offset) == command.ext["queueOffset"]
        assert request.fields.subscription == command.ext["subscription"]


def test_a_batch_of_the_cpp_client() -> None:
    """The flag is "1", and it is the flag that says batch, not the code."""
    frame = only_frame(frame_bytes("cpp-send-batch"))
    request = decode_request(frame)
    assert isinstance(request, SendRequest)
    assert (request.code, request.fields.is_batch) == (10, True)
    items = split_batch(frame.body)
    assert [item.body for item in items] == [b"cpp-0", b"cpp-1", b"cpp-2"]
    assert all("UNIQ_KEY" in decode_properties(item.properties) for item in items)


def test_a_false_flag_of_the_cpp_client_is_the_text_0() -> None:
    request = decode_request(only_frame(frame_bytes("cpp-send-message")))
    assert isinstance(request, SendRequest)
    assert request.fields.is_batch is False
    assert request.fields.unit_mode is False


@pytest.mark.parametrize("name", ["cpp-send-message-compressed", "node-send-message-v2-compressed"])
def test_compressed_bodies_are_left_alone(name: str) -> None:
    frame = only_frame(frame_bytes(name))
    request = decode_request(frame)
    assert isinstance(request, SendRequest)
    assert request.fields.sys_flag == 1
    assert len(zlib.decompress(frame.body)) == 5000


def test_the_fallback_of_node_for_a_refused_retry() -> None:
    request = decode_request(only_frame(frame_bytes("node-send-message-v2-retry-fallback")))
    assert isinstance(request, SendRequest)
    assert (request.fields.reconsume_times, request.fields.max_reconsume_times) == (1, 17)
    assert request.fields.topic == "%RETRY%GroupFb"
    assert request.fields.properties is not None
    assert decode_properties(request.fields.properties.encode())["DELAY"] == "0"


def heartbeat_of(name: str) -> Heartbeat:
    return decode_heartbeat(only_frame(frame_bytes(name)).body)


def test_a_heartbeat_with_ordinals() -> None:
    heartbeat = heartbeat_of("cpp-heartbeat-consumer-tags")
    (consumer,) = heartbeat.consumers
    assert heartbeat.client_id == "17243-127.0.0.1@DEFAULT"
    assert heartbeat.producer_groups == ()
    assert consumer.group == "GroupTag"
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    retry, tags = consumer.subscriptions
    assert (retry.topic, retry.expression, retry.tags) == ("%RETRY%GroupTag", "*", ())
    assert (tags.topic, tags.expression, tags.tags) == (
        "TopicA",
        "TagA || TagB",
        ("TagA", "TagB"),
    )
    assert (tags.version, tags.expression_type) == (1_795_183_094_818, "TAG")


def test_a_heartbeat_with_names() -> None:
    (consumer,) = heartbeat_of("node-heartbeat-consumer-sql").consumers
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.subscriptions[0].expression == "color = 'blue'"
    assert consumer.subscriptions[0].expression_type == "SQL92"


@pytest.mark.parametrize(
    ("name", "model", "kind", "count"),
    [
        ("cpp-heartbeat-consumer-broadcast", MessageModel.BROADCASTING, 1, 1),
        ("cpp-heartbeat-pullconsumer", MessageModel.CLUSTERING, 0, 0),
        ("node-heartbeat-consumer-retry", MessageModel.CLUSTERING, 1, 2),
    ],
)
def test_other_heartbeats(name: str, model: MessageModel, kind: int, count: int) -> None:
    (consumer,) = heartbeat_of(name).consumers
    assert (consumer.message_model, consumer.consume_type) == (model, kind)
    assert len(consumer.subscriptions) == count


def test_producers_heartbeats() -> None:
    assert heartbeat_of("cpp-heartbeat-producer").producer_groups == ("interop_cpp_producer",)
    assert heartbeat_of("node-heartbeat-producer").producer_groups == ("interop_node_producer",)


def test_locks() -> None:
    lock = decode_lock_request(only_frame(frame_bytes("cpp-lock-batch-mq")).body)
    assert lock.consumer_group == "GroupOrd"
    assert lock.mq_set == (WireQueue("broker-a", 0, "TopicA"),)
    unlock = decode_lock_request(only_frame(frame_bytes("cpp-unlock-batch-mq")).body)
    assert [queue.queue_id for queue in unlock.mq_set] == [1, 2, 3]


def test_running_info_has_objects_as_keys_and_is_no_json() -> None:
    command = decode_command(only_frame(frame_bytes("cpp-response-consumer-running-info")))
    assert command.is_response
    with pytest.raises(json.JSONDecodeError):
        json.loads(command.body)
    table = read_object(command.body)["mqTable"]
    assert isinstance(table, dict)
    assert set(table) == {WireQueue("broker-a", number, "TopicA") for number in range(4)}


def test_a_response_is_never_taken_for_a_send() -> None:
    """Codes 10 and 11 are statuses as well."""
    request = decode_command(only_frame(frame_bytes("cpp-send-message")))
    command = RemotingCommand(code=10, opaque=1, flag=1, ext=request.ext)
    assert isinstance(decode_request(only_frame(encode_command(command))), RemotingCommand)
