"""Members of this version and of an earlier one run in one group; upgrade-check sees whether their states are equal.

The earlier one is the newest release, or without tags the commit before this one (DLEDGER_EARLIER names another).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.admin.cli import main as dledger_admin
from dledger_mq import Message
from dledger_mq.blocking import Producer, PullConsumer
from jepsen.processes import Group, Process, poll, program
from tests.integration.commands import run_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT: Final = Path(__file__).parents[3]
PATIENCE_S: Final = 120.0
RUN_EARLIER: Final = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from broker.server.cli import main
sys.exit(main())
"""


def git(*arguments: str) -> bytes | None:
    """Ask the repository; None where there is no history."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the earlier version."""
    tag = git("describe", "--tags", "--abbrev=0", "HEAD~1")
    commit = os.environ.get("DLEDGER_EARLIER") or (tag.decode().strip() if tag else "HEAD~1")
    archive = git("archive", commit, "broker", "dledger", "dledger_mq")
    if archive is None:
        pytest.skip(f"the repository's history does not have {commit}")
    folder = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True, timeout=60)
    return folder


FOLDS_DIFFERENTLY: Final = """

def _put(self, config, now_ms, *, only_if_missing=False, _as_it_is=Topics.put):
    self.digest ^= 1
    return _as_it_is(self, config, now_ms, only_if_missing=only_if_missing)


Topics.put = _put
"""


@pytest.fixture
def group(tmp_path: Path, earlier: Path) -> Iterator[Group]:
    """A group of the earlier version."""
    with Group(tmp_path) as running:
        for node in running.nodes:
            node.command = [sys.executable, "-c", RUN_EARLIER, str(earlier), *node.command[1:]]
        running.start()
        running.wait_listening()
        yield running


def renew(node: Process) -> None:
    """Stop a node in order, and start it with this version."""
    node.stop()
    node.command = [program("dledger-broker"), *node.command[4:]]
    node.start()
    assert poll(node.is_listening, PATIENCE_S), node.log_tail()


def upgrade_check(group: Group, node: Process) -> tuple[int, dict[str, Any]]:
    ended = run_here(
        dledger_admin, "upgrade-check", "-n", group.namesrv, "--json", "--node", node.name
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def lead(group: Group, node: Process) -> None:
    """Let a node lead; asked for again until it does."""

    def leads() -> bool:
        asked = ("--group", group.group, "--peers", group.peers, "--to", node.name)
        done = subprocess.run(
            [program("dledger"), "transfer", *asked],
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.returncode == 0

    assert poll(leads, PATIENCE_S, 0.5), node.log_tail()


class Traffic:
    """Sends numbered messages, and reads all of them in the end."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        with Producer(self._group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
            for _ in range(count):
                body = b"%d" % len(self.sent)
                producer.send(Message("Upgrade", body, keys=(f"k{len(self.sent)}",)))
                self.sent.append(body)

    def read(self) -> list[bytes]:
        found: list[bytes] = []
        with PullConsumer(self._group.namesrv, "g", timeout_s=PATIENCE_S) as consumer:
            for queue in consumer.queues("Upgrade"):
                offset = consumer.min_offset(queue)
                while offset < consumer.max_offset(queue):
                    batch = consumer.pull(queue, offset)
                    found += [each.body for each in batch.messages]
                    offset = batch.next_offset
        return sorted(found, key=int)


def wait_may_vote(group: Group, node: Process, traffic: Traffic) -> dict[str, Any]:
    """Until the node has shown that its state is that of the others; a difference ends the test at once."""
    found: list[dict[str, Any]] = []

    def may_vote() -> bool:
        traffic.send(1)  # marks come with records
        code, report = upgrade_check(group, node)
        found[:] = [report]
        assert code != 1, report
        return code == 0

    assert poll(may_vote, PATIENCE_S, 1), found
    return found[0]


def test_a_group_is_upgraded_node_by_node(group: Group) -> None:
    traffic = Traffic(group)
    traffic.send(40)
    first, *others = group.nodes
    renew(first)
    report = wait_may_vote(group, first, traffic)
    assert report["index"] > 0
    assert not report["differing"]
    lead(group, first)  # the new version writes now, and the earlier ones fold it
    traffic.send(40)
    wait_may_vote(group, first, traffic)
    for node in others:
        renew(node)
        traffic.send(10)
        wait_may_vote(group, node, traffic)
    assert zlib.crc32(b"".join(traffic.read())) == zlib.crc32(b"".join(traffic.sent))
    group.check_alive()


def members(group: Group, verb: str, *words: str) -> dict[str, str]:
    """Run `dledger-admin members VERB` to its success; the kinds of all members then."""
    asked = (*("--namesrv", group.namesrv), *("--timeout", str(PATIENCE_S)), "--json")
    ended = run_here(dledger_admin, "members", verb, *words, *asked)
    assert ended.returncode == 0, ended.stderr
    return {each["id"]: each["kind"] for each in json.loads(ended.stdout)["members"]}


def test_a_new_version_follows_without_a_vote_until_its_state_was_compared(group: Group) -> None:
    traffic = Traffic(group)
    traffic.send(40)
    node, member = group.joining("n3")  # runs this version, the others the earlier one
    node.start()
    assert poll(node.is_listening, PATIENCE_S), node.log_tail()
    assert members(group, "add", member, "--learner")["n3"] == "learner"
    report = wait_may_vote(group, node, traffic)
    assert not report["differing"]
    assert members(group, "list")["n3"] == "learner", "it waits for whoever looked"
    assert set(members(group, "promote", "n3").values()) == {"voter"}
    traffic.send(20)
    wait_may_vote(group, node, traffic)
    assert traffic.read() == traffic.sent


def test_a_version_that_folds_differently_is_refused(group: Group, earlier: Path) -> None:
    odd = group.nodes[2]
    for node in group.nodes[:2]:
        renew(node)
    traffic = Traffic(group)
    odd.stop()
    topics = earlier / "broker" / "store" / "topics.py"
    as_it_is = topics.read_text()
    topics.write_text(as_it_is + FOLDS_DIFFERENTLY)
    try:
        odd.start()
        assert poll(odd.is_listening, PATIENCE_S), odd.log_tail()
        found: list[dict[str, Any]] = []

        def is_refused() -> bool:
            traffic.send(1)
            code, report = upgrade_check(group, odd)
            found[:] = [report]
            return code == 1

        assert poll(is_refused, PATIENCE_S, 1), found
    finally:
        topics.write_text(as_it_is)
    assert found[0]["differing"] == ["topics"]
    assert any("not like the majority: n2" in refusal for refusal in found[0]["refusals"])
