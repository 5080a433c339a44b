"""Which configuration is in force, whatever is appended, cut, settled and started again."""

from __future__ import annotations

from random import Random

import pytest

from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationLog, ConfigurationNote
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogBase, LogLayout

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
FIRST = Configuration((N0, N1, N2))
TWO = Configuration((N0, N1))
ONE = Configuration((N0,))


def layout(*terms: int) -> LogLayout:
    log = LogLayout()
    for term in terms:
        log.append(Term(term), 50)
    return log


def entry_id(index: int, term: int) -> EntryId:
    return EntryId(Term(term), Index(index))


def test_without_changes_nothing_is_noted() -> None:
    log = layout(1, 2)
    configurations = ConfigurationLog(FIRST, (), log)
    assert not configurations.appended(entry_id(1, 1), Configuration((N2, N1, N0)))
    assert not configurations.appended(entry_id(2, 2), FIRST)
    configurations.settle(log, Index(2))
    assert (configurations.notes, configurations.is_unsaved) == ((), False)
    assert (configurations.in_force, configurations.index) == (FIRST, 0)


def test_an_entry_is_in_force_when_appended_and_no_longer_when_cut() -> None:
    log = layout(1, 1)
    configurations = ConfigurationLog(FIRST, (), log)
    assert configurations.appended(entry_id(2, 1), TWO)
    assert (configurations.in_force, configurations.index) == (TWO, 2)
    assert configurations.is_unsaved
    assert configurations.before(log) == FIRST
    log.truncate_from(Index(2))
    assert configurations.cut(log)
    assert (configurations.in_force, configurations.index) == (FIRST, 0)
    log.append(Term(2), 50)
    assert not configurations.cut(log), "another entry stands there"
    assert configurations.notes, "the log on disk may still end with the entry that was cut"


def test_a_note_whose_entry_was_never_written_says_nothing_after_a_start() -> None:
    notes = (ConfigurationNote(entry_id(3, 1), TWO),)
    assert ConfigurationLog(FIRST, notes, layout(1, 1)).in_force == FIRST
    assert ConfigurationLog(FIRST, notes, layout(1, 1, 2)).in_force == FIRST
    assert ConfigurationLog(FIRST, notes, layout(1, 1, 1)).in_force == TWO


def test_what_is_settled_holds_whatever_the_log_shows() -> None:
    log = layout(1, 1, 1, 1)
    configurations = ConfigurationLog(FIRST, (), log)
    configurations.appended(entry_id(2, 1), TWO)
    configurations.settle(log, Index(1))
    assert not configurations.notes[0].is_settled
    configurations.appended(entry_id(4, 1), ONE)
    configurations.settle(log, Index(3))
    assert [(note.entry_id.index, note.is_settled) for note in configurations.notes] == [
        (2, True),
        (4, False),
    ]
    again = ConfigurationLog(FIRST, configurations.notes, layout(1))
    assert (again.in_force, again.index) == (TWO, 2)
    configurations.settle(log, Index(4))
    assert configurations.notes == (ConfigurationNote(entry_id(4, 1), ONE, is_settled=True),)


def test_what_stands_before_the_log_is_committed() -> None:
    log = LogLayout(LogBase(Index(9), Term(3), Position(450)))
    notes = (ConfigurationNote(entry_id(5, 2), TWO),)
    assert ConfigurationLog(FIRST, notes, log).in_force == TWO


def test_what_was_in_force_at_an_entry() -> None:
    log = layout(1, 1, 1, 1)
    configurations = ConfigurationLog(FIRST, (), log)
    configurations.appended(entry_id(2, 1), TWO)
    configurations.appended(entry_id(4, 1), ONE)
    found = [configurations.at(log, Index(index)) for index in range(5)]
    assert found == [FIRST, FIRST, TWO, TWO, ONE]


@pytest.mark.parametrize(
    ("first_index", "found"), [(2, [None, None, TWO, ONE]), (None, [None, None, None, ONE])]
)
def test_what_was_in_force_before_the_store_knew_is_not_known(
    first_index: Index | None, found: list[Configuration | None]
) -> None:
    log = layout(1, 1, 1)
    configurations = ConfigurationLog(TWO, (), log, first_index=first_index)
    configurations.appended(entry_id(3, 1), ONE)
    assert [configurations.at(log, Index(index)) for index in range(4)] == found


@pytest.mark.parametrize("seed", range(40))
def test_any_history_gives_what_the_log_itself_says(seed: int) -> None:
    """Beside a model that keeps all entries: also after a crash that loses writes of the log, but not notes."""
    rng = Random(seed)
    log, entries = LogLayout(), list[tuple[int, Configuration | None]]()
    configurations = ConfigurationLog(FIRST, (), log)
    saved, term, committed = configurations.notes, 1, 0
    for _ in range(200):
        match rng.choice(("append", "append", "change", "cut", "commit", "start")):
            case "append":
                entries.append((term, None))
                log.append(Term(term), 50)
            case "change":
                named = rng.choice((FIRST, TWO, ONE))
                entries.append((term, named))
                log.append(Term(term), 50)
                configurations.appended(log.last_id, named)
                if configurations.is_unsaved:
                    configurations.is_unsaved, saved = False, configurations.notes
            case "cut" if len(entries) > committed:
                first = rng.randint(committed + 1, len(entries))
                del entries[first - 1 :]
                log.truncate_from(Index(first))
                configurations.cut(log)
                term += 1
            case "commit":
                committed = rng.randint(committed, len(entries))
                configurations.settle(log, Index(committed))
            case "start":
                lost = rng.randint(committed, len(entries))
                if lost < len(entries):
                    del entries[lost:]
                    log.truncate_from(Index(lost + 1))
                    term += 1
                configurations = ConfigurationLog(FIRST, saved, log)
        named_last = next((named for _, named in reversed(entries) if named is not None), FIRST)
        assert configurations.in_force == named_last
