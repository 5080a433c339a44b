"""A broker group with topics to read, for the pipeline's tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import trio

from broker.admin.ask import ask_all
from dledger_mq import ClientError, Message, MessageQueue, SendResult
from dledger_mq.blocking import Producer
from jepsen.processes import Group, Process, poll

PATIENCE_S = 300
"""Nothing takes that long, on whatever machine; a test that waits for more has failed."""


class Topics:
    """The broker group that the tests of this folder share, and topics of their own for each test."""

    def __init__(self, group: Group, producer: Producer) -> None:
        self.group = group
        self.producer = producer
        self._numbers = itertools.count(1)

    @property
    def namesrv(self) -> str:
        return self.group.namesrv

    def fresh(self) -> str:
        """A name that no test has had."""
        return f"Topic{next(self._numbers)}"

    def wait_writable(self) -> None:
        """Wait until a message can be stored."""

        def is_stored() -> bool:
            try:
                return bool(self.producer.send(Message("Ready", b"?")))
            except ClientError:
                return False

        assert poll(is_stored, PATIENCE_S), f"no leader in {PATIENCE_S} s"

    def send(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send, and insist on every acknowledgement."""
        ended = self.producer.send_many(messages)
        sent = [end for end in ended if isinstance(end, SendResult)]
        assert len(sent) == len(messages), ended
        return sent

    def fill(self, topic: str, count: int, *, first: int = 0, queues: int = 4) -> None:
        """Send bodies `first` to `first + count - 1`, dealt out over the queues in order."""
        places = [MessageQueue(topic, self.group.group, number) for number in range(queues)]
        pending = [
            self.producer.send_batch(
                [Message(topic, b"%d" % n) for n in range(first + place, first + count, queues)],
                queue=queue,
            )
            for place, queue in enumerate(places)
            if place < count
        ]
        assert all(sent.status == "SEND_OK" for sent in pending)


def leader_of(group: Group) -> Process | None:
    """The node that says it leads; None while none does."""
    answers = trio.run(ask_all, [node.address for node in group.nodes if node.pid is not None])
    for answer in answers:
        if answer.table.get("raftRole") == "leader":
            return group.by_address[answer.address]
    return None


def load(spark: Any, topics: Topics, topic: str, **options: object) -> Any:
    """Read a topic as a table."""
    reader = spark.read.format("rocketmq").option("nameServer", topics.namesrv)
    return reader.options(**({"topic": topic} | options)).load()


def numbers(frame: Any) -> list[int]:
    """The bodies of a table, as numbers, sorted."""
    rows = frame.selectExpr("cast(cast(body as string) as int) n").collect()
    return sorted(row.n for row in rows)
