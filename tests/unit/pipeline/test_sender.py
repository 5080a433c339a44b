"""The sender of a task: how fast it sends, and what it counts."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dledger_mq import Message, MessageQueue, Row
from dledger_mq.client.idempotent_producer import RowsResult
from dledger_mq.message.numbers import QueueOffset
from pipeline.sink.counts import BatchCounts
from pipeline.sink.options import read_options
from pipeline.sink.rows import OutRow
from pipeline.sink.sender import RowSender, SinkTask

QUEUES = tuple(MessageQueue("Out", "a", number) for number in range(2))


class Stored:
    """A send that is done."""

    def __init__(self, count: int) -> None:
        self.message_id = ",".join(["id"] * count)

    async def wait(self) -> Stored:
        return self


class Producer:
    """Notes when how many messages are sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, int]] = []

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def submit(self, _: Message, *, queue: MessageQueue) -> Stored:
        return await self.submit_batch([_], queue=queue)

    async def submit_batch(self, messages: list[Message], *, queue: MessageQueue) -> Stored:
        assert queue in QUEUES
        self.sent.append((trio.current_time(), len(messages)))
        return Stored(len(messages))


@pytest.mark.parametrize("rate", [1, 7, 50, 10_000])
async def test_a_rate_holds_in_every_second(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, rate: int
) -> None:
    options = read_options(
        {"nameServer": "h:1", "topic": "Out", "maxRowsPerSecond": str(rate)}, is_stream=True
    )
    sender: Any = RowSender(options, SinkTask(0, "", 0, QUEUES))
    producer = sender._producer = Producer()
    rows = [OutRow(n, Message("Out", b"x"), b"", None, None) for n in range(3 * rate)]
    began = trio.current_time()
    async with sender:
        await sender.send(rows)
    assert trio.current_time() - began == pytest.approx(3.0)
    for second in range(3):
        window = [n for at, n in producer.sent if second <= at - began < second + 1]
        assert sum(window) == pytest.approx(rate, abs=rate / 10 + 1)


class RowsStored:
    """Rows that a broker has answered."""

    def __init__(self, result: RowsResult) -> None:
        self._result = result

    async def wait(self) -> RowsResult:
        return self._result


class RowsProducer(Producer):
    """Stores each row once, and nothing of a batch below `newest`."""

    def __init__(self) -> None:
        super().__init__()
        self.newest = 0
        self.requests: list[int] = []
        self._known: set[bytes] = set()

    async def submit_rows(
        self, rows: list[Row], *, sink_id: str, batch_id: int, queue: MessageQueue
    ) -> RowsStored:
        assert sink_id == "s"
        self.requests.append(len(rows))
        is_over = batch_id < self.newest
        marks = tuple(not is_over and row.key not in self._known for row in rows)
        if not is_over:
            self._known.update(row.key for row in rows)
        newer = self.newest if is_over else None
        return RowsStored(RowsResult(marks, queue, QueueOffset(0), newer))


def interleaved(count: int) -> list[OutRow]:
    """Rows of two queues in turn: the numbers of one queue's rows have gaps."""
    return [OutRow(n, Message("Out", b"x"), b"%d" % n, "a", n % 2) for n in range(count)]


def sender_of(producer: Producer, batch_id: int, **more: str) -> RowSender:
    given = {"nameServer": "h:1", "topic": "Out", "queueSelector": "column"} | more
    sender: Any = RowSender(read_options(given, is_stream=True), SinkTask(0, "s", batch_id, QUEUES))
    sender._producer = producer
    found: RowSender = sender
    return found


async def test_rows_of_a_queue_are_counted_though_their_numbers_have_gaps() -> None:
    producer = RowsProducer()
    producer.newest = 7

    async def counts_of(count: int, batch_id: int) -> BatchCounts:
        once = {"delivery": "exactly-once", "sinkId": "s", "olderBatch": "skip"}
        sender = sender_of(producer, batch_id, **once)
        await sender.send(interleaved(count))
        return sender.counts

    assert await counts_of(10, 7) == BatchCounts(10, 10)
    assert await counts_of(15, 7) == BatchCounts(15, 5, already=10)
    assert await counts_of(5, 3) == BatchCounts(5, older=5)
    assert sum(producer.requests) == 30
    assert len(producer.requests) == 6, "each write has a request for each of two queues"


async def test_acknowledged_rows_are_counted_as_stored() -> None:
    sender = sender_of(Producer(), 0)
    await sender.send(interleaved(9))
    assert sender.counts == BatchCounts(9, 9)
