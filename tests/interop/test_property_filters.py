"""Unmodified clients choose messages by SQL92 on a real three-node group, and are told of wrong texts."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dledger_mq import Message
from dledger_mq.blocking import Producer
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    at_once,
    client_or_skip,
    name_of,
    present,
    received,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SQL = "n BETWEEN 10 AND 19 OR (colour = 'red' AND n >= 30)"
COUNT = 40
WANTED = {f"m{n}" for n in (*range(10, 20), 30, 33, 36, 39)}
WAIT = ("--timeout", "200", "--linger", "1")

CONSUMERS = [
    ("java-4.9.8", ()),
    ("java-4.9.8", ("--lite",)),
    ("java-5.3.3", ()),
    ("java-5.3.3", ("--lite",)),
    ("go", ()),
]


@pytest.fixture(scope="module")
def topic(group: RunningGroup) -> str:
    """A topic with COUNT messages, numbered by the property `n`."""
    topic = group.create_topic("Numbered")
    with Producer(group.namesrv, "numbering", timeout_s=WAIT_S) as producer:
        for n in range(COUNT):
            colour = ("red", "green", "blue")[n % 3]
            body = f"m{n}".encode()
            producer.send(Message(topic, body, properties={"n": str(n), "colour": colour}))
    return topic


def test_a_condition_selects(
    request: pytest.FixtureRequest, group: RunningGroup, name: str, topic: str
) -> None:
    there = present(request, {kind for kind, _ in CONSUMERS})

    def story(consumer: tuple[str, tuple[str, ...]]) -> None:
        kind, more = consumer
        own = name_of(name, "".join((kind, *more)))
        asked = ("--topic", topic, "--group", own, "--sql", SQL, "--count", str(len(WANTED)))
        lines = ForeignClient(kind, group.namesrv).run("consume", *asked, *more, *WAIT)
        bodies = [line["body"] for line in lines if line.get("action") == "ok"]
        assert set(bodies) == WANTED
        assert len(received(lines)) == len(WANTED), Counter(bodies)

    at_once(story, [(kind, more) for kind, more in CONSUMERS if kind in there])


def test_what_failed_comes_again_through_the_retry_topic(
    group: RunningGroup, name: str, topic: str
) -> None:
    """The retry topic is read without the filter: what stands there was wanted."""
    client = client_or_skip("java-4.9.8", group)
    asked = ("--topic", topic, "--group", name, "--sql", "n = 12", "--count", "1")
    lines = client.run("consume", *asked, "--reconsume-first", "1", *WAIT)
    taken = [line for line in lines if "action" in line]
    assert [(line["body"], line["action"]) for line in taken] == [("m12", "later"), ("m12", "ok")]
    assert taken[1]["reconsume_times"] == 1


@pytest.mark.parametrize("kind", ["java-4.9.8", "java-5.3.3"])
def test_a_wrong_text_is_refused_at_the_start_with_its_place(
    group: RunningGroup, name: str, topic: str, kind: str
) -> None:
    client = client_or_skip(kind, group)
    asked = ("--topic", topic, "--group", name, "--sql", "n > 1 AND OR", "--count", "1")
    out, _ = client.start("consume", *asked, *WAIT).communicate(timeout=WAIT_S)
    summary = json.loads(out.splitlines()[-1])
    assert "CODE: 23" in summary["error"]
    assert "line 1, column 11: unexpected 'OR'" in summary["error"]


def test_members_show_the_expression_to_tools(group: RunningGroup, name: str, topic: str) -> None:
    client = client_or_skip("java-5.3.3", group)
    asked = ("--topic", topic, "--group", name, "--sql", SQL, "--count", "99")
    with Listener(client.start("consume", *asked, *WAIT)) as consumer:
        consumer.wait_lines(1 + len(WANTED))
        _, body = group.ask(203, {"consumerGroup": name})
    shown = json.loads(body)["subscriptionTable"][topic]
    assert (shown["expressionType"], shown["subString"], shown["tagsSet"]) == ("SQL92", SQL, [])
