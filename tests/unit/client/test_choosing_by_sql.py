"""Subscriptions by SQL92 of our client: read here, told to brokers, asked about at the start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dledger_mq import BySql, ClientUsageError, PullConsumer, PushConsumer, RequestFailedError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.subscriptions import subscribe
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.heartbeat import decode_client_config, encode_client_config
from dledger_mq.testing import FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio

WANTED = BySql("n > 5")
OFF = "The broker does not support consumer to filter message by SQL92"


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        for n in range(10):
            fake.put("T", 0, b"%d" % n, b"n\x01%d\x02" % n)
        yield fake


def refuse(_group: FakeGroup, request: RemotingCommand) -> RemotingCommand:
    assert request.code == RequestCode.CHECK_CLIENT_CONFIG
    return make_response(request.opaque, 1, OFF)


@pytest.mark.parametrize(
    ("text", "said"), [("n >", "line 1, column 3"), ("", "line 1, column 1"), (5, "a text")]
)
def test_a_wrong_text_is_refused_where_it_is_made(text: str, said: str) -> None:
    with pytest.raises(ClientUsageError, match=said):
        BySql(text)


async def test_a_pull_gets_what_matches(group: FakeGroup) -> None:
    async with PullConsumer(group.namesrv, "g") as consumer:
        pulled = await consumer.pull(MessageQueue("T", "broker-a", 0), 0, expression=WANTED)
    assert [message.body for message in pulled.messages] == [b"6", b"7", b"8", b"9"]
    assert pulled.next_offset == 10


async def test_a_member_gets_what_matches_and_brokers_are_told(group: FakeGroup) -> None:
    got: list[bytes] = []
    all_came = anyio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)
        if len(got) == 4:
            all_came.set()

    subscriptions = {"T": WANTED}
    async with PushConsumer(
        group.namesrv, "g", handle, subscriptions=subscriptions, start_from="first"
    ):
        with anyio.fail_after(30):
            await all_came.wait()
    assert got == [b"6", b"7", b"8", b"9"]
    assert RequestCode.CHECK_CLIENT_CONFIG in group.requests


async def test_tags_are_not_asked_about(group: FakeGroup) -> None:
    async with PushConsumer(group.namesrv, "g", subscriptions={"T": "a"}) as consumer:
        await consumer.wait_assigned()
    assert RequestCode.CHECK_CLIENT_CONFIG not in group.requests


async def test_a_broker_that_refuses_fails_the_start(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGroup, "_administer", refuse)
    with pytest.raises(RequestFailedError, match=OFF):
        async with PushConsumer(group.namesrv, "g", subscriptions={"T": WANTED}):
            pytest.fail("it began")


async def test_and_a_later_subscription_which_then_stays_as_it_was(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGroup, "_administer", refuse)
    async with PushConsumer(group.namesrv, "g", subscriptions={"T": "a"}) as consumer:
        with pytest.raises(RequestFailedError, match=OFF):
            await consumer.subscribe("T", WANTED)
        assert consumer.subscriptions["T"].expression == "a"


def test_a_retry_topic_is_read_whole() -> None:
    found = subscribe("%RETRY%g", WANTED, 1)
    assert (found.expression, found.expression_type) == ("*", "TAG")


def test_what_is_asked_is_what_a_heartbeat_says() -> None:
    wanted = subscribe("T", WANTED, 7).reported()
    body = encode_client_config("c", "g", wanted)
    assert decode_client_config(body) == ("c", "g", wanted)
    assert (wanted.expression, wanted.expression_type, wanted.version) == ("n > 5", "SQL92", 7)
