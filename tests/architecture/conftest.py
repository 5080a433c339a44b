"""What the tests of the structure keep of our sources while they run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.checks import definitions
from tests.architecture.sources import parsed
from tests.architecture.test_words import texts


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    """Give the trees up after the last of these tests: they are half a gigabyte.

    The collector of garbage is off until then: while sources are parsed it would look again and again at all trees that
    there are, which takes three times as long as the parsing.
    """
    gc.disable()
    yield
    for kept in (parsed, definitions, texts):
        kept.cache_clear()
    gc.enable()
