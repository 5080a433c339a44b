"""What a consumer can be told while it runs: seek, pause, resume, subscribe; and what it tells its listener."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import (
    ClientUsageError,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    RebalanceListener,
)
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


async def few_turns() -> None:
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


async def test_a_paused_queue_is_not_read_until_it_is_resumed(group: FakeGroup) -> None:
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        await one.wait_assigned()
        one.pause(queue(0))
        assert one.paused == {queue(0)}
        group.put("T", 0, b"held back")
        group.put("T", 1, b"read")
        await until(lambda: inbox.bodies == [b"read"])
        await few_turns()
        assert inbox.bodies == [b"read"]
        one.resume(queue(0))
        await until(lambda: inbox.bodies == [b"read", b"held back"])


async def test_seeking_goes_on_elsewhere_and_commits_that(group: FakeGroup) -> None:
    for number in range(4):
        group.put("T", 0, b"%d" % number)
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        await until(lambda: len(inbox.got) == 4)
        await one.seek(queue(0), 2)
        await until(lambda: sorted(inbox.bodies[4:]) == [b"2", b"3"])
        with pytest.raises(ClientUsageError, match="not ours"):
            await one.seek(queue(7), 0)


async def test_topics_come_and_go_while_the_consumer_runs(group: FakeGroup) -> None:
    group.create_topic("U")
    group.put("U", 0, b"u", b"TAGS\x01a\x02")
    group.put("U", 0, b"v", b"TAGS\x01b\x02")
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        await one.wait_assigned()
        await one.subscribe("U", "a")
        await until(lambda: inbox.bodies == [b"u"])
        assert any(
            {"T", "U"} <= {item.topic for item in beat.consumers[0].subscriptions}
            for beat in group.nodes[0].heartbeats
        )
        await one.unsubscribe("T")
        await until(lambda: {q.topic for q in one.assigned} == {"U", "%RETRY%g"})
        assert ("g", "T", 0) in group.offsets, "committed when it was given up"
        with pytest.raises(ClientUsageError):
            await one.unsubscribe("U")
        with pytest.raises(ClientUsageError):
            await one.subscribe("no topic")


class Told(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[MessageQueue, ...]]] = []

    async def acquired(self, queues: tuple[MessageQueue, ...]) -> None:
        self._note("acquired", queues)

    async def released(self, queues: tuple[MessageQueue, ...]) -> None:
        self._note("released", queues)
        raise ZeroDivisionError

    def _note(self, what: str, queues: tuple[MessageQueue, ...]) -> None:
        mine = tuple(one for one in queues if one.topic == "T")
        if mine:
            self.events.append((what, mine))


async def test_the_listener_is_told_of_every_change_and_its_failures_do_no_harm(
    group: FakeGroup,
) -> None:
    told = Told()
    both, second = (queue(0), queue(1)), (queue(1),)
    async with PushConsumer(
        group.namesrv, "g", Inbox(), subscriptions={"T": "*"}, listener=told, instance="a"
    ) as one:
        await one.wait_assigned()
        assert told.events == [("acquired", both)]
        async with consumer(group, Inbox(), instance="b"):
            await until(lambda: told.events[1:] == [("released", second)])
        await until(lambda: told.events[2:] == [("acquired", second)])
    assert told.events[3][0] == "released"
    assert sorted(told.events[3][1]) == list(both)


@pytest.fixture
async def puller(group: FakeGroup) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(group.namesrv, "g") as one:
        yield one


async def test_polling_takes_queues_in_turn_and_moves_positions(
    group: FakeGroup, puller: PullConsumer
) -> None:
    for number in range(3):
        group.put("T", 0, b"a%d" % number)
        group.put("T", 1, b"b%d" % number)
    group.offsets[("g", "T", 1)] = 1
    await puller.assign(await puller.queues("T"))
    assert puller.assigned == (queue(0), queue(1))
    got = []
    while messages := await puller.poll(0.0, max_messages=2):
        got.append([message.body for message in messages])
    assert got == [[b"a0", b"a1"], [b"b1", b"b2"], [b"a2"]]
    assert (puller.position(queue(0)), puller.position(queue(1))) == (3, 3)
    await puller.commit_positions()
    assert group.offsets == {("g", "T", 0): 3, ("g", "T", 1): 3}


async def test_a_poll_waits_for_whichever_queue_gets_a_message_first(
    group: FakeGroup, puller: PullConsumer
) -> None:
    await puller.queues("T")
    await puller.assign({queue(0): 0, queue(1): 0})
    got: list[bytes] = []

    async def poll() -> None:
        got.extend(message.body for message in await puller.poll(20))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await few_turns()
        group.put("T", 1, b"came")
    assert got == [b"came"]


async def test_seek_pause_and_resume_while_polling(group: FakeGroup, puller: PullConsumer) -> None:
    group.put("T", 0, b"a")
    group.put("T", 1, b"b")
    await puller.assign(await puller.queues("T"))
    puller.pause(queue(0))
    assert [one.body for one in await puller.poll(0.0)] == [b"b"]
    assert await puller.poll(0.0) == ()
    puller.seek(queue(1), 0)
    assert [one.body for one in await puller.poll(0.0)] == [b"b"]
    puller.resume(queue(0))
    assert [one.body for one in await puller.poll(0.0)] == [b"a"]
    puller.pause(*puller.assigned)
    with pytest.raises(ClientUsageError, match="paused"):
        await puller.poll(0.0)
    with pytest.raises(ClientUsageError, match="not assigned"):
        puller.seek(queue(9), 0)
