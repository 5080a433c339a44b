"""The group in memory keeps time by itself, and knows who lives: delays, due times, open transactions, members."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import Message, Producer, ReceivedMessage, TransactionProducer, TransactionState
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import encode_command, make_request
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
    encode_heartbeat,
)
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        yield fake


def bodies(group: FakeGroup) -> list[bytes]:
    return [message.body for message in group.messages("T")]


async def test_what_is_due_comes_by_itself(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        begun_ms = group.clock.now_ms
        await producer.send(Message("T", b"soon", delay_ms=50))
        await until(lambda: bodies(group) == [b"soon"])
        assert group.clock.now_ms - begun_ms >= 50


async def test_time_is_moved_on_and_all_that_is_due_is_there(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"two hours", delay_ms=7_200_000))
        await producer.send(Message("T", b"ten minutes", delay_level=14))
        recalled = await producer.send(Message("T", b"recalled", delay_ms=1_200_000))
        at_ms = group.clock.now_ms + 2_400_000
        await producer.send(Message("T", b"forty minutes", deliver_at_ms=at_ms))
        assert recalled.recall_handle is not None
        group.advance(540)
        assert bodies(group) == []
        group.advance(120)
        assert bodies(group) == [b"ten minutes"]
        assert await producer.recall(recalled.recall_handle)
        group.advance(7200)
        assert bodies(group) == [b"ten minutes", b"forty minutes", b"two hours"]
        assert not await producer.recall(recalled.recall_handle)


async def test_open_transactions_are_asked_about_again_and_again(group: FakeGroup) -> None:
    asked: list[bytes] = []

    async def local(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(message: ReceivedMessage) -> TransactionState | None:
        asked.append(message.body)
        return TransactionState.COMMIT if len(asked) == 2 else None

    async with TransactionProducer(group.namesrv, "g", checker=check) as producer:
        await producer.send_in_transaction(Message("T", b"x"), local)
        for times in (1, 2):
            await until(lambda: group.nodes[0].heartbeats)
            group.advance(7)
            await until(lambda times=times: len(asked) >= times)  # type: ignore[misc]
        await until(lambda: bodies(group) == [b"x"])
        group.advance(7)
        await anyio.lowlevel.checkpoint()
    assert len(asked) == 2


class Stranger:
    """A member of the consumer group `g` that takes its queues and reads nothing."""

    def __init__(self, client_id: str) -> None:
        entry = ConsumerEntry(
            "g",
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        )
        body = encode_heartbeat(Heartbeat(client_id, consumers=(entry,)))
        self._heartbeat = encode_command(make_request(RequestCode.HEART_BEAT, 1, {}, body))

    async def join(self, address: str) -> anyio.abc.SocketStream:
        """Send a heartbeat to a node; its answer has come when this returns."""
        host, _, port = address.rpartition(":")
        stream = await anyio.connect_tcp(host, int(port))
        await stream.send(self._heartbeat)
        await stream.receive()
        return stream


async def test_a_member_whose_connections_ended_is_none_and_its_queues_are_the_others(
    group: FakeGroup,
) -> None:
    group.create_topic("T")
    group.put("T", 0, b"for whoever is there")
    inbox, stranger = Inbox(), Stranger("0")  # the first by name gets the only queue
    first = await stranger.join(group.nodes[0].address)
    second = await stranger.join(group.nodes[1].address)
    async with consumer(group, inbox):
        await until(lambda: len(group._consumers.ids("g")) == 2)
        known = group._consumers.connection("0")
        await first.aclose()
        await until(lambda: group._consumers.connection("0") is not known)
        assert "0" in group._consumers.ids("g"), "it lives while it has another connection"
        assert inbox.bodies == []
        await second.aclose()
        await until(lambda: inbox.bodies)
        assert "0" not in group._consumers.ids("g")


async def test_a_member_that_left_its_group_or_lost_its_node_is_none(group: FakeGroup) -> None:
    leaves, stays = Stranger("leaves"), Stranger("stays")
    stream = await leaves.join(group.nodes[0].address)
    other = await stays.join(group.nodes[1].address)
    ext = {"clientID": "leaves", "consumerGroup": "g"}
    await stream.send(encode_command(make_request(RequestCode.UNREGISTER_CLIENT, 2, ext)))
    await until(lambda: group._consumers.ids("g") == ["stays"])
    assert len(group._consumers.connections("g")) == 1
    await group.kill(group.nodes[1])
    assert group._consumers.ids("g") == []
    await stream.aclose()
    await other.aclose()
