"""Clients that are cancelled at each step of what they do: nothing goes on, and who was open is of use still.

What a task does is cancelled before the first step of any task, before the second one, and so on, until it is done
before that: steps lead from one checkpoint to the next, and a client has several tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
import trio
import trio.lowlevel

from dledger_mq import Message, Producer, PullConsumer, PushConsumer, SimpleConsumer
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.waiting import wait_until

STEPS_MAX = 2000
"""More than anything here takes; it is what ends a test that would never end."""

PATIENCE_S = 540.0
_NUMBERS = count()


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        yield fake


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the step of a number, whose ever that is."""

    def __init__(self, scope: trio.CancelScope, number: int) -> None:
        self._scope, self._left = scope, number

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self._scope.cancel()


async def is_cut_short(act: Callable[[], Awaitable[object]], number: int) -> bool:
    """Do something, and cancel it before a step; return whether it had not ended by then."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(scope, number)
        trio.lowlevel.add_instrument(instrument)
        try:
            await act()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


def tasks() -> list[str]:
    """The names of all tasks, sorted, but for pulls that the group in memory still holds: those end in their time."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found, left = [], [root]
    while left:
        task = left.pop()
        found.append(task.name)
        left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(name for name in found if "FakeGroup._hold" not in name)


async def produce(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"whole life"))


async def receive(group: FakeGroup) -> None:
    async with SimpleConsumer(group.namesrv, "g", subscriptions={"T": "*"}) as consumer:
        for message in await consumer.receive(1, invisible_s=60, wait_s=0):
            await consumer.ack(message)


async def pull(group: FakeGroup) -> None:
    async with PullConsumer(group.namesrv, "g") as consumer:
        (queue,) = await consumer.queues("T")
        pulled = await consumer.pull(queue, await consumer.min_offset(queue))
        await consumer.commit(queue, pulled.next_offset)


async def be_handed(group: FakeGroup) -> None:
    """In a consumer group of its own, which begins at the first message."""
    handed = trio.Event()

    async def handle(_message: object) -> None:
        handed.set()

    async with PushConsumer(
        group.namesrv, f"g{next(_NUMBERS)}", handle, subscriptions={"T": "*"}, start_from="first"
    ):
        await handed.wait()


@pytest.mark.parametrize("live", [produce, receive, pull, be_handed])
async def test_a_client_that_is_cancelled_at_any_step_leaves_nothing_behind(
    group: FakeGroup, live: Callable[[FakeGroup], Awaitable[None]]
) -> None:
    group.put("T", 0, b"there is something")
    before = tasks()
    with trio.fail_after(PATIENCE_S):
        for number in range(1, STEPS_MAX):
            was_cut_short = await is_cut_short(lambda: live(group), number)
            await wait_until(
                lambda: tasks() == before
            )  # the group sees the end of a connection a little later
            if not was_cut_short:
                break
    assert not was_cut_short, f"it is not done after {STEPS_MAX} steps"
    assert number > 10, "there was something to cancel"


async def test_who_was_cancelled_while_it_sent_sends_on(group: FakeGroup) -> None:
    with trio.fail_after(PATIENCE_S):
        async with Producer(group.namesrv, "g", pending_max=1) as producer:
            for number in count(1):
                message = Message("T", b"%d" % number)
                was_cut_short = await is_cut_short(lambda: producer.send(message), number)  # noqa: B023  # at once
                await producer.flush()
                assert producer.statistics().pending == 0
                assert (await producer.send(Message("T", b"after"))).status == "SEND_OK"
                if not was_cut_short:
                    break
    assert number > 2, "there was something to cancel"
    stored = [each.body for each in group.messages("T")]
    assert stored.count(b"after") == number
    assert stored.count(b"%d" % number) == 1, "the last one was not cut short"


async def test_who_was_cancelled_while_it_received_receives_on(group: FakeGroup) -> None:
    with trio.fail_after(PATIENCE_S):
        async with SimpleConsumer(group.namesrv, "g", subscriptions={"T": "*"}) as consumer:
            for number in count(1):
                group.put("T", 0, b"%d" % number)
                was_cut_short = await is_cut_short(
                    lambda: consumer.receive(1, invisible_s=60, wait_s=0), number
                )
                group.advance(61)  # what was on its way to who was cancelled comes again
                (message,) = await consumer.receive(1, invisible_s=60, wait_s=0)
                await consumer.ack(message)
                if not was_cut_short:
                    break
    assert number > 2, "there was something to cancel"
