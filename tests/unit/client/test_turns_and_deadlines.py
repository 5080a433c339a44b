"""What many waiters share: turns of the loop, an watch for deadlines, and the write of a turn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from unittest import mock

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from dledger_mq.client import lane
from dledger_mq.client.consumer_settings import ConsumerOptions
from dledger_mq.client.deadline_watch import DeadlineWatch
from dledger_mq.client.turns import TURN_S, TaskTurns
from dledger_mq.net.connection import Connection
from dledger_mq.net.loop import current_loop
from dledger_mq.testing import open_fake_group
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


async def test_a_turn_is_shared_once_it_has_lasted() -> None:
    now, ran = 5.0, list[str]()

    async def other() -> None:
        ran.append("other")

    turns = TaskTurns(lambda: now)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(5):
            await turns.share()
        assert ran == []
        for _ in range(5):  # trio does not say who of two goes on first
            now += TURN_S
            await turns.share()
        assert ran == ["other"]


async def test_a_watch_calls_at_each_deadline_whatever_the_order_in_which_they_are_set() -> None:
    loop = current_loop()
    began = loop.now()
    left = {began + 0.03, began + 0.01}
    calls: list[float] = []

    def on_due(now: float) -> float:
        late = {each for each in left if each <= now}
        left.difference_update(late)
        if not calls:
            left.add(began + 0.02)
            watch.set(began + 0.02)  # while it is called
        calls.extend(sorted(late))
        return min(left, default=math.inf)

    watch = DeadlineWatch(loop, on_due)
    async with anyio.create_task_group() as tasks:
        watch.set(began + 0.03)
        tasks.start_soon(watch.run)
        await anyio.lowlevel.checkpoint()
        watch.set(began + 0.01)
        await until(lambda: not left)
        tasks.cancel_scope.cancel()
    assert sorted(calls) == [began + 0.01, began + 0.02, began + 0.03]


async def test_a_lone_send_leaves_at_once_and_those_of_many_tasks_together_in_their_order() -> None:
    written: list[int] = []
    write = Connection.send_nowait

    def count(connection: Connection, data: bytes) -> None:
        if (sends := data.count(b'"code":310')) > 0:
            written.append(sends)
        write(connection, data)

    async def send(numbers: Sequence[int]) -> None:
        for number in numbers:
            await producer.send(
                Message("T", b"%d" % number), queue=MessageQueue("T", "broker-a", 0)
            )

    # The lane must not look after its connection just while the tasks hand over what they send.
    with (
        mock.patch.object(Connection, "send_nowait", count),
        mock.patch.object(lane, "QUIET_S", 60),
    ):
        async with open_fake_group() as group, Producer(group.namesrv, "g") as producer:
            await send([-1])
            assert written == [1]
            async with anyio.create_task_group() as tasks:
                for task in range(50):
                    tasks.start_soon(send, [task])
            assert written == [1, 1, 49]
            bodies = [int(message.body) for message in group.messages("T", 0)]
    assert (bodies[0], sorted(bodies[1:])) == (-1, list(range(50)))


async def test_handlers_that_wait_for_nothing_share_one_turn_however_many_there_may_be() -> None:
    names, most = set[str | None](), 0

    async def handle(message: ReceivedMessage) -> None:
        names.add(anyio.get_current_task().name)
        handled.append(message.queue_offset)
        began = time.thread_time()
        while time.thread_time() < began + TURN_S / 4:
            pass

    handled: list[int] = []
    async with open_fake_group(queues=1) as group:
        group.create_topic("T")
        for _ in range(300):
            group.put("T", 0, b"x")
        options = ConsumerOptions(start_from="first", pull_batch=300, concurrency=20)
        async with PushConsumer(group.namesrv, "g", handle, subscriptions={"T": "*"}, **options):
            while len(handled) < 300:
                await anyio.lowlevel.checkpoint()
                most = max(most, len(names))
                names.clear()
    assert most <= 2
