"""Reading a whole topic of a running group."""

from __future__ import annotations

from contextlib import suppress

from dledger_mq import ClientError, ReceivedMessage
from dledger_mq.blocking import PullConsumer


def everything(consumer: PullConsumer, topic: str) -> list[ReceivedMessage]:
    """All messages of a topic but those that only made it."""
    found: list[ReceivedMessage] = []
    for queue in consumer.queues(topic):
        offset, end = 0, consumer.max_offset(queue)
        while offset < end:
            pulled = consumer.pull(queue, offset)
            found += pulled.messages
            offset = pulled.next_offset
    return [message for message in found if message.body != b"first"]


def has_as_many(consumer: PullConsumer, topic: str, count: int) -> bool:
    """Return whether a topic has so many messages; not, too, while nobody leads who could tell."""
    with suppress(ClientError):
        return len(everything(consumer, topic)) >= count
    return False
