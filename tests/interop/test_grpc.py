"""RocketMQ 5's own gRPC clients, unchanged, through our proxy and through Apache's, in front of our brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

from bench.systems.apache_proxy import apache_proxy, lacking_apache_proxy
from broker.proxy.protocol.numbers import Code
from jepsen.private_network import private_network
from jepsen.processes import Group, poll
from tests.integration.proxy.conftest import RunningProxy, running_proxy, started, until
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
KINDS = ("grpc", GRPC_JAVA, "grpc-node", "grpc-go")

BEHIND_APACHES = pytest.mark.parametrize("proxied", ["apache"], indirect=True)
"""What test_grpc_guarded.py and tests/integration/proxy ask of ours."""


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
            more_settings={"enableBatchAck": True},
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
    return [client_of(kind, proxied) for kind in present(request, KINDS)]


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
    proxied: RunningProxy, clients: list[ForeignClient], name: str
) -> None:
    def story(client: ForeignClient) -> None:
        topic, group = proxied.topic("TRANSACTION"), name_of(name, client.kind)
        producer = client.start(
            *("produce", "--topic", topic, "--count", "9", "--transaction", "--linger", "200")
        )
        with Listener(producer) as said:
            lines = client.run(
                *("consume", "--topic", topic, "--group", group, "--count", "6"),
                *("--timeout", "200", "--linger", "1"),
            )
            ended = [line for line in said.lines if "end" in line]
        assert [line["end"] for line in ended] == ["commit", "rollback", "open"] * 3
        wanted = [line["body_sha1"] for line in ended if line["end"] != "rollback"]
        assert sorted(received(lines)) == sorted(wanted)

    at_once(story, clients)


@BEHIND_APACHES
def test_consumers_get_what_they_have_chosen(
    proxied: RunningProxy, clients: list[ForeignClient], name: str
) -> None:
    def story(client: ForeignClient) -> None:
        topic, group = proxied.topic(), name_of(name, client.kind)
        named = ("--topic", topic, "--timeout", "200", "--count")
        assert len(sent(client.run("produce", *named, "20", "--tags", "A,B"))) == 20
        for kind, count, chosen, wanted in (
            ("tag", "10", ("--expression", "B || C", "--simple"), range(1, 20, 2)),
            ("sql", "5", ("--sql", "number BETWEEN 5 AND 9"), range(5, 10)),
        ):
            lines = client.run("consume", *named, count, "--group", f"{group}-{kind}", *chosen)
            bodies = [line["body"] for line in lines if line.get("action") == "ok"]
            assert sorted(bodies) == sorted(f"grpc-{number}" for number in wanted)

    at_once(story, [client for client in clients if client.kind != "grpc"])


@BEHIND_APACHES
def test_a_message_that_is_refused_too_often_leaves_the_order_for_the_dead_letters(
    proxied: RunningProxy, name: str
) -> None:
    java, topic = client_of(GRPC_JAVA, proxied), proxied.topic("FIFO")
    proxied.create_ordered_group(name, retries=1)
    named = ("--topic", topic, "--count")
    produced = sent(java.run("produce", *named, "6", "--message-groups", "1"))
    refusing = ("--group", name, "--reconsume-first", "2", "--timeout", "200")
    lines = java.run("consume", *named, "5", *refusing)
    assert [line["body"] for line in lines if line.get("action") == "ok"] == [
        f"grpc-{number}" for number in range(1, 6)
    ]
    assert list(stored(proxied.namesrv, f"%DLQ%{name}").values()) == produced[:1]


@BEHIND_APACHES
def test_one_call_acknowledges_several_messages_of_several_queues(
    proxied: RunningProxy, name: str
) -> None:
    caller, topic = proxied.caller(), proxied.topic("NORMAL")
    for number in range(6):
        caller.send(topic, b"%d" % number)
    caller.subscribe(name, topic)
    messages = until(caller, name, topic, 6)
    assert len({each.system_properties.queue_id for each in messages}) > 1
    assert caller.ack(name, topic, *messages[1:]) == [Code.OK] * 5
    assert caller.ack(name, topic, messages[0]) == [Code.OK], "it was not among them"
    assert Code.OK not in caller.ack(name, topic, *messages), "they were used"


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
