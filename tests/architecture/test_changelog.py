"""What a release will say: fragments in changelog.d that can be joined into CHANGELOG.md."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from dledger.version import __version__
from tests.architecture.sources import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
FOLDER = ROOT / SETTINGS["directory"]
KINDS = [kind["directory"] for kind in SETTINGS["type"]]
NAME = re.compile(rf"\d{{4}}(\.[a-z0-9-]+)?\.({'|'.join(KINDS)})\.md")
NO_FRAGMENTS = {"README.md", Path(SETTINGS["template"]).name}
RELEASE = re.compile(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", re.MULTILINE)


def fragments() -> list[Path]:
    return [path for path in sorted(FOLDER.iterdir()) if path.name not in NO_FRAGMENTS]


def test_fragments_are_named_by_issue_and_kind() -> None:
    assert [path.name for path in fragments() if not NAME.fullmatch(path.name)] == []


def test_fragments_are_sentences_and_no_lists() -> None:
    texts = {path.name: path.read_text() for path in fragments()}
    assert [name for name, text in texts.items() if not text.strip() or text.startswith("- ")] == []


def test_the_rule_for_names_knows_what_is_wrong() -> None:
    names = ("10.feature.md", "0010.Feature.md", "0010.feature.txt", "0010.two words.feature.md")
    assert [name for name in names if NAME.fullmatch(name)] == []
    assert NAME.fullmatch("0010.feature.md")
    assert NAME.fullmatch("0010.python-names.removal.md")


def test_no_release_stands_twice_nor_ahead_of_the_version() -> None:
    releases = RELEASE.findall((ROOT / SETTINGS["filename"]).read_text())
    assert len(set(releases)) == len(releases)
    assert __version__ == releases[0] or __version__.endswith(".dev0")


@pytest.mark.skipif(find_spec("towncrier") is None, reason="towncrier is not installed")
def test_every_fragment_would_stand_in_the_next_release() -> None:
    draft = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--date", "2026-01-01"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=180,
    ).stdout
    assert draft.startswith(f"## {__version__} (2026-01-01)")
    assert draft.count("\n- ") == len({path.read_text() for path in fragments()})
