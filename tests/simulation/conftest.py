"""What searches for planted mistakes have to tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.conftest import TOLD
from tests.simulation.searches import report_with


@pytest.fixture(autouse=True)
def _searches_report(record_property: Callable[[str, object], None]) -> None:
    report_with(partial(record_property, TOLD))
