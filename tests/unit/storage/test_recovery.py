"""The recovery tables: every combination of facts has exactly one row."""

from __future__ import annotations

from enum import Enum
from itertools import product
from pathlib import Path

from dledger.storage.recovery import (
    EARLIER_SEGMENT,
    LAST_SEGMENT,
    Action,
    Beyond,
    DecisionRow,
    Entries,
    Length,
    Seal,
    Tail,
    Units,
    decide,
)


def test_every_end_of_a_log_has_one_row() -> None:
    for facts in product(Seal, Tail, Beyond, Units):
        assert [row for row in LAST_SEGMENT if row.matches(facts)] == [decide(LAST_SEGMENT, *facts)]


def test_every_finished_segment_has_one_row() -> None:
    for facts in product(Length, Entries, Units):
        if facts[1] in {Entries.NOT_SCANNED, Entries.FIRST_DIFFERS} and facts[2] is not Units.AGREE:
            continue
        rows = [row for row in EARLIER_SEGMENT if row.matches(facts)]
        assert rows == [decide(EARLIER_SEGMENT, *facts)]


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


def render(rows: tuple[DecisionRow[Enum], ...], kinds: tuple[type[Enum], ...]) -> str:
    """The table as the page shows it; a cell that does not matter is a dash."""
    lines = [
        "| Row | " + " | ".join(kind.__name__ for kind in kinds) + " | Done | Why |",
        "|---" * (len(kinds) + 3) + "|",
    ]
    for row in rows:
        cells = [
            "-" if allowed is None else " or ".join(fact.value for fact in kind if fact in allowed)
            for kind, allowed in zip(kinds, row.when, strict=True)
        ]
        done = row.action.value if row.action is not Action.REFUSE else f"refuse: {row.problem}"
        lines.append("| " + " | ".join([row.label, *cells, done, row.why]) + " |")
    return "\n".join(lines)


def test_the_page_shows_the_tables_that_the_program_uses() -> None:
    page = Path(__file__).parents[3] / "docs" / "formats" / "segment.md"
    text = page.read_text()
    assert render(LAST_SEGMENT, (Seal, Tail, Beyond, Units)) in text
    assert render(EARLIER_SEGMENT, (Length, Entries, Units)) in text
