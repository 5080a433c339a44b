"""`async for` over a consumer, and handlers without `async`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from dledger_mq import ClientUsageError, ConsumeResult, PushConsumer, ReceivedMessage
from dledger_mq.client.errors import ClientClosedError
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        for number in range(5):
            fake.put("T", 0, b"%d" % number)
        yield fake


def looped(group: FakeGroup, *, ordered: bool = False) -> PushConsumer:
    return PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", ordered=ordered
    )


def committed(group: FakeGroup) -> int | None:
    return group.offsets.get(("g", "T", 0))


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_loop_gets_every_message_and_leaving_it_finishes_the_last(
    group: FakeGroup, *, ordered: bool
) -> None:
    got: list[bytes] = []
    async with looped(group, ordered=ordered) as consumer:
        async for message in consumer:
            got.append(message.body)
            if len(got) == 5:
                break
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    assert committed(group) == 5


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_a_loop_fails_on_is_nobodys_failure_and_comes_again(
    group: FakeGroup, *, ordered: bool
) -> None:
    async def fail() -> None:
        async with looped(group, ordered=ordered) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert committed(group) == 2
    assert group.sent_back == []
    async with looped(group, ordered=ordered) as consumer:
        again = await anext(consumer)
    assert (again.body, again.reconsume_times) == (b"2", 0)


async def test_a_cancelled_loop_leaves_its_message_unfinished(group: FakeGroup) -> None:
    async def consume() -> None:
        async with looped(group) as consumer:
            async for message in consumer:
                if message.body == b"3":
                    scope.cancel()
                    await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await consume()
    assert committed(group) == 3


async def test_a_loop_in_another_task_ends_with_the_consumer(group: FakeGroup) -> None:
    got: list[bytes] = []

    async def consume() -> None:
        got.extend([message.body async for message in consumer])

    async with anyio.create_task_group() as tasks, looped(group) as consumer:
        tasks.start_soon(consume)
        await until(lambda: consumer.statistics().consumed == 5)
        with pytest.raises(ClientUsageError, match="two loops"):
            await anext(consumer)
    assert len(got) == 5
    with pytest.raises(ClientClosedError):
        await anext(consumer)


async def test_a_handler_without_async_runs_in_a_thread(group: FakeGroup) -> None:
    threads: set[str] = set()

    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        threads.add(threading.current_thread().name)
        return ConsumeResult.LATER if message.body == b"4" and not message.reconsume_times else None

    async def really(message: ReceivedMessage) -> None:
        handle(message)

    async with PushConsumer(
        group.namesrv, "g", handle, subscriptions={"T": "*"}, start_from="first"
    ) as consumer:
        await until(lambda: consumer.statistics().consumed == 5)
        assert len(group.sent_back) == 1
    assert threading.current_thread().name not in threads

    threads.clear()
    for handler in (partial(really), lambda message: really(message)):
        group.offsets.clear()
        async with PushConsumer(
            group.namesrv, "g", handler, subscriptions={"T": "*"}, start_from="first"
        ) as consumer:
            await until(lambda: consumer.statistics().consumed >= 5)
    assert threads == {threading.current_thread().name}


async def test_a_consumer_with_a_handler_is_not_looped_over(group: FakeGroup) -> None:
    async with PushConsumer(group.namesrv, "g", print, subscriptions={"T": "*"}) as consumer:
        with pytest.raises(ClientUsageError, match="handler"):
            await anext(consumer)
    with pytest.raises(ClientUsageError, match="not a function"):
        PushConsumer(group.namesrv, "g", "print", subscriptions={"T": "*"})  # type: ignore[arg-type]
    with pytest.raises(ClientUsageError, match="subscriptions is"):
        PushConsumer(group.namesrv, "g", subscriptions=["T"])  # type: ignore[arg-type]
