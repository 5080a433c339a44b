"""Foreign orderly consumers keep their queues, their order and their offsets over a leader's death."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack

import pytest

from dledger_mq import blocking
from jepsen.processes import poll
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    at_once,
    kill_and_restart,
    name_of,
    present,
    received,
    sent,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENOUGH = 10_000
RECOVERED = 60
"""Acknowledged sends that show that the client went on after the failover."""
SHARDS = 4


def test_p3_an_orderly_consumer_goes_on_in_order_and_may_commit(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    """The new leader knows who holds the queues, and by its connection who commits (P5, P6).

    All clients are at work in topics of their own when the leader dies.
    """
    kinds = present(request, ("cpp", "go", "java-5.3.3"))
    topics = {kind: group.create_topic(name_of(name, kind)) for kind in kinds}
    with ExitStack() as running:
        consuming: dict[str, Listener] = {}
        sending: dict[str, Listener] = {}
        for kind, topic in topics.items():
            client = ForeignClient(kind, group.namesrv)
            consumer = client.start(
                "consume", "--topic", topic, "--group", topic, "--orderly", "--count", str(ENOUGH),
                "--timeout", "600",
            )  # fmt: skip
            consuming[kind] = running.enter_context(Listener(consumer))
            producer = client.start(
                "produce", "--topic", topic, "--count", str(ENOUGH), "--interval-ms", "50", "--orderly",
                "--shards", str(SHARDS), "--key-prefix", "k", "--keep-going",
                "--send-timeout-ms", "3000", "--timeout", "600",
            )  # fmt: skip
            sending[kind] = running.enter_context(Listener(producer))
        for consumed in consuming.values():
            consumed.wait_lines(20)
        kill_and_restart(group, topics[kinds[0]])

        def story(kind: str) -> None:
            check(group, topics[kind], sending[kind], consuming[kind])

        at_once(story, kinds)


def check(group: RunningGroup, topic: str, produced: Listener, consumed: Listener) -> None:
    before = len(sent(produced.lines))
    assert poll(lambda: len(sent(produced.lines)) > before + RECOVERED, WAIT_S)
    produced.end()
    acknowledged = sent(produced.lines)
    assert poll(lambda: set(acknowledged) <= set(received(consumed.lines)), WAIT_S)
    with blocking.PullConsumer(group.namesrv, topic, timeout_s=WAIT_S) as reader:
        queues = reader.queues(topic)

        def committed() -> int:
            return sum(reader.committed(queue) or 0 for queue in queues)

        assert poll(lambda: committed() >= len(acknowledged) - SHARDS, WAIT_S), (
            f"refused: {committed()}"
        )
    first: dict[int, list[int]] = defaultdict(list)
    for line in list(consumed.lines):
        if line.get("action") == "ok":
            number = int(line["keys"][1:])
            if number not in first[number % SHARDS]:
                first[number % SHARDS].append(number)
    assert len(first) == SHARDS
    for shard, numbers in first.items():
        assert numbers == sorted(numbers), f"shard {shard}"
