"""Messages with due times that a scenario sends itself, to show that they come on time under any leader.

The harness runs by the true time: only nodes have their clocks shifted.
"""

from __future__ import annotations

import time
from typing import Final

import trio

from dledger_mq import ClientError, Message, MessageQueue, Producer, PullConsumer
from jepsen.checklist.stage import Stage
from jepsen.clients.topics import open_topics

TOPIC: Final = "ChecklistAlarms"
COUNT: Final = 60
FIRST_MS: Final = 1_000
APART_MS: Final = 100
LATE_MAX_MS: Final = 10_000
"""A failover and a node that starts on a busy machine lie between; minutes would be the wrong clock."""

EARLY_MAX_MS: Final = 50
"""Two clocks are compared over the network, and the harness's is a third one."""

TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.01


class Alarms:
    """Every second message names its due time, the others a delay."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._due_ms: dict[str, int] = {}
        self._came: set[str] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the messages, call `started()` once a third has arrived, then wait for the rest and judge each."""
        group = self._stage.broker
        (queue,) = (await open_topics(group, [TOPIC], queues=1)).values()
        async with (
            Producer(group.namesrv, "chaos-checklist", timeout_s=TIMEOUT_S) as producer,
            PullConsumer(group.namesrv, "chaos-checklist", timeout_s=TIMEOUT_S) as consumer,
        ):
            for number in range(COUNT):
                await self._send(producer, queue, number)
            offset = await self._read(consumer, queue, 0, COUNT // 3)
            task_status.started()
            await self._read(consumer, queue, offset, COUNT)
        missing = len(self._due_ms.keys() - self._came)
        self._stage.expect(not missing, f"every message comes ({missing} did not)")
        self._stage.note("alarms", f"{len(self._came)} of {COUNT} messages came")

    async def _send(self, producer: Producer, queue: MessageQueue, number: int) -> None:
        ahead_ms, key = FIRST_MS + number * APART_MS, f"alarm{number}"
        due_ms = _now_ms() + ahead_ms
        if number % 2:
            message = Message(queue.topic, key.encode(), delay_ms=ahead_ms)
        else:
            message = Message(queue.topic, key.encode(), deliver_at_ms=due_ms)
        self._due_ms[key] = due_ms
        await producer.send(message)

    async def _read(
        self, consumer: PullConsumer, queue: MessageQueue, offset: int, until_count: int
    ) -> int:
        """Read until so many messages have come or the last one is far too late; return the next offset."""
        last_ms = max(self._due_ms.values()) + LATE_MAX_MS
        while len(self._came) < until_count and _now_ms() < last_ms:
            try:
                answer = await consumer.pull(queue, offset)
            except ClientError:
                continue  # nobody leads for the moment, and what comes late is judged
            now_ms, offset = _now_ms(), answer.next_offset
            for message in answer.messages:
                self._judge(message.body.decode(), now_ms)
            await trio.sleep(POLL_S)
        return offset

    def _judge(self, key: str, now_ms: int) -> None:
        if key not in self._due_ms:
            return  # of another scenario
        self._came.add(key)
        late_ms = now_ms - self._due_ms[key]
        self._stage.expect(
            late_ms >= -EARLY_MAX_MS, f"{key} is not early (it came {-late_ms} ms early)"
        )
        self._stage.expect(late_ms <= LATE_MAX_MS, f"{key} is not late (it came {late_ms} ms late)")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
