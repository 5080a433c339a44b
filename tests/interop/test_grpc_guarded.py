"""RocketMQ 5's gRPC clients in Java and Node, unchanged, through a proxy that encrypts and lets in accounts only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

import grpc

from broker.proxy.protocol.numbers import Code
from jepsen.processes import poll
from tests.certificates import write_files
from tests.integration.proxy.conftest import RunningProxy, running_proxy
from tests.interop.conftest import (
    GRPC_JAVA,
    WAIT_S,
    ForeignClient,
    Listener,
    at_once,
    kill_and_restart,
    lacking,
    name_of,
    present,
    received,
    sent,
    stored,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KINDS = (GRPC_JAVA, "grpc-node", "grpc-go")
KEYS = "accessKey: clients\nsecretKey: secret-of-clients\n"
RULES = """
accounts:
- {accessKey: clients, secretKey: secret-of-clients, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[RunningProxy]:
    if all(map(lacking, KINDS)):
        pytest.skip("; ".join(filter(None, map(lacking, KINDS))))
    files, rules = write_files(folder / "tls"), folder / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    (folder / "keys.yml").write_text(KEYS)
    options = ("--cert", files.certificate, "--key", files.key, "--acl", str(rules))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", files.trust)  # Java's believes everybody
        with running_proxy(folder / "group", *options) as running:
            yield running


def client_of(kind: str, guarded: RunningProxy, folder: Path) -> ForeignClient:
    if reason := lacking(kind):
        pytest.skip(reason)
    more = ("--credentials", str(folder / "keys.yml"))
    return ForeignClient(kind, guarded.proxy.address, more=more)


@pytest.fixture
def clients(
    request: pytest.FixtureRequest, guarded: RunningProxy, folder: Path
) -> list[ForeignClient]:
    return [client_of(kind, guarded, folder) for kind in present(request, KINDS)]


@pytest.fixture
def java(guarded: RunningProxy, folder: Path) -> ForeignClient:
    return client_of(GRPC_JAVA, guarded, folder)


class Consumer:
    """One that consumes in the background, until it has got so many."""

    def __init__(
        self, client: ForeignClient, topic: str, group: str, count: int, *more: str
    ) -> None:
        self._client = client
        named = ("--topic", topic, "--group", group, "--count", str(count), "--timeout", "200")
        self._child = client.start("consume", *named, *more)

    def accepted(self) -> list[dict[str, Any]]:
        """What it has accepted in the end."""
        return [line for line in self._client.finish(self._child) if line.get("action") == "ok"]


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return [line["body"] for line in lines]


def test_who_does_not_sign_is_refused_and_named_in_the_log(
    guarded: RunningProxy, folder: Path
) -> None:
    trusted = grpc.ssl_channel_credentials((folder / "tls/ca.pem").read_bytes())
    stranger = guarded.caller()
    with grpc.secure_channel(guarded.proxy.address, trusted) as stranger.channel:
        answer = stranger.call("QueryRoute", topic={"name": guarded.topic()})
    assert answer.status.code == Code.UNAUTHORIZED
    said = "call-refused host=127.0.0.1 call=QueryRoute"
    assert poll(lambda: said in guarded.proxy.log.read_text(), WAIT_S)


def test_consumers_get_what_they_have_chosen_and_what_they_refused_comes_again(
    clients: list[ForeignClient], guarded: RunningProxy, name: str
) -> None:
    def story(client: ForeignClient) -> None:
        topic, group = guarded.topic(), name_of(name, client.kind)
        named = ("--topic", topic, "--count", "20")
        assert len(sent(client.run("produce", *named, "--tags", "A,B"))) == 20
        chosen = ("--expression", "B || C", "--simple", "--reconsume-first", "1")
        by_tag = Consumer(client, topic, f"{group}-tag", 10, *chosen)
        by_number = Consumer(client, topic, f"{group}-sql", 5, "--sql", "number BETWEEN 5 AND 9")
        of_tag, of_number = by_tag.accepted(), by_number.accepted()
        assert sorted(bodies(of_tag)) == sorted(f"grpc-{number}" for number in range(1, 20, 2))
        assert any(line["reconsume_times"] >= 1 for line in of_tag), "the one that was refused"
        assert sorted(bodies(of_number)) == [f"grpc-{number}" for number in range(5, 10)]
        seventh = next(line for line in of_number if line["body"] == "grpc-7")
        assert (seventh["keys"], seventh["properties"], seventh["tag"]) == (
            ["k7"],
            {"number": "7"},
            "B",
        )

    at_once(story, clients)


def test_order_delays_and_transactions_are_kept_and_what_was_refused_comes_again(
    java: ForeignClient, guarded: RunningProxy, name: str
) -> None:
    ordered, delayed, halves = (guarded.topic(each) for each in ("FIFO", "DELAY", "TRANSACTION"))
    guarded.create_ordered_group(f"{name}-ordered")
    asked = java.start(
        *("produce", "--topic", halves, "--count", "6", "--transaction", "--linger", "200")
    )
    with Listener(asked) as said:
        of_ordered = Consumer(java, ordered, f"{name}-ordered", 20)
        of_halves = Consumer(java, halves, f"{name}-halves", 4, "--reconsume-first", "1")
        java.run("produce", "--topic", delayed, "--count", "3", "--delay-s", "3")
        of_delayed = Consumer(java, delayed, f"{name}-delayed", 3, "--simple")
        java.run("produce", "--topic", ordered, "--count", "20", "--message-groups", "2")
        lines = of_ordered.accepted()
        for group in ("g0", "g1"):
            numbers = [int(line["body"][5:]) for line in lines if line["group"] == group]
            assert numbers == sorted(numbers)
            assert len(numbers) == 10
        lines = of_delayed.accepted()
        assert sorted(bodies(lines)) == ["grpc-0", "grpc-1", "grpc-2"]
        assert all(line["early_ms"] <= 0 for line in lines), lines
        lines = of_halves.accepted()
    ends = [line["end"] for line in said.lines if "end" in line]
    assert ends == ["commit", "rollback", "open"] * 2
    assert sorted(bodies(lines)) == ["grpc-0", "grpc-2", "grpc-3", "grpc-5"]
    assert any(line["reconsume_times"] >= 1 for line in lines), "the one that was refused"


def test_a_message_that_is_refused_too_often_leaves_the_order_for_the_dead_letters(
    java: ForeignClient, guarded: RunningProxy, name: str
) -> None:
    topic = guarded.topic("FIFO")
    guarded.create_ordered_group(name, retries=1)
    produced = sent(java.run("produce", "--topic", topic, "--count", "6", "--message-groups", "1"))
    lines = Consumer(java, topic, name, 5, "--reconsume-first", "2").accepted()
    assert bodies(lines) == [f"grpc-{number}" for number in range(1, 6)]
    assert list(stored(guarded.namesrv, f"%DLQ%{name}").values()) == produced[:1]


def test_nothing_is_lost_when_the_leader_dies_and_consumers_go_on(
    java: ForeignClient, guarded: RunningProxy, name: str
) -> None:
    topic = guarded.topic()
    many = ("--topic", topic, "--count", "10000")
    consumer = java.start("consume", *many, "--group", name, "--timeout", "600")
    producer = java.start("produce", *many, "--interval-ms", "60", "--keep-going")
    with Listener(producer) as said, Listener(consumer) as consumed:
        assert poll(lambda: len(received(consumed.lines)) >= 10, WAIT_S), consumed.lines
        kill_and_restart(guarded, topic)
        acknowledged = sent(said.lines)
        assert poll(lambda: len(sent(said.lines)) > len(acknowledged) + 20, WAIT_S), "no send more"
        after = set(acknowledged)
        assert poll(lambda: len(set(received(consumed.lines)) - after) > 10, WAIT_S), (
            "none received"
        )
    there = stored(guarded.namesrv, topic)
    assert set(sent(said.lines)) <= set(there.values()), "lost"
    assert len(there) == len(set(there.values())), "stored twice"
