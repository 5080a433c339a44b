"""A fold that raises at an entry: the node stops there and skips nothing (faults.md row 14)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jepsen.processes import Group, Process, poll
from tests.integration.hostile.failing_fold import BROKEN
from tests.interop.conftest import RunningGroup, request

PATIENCE_S = 180.0

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LAUNCHER = Path(__file__).with_name("failing_fold.py")


def broken_command(node: Process) -> list[str]:
    return [sys.executable, str(LAUNCHER), *node.command[1:]]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with Group(tmp_path / "group") as processes:
        yield RunningGroup(processes)


def start(group: RunningGroup) -> Process:
    group.processes.start()
    group.processes.wait_listening()
    return group.wait_leader()


def send(address: str, body: bytes) -> dict[str, Any]:
    properties = f"UNIQ_KEY\x01{time.monotonic_ns():032X}\x02WAIT\x01true\x02"
    ext = {
        "a": "fold", "b": "Fold", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    header, _ = request(address, 310, ext, body)
    return header


def acknowledged(node: Process, body: bytes) -> bool:
    with contextlib.suppress(OSError):
        return bool(send(node.address, body)["code"] == 0)
    return False


def applied_line(node: Process) -> str:
    """What the node last said of the entry that it cannot fold."""
    lines = [line for line in node.log.read_text().splitlines() if "planted" in line]
    assert lines, node.log_tail()
    return lines[-1]


def test_the_node_stops_at_the_entry_and_the_others_go_on(group: RunningGroup) -> None:
    victim = group.processes.nodes[0]
    sound, victim.command = victim.command, broken_command(victim)
    leader = start(group)
    if leader is victim:  # the sound ones must lead: a leader's own proposal would stop it, too
        victim.kill()
        leader = group.wait_leader(other_than=victim)
        victim.start()
    assert poll(lambda: acknowledged(leader, b"before"), PATIENCE_S)
    assert poll(lambda: acknowledged(leader, BROKEN), PATIENCE_S)
    assert poll(lambda: victim.pid is None, PATIENCE_S), (
        "the node goes on after an entry it cannot fold"
    )
    first = applied_line(victim)
    assert "Traceback" not in victim.log_tail(200)
    for _ in range(20):
        assert poll(lambda: acknowledged(leader, b"behind"), PATIENCE_S)
    victim.start()
    assert poll(lambda: victim.pid is None, PATIENCE_S), "a restart skips the entry"
    assert applied_line(victim) == first
    victim.command = sound  # the version that knows the rule
    victim.start()
    assert poll(lambda: acknowledged(victim, b"through the mended node"), PATIENCE_S), (
        victim.log_tail()
    )


def test_a_rule_that_all_lack_stops_a_majority_loudly(group: RunningGroup) -> None:
    """The third one may not learn that the entry is committed: then it waits, and acknowledges nothing."""
    for node in group.processes.nodes:
        node.command = broken_command(node)
    leader = start(group)
    assert poll(lambda: acknowledged(leader, b"before"), PATIENCE_S)

    def is_stopped() -> bool:
        assert not acknowledged(leader, BROKEN)
        return sum(node.pid is None for node in group.processes.nodes) >= 2

    assert poll(is_stopped, PATIENCE_S)
    for node in group.processes.nodes:
        if node.pid is None:
            assert "planted" in node.log_tail(5), node.log_tail()
        else:
            assert not acknowledged(node, b"behind")
