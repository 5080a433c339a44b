"""The promises of a stage to its director: a fault that nothing met shows nothing, and it is reported."""

from __future__ import annotations

import random
from typing import cast

import pytest

from jepsen.checklist.stage import Stage
from jepsen.history.ops import OpLog
from jepsen.nemeses.api import Fault, NothingStruckError
from jepsen.systems.api import Subject, System


class FullDisk(Fault):
    """Nobody needs room until the test says so."""

    def __init__(self) -> None:
        self.name = "disk-full"
        self.is_met = False
        self.is_cured = False

    async def inject(self, system: System, chance: random.Random) -> str:
        return "the disk is full"

    async def cure(self, system: System) -> str:
        self.is_cured = True
        return "there is room"

    def has_struck(self, system: System) -> bool:
        return self.is_met


def stage_of(fault: Fault) -> Stage:
    return Stage(cast("Subject", None), OpLog(), random.Random(1), {fault.name: fault})


async def test_a_fault_that_nothing_met_is_cured_and_told() -> None:
    fault = FullDisk()
    stage = stage_of(fault)
    with pytest.raises(NothingStruckError, match="nobody met it"):
        async with stage.fault("disk-full"):
            await stage.until_met("disk-full", timeout_s=0)
    assert fault.is_cured


async def test_a_fault_that_was_met_is_cured_and_told_nothing_of() -> None:
    fault = FullDisk()
    stage = stage_of(fault)
    async with stage.fault("disk-full"):
        fault.is_met = True
    assert stage.cured == "there is room"


async def test_a_fault_is_in_force_once_and_waited_for_while_it_is() -> None:
    fault = FullDisk()
    stage = stage_of(fault)
    with pytest.raises(AssertionError, match="disk-full is waited for"):
        await stage.until_met("disk-full", timeout_s=0)
    async with stage.fault("disk-full"):
        fault.is_met = True
        with pytest.raises(AssertionError, match="in force already"):
            async with stage.fault("disk-full"):
                raise AssertionError("it was entered twice")
    async with stage.fault("disk-full"):
        await stage.until_met("disk-full", timeout_s=0)
