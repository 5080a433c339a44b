"""RocketMQ 5's own gRPC clients, unchanged, through our proxy and through Apache's, in front of our brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.systems.apache_proxy import apache_proxy, lacking_apache_proxy
from jepsen.private_network import private_network
from jepsen.processes import Group, poll
from tests.integration.proxy.conftest import RunningProxy, running_proxy, started
from tests.interop.conftest import (
    GRPC_JAVA,
    JAVA_OPTIONS,
    ROOT,
    WAIT_S,
    ForeignClient,
    Listener,
    at_once,
    kill_and_restart,
    lacking,
    messages_in,
    name_of,
    present,
    received,
    sent,
    stored,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

INTEROP = ROOT / ".interop"
KINDS = {
    "ours": ("grpc", GRPC_JAVA, "grpc-node", "grpc-go"),
    "apache": ("grpc", GRPC_JAVA, "grpc-go"),
}
"""Who goes through which door. What Apache's proxy asks the brokers is the same for all: Node would find nothing more
there, and takes a minute to begin."""


@pytest.fixture(scope="module", params=["ours", "apache"])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """A group behind one of the two doors; around Apache's, everything is in a network of its own."""
    folder = tmp_path_factory.mktemp("proxied")
    if request.param == "ours":
        with running_proxy(folder) as running:
            yield running
        return
    if reason := lacking_apache_proxy(INTEROP):
        pytest.skip(reason)
    with private_network(), Group(folder) as processes:
        processes.start()
        proxy = apache_proxy(
            folder / "proxy",
            processes.namesrv,
            cluster="DefaultCluster",
            interop=INTEROP,
            options=JAVA_OPTIONS,
        )
        with started(processes, proxy) as running:
            yield running


def client_of(kind: str, proxied: RunningProxy) -> ForeignClient:
    if reason := lacking(kind):
        pytest.skip(reason)
    more = () if kind == "grpc" else ("--plain",)
    return ForeignClient(kind, proxied.proxy.address, more=more)


@pytest.fixture
def clients(request: pytest.FixtureRequest, proxied: RunningProxy) -> list[ForeignClient]:
    """All that this machine has: a test is a story of each, told by all at once."""
    kinds = KINDS["apache" if proxied.proxy.name == "apache" else "ours"]
    return [client_of(kind, proxied) for kind in present(request, kinds)]


@pytest.fixture
def python(proxied: RunningProxy) -> ForeignClient:
    return client_of("grpc", proxied)


def test_messages_go_through_and_one_that_was_refused_comes_again(
    proxied: RunningProxy, clients: list[ForeignClient], name: str
) -> None:
    """To a consumer that they are pushed to, and to one that asks for them."""

    def story(client: ForeignClient) -> None:
        topic = proxied.topic()
        produced = sent(client.run("produce", "--topic", topic, "--count", "20"))
        assert len(produced) == 20
        asked = ("consume", "--topic", topic, "--count", "20", "--timeout", "200")
        again = ("--reconsume-first", "1")
        pushed = client.start(*asked, *again, "--group", name_of(f"{name}-push", client.kind))
        simple = client.start(*asked, *again, "--group", name_of(name, client.kind), "--simple")
        try:
            for lines in (client.finish(pushed), client.finish(simple)):
                check(lines, produced)
        finally:
            simple.kill()

    def check(lines: list[dict[str, Any]], produced: list[str]) -> None:
        assert sorted(received(lines)) == sorted(produced)
        assert any(line.get("reconsume_times") for line in lines if line.get("action") == "ok")
        first = next(line for line in lines if line.get("body") == "grpc-7")
        assert (first["keys"], first["properties"]) == (["k7"], {"number": "7"})

    at_once(story, clients)


def test_messages_of_a_group_keep_their_order(
    proxied: RunningProxy, clients: list[ForeignClient], name: str
) -> None:
    def story(client: ForeignClient) -> None:
        topic, group = proxied.topic("FIFO"), name_of(name, client.kind)
        proxied.create_ordered_group(group)
        client.run("produce", "--topic", topic, "--count", "40", "--message-groups", "4")
        lines = client.run(
            *("consume", "--topic", topic, "--group", group, "--count", "40", "--timeout", "200")
        )
        accepted = [line for line in lines if line.get("action") == "ok"]
        for of in ("g0", "g1", "g2", "g3"):
            numbers = [int(line["body"][5:]) for line in accepted if line["group"] == of]
            assert numbers == sorted(numbers)
            assert len(numbers) == 10

    at_once(story, clients)


def test_delayed_messages_come_when_they_are_due(
    proxied: RunningProxy, clients: list[ForeignClient], name: str
) -> None:
    def story(client: ForeignClient) -> None:
        topic, group = proxied.topic("DELAY"), name_of(name, client.kind)
        produced = sent(client.run("produce", "--topic", topic, "--count", "3", "--delay-s", "3"))
        lines = client.run(
            *("consume", "--topic", topic, "--group", group, "--count", "3", "--timeout", "200")
        )
        assert sorted(received(lines)) == sorted(produced)
        there = messages_in(proxied.namesrv, topic)
        due_ms = [int(each.properties["TIMER_DELIVER_MS"]) for each in there]
        assert len(due_ms) == 3
        early_ms = [due - each.store_timestamp_ms for due, each in zip(due_ms, there, strict=True)]
        assert max(early_ms) <= 0, "never before its time"
        # A client looks at its clock for the due time first: its first message is born some while after that.
        wanted_ms = max(
            due - each.born_timestamp_ms for due, each in zip(due_ms, there, strict=True)
        )
        if client.kind == "grpc":
            assert not any(due % 1000 for due in due_ms), "Python's client knows whole seconds only"
            assert 1500 < wanted_ms <= 3000
        else:
            assert any(due % 1000 for due in due_ms), (
                "the others say milliseconds, and these are kept"
            )
            assert 2500 < wanted_ms <= 3000

    at_once(story, clients)


def test_transactions_end_as_said_and_the_open_ones_are_asked_about(
    proxied: RunningProxy,
    python: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic("TRANSACTION")
    producer = python.start(
        *("produce", "--topic", topic, "--count", "9", "--transaction", "--linger", "200")
    )
    with Listener(producer) as said:
        assert poll(lambda: any(line.get("summary") for line in said.lines), WAIT_S), said.lines
        lines = python.run(
            *("consume", "--topic", topic, "--group", name, "--count", "6", "--timeout", "200"),
            *("--linger", "1"),
        )
        produced = list(said.lines)
    wanted = [line["body_sha1"] for line in produced if line.get("end") in ("commit", "open")]
    assert sorted(received(lines)) == sorted(wanted)


def test_nothing_acknowledged_is_lost_when_the_leader_dies(
    proxied: RunningProxy,
    python: ForeignClient,
    name: str,
) -> None:
    topic = proxied.topic()
    producer = python.start(
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
    consumer = python.start(
        *("consume", "--topic", topic, "--group", name, "--count", "10000", "--timeout", "600")
    )
    with Listener(consumer) as consumed:
        assert poll(lambda: acknowledged <= set(received(consumed.lines)), WAIT_S)
