"""Java's push consumer that leaves it to the broker which queues are its own, and pops them where that is set."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from jepsen.processes import poll
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    client_or_skip,
    kill_and_restart,
    received,
    sent,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def java5(group: RunningGroup) -> ForeignClient:
    return client_or_skip("java-5.3.3", group)


def consume(java: ForeignClient, topic: str, *more: str) -> Listener:
    return Listener(
        java.start(
            *("consume", "--topic", topic, "--group", topic, "--count", "20", "--timeout", "200"),
            *("--broker-rebalance", *more),
        )
    )


def set_mode(group: RunningGroup, topic: str, mode: str) -> int:
    body = {"topic": topic, "consumerGroup": topic, "mode": mode, "popShareQueueNum": 0}
    header, _ = group.ask(401, {}, json.dumps(body).encode(), topic=topic)
    return int(header["code"])


def create_group(group: RunningGroup, name: str) -> None:
    body = json.dumps({"groupName": name, "consumeEnable": True}).encode()
    group.ask(200, {}, body, topic=name)


def test_it_gets_all_when_the_broker_shares_out_queues_to_pull(
    group: RunningGroup, name: str, java5: ForeignClient
) -> None:
    topic = group.create_topic(name)
    produced = sent(java5.run("produce", "--topic", topic, "--count", "20"))
    with consume(java5, topic) as consumer:
        lines = consumer.wait_end()
    assert Counter(received(lines)) == Counter(produced)


def test_it_pops_all_over_the_death_of_the_leader_and_what_failed_comes_again(
    group: RunningGroup, name: str, java5: ForeignClient
) -> None:
    topic = group.create_topic(name)
    create_group(group, topic)
    assert set_mode(group, topic, "POP") == 0
    produced = sent(java5.run("produce", "--topic", topic, "--count", "20"))
    with consume(java5, topic, "--reconsume-first", "3") as consumer:
        assert poll(lambda: len(received(list(consumer.lines))) >= 10, WAIT_S), consumer.lines[-3:]
        kill_and_restart(group, topic)
        lines = consumer.wait_end()
    assert set(received(lines)) == set(produced)
    again = [line for line in lines if line.get("reconsume_times", 0) > 0]
    assert {line["topic"] for line in again} == {topic}, "handed out again where they lie"
    assert len(again) >= 3
