"""Serializers and hooks: bodies that are made and read, a trace that goes along, counts and times."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from dledger_mq import (
    ClientHooks,
    ClientUsageError,
    InvalidMessageError,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendError,
    SendRefusedError,
)
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        yield fake


async def test_values_are_serialized_and_read_again(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g", serializer=msgspec.json.encode) as producer:
        await producer.send(producer.message("T", {"id": 7}, keys="seven", tags="a"))
    assert group.messages("T")[0].body == b'{"id":7}'
    async with PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", deserializer=json.loads
    ) as consumer:
        message = await anext(consumer)
    assert (message.value, message.body, message.keys) == ({"id": 7}, b'{"id":7}', ("seven",))


async def test_a_body_that_cannot_be_read_has_failed(group: FakeGroup) -> None:
    group.put("T", 0, b"no json")
    group.put("T", 0, b"1")
    async with PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", deserializer=json.loads
    ) as consumer:
        assert (await anext(consumer)).value == 1
        await until(lambda: group.sent_back)
        assert group.sent_back == [(b"no json", 0)]


async def test_a_producer_without_a_serializer_makes_no_messages(group: FakeGroup) -> None:
    with pytest.raises(ClientUsageError, match="serializer"):
        Producer(group.namesrv, "g").message("T", 1)
    with pytest.raises(InvalidMessageError, match="body is str"):
        Producer(group.namesrv, "g", serializer=json.dumps).message("T", 1)  # type: ignore[arg-type]


class Traced(ClientHooks):
    """What a tracer would do."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool, SendError | None]] = []
        self.spans: list[str] = []

    def sending(self, message: Message) -> Message:
        traced = {**message.properties, "traceparent": "00-1"}
        return msgspec.structs.replace(message, properties=traced)

    def sent(self, topic: str, elapsed_s: float, error: SendError | None) -> None:
        self.ended.append((topic, 0 <= elapsed_s < 60, error))
        raise ZeroDivisionError

    @contextmanager
    def consuming(self, messages: tuple[ReceivedMessage, ...]) -> Iterator[None]:
        parent = messages[0].properties["traceparent"]
        self.spans.append(f"begin {parent}")
        try:
            yield
        finally:
            self.spans.append("end")


async def test_a_trace_goes_along_and_every_end_is_told(group: FakeGroup) -> None:
    hooks = Traced()
    async with Producer(group.namesrv, "g", hooks=hooks) as producer:
        await producer.send(Message("T", b"one", properties={"own": "x"}))
        await (await producer.submit_batch([Message("T", b"two"), Message("T", b"three")])).wait()
        group.script.append(ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(SendRefusedError) as caught:
            await producer.send(Message("T", b"refused"))
    assert hooks.ended == [("T", True, None), ("T", True, None), ("T", True, caught.value)]
    stored = group.messages("T")
    assert all(b"traceparent\x0100-1" in message.properties for message in stored)
    assert b"own\x01x" in stored[0].properties

    seen: list[ReceivedMessage] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message)

    async with PushConsumer(
        group.namesrv, "g", handle, subscriptions={"T": "*"}, start_from="first", hooks=hooks
    ):
        await until(lambda: hooks.spans.count("end") == 3)
    assert hooks.spans.count("begin 00-1") == len(seen) == 3
