"""The leader dies by kill -9 while the foreign clients are at work, and returns."""

from __future__ import annotations

import json

import pytest

from jepsen.processes import poll
from tests.interop.conftest import ForeignClient, RunningGroup, received, sent

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_nothing_acknowledged_is_lost_when_the_leader_dies(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    """The client's route still names the dead node; once that is back it forwards."""
    topic = group.create_topic(name)
    fast = ("--fast-timers",) if client.kind == "node" else ()
    producer = client.start(
        "produce",
        "--topic",
        topic,
        "--count",
        "150",
        "--interval-ms",
        "60",
        "--keep-going",
        "--timeout",
        "150",
    )
    assert producer.stdout is not None
    first = [json.loads(producer.stdout.readline()) for _ in range(30)]
    leader = group.leader(topic)
    leader.kill()
    group.wait_leader(other_than=leader, topic=topic)
    leader.start()
    assert poll(leader.is_listening, 30)
    out, _ = producer.communicate(timeout=200)
    lines = first + [json.loads(line) for line in out.splitlines()]
    acknowledged = sent(lines)
    assert len(acknowledged) > 60, "the client did not recover"
    consumed = client.run(
        "consume", "--topic", topic, "--group", name, "--count", str(len(set(acknowledged))),
        "--linger", "2", "--timeout", "90", *fast,
    )  # fmt: skip
    assert set(acknowledged) <= set(received(consumed))
