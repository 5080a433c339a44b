"""Our SQL92 filters beside RocketMQ's own: the same texts are taken, and the same messages wanted.

Where they differ is listed in docs/divergence.md (H7 to H9): only such texts are left out here. One process is asked.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from dledger_mq.filters import FilterTextError, compile_filter
from dledger_mq.message.properties import encode_properties
from tests.interop.conftest import JAVA_OPTIONS, ROOT
from tests.unit.filters.test_refused_texts import REFUSED
from tests.unit.filters.test_verdicts import NO, YES

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ORACLE = ROOT / ".interop/filter-5.3.3"

MADE = 3000

OURS_ONLY = {
    "H9 on either side": "TRUE beside a text is an error there",
    "H9 a condition beside a text": "the same",
    "H9 other digits": "they are digits there",
}

REFUSED_HERE_ONLY = {
    "a = 1 garbage": "H7",
    "a = 007": "H7",
    "a = 0x1F": "H7",
    "a LIKE 'x%'": "H7",
    "a + 1 = 2": "H7",
    "a = 1)": "H7",
    "f(a) = 1": "H7",
    "NULL": "H4: it matches nothing there",
    "5 CONTAINS '5'": "it matches nothing there",
    "a > -b": "it matches nothing there",
}

Case = tuple[str, dict[str, str]]


def one_line(text: str) -> bool:
    return "\n" not in text


def verdicts(cases: list[Case]) -> list[str]:
    """Return what RocketMQ says of each."""
    if not (ORACLE / ".ready").exists():
        pytest.skip(f"no {ORACLE.relative_to(ROOT)}: make interop")
    lines = [
        "\t".join([text, *(f"{name}={value}" for name, value in properties.items())])
        for text, properties in cases
    ]
    found = subprocess.run(
        ["java", *JAVA_OPTIONS, "-cp", f"{ORACLE / 'jars'}/*:{ORACLE / 'classes'}", "FilterOracle"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=True,
        cwd=Path.cwd(),
    ).stdout.splitlines()
    assert len(found) == len(cases)
    return found


def ours(case: Case) -> str:
    text, properties = case
    try:
        found = compile_filter(text)
    except FilterTextError:
        return "REFUSED"
    return "MATCH" if found.matches(encode_properties(properties)) else "NONE"


def test_the_same_messages_are_wanted_in_the_cases_of_the_rules() -> None:
    named = [row for row in (*YES, *NO) if row[0] not in OURS_ONLY and one_line(row[1])]
    cases = [(text, properties) for _, text, properties in named]
    theirs = ["NONE" if each == "ERROR" else each for each in verdicts(cases)]
    differing = [
        (row[0], said) for row, said in zip(named, theirs, strict=True) if said != ours(row[1:])
    ]
    assert not differing


def test_the_same_texts_are_refused() -> None:
    texts = [row[0] for row in REFUSED if one_line(row[0])]
    said = dict(zip(texts, verdicts([(text, {}) for text in texts]), strict=True))
    assert {text for text in texts if said[text] != "REFUSED"} == set(REFUSED_HERE_ONLY)


class Maker:
    """Makes texts of what both know, with properties that are sometimes missing and sometimes no numbers.

    No name stands by itself on the right of a condition: see OURS_ONLY.
    """

    NAMES = ("a", "b", "c")
    VALUES = ("1", "2", "-3", "2.5", "3000000000", "x", "xy", "true", " 4", "1e1", "+1")
    CONSTANTS = (
        "1",
        "2",
        "-3",
        "2.5",
        "3000000000",
        ".5",
        "1e1",
        "0",
        "'x'",
        "'1'",
        "TRUE",
        "FALSE",
    )
    NUMBERS = ("-3", "1", "2", "2.5", "1e1", "3000000000")

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def properties(self) -> dict[str, str]:
        names = [name for name in self.NAMES if self._chance.random() < 0.8]
        return {name: self._chance.choice(self.VALUES) for name in names}

    def text(self, depth: int = 3) -> str:
        pick = self._chance.choice
        if depth and self._chance.random() < 0.6:
            first, other = self.text(depth - 1), self.text(depth - 1)
            return pick(
                [f"({first}) AND ({other})", f"({first}) OR ({other})", f"NOT ({first})",
                 f"{first} OR {other}", f"({first}) = TRUE", f"({first}) IS NULL", f"({first}) = (NOT ({other}))"]
            )  # fmt: skip
        name, other = pick(self.NAMES), pick(self.NAMES)
        low, high = sorted([pick(self.NUMBERS), pick(self.NUMBERS)], key=float)
        word = pick(["CONTAINS", "STARTSWITH", "ENDSWITH"])
        return pick(
            [f"{name} {pick(['=', '<>'])} {pick(self.CONSTANTS)}",
             f"{name} {pick(['<', '<=', '>', '>=', '=', '<>'])} {pick(self.NUMBERS)}",
             f"{pick(self.NUMBERS)} {pick(['<', '<=', '>', '>=', '=', '<>'])} {name}",
             f"{name} {pick(['<', '<=', '>', '>=', '=', '<>'])} {other}",
             f"{name} {pick(['', 'NOT '])}BETWEEN {low} AND {high}",
             f"{name} {pick(['', 'NOT '])}IN ('x', '{pick(self.VALUES)}')",
             f"{name} IS {pick(['', 'NOT '])}NULL",
             f"{name} {pick(['', 'NOT '])}{word} '{pick(['', 'x', 'y', '1'])}'",
             name, f"NOT {name}", "TRUE", "FALSE"]
        )  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_messages_are_wanted_of_made_texts(seed: int) -> None:
    maker = Maker(seed)
    cases = [(maker.text(), maker.properties()) for _ in range(MADE)]
    theirs = ["NONE" if each == "ERROR" else each for each in verdicts(cases)]
    differing = [
        (case, said) for case, said in zip(cases, theirs, strict=True) if ours(case) != said
    ]
    assert not differing
    assert MADE / 5 < theirs.count("MATCH") < MADE * 4 / 5
