"""The load of a soak: producers that keep a rate, and a reader of each queue that gets everything before it is due.

Messages are numbered, and travel in batches of one queue, so that two processors carry three brokers and their clients.
What was answered and read goes to the ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import trio

from dledger_mq import ClientError, Message, MessageQueue, Producer, PullConsumer
from jepsen.soak.ledger import Ledger, Place

TOPIC: Final = "Soak"
QUEUES: Final = 4
BATCH: Final = 10
SENDERS: Final = 8
BODY_BYTES: Final = 512
SEND_TIMEOUT_S: Final = 30.0
CATCH_UP_S: Final = 5.0
"""Of the time in which nothing could be sent, so much is made good afterwards."""

HOLD_S: Final = 1.0
RETRY_S: Final = 0.2
LOOK_S: Final = 15.0
"""Between two looks where the queues begin."""

_NUMBER: Final = struct.Struct(">Q")


def body_of(number: int) -> bytes:
    """Return the body of a message: its number, and what makes it as long as the others."""
    return _NUMBER.pack(number).ljust(BODY_BYTES, b"-")


def number_of(body: bytes) -> int:
    """Return the number of a message.

    Raises:
        struct.error: the body is none of ours.
    """
    return int(_NUMBER.unpack_from(body)[0])


class SteadyLoad:
    """Producers and readers of one topic.

    Attributes:
        positions: of the readers, by number of the queue.
        errors: answers other than success, by their class.
        end_sending: makes `send` end, after what is in flight.
    """

    def __init__(
        self,
        ledger: Ledger,
        namesrv: str,
        queues: Mapping[str, MessageQueue],
        *,
        rate: float,
        kept_s: float,
    ) -> None:
        """Describe the load; `send`, `read` and `look` are its tasks.

        Args:
            ledger: gets what happens.
            namesrv: addresses of the name servers.
            queues: of the topic.
            rate: messages a second.
            kept_s: how long each must be kept.
        """
        self.positions = {queue.queue_id: 0 for queue in queues.values()}
        self.errors: dict[str, int] = {}
        self.end_sending = trio.Event()
        self._ledger = ledger
        self._namesrv = namesrv
        self._queues: Sequence[MessageQueue] = list(queues.values())
        self._pause_s = SENDERS * BATCH / rate
        self._kept_s = kept_s
        self._start_s = trio.current_time()

    def now_s(self) -> float:
        """Return the seconds since the load was made."""
        return trio.current_time() - self._start_s

    async def send(self) -> None:
        """Send until `end_sending`, and end when all that was sent is answered."""
        async with (
            Producer(self._namesrv, "soak-send", timeout_s=SEND_TIMEOUT_S) as producer,
            trio.open_nursery() as nursery,
        ):
            for slot in range(SENDERS):
                nursery.start_soon(self._send_at_rate, producer, slot)

    async def _send_at_rate(self, producer: Producer, slot: int) -> None:
        """Send batch after batch, each at its time."""
        due_s = trio.current_time() + self._pause_s * slot / SENDERS
        turn = slot
        while not self.end_sending.is_set():
            await trio.sleep_until(due_s)
            await self._send_batch(producer, self._queues[turn % len(self._queues)])
            due_s = max(due_s + self._pause_s, trio.current_time() - CATCH_UP_S)
            turn += 1

    async def _send_batch(self, producer: Producer, queue: MessageQueue) -> None:
        """Send a batch, and enter what is known of it afterwards."""
        first = self._ledger.send(BATCH, self.now_s())
        numbers = range(first, first + BATCH)
        messages = [Message(TOPIC, body_of(number)) for number in numbers]
        try:
            result = await producer.send_batch(messages, queue=queue)
        except ClientError as error:
            self._note(error)
            for number in numbers:
                (self._ledger.refuse if error.definite else self._ledger.doubt)(number)
            return
        for place, number in enumerate(numbers):
            found = Place(result.queue_id, result.queue_offset + place)
            self._ledger.acknowledge(number, found)

    async def read(self) -> None:
        """Read all queues, each from its first offset on, until cancelled."""
        async with AsyncExitStack() as stack:
            consumer = await stack.enter_async_context(PullConsumer(self._namesrv, "soak-read"))
            nursery = await stack.enter_async_context(trio.open_nursery())
            for queue in self._queues:
                nursery.start_soon(self._read_queue, consumer, queue)

    async def _read_queue(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        """Read one queue; what was deleted before its turn is noted, and nothing is read twice by our doing."""
        number = queue.queue_id
        while True:
            position = self.positions[number]
            try:
                pulled = await consumer.pull(queue, position, hold_s=HOLD_S)
            except ClientError as error:
                self._note(error)
                await trio.sleep(RETRY_S)
                continue
            if pulled.is_offset_wrong:
                # A queue that ends before the place that was read has lost what stood there: the ledger finds out.
                self._ledger.skip(max(0, pulled.next_offset - position))
                self.positions[number] = max(position, pulled.next_offset)
                continue
            for message in pulled.messages:
                self._ledger.read(number_of(message.body), Place(number, message.queue_offset))
            self.positions[number] = pulled.next_offset

    async def look(self) -> None:
        """Look again and again where the queues begin, until cancelled: nothing may go before it is due."""
        async with PullConsumer(self._namesrv, "soak-look") as consumer:
            while True:
                await trio.sleep(LOOK_S)
                for queue in self._queues:
                    await self._look_at(consumer, queue)

    async def _look_at(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        try:
            first = await consumer.min_offset(queue)
            pulled = await consumer.pull(queue, first, max_messages=1) if first else None
        except ClientError as error:
            self._note(error)
            return
        # It may begin later by now.
        if pulled is None or pulled.is_offset_wrong or not pulled.messages:
            return
        number = number_of(pulled.messages[0].body)
        self._ledger.begins_with(number, at_s=self.now_s(), kept_s=self._kept_s)

    async def wait_read(self) -> None:
        """Wait until the readers have come to the end of every queue, as its leader reports it."""
        async with PullConsumer(self._namesrv, "soak-ends") as consumer:
            for queue in self._queues:
                while True:
                    try:
                        end = await consumer.max_offset(queue)
                    except ClientError as error:
                        self._note(error)
                    else:
                        if self.positions[queue.queue_id] >= end:
                            break
                    await trio.sleep(RETRY_S)

    def _note(self, error: ClientError) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1
