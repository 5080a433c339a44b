"""A disk that grows slow under a leader, in real processes (faults.md row 42). Needs a C compiler."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.cli import main as dledger_command
from jepsen.nemeses.preload import Control, Operation, Rule, attach_process, lacking_preload
from jepsen.processes import SMALL_SEGMENTS, Group, Process, poll
from tests.integration.commands import run_here
from tests.interop.conftest import RunningGroup, request

PATIENCE_S = 180.0

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PREFERRED = "n0"
NO_LEADER = 14
HELD_S = 2.0
SLOW_MS = 5000
GROWS_SLOW_MS = 40
"""First: from then on the loop does not wait for syncs any more, and heartbeats go on."""


class Slowed:
    """A group of which one member is preferred, and has a disk whose speed the test sets."""

    def __init__(self, group: RunningGroup, control: Control) -> None:
        self.group = group
        self.control = control
        self.codes: list[int] = []
        self.preferred = group.processes.node(PREFERRED)
        self._other = next(node for node in group.processes.nodes if node is not self.preferred)

    def slow_down(self, delay_ms: int) -> None:
        self.control.set_rules(Rule(Operation.SYNC, delay_ms=delay_ms))

    def send(self) -> None:
        """To a follower, which hands it to whoever leads."""
        properties = f"UNIQ_KEY\x01{time.monotonic_ns():032X}\x02WAIT\x01true\x02"
        ext = {
            "a": "slow", "b": "Slow", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        asked_s = time.monotonic()
        header, _ = request(self._other.address, 310, ext, b"x" * 100)
        if header["code"] == NO_LEADER and time.monotonic() - asked_s > HELD_S:
            return  # the election took all the time that a node holds a send: so busy is this machine
        self.codes.append(int(header["code"]))

    def send_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.send()
        return True

    def leader(self) -> Process | None:
        try:
            return self.group.leader()
        except LookupError:
            return None

    def status(self) -> dict[str, Any]:
        """What the preferred member says of itself, once it has time for an answer."""
        processes = self.group.processes
        words = ("status", "--json", "-g", processes.group, "-p", processes.peers)
        shown: dict[str, Any] = {}

        def has_answered() -> bool:
            shown.clear()
            ended = run_here(dledger_command, *words)
            if ended.returncode == 0:
                members: list[dict[str, Any]] = json.loads(ended.stdout)["members"]
                shown.update(next(member for member in members if member["id"] == PREFERRED))
            return "attributes" in shown

        assert poll(has_answered, PATIENCE_S), shown
        return shown


@pytest.fixture
def slowed(tmp_path: Path) -> Iterator[Slowed]:
    if lacking := lacking_preload():
        pytest.skip(lacking)
    settings = f"{SMALL_SEGMENTS}preferredLeaderId={PREFERRED}\n"
    with Group(tmp_path / "group", settings=settings) as processes:
        node = processes.node(PREFERRED)
        store = processes.folder / PREFERRED
        control = attach_process(node, store, tmp_path, with_journal=False)
        processes.start()
        processes.wait_listening()
        running = RunningGroup(processes)
        running.wait_leader()
        made = Slowed(running, control)
        assert made.send_until(lambda: made.leader() is node, PATIENCE_S), node.log_tail()
        yield made


def test_a_leader_with_a_slow_disk_hands_over_and_no_send_fails(slowed: Slowed) -> None:
    slow = slowed.preferred
    slowed.slow_down(GROWS_SLOW_MS)
    for _ in range(20):
        slowed.send()
    slowed.slow_down(SLOW_MS)

    def has_handed_over() -> bool:
        return "hands-over node=n0" in slow.log_tail(500) and slowed.leader() is not slow

    assert slowed.send_until(has_handed_over, PATIENCE_S), slow.log_tail()

    # It is preferred, and does not get the lead back as long as its disk is slow.
    def has_told() -> bool:
        assert slowed.leader() is not slow
        return "slow" in slowed.status()["attributes"].get("disk", "")

    assert slowed.send_until(has_told, PATIENCE_S)
    until_s = time.monotonic() + 5
    slowed.send_until(lambda: time.monotonic() > until_s, PATIENCE_S)
    assert slowed.leader() is not slow

    slowed.control.set_rules()
    assert slowed.send_until(lambda: slowed.leader() is slow, PATIENCE_S)
    # A busy machine's own disk may be slow for a moment.
    assert poll(lambda: "disk" not in slowed.status()["attributes"], PATIENCE_S)
    assert set(slowed.codes) == {0}
    assert "Traceback" not in slow.log_tail(500)


def test_a_node_whose_disk_hangs_can_be_stopped(slowed: Slowed) -> None:
    node = slowed.preferred
    struck = slowed.control.hits()
    slowed.slow_down(3_600_000)
    assert slowed.send_until(lambda: slowed.control.hits() > struck, PATIENCE_S)
    for _ in range(2):
        node.send_signal(signal.SIGTERM)
        assert poll(lambda: "stopping: handing over" in node.log_tail(50), PATIENCE_S)
    assert poll(lambda: node.exit_status is not None, PATIENCE_S)
    assert node.exit_status == 1
    assert "ended without waiting for the disk" in node.log_tail(1)
