"""Unmodified RocketMQ clients produce and consume on a real three-node group."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from jepsen.processes import poll
from tests.interop.conftest import (
    JAVAS,
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    at_once,
    name_of,
    present,
    received,
    request,
    sent,
    stored,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT = ("--timeout", "200")


def to_consume(group: RunningGroup, topic: str, producer: str, produced: list[str]) -> Counter[str]:
    """What a consumer has to get of what was produced: each message once.

    Go gives a send up after 3 s, whatever it is told, and makes it again in another queue: on a busy machine such a
    message may be there twice (docs/guarantees.md).
    """
    there = [body for body in stored(group.namesrv, topic).values() if body in set(produced)]
    assert set(there) == set(produced)
    assert producer == "go" or Counter(there) == Counter(produced)
    return Counter(there)


PAIRS: list[tuple[str, str]] = [
    ("cpp", "cpp"), ("cpp", "node"), ("node", "cpp"), ("node", "node"), ("java-4.9.8", "cpp"),
    ("node", "java-4.9.8"), ("java-5.3.3", "java-4.9.8"),
    ("cpp", "java-5.3.3"), ("go", "java-5.3.3"), ("java-4.9.8", "go"), ("go", "cpp"), ("ours", "go"), ("node", "ours"),
]  # fmt: skip
"""Who produces, and who consumes."""


def test_every_message_of_each_client_reaches_each_client(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    """Each produces once, in a topic of its own, which several read in groups of their own."""
    clients = {
        kind: ForeignClient(kind, group.namesrv)
        for kind in present(request, ["cpp", "go", "node", *JAVAS, "ours"])
    }
    wanted: dict[str, Counter[str]] = {}

    def produce(kind: str) -> None:
        produced = clients[kind].run(
            *("produce", "--topic", group.create_topic(name_of(name, kind)), "--count", "20"),
            *("--tag", "A", "--key-prefix", "k", "--body-size", "300"),
        )
        assert len(sent(produced)) == 20
        wanted[kind] = to_consume(group, name_of(name, kind), kind, sent(produced))

    def consume(pair: tuple[str, str]) -> None:
        producer, consumer = pair
        consumed = clients[consumer].run(
            *("consume", "--topic", name_of(name, producer), "--group", name_of(name, "-".join(pair))),
            *("--count", str(wanted[producer].total()), *WAIT),
        )  # fmt: skip
        assert Counter(received(consumed)) == wanted[producer]
        lines = [line for line in consumed if line.get("action") == "ok"]
        assert {line["tags"] for line in lines} == {"A"}
        assert {line["keys"] for line in lines} == {f"k{i}" for i in range(20)}

    pairs = [pair for pair in PAIRS if clients.keys() >= set(pair)]
    at_once(produce, sorted({producer for producer, _ in pairs}))
    at_once(consume, pairs)


def test_a_tag_expression_selects(group: RunningGroup, name: str, client: ForeignClient) -> None:
    topic = group.create_topic(name)
    produced = sent(client.run("produce", "--topic", topic, "--count", "8", "--tag", "A"))
    produced += sent(
        client.run("produce", "--topic", topic, "--count", "8", "--tag", "B", "--body-prefix", "b")
    )
    client.run("produce", "--topic", topic, "--count", "8", "--tag", "C", "--body-prefix", "c")
    wanted = to_consume(group, topic, client.kind, produced)
    consumed = client.run(
        "consume",
        "--topic",
        topic,
        "--group",
        name,
        "--expression",
        "A||B",
        "--count",
        str(wanted.total()),
        "--linger",
        "1",
        *WAIT,
    )
    assert Counter(received(consumed)) == wanted


def test_a_new_topic_is_created_by_the_first_send(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    def story(kind: str) -> None:
        client, topic = ForeignClient(kind, group.namesrv), name_of(name, kind)
        more = ("--async",) if kind == "java-4.9.8" else ()
        produced = client.run("produce", "--topic", topic, "--count", "5", *more)
        group.wait_leader(topic=topic)
        wanted = to_consume(group, topic, kind, sent(produced))
        count = str(wanted.total())
        consumed = client.run(
            "consume", "--topic", topic, "--group", topic, "--count", count, *WAIT
        )
        assert Counter(received(consumed)) == wanted

    at_once(story, present(request, ["cpp", "go", *JAVAS]))


@pytest.mark.parametrize("client", ["cpp", "go"], indirect=True)
@pytest.mark.parametrize("mode", [("--oneway",), ("--async",), ("--batch", "5")])
def test_other_ways_to_send(
    group: RunningGroup, name: str, client: ForeignClient, mode: tuple[str, ...]
) -> None:
    topic = group.create_topic(name)
    producer = client.start("produce", "--topic", topic, "--count", "20", "--steered", *mode)
    with Listener(producer) as said:  # it stays: what is sent one way may leave later than it says
        assert len(set(sent(said.wait_summary()))) == 20
        assert poll(lambda: len(set(stored(group.namesrv, topic).values())) == 20, WAIT_S)
    count = str(len(stored(group.namesrv, topic)))
    consumed = client.run("consume", "--topic", topic, "--group", name, "--count", count, *WAIT)
    assert len(set(received(consumed))) == 20


@pytest.mark.parametrize("client", ["cpp", "go"], indirect=True)
def test_what_is_pulled_is_what_was_sent(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    topic = group.create_topic(name)
    produced = client.run("produce", "--topic", topic, "--count", "20")
    wanted = to_consume(group, topic, client.kind, sent(produced))
    count = str(wanted.total())
    pulled = client.run(
        "consume", "--topic", topic, "--group", name, "--count", count, "--pull", *WAIT
    )
    assert Counter(received(pulled)) == wanted


def test_compressed_bodies_pass_through(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    topic = group.create_topic(name)
    produced = client.run("produce", "--topic", topic, "--count", "4", "--body-size", "20000")
    wanted = to_consume(group, topic, client.kind, sent(produced))
    count = str(wanted.total())
    consumed = client.run("consume", "--topic", topic, "--group", name, "--count", count, *WAIT)
    assert Counter(received(consumed)) == wanted


@pytest.mark.parametrize("client", ["cpp", "go"], indirect=True)
def test_shards_stay_in_order_for_an_orderly_consumer(
    group: RunningGroup, name: str, client: ForeignClient
) -> None:
    topic = group.create_topic(name)
    client.run(
        "produce",
        "--topic",
        topic,
        "--count",
        "40",
        "--orderly",
        "--shards",
        "4",
        "--key-prefix",
        "k",
    )
    consumed = client.run(
        "consume", "--topic", topic, "--group", name, "--orderly", "--count", "40", *WAIT
    )
    lines = [line for line in consumed if line.get("action") == "ok"]
    assert len(lines) == 40
    for shard in range(4):
        numbers = [int(line["keys"][1:]) for line in lines if int(line["keys"][1:]) % 4 == shard]
        assert numbers == sorted(numbers)


def test_consumers_of_one_group_share_the_queues(
    group: RunningGroup, name: str, cpp: ForeignClient, node: ForeignClient
) -> None:
    topic = group.create_topic(name, queues=8)
    consumers = [
        cpp.start(
            "consume", "--topic", topic, "--group", name, "--count", "100000", "--timeout", "300"
        ),
        node.start(
            "consume",
            "--topic",
            topic,
            "--group",
            name,
            "--count",
            "100000",
            "--timeout",
            "300",
            "--fast-timers",
        ),
    ]
    with Listener(consumers[0]) as one, Listener(consumers[1]) as other:
        wait_members(group, name, 2)
        produced: set[str] = set()

        def got() -> list[set[str]]:
            return [set(received(list(consumer.lines))) for consumer in (one, other)]

        def both_get_some() -> bool:
            """Send again, if need be: who was there first may have all queues until it looks who else is there."""
            prefix = f"round{len(produced)}"
            asked = ("--topic", topic, "--count", "200", "--concurrency", "8")
            produced.update(sent(node.run("produce", *asked, "--body-prefix", prefix)))
            assert poll(lambda: set.union(*got()) >= produced, WAIT_S)
            assert set.union(*got()) == produced
            return all(got())

        assert poll(both_get_some, WAIT_S), "one of the two consumers received nothing"


def wait_members(group: RunningGroup, consumer_group: str, count: int) -> None:
    """Wait until the group's member list has `count` members."""

    def has_members() -> bool:
        header, body = request(group.wait_leader().address, 38, {"consumerGroup": consumer_group})
        return header["code"] == 0 and len(json.loads(body)["consumerIdList"]) == count

    assert poll(has_members, WAIT_S), f"{consumer_group} has not {count} members"


def test_a_refused_message_comes_back_through_the_retry_topic(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    def story(kind: str) -> None:
        client, topic = ForeignClient(kind, group.namesrv), group.create_topic(name_of(name, kind))
        produced = sent(client.run("produce", "--topic", topic, "--count", "3"))
        consumed = client.run(
            *("consume", "--topic", topic, "--group", topic, "--count", "3"),
            *("--reconsume-first", "1", "--timeout", "200"),
        )
        assert set(received(consumed)) == set(produced)
        assert any(
            line.get("reconsume_times", 0) > 0 for line in consumed if line.get("action") == "ok"
        )

    at_once(story, present(request, ["cpp", "go", "node"]))


def test_java_is_not_disturbed_where_trace_is_off(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    """The broker refuses its trace records; that is for its log. On a busy machine sends fail without them, too."""
    trace = ("--trace-topic", "RMQ_SYS_TRACE_TOPIC")

    def story(kind: str) -> None:
        java, topic = ForeignClient(kind, group.namesrv), group.create_topic(name_of(name, kind))
        with Listener(
            java.start("produce", "--topic", topic, "--count", "20", "--keep-going", *trace)
        ) as said:
            lines = said.wait_end()
        assert sent(lines)
        assert not any("TRACE" in str(line.get("error")) for line in lines)
        wanted = Counter(stored(group.namesrv, topic).values())
        count = ("--count", str(wanted.total()))
        consumed = java.run("consume", "--topic", topic, "--group", topic, *count, *trace, *WAIT)
        assert Counter(received(consumed)) == wanted

    at_once(story, present(request, JAVAS))
