"""The recovery tables: every combination of facts has exactly one row."""

from __future__ import annotations

from itertools import product

from dledger.storage.recovery import (
    EARLIER_SEGMENT,
    LAST_SEGMENT,
    Action,
    Beyond,
    Entries,
    Length,
    Seal,
    Tail,
    Units,
    decide,
)


def test_every_end_of_a_log_has_one_row() -> None:
    for facts in product(Seal, Tail, Beyond, Units):
        decide(LAST_SEGMENT, *facts)


def test_every_finished_segment_has_one_row() -> None:
    for facts in product(Length, Entries, Units):
        if facts[1] in {Entries.NOT_SCANNED, Entries.FIRST_DIFFERS} and facts[2] is not Units.AGREE:
            continue
        decide(EARLIER_SEGMENT, *facts)


def test_no_row_is_dead() -> None:
    for rows, kinds in (
        (LAST_SEGMENT, (Seal, Tail, Beyond, Units)),
        (EARLIER_SEGMENT, (Length, Entries, Units)),
    ):
        used = {row.label for facts in product(*kinds) for row in rows if row.matches(facts)}
        assert used == {row.label for row in rows}


def test_every_row_is_argued_and_every_refusal_says_what_is_wrong() -> None:
    rows = (*LAST_SEGMENT, *EARLIER_SEGMENT)
    assert len({row.label for row in rows}) == len(rows)
    for row in rows:
        assert row.why
        assert bool(row.problem) == (row.action is Action.REFUSE)


def test_a_proof_of_durability_is_never_cut_away() -> None:
    for facts in product(Seal, Tail, Beyond, Units):
        row = decide(LAST_SEGMENT, *facts)
        if Beyond.UNIT in facts or Tail.WHOLE_BEHIND in facts or Seal.SEALED in facts:
            assert row.action is Action.REFUSE
