from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.processes import Group


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder: Path = tmp_path_factory.mktemp("group")
    with Group(folder) as running:
        running.start()
        running.wait_listening()
        yield running
