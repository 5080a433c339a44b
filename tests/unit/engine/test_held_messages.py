"""What may leave when: messages wait for the saves that were queued before them."""

from __future__ import annotations

from random import Random

from dledger.held_sends import HELD_COUNT_MAX
from dledger.raft.effects import (
    AppendEntries,
    SaveHardState,
    Send,
    SendEntries,
    TruncateLog,
    Waits,
)
from dledger.raft.events import (
    Persisted,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, Term
from dledger.raft.messages import (
    AppendRequest,
)
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import N0, N1, entry, give, leave, persist, scripted, word


def test_a_message_leaves_at_once_when_nothing_is_unsaved() -> None:
    engine = scripted()
    give(engine, Send(N1, word(1)))
    assert leave(engine) == [1]
    assert engine.begin_persist() is None


def test_a_message_that_need_not_wait_overtakes_the_others() -> None:
    engine = scripted()
    give(
        engine,
        AppendEntries((entry(1),)),
        Send(N1, word(1)),
        Send(N1, word(2), Waits.NOTHING),
    )
    assert leave(engine) == [2]
    persist(engine)
    assert leave(engine) == [1]


def test_a_message_that_says_nothing_of_the_log_waits_for_term_and_vote_only() -> None:
    engine = scripted()
    give(
        engine,
        SaveHardState(Term(1), N1),
        Send(N1, word(1), Waits.TERM),
        AppendEntries((entry(1),)),
    )
    assert leave(engine) == []
    persist(engine)
    assert leave(engine) == [1]
    give(engine, AppendEntries((entry(2),)), Send(N1, word(2)), Send(N1, word(3), Waits.TERM))
    assert leave(engine) == [3]
    persist(engine)
    assert leave(engine) == [2]


def test_a_node_without_room_says_nothing_until_there_is_some() -> None:
    engine = scripted()
    give(engine, AppendEntries((entry(1),)))
    job = engine.begin_persist()
    assert job is not None
    engine.found_no_room(job)
    give(engine, Send(N1, word(1), Waits.TERM))
    assert leave(engine) == []
    job.run()
    engine.end_persist(job, 0)
    assert leave(engine) == [1]
    give(engine, AppendEntries((entry(2),)), Send(N1, word(2), Waits.TERM))
    assert leave(engine) == [2]


def test_a_message_waits_for_every_save_before_it_and_for_none_after_it() -> None:
    engine = scripted()
    give(
        engine,
        Send(N1, word(1)),
        SaveHardState(Term(1), N1),
        Send(N1, word(2)),
        AppendEntries((entry(1),)),
        Send(N1, word(3)),
    )
    assert leave(engine) == [1]
    job = engine.begin_persist()
    assert job is not None
    give(engine, AppendEntries((entry(2),)), Send(N1, word(4)))
    job.run()
    assert leave(engine) == []
    engine.end_persist(job, 0)
    assert leave(engine) == [2, 3]
    persist(engine)
    assert leave(engine) == [4]
    assert not engine.has_unsaved


def test_the_last_of_several_hard_states_is_written_and_found_again() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(engine, SaveHardState(Term(1), N1), SaveHardState(Term(2), N0))
    syncs = disk.statistics().sync_count
    persist(engine)
    assert disk.statistics().sync_count == syncs + 2  # the file and its folder, once
    disk.crash(keep=0.0)
    assert scripted(disk).node.hard_state == HardState(Term(2), N0)  # type: ignore[attr-defined]


def test_a_member_that_has_no_vote_yet_is_written_as_such() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(engine, SaveHardState(Term(1), None, is_voter=False))
    persist(engine)
    disk.crash(keep=0.0)
    saved = HardState(Term(1), None, is_voter=False)
    assert scripted(disk).node.hard_state == saved  # type: ignore[attr-defined]


def test_nothing_of_a_job_that_did_not_run_survives_a_crash() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(engine, SaveHardState(Term(1), N1), AppendEntries((entry(1),)))
    assert engine.begin_persist() is not None
    disk.crash(keep=0.0)
    again = scripted(disk)
    assert again.log.last_id.index == 0
    assert again.node.hard_state == HardState(Term(0), None, is_voter=False)  # type: ignore[attr-defined]


def test_entries_are_sent_sealed_before_they_are_durable() -> None:
    engine = scripted()
    give(
        engine,
        AppendEntries((entry(1), entry(2))),
        SendEntries(N1, Term(1), Index(0), Term(0), Index(1), Index(3), Index(0), 7),
        SendEntries(N1, Term(1), Index(2), Term(1), Index(3), Index(3), Index(0), 8),
    )
    (to, first), (_, heartbeat) = engine.take_outbox()
    assert to == N1
    assert isinstance(first, AppendRequest)
    assert [each.index for each in first.entries] == [1, 2]
    assert all(len(each.header) == 48 for each in first.entries)
    assert (first.source, first.round, first.commit_index) == (N0, 7, 0)
    assert isinstance(heartbeat, AppendRequest)
    assert heartbeat.entries == ()


def test_a_finished_job_is_told_to_the_node_with_the_last_durable_entry() -> None:
    engine = scripted()
    give(engine, SaveHardState(Term(1), None))
    persist(engine)
    assert not any(isinstance(event, Persisted) for event in engine.node.events)  # type: ignore[attr-defined]
    give(engine, AppendEntries((entry(1), entry(2))))
    persist(engine)
    assert engine.node.events[-1] == Persisted(EntryId(Term(1), Index(2)))  # type: ignore[attr-defined]


def test_a_message_waits_for_all_batches_when_its_entries_fill_more_than_one_segment() -> None:
    engine = scripted()
    body = bytes(2500)
    give(
        engine,
        AppendEntries((entry(1, body=body),)),
        Send(N1, word(1)),
        AppendEntries((entry(2, body=body),)),
        Send(N1, word(2)),
        AppendEntries((entry(3, body=body),)),
        SaveHardState(Term(2), None),
        Send(N1, word(3)),
    )
    left = []
    for _ in range(3):
        persist(engine)
        left.append(leave(engine))
    assert left == [[1], [2], [3]]
    assert not engine.has_unsaved


def test_removed_entries_are_as_durable_as_their_removal() -> None:
    engine = scripted()
    body = bytes(2500)
    give(
        engine,
        AppendEntries((entry(1, body=body),)),
        AppendEntries((entry(2, body=body),)),
        Send(N1, word(1)),
        TruncateLog(Index(2)),
        Send(N1, word(2)),
        AppendEntries((entry(2, term=2, body=body),)),
        Send(N1, word(3)),
    )
    persist(engine)
    assert leave(engine) == [1, 2]
    persist(engine)
    assert leave(engine) == [3]


def test_a_message_waits_for_the_entries_that_a_removal_leaves_of_those_it_confirms() -> None:
    engine = scripted()
    body = bytes(2500)
    give(
        engine,
        AppendEntries((entry(1, body=body), entry(2, body=body), entry(3, body=body))),
        Send(N1, word(1)),
        TruncateLog(Index(3)),
        Send(N1, word(2)),
        AppendEntries((entry(3, term=2, body=body),)),
        Send(N1, word(3)),
    )
    left = []
    for _ in range(3):
        persist(engine)
        left.append((engine.log.durable_index, leave(engine)))
    assert left == [(1, []), (2, [1, 2]), (3, [3])]


def test_no_more_is_held_than_some_answers_however_long_the_disk_has_no_room() -> None:
    engine = scripted()
    give(engine, AppendEntries((entry(1),)))
    job = engine.begin_persist()
    assert job is not None
    for number in range(3 * HELD_COUNT_MAX):
        give(engine, Send(N1, word(number)))
    job.run()
    engine.end_persist(job, 0)
    assert leave(engine) == list(range(2 * HELD_COUNT_MAX, 3 * HELD_COUNT_MAX))


def test_a_truncation_while_a_job_runs_reports_less_as_durable() -> None:
    engine = scripted()
    give(engine, AppendEntries((entry(1), entry(2), entry(3))))
    job = engine.begin_persist()
    assert job is not None
    give(engine, TruncateLog(Index(2)), AppendEntries((entry(2, term=2),)), Send(N1, word(1)))
    job.run()
    engine.end_persist(job, 0)
    assert engine.node.events[-1] == Persisted(EntryId(Term(1), Index(1)))  # type: ignore[attr-defined]
    assert leave(engine) == []
    persist(engine)
    assert engine.node.events[-1] == Persisted(EntryId(Term(2), Index(2)))  # type: ignore[attr-defined]
    assert leave(engine) == [1]


def test_without_fsync_a_job_syncs_no_entries() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk, fsync=False)
    give(engine, AppendEntries((entry(1),)))
    persist(engine)  # makes the segment, durably
    syncs = disk.statistics().sync_count
    give(engine, AppendEntries((entry(2),)), Send(N1, word(1)))
    persist(engine)
    assert disk.statistics().sync_count == syncs
    assert leave(engine) == [1]
