"""A survey as a value: what is missing between its runs, and what may not stand in it."""

from __future__ import annotations

import pytest

from dledger.codec.index_unit import EntryColumns, IndexUnit
from dledger.raft.ids import Index, Position, Term
from dledger.storage.damage import Missing, Run, Survey


def run(first: int, count: int, *, position: int, before_chain_crc: int = 0) -> Run:
    """Make a run of entries of 100 bytes whose chain CRC is ten times their index."""
    found = EntryColumns(Index(first), Position(position))
    for index in range(first, first + count):
        found.append(IndexUnit(Index(index), Term(1), found.end_position, 100, 10 * index))
    return Run(found, before_chain_crc)


def test_a_gap_is_named_by_what_stands_before_and_after_it() -> None:
    survey = Survey(runs=[run(1, 2, position=0), run(5, 1, position=400, before_chain_crc=40)])
    assert survey.missing() == [
        Missing(
            first_index=Index(3),
            last_index=Index(4),
            position=Position(200),
            end_position=Position(400),
            prev_chain_crc=20,
            last_chain_crc=40,
        )
    ]
    assert str(survey.missing()[0]) == "entries 3 to 4 (bytes 200 to 400 of the log)"


def test_the_end_is_missing_that_the_index_remembers() -> None:
    survey = Survey(runs=[run(1, 2, position=0)])
    survey.tail = IndexUnit(Index(3), Term(1), Position(200), 100, 30)
    (missing,) = survey.missing()
    assert (missing.first_index, missing.last_index, missing.is_tail) == (3, 3, True)


def test_who_doubts_what_stands_after_a_gap_asks_for_more() -> None:
    survey = Survey(runs=[run(1, 2, position=0), run(5, 2, position=400, before_chain_crc=40)])
    survey.distrust(survey.missing()[0])
    (missing,) = survey.missing()
    assert (missing.last_index, missing.last_chain_crc, missing.end_position) == (5, 50, 500)


@pytest.mark.parametrize(
    "runs",
    [
        [run(5, 1, position=400), run(1, 2, position=0)],
        [run(1, 2, position=0), run(2, 1, position=200)],
        [run(1, 2, position=0), run(5, 1, position=150)],
        [run(1, 0, position=0)],
    ],
    ids=["order", "twice", "overlap", "empty"],
)
def test_runs_that_cannot_be_are_never_named(runs: list[Run]) -> None:
    with pytest.raises(AssertionError):
        Survey(runs=runs).missing()
