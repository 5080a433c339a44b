"""`async for` over a consumer, and handlers without `async`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import ClientHooks, ClientUsageError, ConsumeResult, PushConsumer, ReceivedMessage
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


def looped(
    group: FakeGroup, *, ordered: bool = False, hooks: ClientHooks | None = None
) -> PushConsumer:
    """Return a consumer; with hooks, or in order, its messages take the way through a handler."""
    return PushConsumer(
        group.namesrv,
        "g",
        subscriptions={"T": "*"},
        start_from="first",
        ordered=ordered,
        hooks=hooks,
    )


@pytest.fixture(params=["bare", "hooks", "ordered"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of a loop that takes messages by itself, and of those that get them from a handler."""
    ways: dict[str, dict[str, Any]] = {
        "bare": {},
        "hooks": {"hooks": ClientHooks()},
        "ordered": {"ordered": True},
    }
    return ways[request.param]


def committed(group: FakeGroup) -> int | None:
    return group.offsets.get(("g", "T", 0))


async def test_a_loop_gets_every_message_and_leaving_it_finishes_the_last(
    group: FakeGroup, way: dict[str, Any]
) -> None:
    got: list[bytes] = []
    async with looped(group, **way) as consumer:
        async for message in consumer:
            got.append(message.body)
            if len(got) == 5:
                break
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    assert committed(group) == 5


async def test_what_a_loop_fails_on_is_nobodys_failure_and_comes_again(
    group: FakeGroup, way: dict[str, Any]
) -> None:
    async def fail() -> None:
        async with looped(group, **way) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert committed(group) == 2
    assert group.sent_back == []
    async with looped(group, **way) as consumer:
        again = await anext(consumer)
    assert (again.body, again.reconsume_times) == (b"2", 0)


async def test_a_cancelled_loop_leaves_its_message_unfinished(
    group: FakeGroup, way: dict[str, Any]
) -> None:
    async def consume() -> None:
        async with looped(group, **way) as consumer:
            async for message in consumer:
                if message.body == b"3":
                    scope.cancel()
                    await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await consume()
    assert committed(group) == 3


async def test_what_a_loop_has_consumed_so_far_is_counted_and_committed(
    group: FakeGroup, way: dict[str, Any]
) -> None:
    async with looped(group, **way) as consumer:
        for _ in range(4):
            message = await anext(consumer)
        await until(lambda: consumer.statistics().consumed == 3)
        await consumer.commit()
        assert (message.body, committed(group)) == (b"3", 3)
        assert consumer.statistics().unfinished == 2
    assert (committed(group), group.sent_back) == (4, [])


async def test_what_a_loop_has_for_too_long_is_given_back(group: FakeGroup) -> None:
    async with PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", consume_timeout_s=0.02
    ) as consumer:
        message = await anext(consumer)
        await until(lambda: group.sent_back)
        assert (group.sent_back[0][0], committed(group)) == (message.body, None)
        assert (await anext(consumer)).body == b"1"


async def test_a_loop_that_waits_for_nothing_lets_others_run(group: FakeGroup) -> None:
    for number in range(5, 3000):
        group.put("T", 0, b"%d" % number)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with looped(group) as consumer, anyio.create_task_group() as tasks:
        got = [await anext(consumer)]
        tasks.start_soon(count)
        async for message in consumer:
            got.append(message)
            if len(got) == 3000:
                break
        tasks.cancel_scope.cancel()
    assert [one.queue_offset for one in got] == list(range(3000))
    assert turns > 5


async def test_a_loop_in_another_task_ends_with_the_consumer(
    group: FakeGroup, way: dict[str, Any]
) -> None:
    got: list[bytes] = []

    async def consume() -> None:
        got.extend([message.body async for message in consumer])

    async with anyio.create_task_group() as tasks, looped(group, **way) as consumer:
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


async def test_a_loop_gets_messages_one_by_one_whatever_the_size_of_batches(
    group: FakeGroup,
) -> None:
    async with PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", consume_batch_max=3
    ) as consumer:
        got = [(await anext(consumer)).body for _ in range(5)]
    assert (got, committed(group), group.sent_back) == ([b"0", b"1", b"2", b"3", b"4"], 5, [])
