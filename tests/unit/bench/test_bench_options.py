"""Options of dledger-bench: what is accepted, what is refused in words, and what the help shows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.cli import main
from bench.compare.rows import ROWS
from bench.compare.runners import CONTENDERS
from bench.options import chosen, positive, setup_of, whole

KNOWN = {"a": 1, "b": 2, "c": 3}


def test_names_stand_for_what_they_name_in_their_order() -> None:
    assert chosen("c, a", KNOWN, "row") == [3, 1]
    assert chosen("all", KNOWN, "row") == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,x", "no row is called .x.; there are: a, b, c"),
        ("a,a", "stands twice"),
        (",", "called ','"),
    ],
)
def test_a_wrong_name_is_refused_with_those_that_there_are(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        chosen(text, KNOWN, "row")


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)
    assert positive("0.5") == 0.5


def test_a_count_is_at_least_one() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        whole("0")
    assert whole("3") == 3


@pytest.mark.parametrize(
    ("durability", "is_flushed"), [("default", None), ("sync", True), ("async", False)]
)
def test_options_become_a_setup(durability: str, is_flushed: bool | None) -> None:
    options = argparse.Namespace(nodes=5, durability=durability, heap_mb=512, interop=Path("i"))
    setup = setup_of(options)
    assert (setup.nodes, setup.is_flushed, setup.heap_mb) == (5, is_flushed, 512)


def test_the_help_names_every_row_and_system_and_has_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compare", "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert [row.name for row in ROWS if row.name not in shown] == []
    assert [name for name in CONTENDERS if name not in shown] == []
    assert "examples:dledger-benchcompare" in shown


@pytest.mark.parametrize("words", [[], ["compare", "--rows", "sync-2"], ["nothing"]])
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "dledger-bench" in capsys.readouterr().err
