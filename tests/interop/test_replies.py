"""Requests of unmodified Java and Go clients get their replies, also over a hand-over and the leader's death."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dledger.cli import main as dledger
from jepsen.processes import Process, poll
from tests.integration.commands import run_here
from tests.interop.conftest import (
    JAVAS,
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    client_or_skip,
    kill_and_restart,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SURE_FORMS = {"java-4.9.8": {0, 2, 3, 4, 5}, "java-5.3.3": {3, 5}}
"""The forms of `request` (JavaClient.java) that wait for the reply. Others of these versions end with the answer to the
send, unless the reply was faster: from 4.9.4 on the one with a callback alone, which gets null, and from 5.3.1 on those
that block, which raise 10006 at once (apache/rocketmq, pull request 4313, issues 9292 and 9319)."""

IN_FLIGHT = 6
"""Requests of 12 that are not waited for, or whose reply ends the asking client before it has confirmed it, at most."""

HAS_LEFT = re.compile(
    r"requester \S+ (ended before it confirmed the reply|is connected to no node of this group)"
)
"""What an answering client is told of a requester that was gone."""

REQUEST_MS = "20000"
"""What a request may take: whole seconds, as Go has it. After that its reply is dropped by the client."""
PATIENT_REQUEST_MS = "100000"
"""The same where each reply must come: a busy machine may leave a consumer that has started without its queues."""


@contextlib.contextmanager
def replier(client: ForeignClient, topic: str, name: str) -> Iterator[Listener]:
    """A consumer that answers every message, until the block is left."""
    asked = ("--topic", topic, "--group", name, "--count", "1000000", "--timeout", "800", "--reply")
    with Listener(client.start("consume", *asked)) as listener:
        listener.wait_lines(1)  # it has started
        yield listener


def requests(client: ForeignClient, topic: str, count: int, *more: str) -> subprocess.Popen[str]:
    return client.start(
        *("produce", "--topic", topic, "--count", str(count), "--request", "--keep-going"),
        *("--send-timeout-ms", REQUEST_MS, "--body-prefix", "ask", *more),
    )


def replied(lines: list[dict[str, Any]]) -> set[int]:
    """The numbers of the requests whose reply came; it is that to the request."""
    found = {line["i"]: line["reply"] for line in lines if "reply" in line}
    assert all(reply == f"re:ask-{number}" for number, reply in found.items())
    return set(found)


def hand_over(group: RunningGroup, leader: Process, topic: str) -> None:
    """Let another one lead; asked again while it is refused, as by one whose followers are late on a busy machine."""
    said: list[str] = []

    def has_moved() -> bool:
        words = ("transfer", "--group", "broker-a", "--timeout", "60", "-p", group.processes.peers)
        done = run_here(dledger, *words)
        said.append(done.stderr)
        return done.returncode == 0

    assert poll(has_moved, WAIT_S), said
    group.wait_leader(other_than=leader, topic=topic)


def is_sure(kind: str, number: int) -> bool:
    return number % 6 in SURE_FORMS.get(kind, range(6))


@pytest.mark.parametrize(
    ("asking", "answering"),
    [*((kind, kind) for kind in (*JAVAS, "go", "ours")), ("go", "ours"), ("ours", JAVAS[0])],
)
def test_each_request_gets_its_reply(
    group: RunningGroup, name: str, asking: str, answering: str
) -> None:
    clients = client_or_skip(asking, group), client_or_skip(answering, group)
    topic = group.create_topic(name)
    with replier(clients[1], topic, name) as listener:
        patient = ("--send-timeout-ms", PATIENT_REQUEST_MS, "--timeout", "400")
        with Listener(requests(clients[0], topic, 12, *patient)) as requester:
            lines = requester.wait_end()
        assert replied(lines) >= {each for each in range(12) if is_sure(asking, each)}, lines
        assert poll(lambda: len([one for one in listener.lines if "reply" in one]) >= 12, WAIT_S)
        told = Counter(one["reply"] for one in listener.lines if "reply" in one)
        assert told.pop("SEND_OK", 0) >= 12 - IN_FLIGHT, told
        assert all(HAS_LEFT.search(text) for text in told), told


@pytest.mark.parametrize("kind", [*JAVAS, "go", "ours"])
def test_requests_are_replied_after_a_hand_over_and_after_the_death_of_the_leader(
    group: RunningGroup, name: str, kind: str
) -> None:
    """A client that knows the old leader goes on there for up to 30 s; one that starts later knows the new one."""
    client = client_or_skip(kind, group)
    topic = group.create_topic(name)
    with (
        replier(client, topic, name) as old,
        Listener(requests(client, topic, 1_000_000, "--interval-ms", "50")) as asking,
    ):

        def go_on() -> None:
            """Wait until requests that were made from now on have got their replies."""
            begun = max((line["i"] for line in asking.lines), default=-1)
            assert poll(
                lambda: len([one for one in replied(asking.lines) if one > begun + 1]) >= 6, WAIT_S
            ), asking.lines[-20:]

        go_on()
        leader = group.wait_leader(topic=topic)
        hand_over(group, leader, topic)
        with replier(client, topic, name) as fresh:
            go_on()
            assert poll(lambda: any(one.get("reply") == "SEND_OK" for one in fresh.lines), WAIT_S)
        kill_and_restart(group, topic)
        go_on()
        assert poll(
            lambda: "SEND_OK" in {one.get("reply") for one in list(old.lines)[-20:]}, WAIT_S
        )
