"""What is cited exists: rules, pages and their sections, decisions, files, tests, rows of faults."""

from __future__ import annotations

import re

import pytest

from tests.architecture.citations import (
    RULES,
    Citation,
    citations,
    cited_in,
    exists,
    files,
    letters,
    names_in,
    rules,
)
from tests.architecture.sources import ROOT


def test_what_is_cited_exists() -> None:
    missing = [str(cited) for path in files() for cited in citations(path) if not exists(cited)]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "kind", "is_there"),
    [
        ("a rule (O4) that is there", "rule", True),
        ("rules O4 to O99", "rule", False),
        ("rules M, all of them", "letter", True),
        ("rules X", "letter", False),
        ("house rule 5", "house rule", True),
        ("house rule 11", "house rule", False),
        ("docs/adr/0061", "decision", True),
        ("adr/0999", "decision", False),
        ("docs/formats/entry.md", "page", True),
        ("docs/formats/nothing.md", "page", False),
        ('docs/formats/remoting.md, "Header"', "section", True),
        ('docs/formats/remoting.md, "Footer"', "section", False),
        ("remoting.md 3.11", "section", False),
        ("faults.md, rows 1 and 69", "row", True),
        ("faults.md row 71", "row", False),
        ("[page](testing.md)", "link", True),
        ("[page](testing.md#nowhere)", "link", False),
        ("dledger/raft/core", "path", True),
        ("dledger/raft/nothing.py", "path", False),
        ("`citations.py` and `architecture/citations.py`", "file", True),
        ("`told.py` judges", "file", False),
        ("by test_what_is_cited_exists", "test", True),
        ("by test_what_nobody_tests", "test", False),
        ("semantics O4", "outside", False),
    ],
)
def test_a_citation_of_something_that_is_missing_is_found(
    text: str, kind: str, is_there: bool
) -> None:
    of_kind = [
        Citation("docs/x.md", 1, found, target) for found, target in cited_in(text) if found == kind
    ]
    assert of_kind
    assert all(exists(each) for each in of_kind) == is_there


def test_a_page_that_names_what_the_code_no_longer_has_is_found() -> None:
    named = [
        Citation("docs/x.md", 1, "name", name) for name in names_in("`LogServer.get` and `LogShip`")
    ]
    assert [exists(each) for each in named] == [True, False]


def test_each_letter_of_rules_is_in_the_table_of_pages() -> None:
    listed = re.findall(r"^\| ([A-Z, ]+) \| \[(\w+\.md)\]", (RULES / "README.md").read_text(), re.M)
    pages = {letter: page for of, page in listed for letter in of.split(", ")}
    assert set(pages) == letters()
    wrong = [
        rule for rule, path in rules().items() if path.name != pages[rule.rstrip("0123456789")]
    ]
    assert wrong == []


def test_a_rule_that_we_leave_says_so_and_stands_in_the_page_of_divergences() -> None:
    listed = set()
    for row in re.findall(
        r"^\| RocketMQ ([^|]+?) \|", (ROOT / "docs/divergence.md").read_text(), re.M
    ):
        for part in row.split(", "):
            first, _, last = part.partition("-")
            listed.add(first)
            letter = first.rstrip("0123456789")
            if last:
                low, high = int(first.removeprefix(letter)), int(last.removeprefix(letter))
                listed |= {f"{letter}{number}" for number in range(low, high + 1)}
    said = set()
    for path in RULES.glob("*.md"):
        for rule in re.split(r"\n- ", path.read_text()):
            anchor = re.match(r'<a id="([A-Z]+\d+)">', rule)
            if anchor and "we differ" in rule.lower().split("\n\n")[0]:
                said.add(anchor[1])
    listed = {re.sub(r"[a-h]$", "", rule) for rule in listed if not rule.startswith("ZZ")}
    assert said == listed
