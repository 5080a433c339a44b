"""One word for one idea (docs/glossary.md), and words that were given up stay away."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
READ = (
    "dledger",
    "dledger_mq",
    "broker",
    "pipeline",
    "jepsen",
    "bench",
    "examples",
    "scripts",
    "tests",
)


class Word(NamedTuple):
    """A word that neither product code nor tests use.

    Attributes:
        pattern: of the word, as code and docstrings would write it.
        say: what is said instead.
    """

    pattern: str
    say: str


GIVEN_UP = (
    Word(r"(?<![a-z\"])epoch(?![a-z])", "term"),  # in quotes it is a name in RocketMQ's bodies
    Word(r"(?i)ballot", "vote"),
    Word(
        r"(?i)(?<!writeBufferHigh)(?<!writeBufferLow)(?<!rocketmq_processor_)watermark",
        "match index",
    ),
    Word(r"\bSlave\b|\bslaves?\b", "follower"),
    Word(r"(?i)(?<![a-z])ledger_end", "last index"),
    Word(r"(?i)(?<![a-z])mapped_?file(?![a-z])", "segment"),
    Word(r"(?i)(?<![a-z])errands?(?![a-z])", "pending request"),
    Word(r"(?i)(?<![a-z])check_?back(?![a-z])", "check"),
    Word(r"(?i)acquaintance", "store identity"),
    Word(r"(?i)(?<![a-z])crew(?![a-z])", "task group"),
    Word(r"LogShape|log_shape", "log layout"),
    Word(r"\bEntryName\b", "entry fingerprint"),
    Word(r"\bBelonging\b", "group check"),
    Word(r"(?i)(?<![a-z])g[ai]ve(s|n)?[_-]?way", "the leader hands over"),
    Word(r"(?i)(?<![a-z])no[_-]voter", "non-voter"),
    Word(r"(?i)(?<![a-z])obey", "carry out, follow"),
    Word(r"(?i)(?<![a-z])reigns?(?![a-z])", "leadership began"),
    Word(r"\bFurthestPoints\b", "committed places"),
    Word(r"(?i)(?<![a-z])helical", "damage on all members"),
    Word(
        r"(?<![a-z])(tell|hear)_[a-z]+|_(tell|hear)\b",
        "encode, send, notify; decode, receive, learn",
    ),
    Word(
        r"def _?(told|say|said|hears?|heard)(_|\b)",
        "print, send; what it returns",
    ),
    Word(r"\b_?(heard|told)_[a-z]+ *[:=]", "received, registered"),
    Word(r"\bEXIT_WELL\b", "EXIT_OK"),
    Word(r"\bBeside\(", "Reserve, as in Jepsen"),
    Word(r"\bBrokerParts\b|\b_make_ways\b", "BrokerController"),
    Word(r"\bWorld\b", "environment"),
    Word(r"\bWentBack\b", "LossWatch"),
    Word(r"\bBeyondEnd\b", "OffsetOverflows"),
    Word(r"\bPatience\b(?! is)", "DeliveryPause"),
    Word(r"(?i)(?<![a-z])essence", "requested message"),
    Word(r"\b(OFFSET_UNTOLD|offset_untold|Untold\.)", "an offset that is not known"),
)
"""Gone for good: no line of product code or of a test has them."""

LOOKS = re.compile(r"\(\?<?[!=][^()]*\)|\\b")
"""What a pattern demands of what stands before and behind: without it, it finds no less, and Python looks faster."""


def entries() -> list[tuple[str, str]]:
    """Word and meaning of each row; a row with several words gives each by itself."""
    rows = re.findall(r"^\| (?!word \||-)([^|]+) \| ([^|]+) \|", GLOSSARY.read_text(), re.M)
    return [(word.strip(), meaning) for words, meaning in rows for word in words.split(",")]


def lines_with(pattern: str) -> list[str]:
    """Return the places where product code or a test has it."""
    found, likely = re.compile(pattern), re.compile(LOOKS.sub("", pattern))
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in texts().items()
        if likely.search(text) and found.search(text)  # else no line has it
        for number, line in enumerate(text.split("\n"), 1)
        if found.search(line)
    ]


@cache
def texts() -> dict[Path, str]:
    """What product code and tests say, by file; but for the words that are given up here."""
    paths = [path for package in READ for path in sorted((ROOT / package).rglob("*.py"))]
    return {path: path.read_text() for path in paths if path != Path(__file__)}


def test_each_word_stands_once() -> None:
    words = [word for word, _ in entries()]
    assert sorted(word for word in set(words) if words.count(word) > 1) == []
    assert len(words) > 90


@pytest.mark.parametrize("word", GIVEN_UP, ids=lambda word: word.pattern)
def test_a_word_that_was_given_up_stays_away(word: Word) -> None:
    assert lines_with(word.pattern) == [], f"say: {word.say}"


def test_no_word_of_the_glossary_was_given_up() -> None:
    assert [
        word for word, _ in entries() if any(re.search(each.pattern, word) for each in GIVEN_UP)
    ] == []
