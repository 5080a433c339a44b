"""Limits are set where they may be, and taken away."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jepsen.nemeses import named
from jepsen.nemeses.limits import CPU, MEMORY, CgroupError, hierarchy
from tests.integration.nemeses.conftest import FakeSystem

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("own", "enabled", "words"),
    [
        ("0::/\n", "cpu pids", "no cgroup controller memory"),
        ("0::/user.slice\n", "memory cpu", "managed already: cgroup /user.slice"),
        ("4:memory:/container\n1:cpu:/\n", "", "managed already: cgroup /container"),
    ],
)
def test_what_is_lacking_is_said(tmp_path: Path, own: str, enabled: str, words: str) -> None:
    (tmp_path / "own").write_text(own)
    (tmp_path / "cgroup.subtree_control").write_text(enabled)
    with pytest.raises(CgroupError, match=words):
        hierarchy(MEMORY, tmp_path, tmp_path / "own")


def test_both_versions_are_found(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/container\n1:cpu,cpuacct:/\n")
    (tmp_path / "cpu").mkdir()
    assert hierarchy(CPU, tmp_path, tmp_path / "own") == (tmp_path / "cpu", CPU.limit_v1)
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    assert hierarchy(CPU, tmp_path, tmp_path / "own") == (tmp_path, CPU.limit_v2)


def cgroups_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def test_a_process_is_limited_until_the_cure(system: FakeSystem) -> None:
    fault = named("cpu:leader")
    if lacking := fault.lacking():
        pytest.skip(lacking)
    pid = system.node("n1").pid
    before = cgroups_of(pid)
    try:
        assert "n1" in await fault.inject(system, random.Random(1))
        assert "jepsen-" in cgroups_of(pid)
    finally:
        cured = await fault.cure(system)
    assert cured == "no limit of cpu"
    assert cgroups_of(pid) == before
    assert await fault.cure(system) == ""
