"""Our clients against a real group of three nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from dledger_mq import (
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullAnswer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from dledger_mq import blocking as sync
from jepsen.processes import Group
from tests.integration.client.leaders import a_moment, wait_for_queues

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S = 240.0
"""Nothing takes that long; a test that waits for more has failed."""


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    with trio.fail_after(timeout_s):
        while not condition():
            await a_moment()


async def pulled_at(reader: PullConsumer, queue: MessageQueue, offset: int) -> PullAnswer:
    """Pull what is there; a node that hears of no leader for a while gives nothing."""
    while (pulled := await reader.pull(queue, offset)).is_empty:
        await a_moment()
    return pulled


async def test_everything_about_one_message(group: Group) -> None:
    async with (
        Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
        PullConsumer(group.namesrv, "g", timeout_s=PATIENCE_S) as reader,
    ):
        await wait_for_queues(producer, "One")
        message = Message(
            "One", b"body" * 2000, tags="A", keys=("k1",), properties={"colour": "red"}, flag=7
        )
        sent = await producer.send(message)
        batch = await producer.send_batch([Message("One", b"%d" % n) for n in range(3)])
        await producer.send_oneway(Message("One", b"oneway"), queue=sent.queue)
        pulled = await pulled_at(reader, sent.queue, sent.queue_offset)
        got = pulled.messages[0]
        assert (got.body, got.tags, got.keys, got.flag) == (message.body, "A", ("k1",), 7)
        assert (got.unique_key, got.message_id) == (sent.unique_key, sent.message_id)
        assert got.properties["colour"] == "red"
        whole = await pulled_at(reader, batch.queue, batch.queue_offset)
        assert [m.body for m in whole.messages][:3] == [b"0", b"1", b"2"]
        assert await reader.committed(sent.queue) in (None, 0)
        await reader.commit(sent.queue, sent.queue_offset + 1)
        assert await reader.committed(sent.queue) == sent.queue_offset + 1
        assert await reader.min_offset(sent.queue) == 0
        assert await reader.max_offset(sent.queue) > sent.queue_offset
        assert await reader.offset_at(sent.queue, 0) == 0


async def test_ten_thousand_in_flight_come_out_in_order(group: Group) -> None:
    got: dict[int, list[int]] = {}

    async def note(message: ReceivedMessage) -> None:
        got.setdefault(message.queue.queue_id, []).append(int(message.body))

    count = 10_000
    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, "Many")
        queues = await producer.queues("Many")
        pending = [
            await producer.submit(Message("Many", b"%d" % n), queue=queues[n % 4])
            for n in range(count)
        ]
        for one in pending:
            await one.wait()
    async with PushConsumer(
        group.namesrv, "many", note, subscriptions={"Many": "*"}, ordered=True, start_from="first"
    ):
        await until(lambda: sum(map(len, got.values())) >= count)
    assert got == {q: list(range(q, count, 4)) for q in range(4)}


async def test_two_members_share_and_tags_filter(group: Group) -> None:
    left: list[bytes] = []
    right: list[bytes] = []

    def member(inbox: list[bytes], name: str) -> PushConsumer:
        async def note(message: ReceivedMessage) -> None:
            inbox.append(message.body)

        return PushConsumer(
            group.namesrv, "pair", note, subscriptions={"Tagged": "A || C"}, instance=name
        )

    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, "Tagged")
        first = await producer.send(Message("Tagged", b"x", tags="B"))
        async with member(left, "a") as a, member(right, "b") as b:
            await until(
                lambda: all(
                    len([q for q in one.assigned if q.topic == "Tagged"]) == 2 for one in (a, b)
                )
            )
            for n in range(40):
                await producer.send(Message("Tagged", b"%d" % n, tags="ABCD"[n // 4 % 4]))
            await until(lambda: len(left) + len(right) >= 20)
    wanted = sorted(b"%d" % n for n in range(40) if n // 4 % 4 in (0, 2))
    assert sorted(left + right) == wanted
    assert left
    assert right
    assert first.queue.topic == "Tagged"


async def test_a_refused_message_comes_again_and_offsets_outlive_the_consumer(group: Group) -> None:
    got: list[ReceivedMessage] = []

    async def refuse_once(message: ReceivedMessage) -> ConsumeResult | None:
        got.append(message)
        return ConsumeResult.LATER if message.body == b"bad" and len(got) == 1 else None

    def consumer() -> PushConsumer:
        return PushConsumer(
            group.namesrv,
            "again",
            refuse_once,
            subscriptions={"Again": "*"},
            start_from="first",
            max_reconsume_times=3,
        )

    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, "Again")
        await producer.send(Message("Again", b"bad"))
        async with consumer() as one:
            await until(lambda: one.statistics().given_back == 1)
            await until(lambda: len(got) == 2)
        assert [m.body for m in got] == [b"bad", b"bad"]
        assert (got[1].topic, got[1].reconsume_times) == ("Again", 1)
        async with consumer() as one:
            await one.wait_assigned()
            await producer.send(Message("Again", b"new"))
            await until(lambda: len(got) == 3)
        assert got[2].body == b"new"


def test_without_async(group: Group) -> None:
    with sync.Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        results = producer.send_many(Message("Sync", b"%d" % n) for n in range(200))
        assert all(isinstance(result, SendResult) for result in results)
    with sync.PullConsumer(group.namesrv, "g", timeout_s=PATIENCE_S) as reader:
        bodies: list[bytes] = []
        for queue in reader.queues("Sync"):
            offset = reader.min_offset(queue)
            while offset < reader.max_offset(queue):
                pulled = reader.pull(queue, offset)
                bodies += [message.body for message in pulled.messages]
                offset = pulled.next_offset
    assert sorted(map(int, bodies)) == list(range(200))
