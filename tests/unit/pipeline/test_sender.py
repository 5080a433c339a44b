"""The sender of a task: how fast it sends."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dledger_mq import Message, MessageQueue
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
