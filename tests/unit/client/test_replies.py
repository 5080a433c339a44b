"""Requests and replies of the client against a group in memory, on both loops and without async."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from dledger_mq import (
    ClientError,
    ClientUsageError,
    InvalidMessageError,
    Message,
    NoReplyError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestFailedError,
    SendRefusedError,
    blocking,
)
from dledger_mq.client.replies import OpenQuestions
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.testing import LOST, FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


class Shop:
    """Replies to every message with its body in capitals, after what a test wants."""

    def __init__(self, group: FakeGroup) -> None:
        self.failures: list[Exception] = []
        self.count = 1
        self.consumer = PushConsumer(
            group.namesrv,
            "shop",
            self.handle,
            subscriptions={"Orders": "*"},
            start_from="first",
        )

    async def handle(self, message: ReceivedMessage) -> None:
        for _ in range(self.count):
            try:
                await self.consumer.reply(message, message.body.upper())
            except (ClientUsageError, RequestFailedError) as error:
                self.failures.append(error)


async def test_a_request_returns_the_reply_of_whoever_consumes_it() -> None:
    async with open_fake_group() as group, Producer(group.namesrv, "p") as producer:
        shop = Shop(group)
        shop.count = 2  # the second one is dropped
        async with shop.consumer:
            reply = await producer.request(Message("Orders", b"one", keys="k"), timeout_s=60)
            assert (reply.body, reply.topic) == (b"ONE", "DefaultCluster_REPLY_TOPIC")
            assert reply.properties["MSG_TYPE"] == "reply"
            long = b"a long text of which half is saved " * 1000  # it travels compressed
            assert (await producer.request(Message("Orders", long), timeout_s=60)).body == (
                long.upper()
            )
            several: list[bytes] = []

            async def ask(number: int) -> None:
                message = Message("Orders", b"order %d" % number)
                several.append((await producer.request(message, timeout_s=60)).body)

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, number)
            assert sorted(several) == sorted(b"ORDER %d" % number for number in range(20))
            assert not shop.failures


async def test_the_reply_counts_though_the_answer_to_the_send_was_lost() -> None:
    async with (
        open_fake_group() as group,
        Producer(group.namesrv, "p") as producer,
        Shop(group).consumer,
    ):
        group.script.append(LOST)
        assert (await producer.request(Message("Orders", b"x"), timeout_s=60)).body == b"X"


async def test_without_a_reply_the_request_ends_with_what_is_known() -> None:
    async with open_fake_group() as group, Producer(group.namesrv, "p") as producer:
        for timeout_s in (0.2, 5.0, 30.0):  # in which it has to be stored
            with pytest.raises(ClientError) as raised:
                await producer.request(Message("Orders", b"x"), timeout_s=timeout_s)
            if "which is stored" in str(raised.value):
                break
        assert isinstance(raised.value, NoReplyError)
        assert "which is stored" in str(raised.value)
        stored = group.messages("Orders")
        assert raised.value.unique_key.encode() in stored[-1].properties
        assert not raised.value.definite
        group.script.append(13)
        with pytest.raises(SendRefusedError):
            await producer.request(Message("Orders", b"x"), timeout_s=60)
        with pytest.raises(InvalidMessageError, match="CORRELATION_ID"):
            await producer.request(Message("Orders", b"x", properties={"CORRELATION_ID": "mine"}))


async def test_who_cannot_reply_hears_why() -> None:
    async with open_fake_group() as group:
        shop = Shop(group)
        async with shop.consumer:
            async with Producer(group.namesrv, "p") as producer:
                await producer.send(Message("Orders", b"asks for nothing"))
                await until(lambda: shop.failures)
            assert isinstance(shop.failures[0], ClientUsageError)
            assert "asks for no reply" in str(shop.failures[0])
            gone = (
                b"CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01gone\x02CLUSTER\x01DefaultCluster\x02"
            )
            group.put("Orders", 0, b"late", gone)
            await until(lambda: len(shop.failures) == 2)
            assert isinstance(shop.failures[1], RequestFailedError)
            assert "gone is not here" in str(shop.failures[1])
            with pytest.raises(ClientUsageError):
                await shop.consumer.reply("no message", b"x")  # type: ignore[arg-type]


async def test_blocking_a_request_and_the_reply_of_a_handler_in_a_thread() -> None:
    async with open_fake_group() as group:
        done: list[bytes] = []

        def run() -> None:
            def handle(message: ReceivedMessage) -> None:
                consumer.reply(message, message.body[::-1])

            consumer = blocking.PushConsumer(
                group.namesrv,
                "shop",
                handle,
                subscriptions={"Orders": "*"},
                start_from="first",
            )
            with consumer, blocking.Producer(group.namesrv, "p") as producer:
                done.append(producer.request(Message("Orders", b"abc"), timeout_s=60).body)

        await anyio.to_thread.run_sync(run)
        assert done == [b"cba"]


def test_what_a_broker_pushes_is_read_with_care() -> None:
    questions = OpenQuestions()
    question = questions.ask(Message("Orders", b"x"), "me", 1.0)
    broken = RemotingCommand(code=326, opaque=7, ext={"sysFlag": "many"})
    assert questions.taken(broken).code == 1
    stranger = RemotingCommand(code=326, opaque=8, ext={"properties": "CORRELATION_ID\x01no\x02"})
    assert (questions.taken(stranger).code, questions.taken(stranger).opaque) == (0, 8)
    assert question.reply is None
    asked = question.message.properties
    assert asked == {
        "CORRELATION_ID": question.correlation_id,
        "REPLY_TO_CLIENT": "me",
        "TTL": "1000",
    }
    questions.forget(question)
    right = RemotingCommand(
        code=326, opaque=9, ext={"properties": f"CORRELATION_ID\x01{question.correlation_id}\x02"}
    )
    assert questions.taken(right).code == 0
    assert question.reply is None
