"""Starts that are counted and remembered: an older copy of a store is told from the store itself."""

from __future__ import annotations

from dledger.raft.ids import NodeId
from dledger.raft.member_record import SEEN_COUNT_MAX, MemberRecord, Start, learn

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
MEMBERS = (N0, N1, N2)


def record(node_id: str, count: int, process: int, **seen: Start) -> MemberRecord:
    names = {NodeId(name): start for name, start in seen.items()}
    return MemberRecord("g", node_id, "", Start(count, process), names)


def test_a_member_that_starts_again_and_one_that_reconnects_miss_nothing() -> None:
    before = record("n0", 4, 11)
    at_n1 = learn(record("n1", 1, 5), before, MEMBERS)
    assert at_n1.record.seen == {N0: Start(4, 11)}
    for now in (before, before.started(12)):
        assert learn(now, at_n1.record, MEMBERS).missed is None
        assert learn(at_n1.record, now, MEMBERS).missed_by_source is None


def test_both_sides_see_that_a_store_is_an_older_copy() -> None:
    n1 = record("n1", 1, 5, n0=Start(4, 11))
    older = record("n0", 3, 12)  # a copy of before, started once
    assert learn(older, n1, MEMBERS).missed == Start(4, 11)
    assert learn(n1, older, MEMBERS).missed_by_source == Start(4, 11)
    assert learn(n1, older, MEMBERS).record.seen == {N0: Start(4, 11)}


def test_a_copy_that_is_as_old_as_the_last_start_but_one_has_its_number_and_is_seen_all_the_same() -> (
    None
):
    copy = record("n0", 4, 11)
    n1 = record("n1", 1, 5, n0=copy.started(12).start)
    assert learn(copy.started(13), n1, MEMBERS).missed == Start(5, 12)


def test_once_overtaken_it_is_the_latest_again() -> None:
    n1 = record("n1", 1, 5, n0=Start(9, 11))
    older = learn(record("n0", 3, 12), n1, MEMBERS).record.overtaking()
    assert older.start == Start(10, 12)
    assert not older.missed.count
    assert learn(older, n1, MEMBERS).missed is None
    heard = learn(n1, older, MEMBERS)
    assert heard.missed_by_source is None
    assert heard.record.seen == {N0: Start(10, 12)}
    assert older.started(13).start == Start(11, 13)


def test_a_copy_that_is_started_again_before_it_has_overtaken_still_knows_what_it_missed() -> None:
    """Its count is then that of the start that it missed, or higher: nobody would notice it any more."""
    n1 = record("n1", 1, 5, n0=Start(4, 11))
    heard = learn(record("n0", 4, 12), n1, MEMBERS).record
    again = heard.started(13)
    assert learn(again, n1, MEMBERS).missed is None
    assert again.missed == Start(4, 11)
    n2 = record("n2", 1, 6, n0=Start(9, 10))
    both = learn(learn(again, n2, MEMBERS).record, n1, MEMBERS).record
    assert both.missed == Start(9, 10), "the latest of both"
    assert both.overtaking().start == Start(10, 13)


def test_what_a_third_member_remembers_is_taken_over_and_never_goes_back() -> None:
    n1 = record("n1", 1, 5, n0=Start(2, 3))
    n2 = record("n2", 1, 6, n0=Start(9, 11), n1=Start(1, 5), nobody=Start(1, 1))
    heard = learn(n1, n2, MEMBERS).record
    assert heard.seen == {N0: Start(9, 11), N2: Start(1, 6)}
    assert learn(heard, record("n2", 1, 6, n0=Start(1, 1)), MEMBERS).record == heard


def test_a_start_that_was_not_counted_says_nothing() -> None:
    n1 = record("n1", 1, 5, n0=Start(4, 11))
    uncounted = record("n0", 0, 12)
    assert learn(uncounted, n1, MEMBERS).missed is None
    assert learn(n1, uncounted, MEMBERS).missed_by_source is None


def test_a_new_store_takes_over_which_restoring_it_belongs_to() -> None:
    new = MemberRecord("g", "n0", None, Start(1, 12))
    restored = MemberRecord("g", "n1", "monday", Start(1, 5))
    never = record("n2", 1, 6)
    assert not new.is_foreign(restored)
    assert not new.is_foreign(never)
    assert restored.is_foreign(never)
    assert never.is_foreign(restored)
    now = learn(new, restored, MEMBERS).record
    assert now.restoration == "monday"
    assert now.is_foreign(never)


def test_of_those_who_were_removed_the_last_ones_are_remembered() -> None:
    names = [f"old{number}" for number in range(SEEN_COUNT_MAX + 5)]
    many = record("n0", 1, 5, n1=Start(3, 1), **{name: Start(2, 7) for name in names})
    heard = learn(many, record("n2", 4, 9), MEMBERS).record.seen
    assert heard.keys() == {N1, N2, *map(NodeId, names[7:])}
    assert len(heard) == SEEN_COUNT_MAX
    assert (heard[N1], heard[N2]) == (Start(3, 1), Start(4, 9))
