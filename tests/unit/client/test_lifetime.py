"""`start` and `stop`: what `async with` does, in two calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger_mq import ClientClosedError, ClientUsageError, Message, Producer, PushConsumer
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group() as fake:
        yield fake


async def test_a_client_is_started_and_stopped_and_started_again(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")
    await producer.stop()
    for count in (1, 2):
        assert await producer.start() is producer
        pending = await producer.submit(Message("T", b"x"))
        with pytest.raises(ClientUsageError, match="already"):
            await producer.start()
        await producer.stop()
        assert pending.is_done, "stopping waits for what is under way"
        assert len(group.messages("T")) == count
    with pytest.raises(ClientClosedError):
        await producer.send(Message("T", b"x"))


async def test_what_opening_raises_comes_out_of_start(group: FakeGroup, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    consumer = PushConsumer(
        group.namesrv,
        "g",
        print,
        subscriptions={"T": "*"},
        broadcast=True,
        offsets_folder=tmp_path / "file",
    )
    with pytest.raises(NotADirectoryError):
        await consumer.start()
    await consumer.stop()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_on_asyncio_another_task_may_stop_it(group: FakeGroup) -> None:
    group.put("T", 0, b"x")
    got: list[bytes] = []
    consumer = PushConsumer(
        group.namesrv,
        "g",
        lambda message: got.append(message.body),
        subscriptions={"T": "*"},
        start_from="first",
    )
    await asyncio.create_task(consumer.start())
    await until(lambda: got and consumer.statistics().consumed)
    await asyncio.create_task(consumer.stop())
    assert group.offsets[("g", "T", 0)] == 1
