"""`dledger-admin` against real processes; a follower whose folder is wiped under load comes back equal."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from broker.admin.cli import main as dledger_admin
from dledger_mq import Message
from dledger_mq.blocking import Producer, PullConsumer
from dledger_mq.client.errors import ClientError
from jepsen.processes import SMALL_SEGMENTS, Group, poll, program
from tests.integration.commands import run_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE_S = 180.0
"""Hundreds of sends, one after the other, or the marks of three nodes: a busy machine takes its time for these."""
SEND_EACH_S = 0.005
"""Load is what goes on meanwhile: as many sends as go through would find no more, and cost most of a test."""


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("admin")) as running:
        running.start()
        running.wait_listening()
        yield running


@pytest.fixture
def group(_shared: Group) -> Group:
    """A group that is whole, whatever the test before has killed."""
    for process in _shared.processes():
        if process.pid is None:
            process.start()
    _shared.wait_listening()
    return _shared


@pytest.fixture(autouse=True)
def _patient_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.admin.ask.ASK_TIMEOUT_S", PATIENCE_S)


def admin(group: Group, command: str) -> tuple[int, dict[str, object]]:
    ended = run_here(dledger_admin, command, "--namesrv", group.namesrv, "--json")
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def wait_equal(group: Group, *, after: int = 0) -> int:
    """Until all three nodes are compared after an index, and equal; gives the index."""
    found: list[int] = []

    def is_equal() -> bool:
        code, verdict = admin(group, "verify")
        index = verdict.get("index", 0)
        assert isinstance(index, int)
        found[:] = [index]
        assert code != 1, verdict
        return code == 0 and index > after

    assert poll(is_equal, PATIENCE_S, 0.5), [node.log_tail() for node in group.nodes]
    return found[0]


@contextmanager
def load(group: Group) -> Iterator[list[int]]:
    """Sends from a thread until the block ends; the counter's only element grows."""
    sent, ends = [0], threading.Event()

    def send() -> None:
        with Producer(group.namesrv, "load") as producer:
            while not ends.wait(SEND_EACH_S):
                try:
                    producer.send(Message("Load", b"x" * 200, keys=(f"k{sent[0]}",)))
                    sent[0] += 1
                except ClientError:
                    continue  # sends may fail while nodes die; the load goes on

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        ends.set()
        thread.join(PATIENCE_S)


def test_verify_compares_the_group_and_says_when_it_cannot(group: Group) -> None:
    wait_equal(group)
    assert poll(lambda: run("verify", "-n", group.namesrv) == 0, PATIENCE_S, 0.5)
    code, listing = admin(group, "snapshots")
    assert code == 0
    nodes = listing["nodes"]
    assert isinstance(nodes, list)
    assert {row["node"] for row in nodes} == {"n0", "n1", "n2"}
    group.nodes[2].kill()
    assert poll(lambda: admin(group, "verify")[0] == 3, PATIENCE_S, 0.5)


def test_a_wiped_follower_rejoins_under_load_and_agrees(group: Group) -> None:
    with load(group) as sent:
        assert poll(lambda: sent[0] > 300, PATIENCE_S)
        before = wait_equal(group)
        victim = next(node for node in group.nodes if not leads(group, node.name))
        victim.kill()
        shutil.rmtree(group.folder / victim.name)
        reached = sent[0]
        victim.start()
        assert poll(lambda: sent[0] > reached + 200, PATIENCE_S), "the load stands still"
        assert wait_equal(group, after=before) > before


def test_snapshots_of_running_nodes_are_restored_and_agree(tmp_path: Path) -> None:
    # Two or three snapshots of each node by the first look: 500 sends are about 200 000 bytes.
    with Group(tmp_path, settings=SMALL_SEGMENTS + "snapshotLogBytes=70000\n") as group:
        group.start()
        group.wait_listening()
        with load(group) as sent:
            assert poll(lambda: sent[0] > 500, PATIENCE_S)
            assert poll(lambda: min(snapshot_indexes(group), default=0) > 0, PATIENCE_S, 0.5)
            before = wait_equal(group)
            victim = next(node for node in group.nodes if not leads(group, node.name))
            other = next(
                node for node in group.nodes if node is not victim and not leads(group, node.name)
            )
            victim.kill()
            shutil.rmtree(group.folder / victim.name)
            victim.start()
            before = wait_equal(group, after=before)
            other.kill()
            other.start()
            assert wait_equal(group, after=before) > before
        assert "snapshot-restored" in other.log_tail(10_000)


def listed(group: Group) -> list[dict[str, str]]:
    """What `snapshots` says of the nodes; none while the name server does not know them."""
    _, listing = admin(group, "snapshots")
    nodes = listing.get("nodes", [])
    assert isinstance(nodes, list)
    return nodes


def snapshot_indexes(group: Group) -> list[int]:
    return [int(row["snapshot at"]) for row in listed(group)]


def leads(group: Group, name: str) -> bool:
    found: list[dict[str, str]] = []

    def is_listed() -> bool:
        found[:] = [row for row in listed(group) if row["node"] == name]
        return bool(found)

    assert poll(is_listed, PATIENCE_S, 0.5)
    return found[0]["role"] == "leader"


def run(*arguments: str) -> int:
    """Run the program itself; its exit code."""
    command = [program("dledger-admin"), *arguments]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode


def test_wrong_usage_and_nobody_there_have_codes_of_their_own() -> None:
    assert run("verify") == 2
    assert run("verify", "-n", "nonsense") == 2
    assert run("verify", "-n", "127.0.0.1:1") == 3


def test_the_lag_of_a_group_is_told_under_both_names(group: Group) -> None:
    with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:

        def is_served() -> bool:
            with suppress(ClientError):
                producer.send(Message("Orders", b"first"))
                return True
            return False

        assert poll(is_served, PATIENCE_S)
        queues = {producer.send(Message("Orders", b"x")).queue for _ in range(12)}
    with PullConsumer(group.namesrv, "slow", timeout_s=PATIENCE_S) as consumer:
        for queue in queues:
            consumer.commit(queue, 1)
        ends = {queue.queue_id: consumer.max_offset(queue) for queue in queues}

    def lags(command: str) -> dict[int, int]:
        rows = admin(group, command)[1].get("queues", [])
        assert isinstance(rows, list)
        return {row["queue_id"]: row["lag"] for row in rows if row["group"] == "slow"}

    expected = {queue_id: end - 1 for queue_id, end in ends.items()}
    assert poll(lambda: lags("lag") == expected, PATIENCE_S)
    assert poll(lambda: lags("consumerProgress") == expected, PATIENCE_S)
