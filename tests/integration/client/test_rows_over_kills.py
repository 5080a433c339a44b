"""A job that repeats its batches while leaders die: every row stands in the log once."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from dledger_mq import (
    ClientError,
    IdempotentProducer,
    Message,
    MessageQueue,
    PullConsumer,
    Row,
    SendError,
    row_key,
)
from dledger_mq import blocking as sync
from jepsen.processes import Group, poll
from tests.integration.client.leaders import killer_of, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC = "Rows"
SINK = "test"
KILLS = 3
ROWS_PER_SEND = 20
SENDS_PER_BATCH = 8


def rows_of(batch: int, number: int) -> list[Row]:
    bodies = [b"%d %d %d" % (batch, number, place) for place in range(ROWS_PER_SEND)]
    return [Row(row_key(body), Message(TOPIC, body)) for body in bodies]


class Job:
    """Writes batch after batch; two attempts at every send overlap, and some batches are sent again."""

    def __init__(self, producer: IdempotentProducer, queues: tuple[MessageQueue, ...]) -> None:
        self.producer = producer
        self.queues = queues
        self.batches = 0
        self.stored = self.already = 0

    async def attempt(self, batch: int, number: int, *, again: bool) -> None:
        timeout_s = 1.0
        while True:
            try:
                result = await self.producer.send_rows(
                    rows_of(batch, number),
                    sink_id=SINK,
                    batch_id=batch,
                    queue=self.queues[number % len(self.queues)],
                    timeout_s=timeout_s,
                )
            except SendError:
                timeout_s = min(2 * timeout_s, PATIENCE_S)  # the machine may be slower than that
                continue
            self.stored += result.stored_count
            self.already += len(result.stored) - result.stored_count
            return

    async def write(self, batch: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(SENDS_PER_BATCH):
                for again in (False, True):
                    nursery.start_soon(lambda n=number, a=again: self.attempt(batch, n, again=a))  # type: ignore[misc]

    async def run(self, stop: trio.Event) -> None:
        while not stop.is_set():
            await self.write(self.batches)
            if self.batches % 3 == 2:  # as after a crash before the batch was noted as done
                await self.write(self.batches)
            self.batches += 1


async def everything(group: Group, queues: tuple[MessageQueue, ...]) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with PullConsumer(group.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
        for queue in queues:
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                answer = await reader.pull(queue, offset)
                found.update(message.body for message in answer.messages)
                offset = answer.next_offset
    return found


async def test_every_row_stands_once_while_leaders_die(group: Group) -> None:
    stop = trio.Event()
    async with (
        killer_of(group, kills=KILLS, period_s=2.0, down_s=0.5) as killer,
        IdempotentProducer(group.namesrv, "p") as producer,
    ):
        await wait_for_queues(producer, TOPIC)
        await producer.send(Message(TOPIC, b"there is a topic now"), timeout_s=PATIENCE_S)
        job = Job(producer, await producer.queues(TOPIC))
        async with trio.open_nursery() as working:
            working.start_soon(job.run, stop)
            await killer.run()
            await until(lambda: job.batches > 5)
            stop.set()
        late = await producer.send_rows(
            rows_of(0, 0), sink_id=SINK, batch_id=0, queue=job.queues[0], timeout_s=PATIENCE_S
        )
        assert not late.stored_count, "the batch is over"
        found = await everything(group, job.queues)
    del found[b"there is a topic now"]
    wanted = {
        row.message.body
        for batch in range(job.batches)
        for number in range(SENDS_PER_BATCH)
        for row in rows_of(batch, number)
    }
    assert killer.done == KILLS
    assert job.already >= len(wanted), "every send was made at least twice"
    assert job.stored <= len(wanted), "what a lost answer told is missing here"
    assert wanted - found.keys() == set(), "lost"
    assert [body for body, times in found.items() if times > 1] == [], "stored twice"
    assert found.keys() <= wanted


def is_made(producer: sync.Producer, topic: str) -> bool:
    """Send to a topic, which makes it, once brokers are there."""
    try:
        return bool(producer.send(Message(topic, b"there is a topic now"), timeout_s=PATIENCE_S))
    except ClientError:
        return False


def test_without_async_and_with_delays(group: Group) -> None:
    with sync.IdempotentProducer(group.namesrv, "p") as producer:
        assert poll(lambda: is_made(producer, "Delayed"), PATIENCE_S)
        queue = producer.queues("Delayed")[0]
        delayed = [Row(row_key("a"), Message("Delayed", b"later", delay_level=2, tags="T"))]
        large = [Row(row_key("b"), Message("Delayed", b"x" * 20_000))]
        for rows, stored in ((delayed, True), (delayed, False), (large, True), (large, False)):
            result = producer.send_rows(
                rows, sink_id="d", batch_id=1, queue=queue, timeout_s=PATIENCE_S
            )
            assert result.stored == (stored,)
