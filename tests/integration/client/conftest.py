from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.processes import SMALL_SEGMENTS, Group

NEVER_SLOW = "raftSlowDiskMs=60000\n"
"""No leader hands over because the disk of a busy machine keeps it waiting: tests say when the lead moves."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder: Path = tmp_path_factory.mktemp("group")
    with Group(folder, settings=SMALL_SEGMENTS + NEVER_SLOW) as running:
        running.start()
        running.wait_listening()
        yield running
