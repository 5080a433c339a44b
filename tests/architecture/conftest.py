"""What the tests of the structure keep of our sources while they run."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.checks import definitions
from tests.architecture.sources import parsed
from tests.architecture.test_words import texts

HERE: Final = Path(__file__).parent


def pytest_runtest_setup() -> None:
    """Have no garbage looked for: while sources are parsed the collector would go through all trees again and again.

    That would take three times as long as the parsing.
    """
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Give the trees up after the last of these tests: they are half a gigabyte.

    A fixture of the package would do so at the end of the whole run: without an `__init__.py` there is no package.
    """
    if nextitem is None or HERE not in nextitem.path.parents:
        for kept in (parsed, definitions, texts):
            kept.cache_clear()
        gc.enable()
