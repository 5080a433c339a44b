"""Every ext field of ours stands on docs/protocol.md, with the requests that carry it and the version that began it."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from dledger.version import __version__
from dledger_mq.remoting.codes import RequestCode
from tests.architecture.ratchet import product_modules
from tests.architecture.sources import ROOT, parsed

PAGE = ROOT / "docs/protocol.md"
HEADING = "## Fields of ours in the frames of clients"
FIELD = re.compile(r"dledger[A-Z]\w*")


class Row(NamedTuple):
    """One row of the table."""

    name: str
    place: str
    meaning: str
    since: str


def rows() -> list[Row]:
    table = PAGE.read_text().partition(HEADING)[2]
    return [
        Row(*found)
        for found in re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \| (.+) \|$", table, re.M)
    ]


def in_the_code() -> set[str]:
    """What a text of the product is, or a C source holds between quotation marks."""
    found = {
        node.value
        for path in product_modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for path in (ROOT / "dledger_mq").rglob("*.[ch]"):
        found.update(re.findall(r'"(\w+)"', path.read_text()))
    return {text for text in found if FIELD.fullmatch(text)}


def test_the_page_has_the_fields_that_the_code_has() -> None:
    names = [row.name for row in rows()]
    assert len(names) == len(set(names)) >= 9
    assert set(names) == in_the_code()


def test_a_row_names_requests_and_a_version_up_to_this_one() -> None:
    codes = {str(code.value) for code in RequestCode}
    this = tuple(map(int, __version__.split(".")[:3]))
    before: set[str] = set()
    assert rows()
    for row in rows():
        named = set(re.findall(r"\b\d+\b", row.place))
        assert named <= codes
        assert named or (row.place.startswith("its answer") and before), row
        before |= named
        assert tuple(map(int, row.since.split("."))) <= this
        assert len(row.meaning) > 20
