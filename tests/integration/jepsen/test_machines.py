"""Machines that share groups as a system under test: what a fault does to one, it does to all of its processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.measure import in_rounds
from jepsen.processes import is_running, poll
from jepsen.run import RunSettings, execute
from jepsen.systems.api import SystemOptions
from jepsen.systems.machines import Machine, MachineSystem, machine_system
from tests.integration.jepsen.breaking import PATIENCE_S, TIME_LIMIT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PROCESSES = 4
"""A name server and a member of each of three groups."""

WAIT_S = PATIENCE_S


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineSystem]:
    with machine_system(tmp_path_factory.mktemp("machines"), SystemOptions(groups=3)) as system:
        system.start()
        assert poll(lambda: all(node.is_listening() for node in system.nodes), WAIT_S)
        yield system


def machine(system: MachineSystem, name: str) -> Machine:
    node = system.node(name)
    assert isinstance(node, Machine)
    return node


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_gone(pid: int) -> bool:
    """Nobody has waited for it yet, perhaps."""
    return not is_running(pid) or state(pid) == "Z"


def test_a_kill_ends_every_process_of_the_machine_and_of_no_other(system: MachineSystem) -> None:
    victim, other = machine(system, "n1"), machine(system, "n0")
    pids, others = victim.child_pids(), other.child_pids()
    assert (len(pids), len(others)) == (PROCESSES, PROCESSES)
    victim.kill()
    assert victim.pid is None
    assert all(map(is_gone, pids))
    assert victim.child_pids() == []
    assert other.child_pids() == others
    victim.start()
    assert poll(victim.is_listening, WAIT_S)
    assert not set(victim.child_pids()) & set(pids)
    assert victim.take_unexpected_exits() == []


def test_a_pause_stops_every_process_until_it_is_resumed(system: MachineSystem) -> None:
    victim = machine(system, "n2")
    assert victim.pid is not None
    pids = [victim.pid, *victim.child_pids()]
    victim.pause()
    assert poll(lambda: {state(pid) for pid in pids} == {"T"}, WAIT_S)
    victim.resume()
    assert poll(lambda: "T" not in {state(pid) for pid in pids}, WAIT_S)
    assert victim.take_unexpected_exits() == []


def test_a_process_that_ends_by_itself_is_noted_though_it_is_started_again(
    system: MachineSystem,
) -> None:
    victim = machine(system, "n0")
    before = victim.child_pids()
    os.kill(before[0], signal.SIGKILL)
    seen = []

    def is_noted() -> bool:
        seen.extend(victim.take_unexpected_exits())
        return bool(seen)

    assert poll(is_noted, WAIT_S)
    (end,) = seen
    assert end.status == -signal.SIGKILL
    assert end.words.endswith("was ended by SIGKILL")
    assert poll(lambda: len(victim.child_pids()) == PROCESSES, WAIT_S)
    assert poll(victim.is_listening, WAIT_S)
    assert victim.take_unexpected_exits() == []


def test_a_crash_leaves_the_supervisor_which_starts_everything_again(
    system: MachineSystem,
) -> None:
    victim = machine(system, "n2")
    supervisor, before = victim.pid, victim.child_pids()
    assert victim.crash() == PROCESSES
    assert poll(lambda: len(set(victim.child_pids()) - set(before)) == PROCESSES, WAIT_S)
    assert poll(victim.is_listening, WAIT_S)
    assert victim.pid == supervisor
    assert victim.take_unexpected_exits() == [], "they were of our doing"


def test_an_orderly_stop_ends_every_process(system: MachineSystem) -> None:
    victim = machine(system, "n1")
    pids = victim.child_pids()
    assert victim.stop(WAIT_S) == 0
    assert all(map(is_gone, pids))
    assert victim.take_unexpected_exits() == []
    victim.start()
    assert poll(victim.is_listening, WAIT_S)


@pytest.mark.parametrize(
    ("workload", "nemesis"), [("together", "kill:leader"), ("offsets", "pause:one")]
)
def test_no_promise_is_broken_in_any_group(workload: str, nemesis: str, tmp_path: Path) -> None:
    settings = RunSettings(workload, nemesis, TIME_LIMIT_S, rate=75.0, groups=3, workers=10)
    result = execute(settings, tmp_path / "run", break_it=in_rounds(1))
    assert result.faults == {nemesis: 1}
    assert [one for check in result.checks for one in check.anomalies] == []
    assert result.problems == ()
    checks = {check.name: check for check in result.checks}
    if workload == "together":
        assert checks["groups"].valid is True
        assert checks["groups"].counts["groups"] == 3
    else:
        (name,) = {each for each in checks if "linearizable" in each}
        assert checks[name].valid is True
