"""`start` and `stop`: what `async with` does, in two calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from dledger_mq import (
    BySql,
    ClientClosedError,
    ClientUsageError,
    Message,
    Producer,
    PushConsumer,
)
from dledger_mq.client.lifetime import Lifetime
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


async def test_a_client_is_entered_once_at_a_time(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")
    async with producer:
        with pytest.raises(ClientUsageError, match="open already"):
            await producer.__aenter__()
        with pytest.raises(ClientUsageError, match="open already"):
            await producer.start()
        await producer.send(Message("T", b"x"))
    with pytest.raises(ClientUsageError, match="not open"):
        await producer.__aexit__(None, None, None)
    async with producer:
        await producer.send(Message("T", b"y"))
    assert len(group.messages("T")) == 2


async def test_a_client_is_refused_while_it_opens(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")
    refused: list[str] = []
    both = anyio.Event()

    async def enter() -> None:
        try:
            async with producer:
                await both.wait()
        except ClientUsageError as error:
            refused.append(str(error))
            both.set()

    async with anyio.create_task_group() as nursery:
        nursery.start_soon(enter)
        nursery.start_soon(enter)
    assert refused == ["it is open already"]


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
@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
async def test_a_start_that_is_cancelled_leaves_nothing_open(group: FakeGroup, turns: int) -> None:
    """Opening asks the brokers about the filter, so that there is something to be cancelled in."""
    group.create_topic("T")
    consumer = PushConsumer(
        group.namesrv, "g", print, subscriptions={"T": BySql("a > 1")}, start_from="first"
    )
    starting = asyncio.create_task(consumer.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with anyio.fail_after(30):
        with pytest.raises(asyncio.CancelledError):
            await starting
        with pytest.raises(ClientClosedError):
            await consumer.commit()
        await consumer.stop()
        await consumer.start()
        await consumer.stop()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_stops_is_not_cancelled_with_who_starts() -> None:
    class Slow(Lifetime):
        @asynccontextmanager
        async def _run(self) -> AsyncIterator[None]:
            await anyio.sleep_forever()
            yield

    client = Slow()
    starting = asyncio.create_task(client.start())
    await anyio.wait_all_tasks_blocked()
    stopping = asyncio.create_task(client.stop())
    await anyio.wait_all_tasks_blocked()
    starting.cancel()
    with anyio.fail_after(30):
        with pytest.raises(asyncio.CancelledError):
            await starting
        await stopping
    assert not stopping.cancelled()


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
