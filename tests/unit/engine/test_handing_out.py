"""Committed entries are handed out once, in order, after what the state machine contains."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from dledger.errors import (
    CorruptionError,
)
from dledger.log_history import last_membership
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    HandsOver,
    Role,
    RoleChanged,
    SaveHardState,
)
from dledger.raft.entry import EntryKind
from dledger.raft.ids import EntryId, Index, Term
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import (
    N0,
    N1,
    START,
    ScriptedEngine,
    config,
    entry,
    give,
    persist,
    scripted,
)


def test_committed_entries_are_handed_out_once_in_portions_after_what_is_applied() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(
        engine,
        SaveHardState(Term(1), None),
        AppendEntries(tuple(entry(index, body=b"12") for index in range(1, 6))),
    )
    persist(engine)
    assert not engine.has_committed
    give(engine, Commit(Index(4)))
    assert [each.index for each in engine.take_committed(120)] == [1, 2]
    assert [each.index for each in engine.take_committed(1)] == [3]
    assert engine.has_committed
    assert [each.index for each in engine.take_committed(1000)] == [4]
    assert engine.take_committed(1000) == []
    engine.close()
    later = ScriptedEngine(
        config(), disk, draw=lambda low, high: low, now_ms=0, applied_index=Index(3)
    )
    give(later, Commit(Index(2)))
    assert later.take_committed(1000) == []
    give(later, Commit(Index(5)))
    assert [each.index for each in later.take_committed(1000)] == [4, 5]


def test_after_a_state_from_elsewhere_only_what_follows_is_handed_out() -> None:
    engine = scripted()
    give(engine, AppendEntries((entry(1), entry(2))))
    engine.state_replaced(Index(3), 4711)
    give(engine, Commit(Index(2)))
    assert not engine.has_committed
    assert engine.take_committed(1 << 20) == []
    give(engine, AppendEntries((entry(3), entry(4))), Commit(Index(4)))
    engine.state_replaced(Index(3), engine.log.chain_crc_of(Index(3)))
    assert [each.index for each in engine.take_committed(1 << 20)] == [4]


def test_a_state_of_another_log_is_found_when_the_log_reaches_its_entry() -> None:
    engine = scripted()
    engine.state_replaced(Index(2), 4711)
    give(engine, AppendEntries((entry(1), entry(2), entry(3))), Commit(Index(3)))
    with pytest.raises(CorruptionError, match="another log"):
        engine.take_committed(1 << 20)


def test_a_restored_state_is_continued_after_its_entry() -> None:
    engine = scripted()
    engine.start_after(Index(1))
    give(engine, AppendEntries((entry(1), entry(2))), Commit(Index(2)))
    assert [each.index for each in engine.take_committed(1 << 20)] == [2]


def test_what_happens_is_told_in_order() -> None:
    engine = scripted()
    news = [
        RoleChanged(Role.LEADER, Term(1), N0),
        HandsOver(N1, 9, 1),
        RoleChanged(Role.FOLLOWER, Term(2), None),
    ]
    give(engine, *news)
    assert engine.take_news() == news
    assert engine.take_news() == []


def test_the_members_are_those_that_the_first_entry_of_the_last_term_names() -> None:
    engine = scripted()
    assert last_membership(engine.log) is None, "there is no entry"
    first = replace(entry(1), kind=EntryKind.CONFIGURATION, body=START)
    second = entry(2, body=b"body", position=first.end_position)
    give(engine, AppendEntries((first, second)))
    persist(engine)
    assert last_membership(engine.log) == (EntryId(Term(1), Index(1)), frozenset({N0}))
    plain = entry(3, term=2, position=second.end_position)
    give(engine, AppendEntries((plain,)))
    persist(engine)
    assert last_membership(engine.log) is None, "the first one of term 2 names none"
