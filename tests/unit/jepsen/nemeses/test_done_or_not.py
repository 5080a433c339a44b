"""A fault that struck nothing says so, and one that strikes again does something again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
import trio.testing

from dledger import DLedgerError
from jepsen.nemeses import NothingStruckError, damage
from jepsen.nemeses.clock import SECOND_NS, SUSPEND_S, ClockFault, ShiftClocks
from jepsen.nemeses.limits import CPU, Limited
from jepsen.nemeses.network import ReplayFrames
from jepsen.nemeses.preload import control_of, side_folder
from jepsen.nemeses.transfer import Transfer
from jepsen.systems.api import System


class Node:
    """A process that is what it is asked to be."""

    pid: int | None = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Links:
    """Links between which no frame has gone."""

    def replay(self, _source: str, _target: str, _count: int) -> int:
        return 0


class Fake:
    """The parts of a system that these faults use; it hands over to `target`, or raises."""

    def __init__(self, folder: Path, target: str = "", *, moves: bool = True) -> None:
        self.folder = folder
        self.nodes = [Node(f"n{number}") for number in range(3)]
        self.links = Links()
        self.leader = "n0"
        self._target = target
        self._moves = moves

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    async def hand_over(self, _timeout_s: float) -> str:
        if not self._target:
            raise DLedgerError("nobody is near enough")
        if self._moves:
            self.leader = self._target
        return self._target


CHANCE = random.Random(1)


def system(fake: Fake) -> System:
    return cast("System", fake)


async def test_a_hand_over_counts_when_another_leads(tmp_path: Path) -> None:
    told = await Transfer("transfer").inject(system(Fake(tmp_path, "n1")), CHANCE)
    assert told == "n0 handed over to n1"


@pytest.mark.parametrize("target", ["", "n1"])
async def test_a_hand_over_that_did_not_happen_does_not_count(
    tmp_path: Path, target: str, autojump_clock: trio.testing.MockClock
) -> None:
    fault = Transfer("transfer")
    fake = system(Fake(tmp_path, target, moves=False))
    with pytest.raises(NothingStruckError):
        await fault.inject(fake, CHANCE)
    assert await fault.cure(fake) == ""


async def test_no_old_frames_are_none_replayed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(NothingStruckError):
        await ReplayFrames("replay").inject(system(Fake(tmp_path)), CHANCE)


async def test_who_is_down_gets_no_limit(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for node in fake.nodes:
        node.pid = None
    own = tmp_path / "cgroup"
    own.write_text("1:cpu:/\n")
    (tmp_path / "cpu").mkdir()
    fault = Limited("cpu:one", "one", CPU, cgroups=tmp_path, own=own)
    assert await fault.inject(system(fake), CHANCE) == ""


async def test_a_monotonic_clock_goes_on_with_each_strike_and_never_back(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.nodes = fake.nodes[:1]
    side_folder(system(fake), "n0").mkdir(parents=True)
    strikes: list[tuple[ClockFault, int, bool]] = [
        ("monotonic", 1, False),
        ("monotonic", 2, False),
        ("jump", 2, True),
        ("monotonic", 3, True),
        ("skew", 3, True),
    ]
    for kind, suspensions, is_wall_wrong in strikes:
        await ShiftClocks(f"clock:{kind}", kind).inject(system(fake), CHANCE)
        realtime_ns, monotonic_ns = control_of(system(fake), "n0").clocks()
        assert monotonic_ns == suspensions * SUSPEND_S * SECOND_NS
        assert bool(realtime_ns) == is_wall_wrong


def test_stores_without_entries_are_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "n0" / "data").mkdir(parents=True)
    assert damage.damage_all([tmp_path / "n0"], CHANCE).startswith(damage.NOTHING)
