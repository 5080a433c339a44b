"""The simple consumer against a real group of three nodes, whose leaders are killed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from dledger_mq import (
    AckError,
    AckOutcomeUnknownError,
    Admin,
    BySql,
    HandleExpiredError,
    Message,
    PoppedMessage,
    Producer,
    SimpleConsumer,
)
from dledger_mq import blocking as sync
from jepsen.processes import Group
from tests.integration.client.leaders import killer_of, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KILLS = 2
INVISIBLE_S = 3.0

LONG_S = 3600.0
"""Longer than any test takes, also where a send takes half a minute."""


async def send(group: Group, topic: str, count: int, tags: str | None = None) -> None:
    """Send numbers to one queue."""
    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, topic)
        queue = (await producer.queues(topic))[0]
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, tags=tags), queue=queue)


async def received(consumer: SimpleConsumer, count: int, **more: float) -> list[PoppedMessage]:
    """Receive until there are so many."""
    found: list[PoppedMessage] = []
    with trio.fail_after(PATIENCE_S):
        while len(found) < count:
            found += await consumer.receive(**more)  # type: ignore[arg-type]
    return found


async def test_handles_live_and_die_as_the_page_says(group: Group) -> None:
    await send(group, "Handles", 6, tags="A")
    async with SimpleConsumer(
        group.namesrv,
        "handles",
        subscriptions={"Handles": BySql("TAGS = 'A'")},
        start_from="first",
        timeout_s=PATIENCE_S,
    ) as consumer:
        messages = await received(consumer, 6, invisible_s=LONG_S)
        await consumer.ack(messages[0])
        with pytest.raises(HandleExpiredError):
            await consumer.ack(messages[0])
        sooner = await consumer.change_invisible_time(messages[1], 0.001)
        (again,) = await received(consumer, 1, invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert (again.body, again.reconsume_times) == (messages[1].body, 1)
        with pytest.raises(HandleExpiredError, match="3 expired") as raised:
            await consumer.ack([messages[0], sooner, *messages[1:4]])
        assert raised.value.expired == (messages[0], messages[1], sooner)
        await consumer.ack([again, *messages[4:]])
        assert await consumer.receive(wait_s=0) == ()


async def test_in_order_a_queue_gives_nothing_before_all_is_acknowledged(group: Group) -> None:
    await send(group, "InOrder", 9)
    order: list[int] = []

    async def work(consumer: SimpleConsumer) -> None:
        while len(order) < 9:
            messages = await consumer.receive(2, invisible_s=LONG_S, wait_s=1)
            for message in messages:
                order.append(int(message.body))
                await trio.lowlevel.checkpoint()
            await consumer.ack(messages)

    def member() -> SimpleConsumer:
        wanted = {"InOrder": "*"}
        return SimpleConsumer(
            group.namesrv,
            "in-order",
            subscriptions=wanted,
            ordered=True,
            start_from="first",
            timeout_s=PATIENCE_S,
        )

    with trio.fail_after(PATIENCE_S):
        async with member() as one, member() as other, trio.open_nursery() as nursery:
            nursery.start_soon(work, one)
            nursery.start_soon(work, other)
    assert order == list(range(9))


@pytest.mark.parametrize("face", ["async", "blocking"])
async def test_a_group_that_is_set_in_order_is_received_in_order_without_a_word(
    group: Group, face: str
) -> None:
    """Two consumers that were told nothing: the second gets nothing before the first has acknowledged."""
    topic = name = f"SetInOrder-{face}"
    async with Admin(group.namesrv, timeout_s=PATIENCE_S) as admin:
        await admin.create_topic(topic, queues=4)
        await admin.create_group(name, ordered=True)
    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        steps = [Message(topic, b"%d" % n, message_group="account-7") for n in range(4)]
        places = {(await producer.send(step)).queue for step in steps}
    assert len(places) == 1, "one message group, one queue"
    settings: dict[str, Any] = {
        "subscriptions": {topic: "*"},
        "start_from": "first",
        "timeout_s": PATIENCE_S,
    }
    if face == "blocking":
        await trio.to_thread.run_sync(check_order_without_async, group.namesrv, name, settings)
        return
    async with (
        SimpleConsumer(group.namesrv, name, **settings) as one,
        SimpleConsumer(group.namesrv, name, **settings) as other,
    ):
        first = await one.receive(2, invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert [message.body for message in first] == [b"0", b"1"]
        assert {message.message_group for message in first} == {"account-7"}
        assert await other.receive(wait_s=0) == ()
        await one.ack(first)
        rest = await other.receive(invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert [message.body for message in rest] == [b"2", b"3"]


def check_order_without_async(namesrv: str, name: str, settings: dict[str, Any]) -> None:
    with (
        sync.SimpleConsumer(namesrv, name, **settings) as one,
        sync.SimpleConsumer(namesrv, name, **settings) as other,
    ):
        first = one.receive(2, invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert [message.body for message in first] == [b"0", b"1"]
        assert other.receive(wait_s=0) == ()
        one.ack(first)
        rest = other.receive(invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert [message.body for message in rest] == [b"2", b"3"]


def test_without_async(group: Group) -> None:
    trio.run(send, group, "Blocking", 3)
    with sync.SimpleConsumer(
        group.namesrv,
        "blocking",
        subscriptions={"Blocking": "*"},
        start_from="first",
        timeout_s=PATIENCE_S,
    ) as consumer:
        messages = consumer.receive(invisible_s=LONG_S, wait_s=PATIENCE_S)
        assert {message.body for message in messages} == {b"0", b"1", b"2"}
        longer = consumer.change_invisible_time(messages[0], 2 * LONG_S)
        consumer.ack([longer, *messages[1:]])
        with pytest.raises(HandleExpiredError):
            consumer.ack(longer)


async def test_what_was_acknowledged_never_comes_again_while_leaders_die(group: Group) -> None:
    """One of two consumers acknowledges in batches. What is not acknowledged comes again, what is unknown perhaps."""
    topic, wanted = "Killed", set[bytes]()
    acknowledged: Counter[bytes] = Counter()
    unknown: set[bytes] = set()
    late: list[bytes] = []
    misnamed: list[AckError] = []

    async def produce(is_over: trio.Event) -> None:
        async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
            while not is_over.is_set():
                body = b"%d" % len(wanted)
                await producer.send(Message(topic, body))
                wanted.add(body)

    async def work(consumer: SimpleConsumer, *, in_batches: bool) -> None:
        while True:
            messages = await consumer.receive(8, invisible_s=INVISIBLE_S, wait_s=5)
            late.extend(one.body for one in messages if acknowledged[one.body])
            groups = [messages] if in_batches else [(one,) for one in messages]
            for some in filter(None, groups):
                failed: tuple[PoppedMessage, ...] = ()
                try:
                    await consumer.ack(some)
                except AckError as error:
                    failed = (*error.expired, *error.undone, *error.unknown)
                    unknown.update(one.body for one in error.unknown)
                    if isinstance(error, AckOutcomeUnknownError) != bool(error.unknown):
                        misnamed.append(error)
                acknowledged.update(one.body for one in some if one not in failed)

    def member() -> SimpleConsumer:
        return SimpleConsumer(
            group.namesrv,
            "killed",
            subscriptions={topic: "*"},
            start_from="first",
            timeout_s=PATIENCE_S,
        )

    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, topic)
    async with (
        killer_of(group, kills=KILLS, period_s=6, down_s=2) as killer,
        member() as one,
        member() as other,
        trio.open_nursery() as nursery,
    ):
        is_over = trio.Event()
        nursery.start_soon(lambda: work(one, in_batches=True))
        nursery.start_soon(lambda: work(other, in_batches=False))
        nursery.start_soon(produce, is_over)
        await killer.run()
        is_over.set()
        await until(lambda: wanted <= acknowledged.keys() | unknown)
        nursery.cancel_scope.cancel()
    assert killer.done == KILLS
    assert late == []
    assert misnamed == []
    assert max(acknowledged.values()) == 1
