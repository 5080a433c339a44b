"""Our clients at work: numbered messages to every queue, and a consumer that notes what it gets.

The model. Each (producer, queue) has numbers 0, 1, 2, ...; a number is sent once the number before it
has ended, so a queue's acknowledged numbers must come out in their order. Whatever happens to a send is
noted: acknowledged with its offset, surely refused, or unknown. Nothing is sent again here: that is the
client's business.
"""

from __future__ import annotations

from typing import Final

import trio

from broker.client import (
    ClientError,
    Message,
    MessageQueue,
    NameServersUnreachableError,
    NoRouteError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendOutcomeUnknownError,
)
from jepsen.cpp_client import make_body, read_body
from jepsen.history import Recorder, Stream

PRODUCER: Final = "ours"
GROUP: Final = "demo-ours"
ROUTE_WAIT_S: Final = 0.05
OFFSET_QUERY_S: Final = 0.5


def name_of(queue: MessageQueue) -> str:
    """Return how the history calls a queue."""
    return f"{queue.broker_name}/{queue.queue_id}"


async def wait_for_queues(producer: Producer, topic: str, timeout_s: float) -> None:
    """Wait until somebody serves the topic, or would create it.

    Raises:
        trio.TooSlowError: nobody did in time.
    """
    with trio.fail_after(timeout_s):
        while True:
            try:
                await producer.queues(topic)
            except (NoRouteError, NameServersUnreachableError):
                await trio.sleep(ROUTE_WAIT_S)
            else:
                return


class Writer:
    """Sends to one queue until told to stop.

    Attributes:
        has_begun: set at the first acknowledgement: the topic exists.
    """

    def __init__(
        self, producer: Producer, queue: MessageQueue, history: Recorder, *, pause_s: float
    ) -> None:
        self._producer = producer
        self._queue = queue
        self._history = history
        self._pause_s = pause_s
        self.has_begun = trio.Event()

    async def run(self, stop: trio.Event) -> None:
        """Send number after number."""
        number = 0
        while not stop.is_set():
            await self._send(number)
            number += 1
            await trio.sleep(self._pause_s)

    async def _send(self, number: int) -> None:
        queue, add = name_of(self._queue), self._history.add
        body = make_body(PRODUCER, self._queue.queue_id, number)
        add("send", queue=queue, producer=PRODUCER, number=number)
        try:
            result = await self._producer.send(Message(self._queue.topic, body), queue=self._queue)
        except SendOutcomeUnknownError as error:
            add("unknown", queue=queue, producer=PRODUCER, number=number, text=str(error))
        except ClientError as error:  # every other one is definite: not stored
            add("refused", queue=queue, producer=PRODUCER, number=number, text=str(error))
        else:
            add(
                "ack",
                queue=queue,
                producer=PRODUCER,
                number=number,
                offset=result.queue_offset,
                key=result.unique_key,
            )
            self.has_begun.set()


def recording_consumer(namesrv: str, topic: str, history: Recorder) -> PushConsumer:
    """Return a consumer that notes every delivery, in order per queue."""

    async def note(message: ReceivedMessage) -> None:
        producer, number = read_body(message.body)
        history.add(
            "receive",
            queue=name_of(message.queue),
            producer=producer,
            number=number,
            offset=message.queue_offset,
            consumer=GROUP,
            key=message.unique_key,
        )

    return PushConsumer(
        namesrv,
        GROUP,
        note,
        subscriptions={topic: "*"},
        ordered=True,
        start_from="first",
        commit_interval_s=1.0,
    )


async def watch_offsets(
    reader: PullConsumer,
    queues: tuple[MessageQueue, ...],
    history: Recorder,
    *,
    group: str = GROUP,
    stream: Stream = "",
) -> None:
    """Ask for the group's stored offsets again and again; they must never go back."""
    while True:
        for queue in queues:
            try:
                offset = await reader.committed(queue)
            except ClientError:
                continue  # nobody leads just now
            if offset is not None:
                history.add(
                    "committed",
                    queue=name_of(queue),
                    offset=offset,
                    consumer=group,
                    stream=stream,
                )
        await trio.sleep(OFFSET_QUERY_S)
