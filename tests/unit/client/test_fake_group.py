"""The group in memory keeps time by itself: delays, due times, recalls, open transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio.lowlevel
import pytest

from dledger_mq import Message, Producer, ReceivedMessage, TransactionProducer, TransactionState
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        yield fake


def bodies(group: FakeGroup) -> list[bytes]:
    return [message.body for message in group.messages("T")]


async def test_what_is_due_comes_by_itself(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"soon", delay_ms=50))
        assert bodies(group) == []
        await until(lambda: bodies(group) == [b"soon"])


async def test_time_is_moved_on_and_all_that_is_due_is_there(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"an hour", delay_ms=3_600_000))
        await producer.send(Message("T", b"ten seconds", delay_level=3))
        recalled = await producer.send(Message("T", b"recalled", delay_ms=20_000))
        at_ms = group.clock.now_ms + 40_000
        await producer.send(Message("T", b"forty seconds", deliver_at_ms=at_ms))
        assert recalled.recall_handle is not None
        group.advance(9)
        assert bodies(group) == []
        group.advance(2)
        assert bodies(group) == [b"ten seconds"]
        assert await producer.recall(recalled.recall_handle)
        group.advance(3600)
        assert bodies(group) == [b"ten seconds", b"forty seconds", b"an hour"]
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
            await until(lambda times=times: len(asked) == times)  # type: ignore[misc]
        await until(lambda: bodies(group) == [b"x"])
        group.advance(7)
        await anyio.lowlevel.checkpoint()
    assert len(asked) == 2
