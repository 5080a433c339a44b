"""What a transaction producer of ours or of others commits reaches unmodified clients once; the rest never does."""

from __future__ import annotations

import hashlib

import pytest

from dledger_mq import Message, TransactionState
from dledger_mq.blocking import TransactionProducer
from tests.interop.conftest import WAIT_S, ForeignClient, Listener, RunningGroup, received

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_only_what_was_committed_is_consumed(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    topic = group.create_topic(name)

    def local(message: Message, transaction_id: str) -> TransactionState:
        wanted = message.body.startswith(b"yes")
        return TransactionState.COMMIT if wanted else TransactionState.ROLLBACK

    with TransactionProducer(
        group.namesrv, name, checker=lambda message: TransactionState.UNKNOWN, timeout_s=WAIT_S
    ) as producer:
        for number in range(10):
            for word in ("no", "yes"):
                body = f"{word} {number}".encode()
                assert producer.send_in_transaction(Message(topic, body), local).is_confirmed
    lines = client.run(
        *("consume", "--topic", topic, "--group", name, "--count", "10"),
        *("--timeout", "200", "--linger", "2"),
    )
    wanted_digests = [hashlib.sha1(f"yes {n}".encode()).hexdigest() for n in range(10)]
    assert sorted(received(lines)) == sorted(wanted_digests)


@pytest.mark.parametrize("client", ["java-4.9.8", "go"], indirect=True)
def test_what_a_foreign_producer_commits_or_is_asked_about(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    """One is committed, the next rolled back, of the third it says nothing before it is asked.

    It stays until all is consumed: its library sends what it answers to a check after it has asked the program.
    """
    topic = group.create_topic(name)
    producer = client.start(
        *("produce", "--topic", topic, "--count", "9", "--transaction", "--group", name),
        "--steered",
    )
    with Listener(producer) as said:
        produced = said.wait_summary()
        lines = client.run(
            *("consume", "--topic", topic, "--group", name, "--count", "6"),
            *("--timeout", "200", "--linger", "1"),
        )
    visible = [
        line["body_sha1"]
        for line in produced
        if line.get("transaction", "ROLLBACK_MESSAGE") != "ROLLBACK_MESSAGE"
    ]
    assert len(visible) == 6
    assert sorted(received(lines)) == sorted(visible)
