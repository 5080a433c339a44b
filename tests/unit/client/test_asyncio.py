"""What is asyncio's own: `asyncio.run`, tasks that are cancelled from outside, its timeouts."""

from __future__ import annotations

import asyncio

import pytest

from dledger_mq import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from dledger_mq.testing import IGNORED, open_fake_group


def test_sends_of_many_tasks_are_gathered() -> None:
    async def main() -> list[int]:
        async with open_fake_group(queues=1) as group, Producer(group.namesrv, "g") as producer:
            sends = (producer.send(Message("T", b"%d" % n)) for n in range(50))
            return [result.queue_offset for result in await asyncio.gather(*sends)]

    assert asyncio.run(main()) == list(range(50))


def test_a_send_that_takes_too_long_for_its_caller_is_left_and_the_next_goes_on() -> None:
    async def main() -> list[bytes]:
        async with open_fake_group() as group, Producer(group.namesrv, "g") as producer:
            await producer.send(Message("T", b"first"))
            group.script.extend([IGNORED] * 10)
            lost = asyncio.ensure_future(producer.send(Message("T", b"lost"), timeout_s=1))
            while len(group.script) == 10:  # noqa: ASYNC110
                await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lost, 0.05)
            group.script.clear()
            await producer.send(Message("T", b"last"))
            return sorted(message.body for message in group.messages("T"))

    assert asyncio.run(main()) == [b"first", b"last"]


def test_a_consumer_whose_task_is_cancelled_commits_what_it_has_consumed() -> None:
    async def main() -> int:
        async with open_fake_group(queues=1) as group:
            group.create_topic("T")
            group.put("T", 0, b"x")
            begun, finish = asyncio.Event(), asyncio.Event()

            async def handle(message: ReceivedMessage) -> None:
                begun.set()
                await finish.wait()

            async def consume() -> None:
                async with PushConsumer(
                    group.namesrv, "g", handle, subscriptions={"T": "*"}, start_from="first"
                ) as consumer:
                    await begun.wait()
                    finish.set()
                    await consumer.wait_assigned()
                    await asyncio.Event().wait()

            task = asyncio.create_task(consume())
            await finish.wait()
            await asyncio.sleep(0)  # the handler returns in this turn
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return group.offsets[("g", "T", 0)]

    assert asyncio.run(main()) == 1


def test_what_the_body_raises_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with (
            open_fake_group() as group,
            Producer(group.namesrv, "g"),
            PullConsumer(group.namesrv, "g"),
        ):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
