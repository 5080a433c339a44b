"""Handlers without `async`: a consumer can be left although one never returns, and what returns in time counts."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
import anyio.to_thread
import pytest
import trio

import dledger_mq.blocking
from dledger_mq import ClientUsageError, PushConsumer, ReceivedMessage
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until

both_loops = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        fake.put("T", 0, b"stuck", b"UNIQ_KEY\x01KEY7\x02")
        yield fake


class Stuck:
    """A handler that does not return before it is told to."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.ended = threading.Event()

    def __call__(self, message: ReceivedMessage) -> None:
        self.began.set()
        assert self.may_end.wait(60)
        self.ended.set()


@pytest.fixture
def handler() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.may_end.set()


def consumer(group: FakeGroup, handler: Stuck, **settings: object) -> PushConsumer:
    wanted = {"start_from": "first", "close_timeout_s": 0.05} | settings
    return PushConsumer(group.namesrv, "g", handler, subscriptions={"T": "*"}, **wanted)  # type: ignore[arg-type]  # by name


def offset(group: FakeGroup) -> int:
    return group.offsets.get(("g", "T", 0), 0)


@both_loops
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_consumer_is_left_although_its_handler_never_returns(
    group: FakeGroup, handler: Stuck, caplog: pytest.LogCaptureFixture, *, is_cancelled: bool
) -> None:
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with consumer(group, handler):
            await until(handler.began.is_set)
            if is_cancelled:
                scope.cancel()
                await anyio.sleep_forever()
    assert not handler.ended.is_set()
    assert offset(group) == 0, "what is not consumed is not committed"
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "Stuck object" in line
    assert "KEY7" in line
    handler.may_end.set()
    again = Stuck()
    again.may_end.set()
    async with consumer(group, again, close_timeout_s=60):
        await until(again.ended.is_set)
    assert offset(group) == 1


@both_loops
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_returns_while_the_consumer_is_left_counts(
    group: FakeGroup, handler: Stuck, *, is_cancelled: bool
) -> None:
    timer = threading.Timer(0.05, handler.may_end.set)
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with consumer(group, handler, close_timeout_s=60):
            await until(handler.began.is_set)
            timer.start()
            if is_cancelled:
                scope.cancel()
                await anyio.sleep_forever()
    assert offset(group) == 1


@both_loops
async def test_a_queue_that_a_thread_still_works_on_stays_locked(
    group: FakeGroup, handler: Stuck
) -> None:
    with anyio.fail_after(30):
        async with consumer(group, handler, ordered=True):
            await until(handler.began.is_set)
    assert [topic for _, topic, _ in group.locks] == ["T"]


@both_loops
async def test_what_waits_for_a_thread_is_left_to_the_next_owner(
    handler: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_fake_group(queues=2) as group:
        group.create_topic("T")
        for queue_id in range(2):
            group.put("T", queue_id, b"x")
        with anyio.fail_after(30):
            async with consumer(group, handler, ordered=True, concurrency=1) as one:
                await until(
                    lambda: len(one.statistics().next_offsets) == 3
                )  # the retry topic's too
                await until(lambda: sum(one.statistics().next_offsets.values()) == 2)
                await until(handler.began.is_set)
        assert len(group.locks) == 1, "nobody works on the other queue"
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1


async def test_a_blocking_consumer_is_closed_although_its_handler_never_returns(
    group: FakeGroup, handler: Stuck
) -> None:
    def work() -> None:
        with dledger_mq.blocking.PushConsumer(
            group.namesrv,
            "g",
            handler,
            subscriptions={"T": "*"},
            start_from="first",
            close_timeout_s=0.05,
        ):
            assert handler.began.wait(30)

    with trio.fail_after(30):
        await trio.to_thread.run_sync(work)
    assert offset(group) == 0


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(ClientUsageError, match="close_timeout_s"):
        PushConsumer("127.0.0.1:1", "g", print, subscriptions={"T": "*"}, close_timeout_s=-1)
