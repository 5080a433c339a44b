"""What the tests of the structure keep of our sources while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.architecture.checks import definitions
from tests.architecture.sources import parsed
from tests.architecture.test_words import texts


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    """Give the trees up after the last of these tests: they are half a gigabyte, for the collector of garbage too."""
    yield
    for kept in (parsed, definitions, texts):
        kept.cache_clear()
