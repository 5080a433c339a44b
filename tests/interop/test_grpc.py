"""RocketMQ 5's own gRPC client in Python, unchanged, through our proxy."""

from __future__ import annotations

import hashlib

import pytest

from dledger_mq.blocking import PullConsumer
from jepsen.processes import poll
from tests.integration.proxy.conftest import RunningProxy, proxied
from tests.interop.conftest import (
    GRPC_PYTHON,
    WAIT_S,
    ForeignClient,
    Listener,
    kill_and_restart,
    received,
    sent,
    stored,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

__all__ = ["proxied"]


@pytest.fixture
def grpc_client(proxied: RunningProxy) -> ForeignClient:
    if not GRPC_PYTHON.exists():
        pytest.skip("the gRPC client is not installed (make interop)")
    return ForeignClient("grpc", proxied.proxy.address)


@pytest.mark.parametrize("way", [(), ("--simple",)], ids=["push", "simple"])
def test_messages_go_through_and_one_that_was_refused_comes_again(
    proxied: RunningProxy,
    grpc_client: ForeignClient,
    name: str,
    way: tuple[str, ...],
) -> None:
    topic = proxied.topic()
    produced = sent(grpc_client.run("produce", "--topic", topic, "--count", "20"))
    assert len(produced) == 20
    lines = grpc_client.run(
        *("consume", "--topic", topic, "--group", name, "--count", "20", "--timeout", "200"),
        *("--reconsume-first", "1", *way),
    )
    assert sorted(received(lines)) == sorted(produced)
    assert any(line.get("reconsume_times") for line in lines if line.get("action") == "ok")
    first = next(line for line in lines if line.get("body") == "grpc-7")
    assert (first["keys"], first["properties"]) == (["k7"], {"number": "7"})


def test_messages_of_a_group_keep_their_order(
    proxied: RunningProxy,
    grpc_client: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic("FIFO")
    proxied.create_ordered_group(name)
    run = grpc_client.run
    run("produce", "--topic", topic, "--count", "40", "--message-groups", "4")
    lines = run("consume", "--topic", topic, "--group", name, "--count", "40", "--timeout", "200")
    accepted = [line for line in lines if line.get("action") == "ok"]
    for group in ("g0", "g1", "g2", "g3"):
        numbers = [int(line["body"][5:]) for line in accepted if line["group"] == group]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


def test_delayed_messages_come_when_they_are_due(
    proxied: RunningProxy,
    grpc_client: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic("DELAY")
    rows = grpc_client.run("produce", "--topic", topic, "--count", "3", "--delay-s", "3")
    produced = sent(rows)
    lines = grpc_client.run(
        *("consume", "--topic", topic, "--group", name, "--count", "3", "--timeout", "200")
    )
    assert sorted(received(lines)) == sorted(produced)
    due_ms = {row["body_sha1"]: row["due_ms"] for row in rows if "due_ms" in row}
    with PullConsumer(proxied.namesrv, "reader-of-times", timeout_s=WAIT_S) as reader:
        found = [
            message
            for queue in reader.queues(topic)
            for message in reader.pull(queue, reader.min_offset(queue)).messages
        ]
    assert len(found) == 3
    for message in found:
        digest = hashlib.sha1(message.body).hexdigest()
        assert message.store_timestamp_ms >= due_ms[digest], "it was there before its time"


def test_transactions_end_as_said_and_the_open_ones_are_asked_about(
    proxied: RunningProxy,
    grpc_client: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic("TRANSACTION")
    producer = grpc_client.start(
        *("produce", "--topic", topic, "--count", "9", "--transaction", "--linger", "200")
    )
    with Listener(producer) as said:
        assert poll(lambda: any(line.get("summary") for line in said.lines), WAIT_S), said.lines
        lines = grpc_client.run(
            *("consume", "--topic", topic, "--group", name, "--count", "6", "--timeout", "200"),
            *("--linger", "1"),
        )
        produced = list(said.lines)
    wanted = [line["body_sha1"] for line in produced if line.get("end") in ("commit", "open")]
    assert sorted(received(lines)) == sorted(wanted)


def test_nothing_acknowledged_is_lost_when_the_leader_dies(
    proxied: RunningProxy,
    grpc_client: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic()
    producer = grpc_client.start(
        *("produce", "--topic", topic, "--count", "10000", "--interval-ms", "60", "--keep-going")
    )
    with Listener(producer) as said:
        said.wait_lines(30)
        kill_and_restart(proxied, topic)
        before = len(sent(said.lines))
        assert poll(lambda: len(sent(said.lines)) > before + 30, WAIT_S), "it did not recover"
    acknowledged = set(sent(said.lines))
    there = stored(proxied.namesrv, topic)
    assert acknowledged <= set(there.values()), "lost"
    assert len(there) == len(set(there.values())), "stored twice"
    consumer = grpc_client.start(
        *("consume", "--topic", topic, "--group", name, "--count", "10000", "--timeout", "600")
    )
    with Listener(consumer) as consumed:
        assert poll(lambda: acknowledged <= set(received(consumed.lines)), WAIT_S)
