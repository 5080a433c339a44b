"""Foreign orderly consumers keep their queues, their order and their offsets over a leader's death."""

from __future__ import annotations

from collections import defaultdict

import pytest

from dledger_mq import blocking
from jepsen.processes import poll
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    kill_and_restart,
    received,
    sent,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENOUGH = 10_000
RECOVERED = 60
"""Acknowledged sends that show that the client went on after the failover."""
SHARDS = 4


@pytest.mark.parametrize("client", ["cpp", "go", "java-5.3.3"], indirect=True)
def test_p3_an_orderly_consumer_goes_on_in_order_and_may_commit(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    """The new leader knows who holds the queues, and by its connection who commits (P5, P6)."""
    topic = group.create_topic(name)
    consumer = client.start(
        "consume", "--topic", topic, "--group", name, "--orderly", "--count", str(ENOUGH),
        "--timeout", "600",
    )  # fmt: skip
    producer = client.start(
        "produce", "--topic", topic, "--count", str(ENOUGH), "--interval-ms", "50", "--orderly",
        "--shards", str(SHARDS), "--key-prefix", "k", "--keep-going",
        "--send-timeout-ms", "3000", "--timeout", "600",
    )  # fmt: skip
    with Listener(consumer) as consumed:
        with Listener(producer) as produced:
            consumed.wait_lines(20)
            kill_and_restart(group, topic)
            before = len(sent(produced.lines))
            assert poll(lambda: len(sent(produced.lines)) > before + RECOVERED, WAIT_S)
        acknowledged = sent(produced.lines)
        assert poll(lambda: set(acknowledged) <= set(received(consumed.lines)), WAIT_S)
        with blocking.PullConsumer(group.namesrv, name, timeout_s=WAIT_S) as reader:
            queues = reader.queues(topic)

            def committed() -> int:
                return sum(reader.committed(queue) or 0 for queue in queues)

            assert poll(lambda: committed() >= len(acknowledged) - SHARDS, WAIT_S), (
                f"refused: {committed()}"
            )
        lines = list(consumed.lines)
    first: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        if line.get("action") == "ok":
            number = int(line["keys"][1:])
            if number not in first[number % SHARDS]:
                first[number % SHARDS].append(number)
    for shard, numbers in first.items():
        assert numbers == sorted(numbers), f"shard {shard}"
