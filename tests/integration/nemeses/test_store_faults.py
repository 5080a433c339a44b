"""Faults of clocks, disks and stores strike the nodes that they name, and their cures leave nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jepsen.nemeses import clock, damaged, named, specifications
from jepsen.nemeses.clock import ShiftClocks
from jepsen.nemeses.damaged import Damaged
from jepsen.nemeses.disk import BadDisk, LoseUnsynced
from jepsen.nemeses.preload import control_of
from jepsen.nemeses.process import wait_until
from tests.integration.nemeses.conftest import FakeSystem
from tests.unit.jepsen.nemeses.test_damage import contents, make_store

pytestmark = pytest.mark.integration


def chance() -> random.Random:
    return random.Random(1)


def of_kind(kind: type) -> list[str]:
    return [spec for spec in specifications() if isinstance(named(spec), kind)]


def armed(system: FakeSystem) -> list[str]:
    """Nodes whose disk has rules."""
    controls = {node.name: control_of(system, node.name) for node in system.nodes}
    return [
        name for name, control in controls.items() if control.path.read_bytes()[4:8] != bytes(4)
    ]


@pytest.mark.parametrize("spec", of_kind(BadDisk))
async def test_bad_disks_are_bad_until_the_cure(system: FakeSystem, spec: str) -> None:
    fault = named(spec)
    if lacking := fault.lacking():
        pytest.skip(lacking)
    fault.prepare(system, chance())
    assert await fault.inject(system, chance())
    if spec.endswith(":all"):
        assert armed(system) == ["n0", "n1", "n2"]
    elif spec.endswith(":vote"):
        assert armed(system)
        assert armed(system) != ["n1"]  # the leader is killed instead
    elif not spec.endswith(":one"):
        assert armed(system) == ["n1"]
    assert not fault.has_struck(system)  # these processes do not know of the library
    assert "disks are well" in await fault.cure(system)
    assert armed(system) == []
    assert system.running() == ["n0", "n1", "n2"]
    assert await fault.cure(system) == ""


@pytest.mark.parametrize("spec", of_kind(ShiftClocks))
async def test_clocks_are_wrong_until_the_cure(
    system: FakeSystem, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "STROBE_S", 0.0)
    fault = named(spec)
    if lacking := fault.lacking():
        pytest.skip(lacking)
    fault.prepare(system, chance())
    assert await fault.inject(system, chance())
    shifted = [control_of(system, node.name).clocks() for node in system.nodes]
    if spec != "clock:strobe":
        assert any(both != (0, 0) for both in shifted)
    await fault.cure(system)
    right = [control_of(system, node.name).clocks() for node in system.nodes]
    assert all(realtime_ns == 0 for realtime_ns, _ in right)
    assert [both[1] for both in right] == [both[1] for both in shifted]  # monotonic stays so
    assert system.running() == ["n0", "n1", "n2"]
    assert await fault.cure(system) == ""


@pytest.mark.parametrize("spec", [spec for spec in of_kind(LoseUnsynced) if ":all" in spec])
async def test_a_power_cut_takes_what_nobody_synced(tmp_path: Path, spec: str) -> None:
    fault = named(spec)
    if lacking := fault.lacking():
        pytest.skip(lacking)
    system = FakeSystem(tmp_path)
    fault.prepare(system, chance())
    try:
        system.start()
        assert (system.store("n0") / "lock").exists()
        assert "2 names" in await fault.inject(system, chance())  # the store, and its lock
        assert system.running() == []
        assert not any(system.store(node.name).exists() for node in system.nodes)
        assert (await fault.cure(system)).startswith("started")
        assert await wait_until(lambda: all(node.is_listening() for node in system.nodes), 60)
    finally:
        for node in system.nodes:
            node.kill()


@pytest.mark.parametrize("spec", of_kind(Damaged))
async def test_stores_are_damaged_and_nodes_started(
    system: FakeSystem, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damaged, "BACKUP_AGE_S", 0.0)
    for node in system.nodes:
        make_store(system.store(node.name))
    before = [contents(system.store(node.name)) for node in system.nodes]
    fault = named(spec)
    assert await fault.inject(system, chance())
    after = [contents(system.store(node.name)) for node in system.nodes]
    if spec not in {"backup", "segment:old"}:
        struck = 3 if spec == "damage-all" else 1
        assert sum(old != new for old, new in zip(before, after, strict=True)) == struck
    assert system.running() == ["n0", "n1", "n2"]
    assert (await fault.cure(system)).count("serves") == (3 if spec == "damage-all" else 1)
    assert await fault.cure(system) == ""


async def test_a_node_that_ended_is_started_once_more_and_its_store_is_kept(
    system: FakeSystem,
) -> None:
    fault = named("wipe")
    await fault.inject(system, chance())
    for node in system.nodes:
        make_store(system.store(node.name))
    assert isinstance(fault, Damaged)
    (struck,) = fault._names
    node = system.node(struck)
    command, node.command = node.command, ["false"]
    node.kill()
    node.start()
    assert await wait_until(lambda: node.pid is None, 60)
    files = {each.name for each in system.store(struck).rglob("*")}
    assert "refuses" in await fault.cure(system)
    fault._names = [struck]
    node.command = command
    assert await fault.cure(system) == f"{struck} serves"
    assert files <= {each.name for each in system.store(struck).rglob("*")}, "nothing is wiped"
    assert struck in system.running()
