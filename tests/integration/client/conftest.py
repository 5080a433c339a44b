from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import pytest

from jepsen.processes import SMALL_SEGMENTS, Group

SETTINGS = SMALL_SEGMENTS + "raftSlowDiskMs=60000\n"
"""No leader hands over because the disk of a busy machine keeps it waiting: tests say when the lead moves."""


_SHARED: Final = pytest.StashKey[tuple[Group, ExitStack]]()
"""The group that all tests here share, while one of them runs, and what ends it."""


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """A group that is whole, whatever an earlier test has left; each test has topics of its own."""
    stash = request.config.stash
    if _SHARED not in stash:
        made, ending = Group(tmp_path_factory.mktemp("group"), settings=SETTINGS), ExitStack()
        stash[_SHARED] = (ending.enter_context(made), ending)
    running, _ = stash[_SHARED]
    for process in running.processes():
        process.resume()
        if process.pid is None:
            process.start()
    running.wait_listening()
    return running


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the group with the last test here: one that is idle takes a twentieth of a core."""
    is_last = nextitem is None or nextitem.path.parent != item.path.parent
    if is_last and _SHARED in item.config.stash:
        item.config.stash[_SHARED][1].close()
        del item.config.stash[_SHARED]
