"""The poller by itself: what happens to its positions while brokers are asked."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.client.group_requests import PullAnswer
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.poller import Poller
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import (
    PhysicalOffset,
    QueueId,
    QueueOffset,
    StoreTimeMs,
)

pytestmark = pytest.mark.anyio

A, B = (MessageQueue("T", "b", QueueId(number)) for number in range(2))


class Broker:
    """Has a message at each offset below 10 of `full`; does something else, once, before it answers."""

    def __init__(self, full: MessageQueue) -> None:
        self.full = full
        self.meanwhile: Callable[[], None] = lambda: None
        self.poller = Poller(self.pull)

    async def pull(
        self, queue: MessageQueue, offset: QueueOffset, most: int, hold_s: float
    ) -> PullAnswer:
        await anyio.lowlevel.checkpoint()
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        has_one = queue == self.full and offset < 10
        messages = (_message(queue, offset),) if has_one else ()
        end = QueueOffset(10 if queue == self.full else 0)
        if not messages:
            await anyio.sleep(hold_s)
        following = QueueOffset(offset + len(messages))
        return PullAnswer(messages, following, QueueOffset(0), end, False, not messages)


def _message(queue: MessageQueue, offset: QueueOffset) -> ReceivedMessage:
    text = str(offset)
    return ReceivedMessage(
        "T",
        text.encode(),
        queue,
        offset,
        PhysicalOffset(0),
        text,
        text,
        None,
        (),
        {},
        0,
        0,
        StoreTimeMs(0),
        0,
    )


@pytest.mark.parametrize("place", [2, 7])
async def test_a_seek_counts_although_the_queue_was_just_asked(place: int) -> None:
    broker = Broker(A)
    poller = broker.poller
    poller.assign({A: QueueOffset(5)})
    broker.meanwhile = lambda: poller.positions.update({A: QueueOffset(place)})
    got = await poller.poll(1, timeout_s=30)
    assert [one.queue_offset for one in got] == [place]
    assert poller.positions == {A: place + 1}


@pytest.mark.parametrize("timeout_s", [0.0, 30.0])
async def test_queues_may_be_assigned_anew_while_others_are_asked(timeout_s: float) -> None:
    broker = Broker(B)
    poller = broker.poller
    poller.assign({A: QueueOffset(0), B: QueueOffset(0)})

    def assign_anew() -> None:
        poller.assign({A: QueueOffset(0)})
        scope.deadline = anyio.current_time() + 0.1

    broker.meanwhile = assign_anew
    with anyio.CancelScope() as scope:
        assert await poller.poll(1, timeout_s) == ()
    assert poller.positions == {A: 0}


async def test_nothing_is_handed_out_of_what_is_paused_while_it_is_asked() -> None:
    broker = Broker(A)
    poller = broker.poller
    poller.assign({A: QueueOffset(5)})
    broker.meanwhile = lambda: poller.paused.add(A)
    assert await poller.poll(1, timeout_s=30) == ()
    assert poller.positions == {A: 5}


async def test_a_broker_that_holds_nothing_is_not_asked_in_a_circle() -> None:
    asked = 0

    async def pull(
        queue: MessageQueue, offset: QueueOffset, most: int, hold_s: float
    ) -> PullAnswer:
        nonlocal asked
        asked += 1
        await anyio.lowlevel.checkpoint()
        return PullAnswer((), offset, QueueOffset(0), offset, False, True)

    poller = Poller(pull)
    poller.assign({A: QueueOffset(5)})
    began = anyio.current_time()
    assert await poller.poll(1, timeout_s=0.5) == ()
    assert anyio.current_time() - began >= 0.5, "its time is waited all the same"
    assert asked <= 10
