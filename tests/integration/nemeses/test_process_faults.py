"""Faults of processes do what they say to harmless ones, and their cures undo it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jepsen.nemeses import NothingStruckError, PromiseBrokenError, named
from jepsen.nemeses import process as process_faults
from jepsen.processes import poll
from tests.integration.nemeses.conftest import FakeSystem

pytestmark = pytest.mark.integration


def chance() -> random.Random:
    return random.Random(1)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("spec", "left"), [("kill:leader", 2), ("kill:majority", 1), ("kill:all", 0), ("term:one", 2)]
)
async def test_ended_processes_are_started_by_the_cure(
    system: FakeSystem, spec: str, left: int
) -> None:
    fault = named(spec)
    assert await fault.inject(system, chance())
    assert len(system.running()) == left
    if "leader" in spec or "majority" in spec:
        assert "n1" not in system.running()
    assert (await fault.cure(system)).startswith("started")
    assert system.running() == ["n0", "n1", "n2"]
    assert await fault.cure(system) == ""


async def test_a_paused_process_stands_still_until_the_cure(system: FakeSystem) -> None:
    fault = named("pause:leader")
    pid = system.node("n1").pid
    assert pid is not None
    assert await fault.inject(system, chance()) == "paused n1"
    assert await process_faults.wait_until(lambda: is_stopped(pid), 60)
    assert await fault.cure(system) == "resumed n1"
    assert await process_faults.wait_until(lambda: not is_stopped(pid), 60)
    assert await fault.cure(system) == ""


async def test_a_second_process_that_refuses_is_well(system: FakeSystem) -> None:
    told = await named("same-id-twice").inject(system, chance())
    assert "refused with status 1: the store is in use" in told
    assert system.running() == ["n0", "n1", "n2"]


async def test_a_second_process_that_runs_breaks_a_promise(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_faults, "REFUSAL_WAIT_S", 0.1)
    for node in system.nodes:
        node.command = ["sleep", "60"]
    with pytest.raises(PromiseBrokenError, match="not refused"):
        await named("same-id-twice").inject(system, chance())


async def test_where_no_process_runs_a_second_one_is_the_first(system: FakeSystem) -> None:
    for node in system.nodes:
        node.kill()
    with pytest.raises(NothingStruckError, match="does not serve"):
        await named("same-id-twice").inject(system, chance())
    assert system.running() == []


async def test_a_second_process_waits_for_a_first_one_that_starts(system: FakeSystem) -> None:
    """Of two that start at the same time either may win the store."""
    for node in system.nodes:
        node.kill()
        node.start()
    assert "was refused" in await named("same-id-twice").inject(system, chance())
    assert await process_faults.wait_until(lambda: len(system.running()) == 3, 60)


async def test_a_rolling_restart_gives_every_process_a_new_id(system: FakeSystem) -> None:
    before = [node.pid for node in system.nodes]
    assert await named("rolling-restart").inject(system, chance())
    assert all(node.is_listening() for node in system.nodes)
    assert not set(before) & {node.pid for node in system.nodes}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["crash-loop:one", "kill-in-recovery", "kill-in-election"])
async def test_blow_after_blow(
    system: FakeSystem, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_faults, "LOOP_PERIOD_S", 0.05)
    monkeypatch.setattr(process_faults, "RECOVERY_S", 0.1)
    monkeypatch.setattr(process_faults, "ELECTION_WAIT_S", 0.1)
    fault = named(spec)
    assert await fault.inject(system, chance())
    logs = [node.log.read_text() for node in system.nodes]
    assert max(log.count("--- ") for log in logs) >= (1 if spec == "kill-in-election" else 6)
    await fault.cure(system)
    assert system.running() == ["n0", "n1", "n2"]


async def test_whoever_was_stalled_goes_on(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_faults, "STALL_S", (0.01, 0.02))
    monkeypatch.setattr(process_faults, "STALL_QUIET_S", (0.0, 0.01))
    stopped: list[bool] = []
    node = system.node("n1")
    pause = node.pause

    def pause_and_look() -> None:
        pause()
        assert poll(lambda: is_stopped(node.pid or 0), 60)
        stopped.append(True)

    monkeypatch.setattr(node, "pause", pause_and_look)
    told = await named("stall:leader").inject(system, chance())
    assert len(stopped) == process_faults.STALL_ROUNDS
    assert told.count("n1 ") == process_faults.STALL_ROUNDS
    assert not is_stopped(node.pid or 0)


async def test_a_disk_is_busy_until_the_cure(system: FakeSystem) -> None:
    fault = named("busy-disk")
    await fault.inject(system, chance())
    folder = system.folder / "busy-disk"
    written = [folder / "0", folder / "1"]
    assert poll(lambda: all(file.exists() and file.stat().st_size for file in written), 60)
    assert await fault.cure(system)
    assert not folder.exists()
    assert await fault.cure(system) == ""
