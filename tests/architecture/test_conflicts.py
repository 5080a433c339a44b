"""No page and no source stands with both sides of a merge in it: README once did for an hour, and nothing saw it."""

from __future__ import annotations

import re

import pytest

from tests.architecture.citations import files
from tests.architecture.sources import ROOT

MARKER = re.compile(r"^(<{7}|>{7}|\|{7}) ", re.MULTILINE)


def test_no_file_has_the_markers_of_a_merge() -> None:
    found = [path.relative_to(ROOT) for path in files() if MARKER.search(path.read_text("utf-8"))]
    assert not found


@pytest.mark.parametrize("sign", "<>|")
def test_a_marker_is_found(sign: str) -> None:
    assert MARKER.search(f"a line\n{sign * 7} HEAD\nanother")
    assert not MARKER.search(f"a line with {sign * 7} in it")
