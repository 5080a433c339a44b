"""Every specification has its fault, and every fault its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen.nemeses import UnknownFaultError, named, specifications
from jepsen.nemeses.registry import KINDS

PAGE = Path(__file__).resolve().parents[4] / "docs/nemeses.md"


@pytest.mark.parametrize("spec", specifications())
def test_every_specification_makes_a_fault_of_that_name(spec: str) -> None:
    assert named(spec).name == spec


def test_without_a_choice_the_first_is_taken() -> None:
    assert named("kill").scope == "one"


@pytest.mark.parametrize(
    "spec", ["", "kil", "kill:", "kill:n0", "flap:", "replay:fast", "kill:one:two"]
)
def test_an_unknown_one_is_refused_with_what_there_is(spec: str) -> None:
    with pytest.raises(UnknownFaultError, match=r"there (is|are)"):
        named(spec)


@pytest.mark.parametrize("word", KINDS)
def test_every_fault_is_described(word: str) -> None:
    assert f"`{word}" in PAGE.read_text()
