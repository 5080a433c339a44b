"""Each decision says where it stands, and decisions that touch each other say so on both sides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
_LINK = r"\[(\d{4})\]\((\d{4}-[\w-]+\.md)\)"
_BACK = {
    "Superseded by": "Supersedes",
    "Supersedes": "Superseded by",
    "Amended by": "Amends",
    "Amends": "Amended by",
}


def status(path: Path) -> str:
    """The paragraph after the heading, on one line."""
    return " ".join(path.read_text().split("\n\n")[1].split())


def related(path: Path) -> dict[str, set[str]]:
    """The pages after each word of `_BACK` in a status."""
    found: dict[str, set[str]] = {word: set() for word in _BACK}
    word = ""
    for part in re.split(rf"({'|'.join(_BACK)})", status(path)):
        if part in _BACK:
            word = part
        elif word:
            found[word] |= {name for _, name in re.findall(_LINK, part)}
    return found


def test_numbers_are_given_once() -> None:
    numbers = [path.name[:4] for path in PAGES]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name[:4])
def test_a_decision_says_where_it_stands(path: Path) -> None:
    number = int(path.name[:4])
    assert path.read_text().startswith(f"# {number}. ")
    assert re.match(r"\*\*Status\.\*\* (Accepted|Proposed|Superseded by \[)", status(path))
    assert all(name.startswith(shown) for shown, name in re.findall(_LINK, status(path)))


def test_a_decision_that_touches_another_is_named_there() -> None:
    links = {
        (path.name, word, other)
        for path in PAGES
        for word, others in related(path).items()
        for other in others
    }
    assert len(links) > 20
    assert {(other, _BACK[word], name) for name, word, other in links} == links
