"""The runbook of docs/members.md with real brokers: a group moves to three other machines while clients send."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.admin.cli import main as dledger_admin
from dledger_mq import Message
from dledger_mq.blocking import Producer, PullConsumer
from jepsen.processes import Group, poll, wait_listening
from tests.integration.commands import run_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE_S = 90.0
SEND_EACH_S = 0.01
"""A send is always under way or near: as many as go through would find no more, and cost most of the test."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path) as running:
        running.start()
        running.wait_listening()
        yield running


def order(group: Group, *words: str) -> dict[str, Any]:
    """Run `dledger-admin members ...` to its success; what it prints."""
    asked = ("--namesrv", group.namesrv, "--json", "--timeout", str(PATIENCE_S))
    ended = run_here(dledger_admin, "members", *words, *asked)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def kinds(seen: dict[str, Any]) -> dict[str, str]:
    return {each["id"]: each["kind"] for each in seen["members"]}


def start_joining(group: Group, name: str) -> str:
    """Start a broker that joins, known by the group's first members; the member that it is to be."""
    node, member = group.joining(name)
    node.start()
    wait_listening([node], PATIENCE_S)
    return member


class Load:
    """What was sent, and what was not, until the block ends."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.failed: list[str] = []

    def run(self, namesrv: str, ends: threading.Event) -> None:
        with Producer(namesrv, "load", timeout_s=PATIENCE_S) as producer:
            number = 0
            while not ends.wait(SEND_EACH_S):
                number += 1
                try:
                    producer.send(Message("Load", f"m{number}".encode(), keys=(f"k{number}",)))
                except Exception as error:  # noqa: BLE001  # what fails is what is counted
                    self.failed.append(repr(error))
                else:
                    self.sent.append(f"m{number}")

    def wait_more(self) -> None:
        wanted = len(self.sent) + 20
        assert poll(lambda: len(self.sent) >= wanted, PATIENCE_S), self.failed


@contextmanager
def load(group: Group) -> Iterator[Load]:
    running, ends = Load(), threading.Event()
    thread = threading.Thread(target=running.run, args=(group.namesrv, ends))
    thread.start()
    try:
        yield running
    finally:
        ends.set()
        thread.join(PATIENCE_S)


def stored(group: Group) -> list[str]:
    """Everything that a consumer without a past reads."""
    with PullConsumer(group.namesrv, "reader", timeout_s=PATIENCE_S) as consumer:
        found: list[str] = []
        for queue in consumer.queues("Load"):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset)
                found += [message.body.decode() for message in pulled.messages]
                offset = pulled.next_offset
        return found


def test_a_group_moves_to_three_other_nodes_under_load_and_no_send_fails(group: Group) -> None:
    """Before that one joins that is removed again."""
    check_that_it_stands_in_no_route(group, "n6")
    with load(group) as running:
        running.wait_more()
        for old, new in (("n0", "n3"), ("n1", "n4"), ("n2", "n5")):
            seen = order(group, "replace", old, start_joining(group, new))
            assert (kinds(seen)[new], old in kinds(seen)) == ("voter", False)
            running.wait_more()
            group.node(old).stop()
            running.wait_more()
    assert running.failed == []
    assert kinds(order(group, "list")) == {"n3": "voter", "n4": "voter", "n5": "voter"}
    found = stored(group)
    assert sorted(found) == sorted(running.sent), "each once, none lost"

    def is_equal() -> bool:
        ended = run_here(dledger_admin, "verify", "--namesrv", group.namesrv, "--json")
        verdict = json.loads(ended.stdout or "{}")  # nothing is said where nobody has answered
        assert ended.returncode != 1, verdict
        return ended.returncode == 0 and set(verdict["nodes"]) == {"n3", "n4", "n5"}

    assert poll(is_equal, PATIENCE_S, 0.5), group.nodes[-1].log_tail()


def check_that_it_stands_in_no_route(group: Group, name: str) -> None:
    """A broker that joins does not, before it is added; nor one that was removed."""
    member = start_joining(group, name)
    assert poll(lambda: "not-added-yet" in group.node(name).log.read_text(), PATIENCE_S)
    assert set(nodes_in_routes(group)) <= {"n0", "n1", "n2"}
    assert kinds(order(group, "add", member, "--learner"))[name] == "learner"
    assert poll(lambda: name in nodes_in_routes(group), PATIENCE_S)
    order(group, "remove", name)
    assert poll(lambda: name not in nodes_in_routes(group), PATIENCE_S)
    assert poll(lambda: "removed" in group.node(name).log.read_text(), PATIENCE_S)
    group.node(name).stop()


def nodes_in_routes(group: Group) -> list[str]:
    ended = run_here(dledger_admin, "snapshots", "--namesrv", group.namesrv, "--json")
    return [each["node"] for each in json.loads(ended.stdout or '{"nodes": []}')["nodes"]]
