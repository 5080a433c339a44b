"""The C++ client's orderly consumer keeps its queues, its order and its offsets over a leader's death."""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.client import blocking
from jepsen.processes import poll
from tests.interop.conftest import ForeignClient, RunningGroup, received, rest_of, sent

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNT = 150
RECOVERED = 60
"""Acknowledged sends that show that the client went on after the failover; those that fail in it are
not sent again, and how many those are is a matter of how busy the machine is."""
SHARDS = 4


def test_p3_an_orderly_consumer_goes_on_in_order_and_may_commit(
    group: RunningGroup, name: str, cpp: ForeignClient
) -> None:
    """The new leader knows who holds the queues, and by its connection who commits (P5, P6)."""
    topic = group.create_topic(name)
    consumer = cpp.start(
        "consume", "--topic", topic, "--group", name, "--orderly", "--count", str(10 * COUNT),
        "--timeout", "60",
    )  # fmt: skip
    producer = cpp.start(
        "produce", "--topic", topic, "--count", str(COUNT), "--interval-ms", "50", "--orderly",
        "--shards", str(SHARDS), "--key-prefix", "k", "--keep-going", "--timeout", "150",
    )  # fmt: skip
    assert consumer.stdout is not None
    lines = [json.loads(consumer.stdout.readline()) for _ in range(20)]
    with ThreadPoolExecutor() as readers:
        consumed = readers.submit(rest_of, consumer)
        produced = readers.submit(rest_of, producer)
        leader = group.wait_leader(topic=topic)
        leader.kill()
        group.wait_leader(other_than=leader, topic=topic)
        leader.start()
        assert poll(leader.is_listening, 60)
        acknowledged = sent(produced.result(200))
        lines += consumed.result(200)
    for client in (producer, consumer):
        client.communicate(timeout=60)
    assert len(acknowledged) > RECOVERED, "the client did not recover"
    assert set(acknowledged) <= set(received(lines))
    first: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line.get("action") == "ok":
            number = int(line["keys"][1:])
            if number not in first[number % SHARDS]:
                first[number % SHARDS].append(number)
    for shard, numbers in first.items():
        assert numbers == sorted(numbers), f"shard {shard}"
    with blocking.PullConsumer(group.namesrv, name) as reader:
        queues = reader.queues(topic)

        def committed() -> int:
            return sum(reader.committed(queue) or 0 for queue in queues)

        assert poll(lambda: committed() >= len(acknowledged) - SHARDS, 60), (
            f"refused: {committed()}"
        )
