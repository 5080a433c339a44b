"""The same promises on the simulated and on the real disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dledger.storage.api import Disk
from dledger.storage.posix import PosixDisk
from dledger.testing.check_log_store import check_disk, check_log_store
from dledger.testing.sim_disk import SimDisk


@pytest.fixture(params=["simulated", "posix"])
def make_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Disk]:
    count = 0

    def make() -> Disk:
        nonlocal count
        count += 1
        return (
            SimDisk(Random(count))
            if request.param == "simulated"
            else PosixDisk(tmp_path / f"{count}")
        )

    return make


def test_disk(make_disk: Callable[[], Disk]) -> None:
    check_disk(make_disk)


def test_log_store(make_disk: Callable[[], Disk]) -> None:
    check_log_store(make_disk)
