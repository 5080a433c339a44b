"""The engine's own rules, with a scripted core over a simulated disk; then with the real core."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dledger.config import LogConfig, RaftConfig, parse_peers
from dledger.engine import NEVER_MS, Engine
from dledger.errors import (
    CorruptionError,
    DiskFailedError,
    DiskFullError,
    EntryDamagedError,
    ForkedError,
    LeadershipLostError,
    NotLeaderError,
    PeerProtocolError,
    TransferFailedError,
)
from dledger.held_sends import HELD_COUNT_MAX
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Committed,
    Effect,
    Failed,
    Resolve,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    SendEntries,
    TruncateLog,
    Waits,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import (
    Event,
    PeerUnreachable,
    Persisted,
    Propose,
    Received,
    StepDown,
    Tick,
    TransferRequested,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.membership import encode_membership
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    RepairAnswer,
    RepairRequest,
    TimeoutNow,
    VoteResponse,
)
from dledger.repair.asking import ANSWER_TIMEOUT_MS, ROUND_PAUSE_MS
from dledger.repair.damage_policy import GIVE_WAY_TOKEN
from dledger.repair.live_repair import GIVE_WAY_MS, GIVE_WAY_PAUSE_MS, REWRITE_PAUSE_MS
from dledger.testing.sim_disk import SimDisk

N0, N1 = NodeId("n0"), NodeId("n1")
START = encode_membership([N0])
"""With which a group of one begins a term."""


class ScriptedNode:
    """Stands in for the core: gives the effects that the test put there, and notes the events."""

    def __init__(
        self, config: RaftConfig, hard_state: HardState, log: LogLayout, draw: Any, now_ms: int
    ) -> None:
        self.hard_state = hard_state
        self.log = log.copy()
        self.role = Role.FOLLOWER
        self.effects: list[Effect] = []
        self.events: list[Event] = []

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        effects, self.effects = self.effects, []
        return effects

    def next_deadline_ms(self) -> int:
        return 42


class ScriptedEngine(Engine):
    node_type = ScriptedNode  # type: ignore[assignment] - it has what the engine uses


def config(peers: str = "n0-127.0.0.1:1;n1-127.0.0.1:2", **changes: Any) -> LogConfig:
    members = parse_peers(peers)
    raft = RaftConfig(members[0].node_id, tuple(peer.node_id for peer in members))
    return LogConfig("g", members, "", raft, segment_size_bytes=4096, **changes)


def scripted(disk: SimDisk | None = None, **changes: Any) -> ScriptedEngine:
    disk = disk if disk is not None else SimDisk(Random(1))
    return ScriptedEngine(config(**changes), disk, draw=lambda low, high: low, now_ms=0)


def entry(index: int, term: int = 1, body: bytes = b"", position: int | None = None) -> Entry:
    """An entry behind others that are as long as itself."""
    place = (index - 1) * (48 + len(body)) if position is None else position
    return Entry(Index(index), Term(term), Position(place), EntryKind.NORMAL, body)


def word(number: int) -> TimeoutNow:
    """A message that can be told from others."""
    return TimeoutNow(Term(number), N0)


def give(engine: ScriptedEngine, *effects: Effect) -> None:
    engine.node.effects = list(effects)  # type: ignore[attr-defined]
    engine.step(Tick(), 0)


def leave(engine: Engine) -> list[int]:
    """Numbers of the words that leave."""
    return [message.term for _, message in engine.take_outbox()]


def persist(engine: Engine) -> None:
    job = engine.begin_persist()
    assert job is not None
    job.run()
    engine.end_persist(job, 0)


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


def test_a_message_waits_for_every_save_before_it_and_for_none_behind_it() -> None:
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


def test_a_truncation_while_a_job_runs_makes_the_node_hear_of_less() -> None:
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


def test_committed_entries_are_handed_out_once_in_portions_behind_what_is_applied() -> None:
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


def test_after_a_failed_sync_nothing_leaves_and_nothing_is_heard() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(engine, AppendEntries((entry(1),)), Send(N1, word(1)))
    disk.fail_sync()
    job = engine.begin_persist()
    assert job is not None
    with pytest.raises(DiskFailedError) as caught:
        job.run()
    engine.node.effects = [SaveHardState(Term(9), None), Send(N1, word(2))]  # type: ignore[attr-defined]
    engine.fail_persist(job, caught.value, 0)
    assert isinstance(engine.node.events[-1], StepDown)  # type: ignore[attr-defined]
    assert isinstance(engine.failure, DiskFailedError)
    assert leave(engine) == []
    assert engine.begin_persist() is None
    assert engine.next_deadline_ms() == NEVER_MS
    for event in (
        Tick(),
        Received(word(3)),
        PeerUnreachable(N1),
        Persisted(EntryId(Term(1), Index(1))),
    ):
        engine.step(event, 0)
        assert engine.node.events[-1] is not event  # type: ignore[attr-defined]


def test_a_latched_engine_still_answers_callers() -> None:
    engine = scripted()
    give(engine, SaveHardState(Term(1), None))
    job = engine.begin_persist()
    assert job is not None
    engine.fail_persist(job, OSError("gone"), 0)
    engine.node.effects = [  # type: ignore[attr-defined]
        AppendEntries((entry(1),)),
        Resolve(5, Failed(NotLeaderError())),
    ]
    engine.step(Propose((b"x",), 5), 0)
    ((token, outcome),) = engine.take_resolved()
    assert token == 5
    assert isinstance(outcome, Failed)
    assert engine.log.last_id.index == 0
    assert isinstance(engine.failure, DiskFailedError)


def test_a_job_that_found_no_room_may_run_again() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk)
    give(engine, AppendEntries((entry(1),)), Send(N1, word(1)))
    job = engine.begin_persist()
    assert job is not None
    disk.capacity_bytes = 100
    with pytest.raises(DiskFullError):
        job.run()
    assert engine.is_persisting
    disk.capacity_bytes = None
    job.run()
    engine.end_persist(job, 0)
    assert leave(engine) == [1]


def test_a_message_that_breaks_the_protocol_leaves_the_engine_as_it_is() -> None:
    engine = Engine(config(), SimDisk(Random(1)), draw=lambda low, high: low, now_ms=0)
    stranger = VoteResponse(Term(1), NodeId("stranger"), granted=True)
    with pytest.raises(PeerProtocolError):
        engine.step(Received(stranger), 0)
    assert engine.failure is None


def test_entries_that_do_not_continue_this_log_latch_the_engine() -> None:
    source = scripted()
    give(
        source, AppendEntries((entry(1, body=b"other"),)), AppendEntries((entry(2, body=b"other"),))
    )
    foreign = source.log.entries(Index(2), Index(3))[0]
    engine = scripted()
    give(engine, AppendEntries((entry(1, body=b"mine!"),)))
    with pytest.raises(PeerProtocolError):
        give(engine, AppendEntries((foreign,)), Send(N1, word(1)))
    assert isinstance(engine.failure, PeerProtocolError)
    assert leave(engine) == []


def test_entries_that_the_disk_changed_are_never_sent() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"body"),)))
    persist(engine)
    disk.flip_bit("data/00000000000000000000", 50)
    give(engine, SendEntries(N1, Term(1), Index(0), Term(0), Index(1), Index(2), Index(0), 1))
    assert engine.failure is None
    [(to, request)] = engine.take_outbox()
    assert to == N1
    assert isinstance(request, RepairRequest), "it is asked for, by its name"
    assert (request.first_index, request.last_index) == (1, 1)
    assert request.last_chain_crc == engine.log.chain_crc_of(Index(1))


def test_a_damaged_committed_entry_comes_back_before_anything_behind_it_is_handed_out() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"one"),)))
    persist(engine)
    [whole] = engine.log.entries(Index(1), Index(2))
    disk.flip_bit("data/00000000000000000000", 50)
    give(engine, Commit(Index(1)))
    assert engine.take_committed(1000) == []
    assert not engine.has_committed
    give(engine)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    engine.repair(RepairAnswer(N1, request.number, (whole,), lacks=False), 0)
    assert engine.take_committed(1000) == [whole]
    assert engine.log.damaged(Index(1), Index(2)) == []


def with_a_damaged_entry() -> tuple[ScriptedEngine, SimDisk, list[Entry]]:
    """An engine with two committed entries on disk, the first of them damaged."""
    disk = SimDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"one"), entry(2, body=b"two"))))
    persist(engine)
    entries = engine.log.entries(Index(1), Index(3))
    give(engine, Commit(Index(2)))
    assert engine.take_committed(1000) == entries
    disk.flip_bit("data/00000000000000000000", 50)
    return engine, disk, entries


def read(engine: Engine, index: int, now_ms: int = 0) -> list[Entry]:
    return engine.read(Index(index), Index(3), 1000, now_ms)


def events(engine: Engine, kind: type[Event]) -> list[Event]:
    return [event for event in engine.node.events if isinstance(event, kind)]  # type: ignore[attr-defined]


def test_a_read_of_a_damaged_entry_is_refused_at_once_and_works_when_it_is_back() -> None:
    engine, disk, entries = with_a_damaged_entry()
    with pytest.raises(EntryDamagedError, match="entry 1 is damaged on n0"):
        read(engine, 1)
    assert read(engine, 2) == entries[1:], "the others are served meanwhile"
    disk.fail_read()
    with pytest.raises(EntryDamagedError):
        read(engine, 1)
    assert disk.fired["fail-read"] == 0, "what is known to be damaged is not read again"
    give(engine)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    disk.fail_read(0)
    engine.repair(RepairAnswer(N1, request.number, tuple(entries[:1]), lacks=False), 0)
    assert read(engine, 1) == entries
    assert engine.failure is None


class FlakyDisk(SimDisk):
    """Reads fail as `fails` says, then never."""

    fails: Iterator[bool] = iter(())

    def count_read(self, path: str) -> None:
        if next(self.fails, False):
            raise OSError(errno.EIO, "flaky", path)


def test_a_disk_that_gives_an_entry_at_one_time_and_not_at_another_stops_nobody() -> None:
    disk = FlakyDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"one"),)))
    persist(engine)
    give(engine, Commit(Index(1)))
    disk.fails = iter((True, False, True))  # the read between finds the entry whole
    with pytest.raises(EntryDamagedError):
        engine.read(Index(1), Index(2), 1000, 0)
    assert engine.failure is None


def test_a_disk_that_does_not_keep_what_is_written_back_is_tried_again_with_a_pause() -> None:
    engine, disk, entries = with_a_damaged_entry()
    with pytest.raises(EntryDamagedError):
        read(engine, 1)
    engine.step(Tick(), 0)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    disk.fail_read()
    engine.repair(RepairAnswer(N1, request.number, tuple(entries[:1]), lacks=False), 0)
    assert engine.failure is None, "nothing was promised on this write"
    with pytest.raises(EntryDamagedError):
        read(engine, 1)
    engine.step(Tick(), REWRITE_PAUSE_MS - 1)
    assert engine.take_outbox() == []
    disk.flip_bit("data/00000000000000000000", 50)
    engine.step(Tick(), REWRITE_PAUSE_MS)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    engine.repair(RepairAnswer(N1, request.number, tuple(entries[:1]), lacks=False), 0)
    assert read(engine, 1) == entries


def test_what_the_disk_gives_again_needs_nobody() -> None:
    """It may not have been sent to anybody yet, so that nobody else could help."""
    disk = SimDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"one"),)))
    persist(engine)
    disk.flip_bit("data/00000000000000000000", 50)
    send = SendEntries(N1, Term(1), Index(0), Term(0), Index(1), Index(2), Index(0), 1)
    give(engine, send)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    engine.step(Tick(), ANSWER_TIMEOUT_MS)
    engine.step(Tick(), ANSWER_TIMEOUT_MS + ROUND_PAUSE_MS)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest), "it is damaged as before, and asked for again"
    disk.flip_bit("data/00000000000000000000", 50)
    engine.repair(RepairAnswer(N1, request.number, (), lacks=True), 2 * ANSWER_TIMEOUT_MS)
    engine.step(Tick(), 3 * ANSWER_TIMEOUT_MS)
    assert engine.take_outbox() == []
    give(engine, send)
    [(_, message)] = engine.take_outbox()
    assert isinstance(message, AppendRequest)
    assert [each.body for each in message.entries] == [b"one"]


def test_a_leader_that_needs_a_damaged_entry_for_too_long_hands_over_once_in_a_while() -> None:
    engine, _, _ = with_a_damaged_entry()
    node: ScriptedNode = engine.node  # type: ignore[assignment]
    with pytest.raises(EntryDamagedError):
        read(engine, 1)
    engine.step(Tick(), GIVE_WAY_MS)
    assert events(engine, TransferRequested) == [], "it does not lead"
    node.role = Role.LEADER
    node.effects = [RoleChanged(Role.LEADER, Term(1), N0)]
    engine.step(Tick(), GIVE_WAY_MS)
    with pytest.raises(EntryDamagedError):
        read(engine, 1, GIVE_WAY_MS)
    engine.step(Tick(), 2 * GIVE_WAY_MS - 1)
    assert events(engine, TransferRequested) == [], "it has led for a moment only"
    engine.step(Tick(), 2 * GIVE_WAY_MS)
    assert events(engine, TransferRequested) == [TransferRequested(None, GIVE_WAY_TOKEN)]
    engine.step(Tick(), 2 * GIVE_WAY_MS + GIVE_WAY_PAUSE_MS - 1)
    assert len(events(engine, TransferRequested)) == 1, "perhaps nobody can have it"
    engine.step(Tick(), 2 * GIVE_WAY_MS + GIVE_WAY_PAUSE_MS)
    assert len(events(engine, TransferRequested)) == 2
    assert events(engine, StepDown) == []


def test_a_leader_whose_hand_over_fails_steps_down() -> None:
    engine, _, _ = with_a_damaged_entry()
    engine.node.role = Role.LEADER  # type: ignore[misc]
    give(engine, Resolve(GIVE_WAY_TOKEN, Failed(TransferFailedError("nobody answers"))))
    [step_down] = events(engine, StepDown)
    assert isinstance(step_down, StepDown)
    assert "damaged" in step_down.reason
    assert engine.take_resolved() == [], "no caller asked"


def test_a_leader_that_cannot_apply_for_too_long_gives_way() -> None:
    disk = SimDisk(Random(1))
    engine = scripted(disk, cache_bytes_max=0)
    give(engine, AppendEntries((entry(1, body=b"one"),)))
    persist(engine)
    disk.flip_bit("data/00000000000000000000", 50)
    engine.node.role = Role.LEADER  # type: ignore[misc]
    give(engine, Commit(Index(1)))
    assert engine.take_committed(1000) == []
    engine.step(Tick(), 0)
    assert events(engine, TransferRequested) == []
    engine.step(Tick(), GIVE_WAY_MS)
    assert len(events(engine, TransferRequested)) == 1


def test_a_group_of_one_stops_at_damage_since_nobody_can_help() -> None:
    disk = SimDisk(Random(1))
    alone = config("n0-127.0.0.1:1", cache_bytes_max=0)
    engine = ScriptedEngine(alone, disk, draw=lambda low, _high: low, now_ms=0)
    give(engine, AppendEntries((entry(1, body=b"one"),)))
    persist(engine)
    disk.flip_bit("data/00000000000000000000", 50)
    give(engine, Commit(Index(1)))
    with pytest.raises(CorruptionError):
        engine.take_committed(1000)


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


# With the real core.


def alone() -> LogConfig:
    return config("n0-127.0.0.1:1")


def lead(engine: Engine) -> None:
    """Let the only member of a group come to lead and commit the start of its term."""
    engine.step(Tick(), engine.next_deadline_ms())
    while engine.has_unsaved:
        persist(engine)
    assert engine.node.role is Role.LEADER
    assert engine.node.noop_index is not None
    assert engine.node.commit_index >= engine.node.noop_index


def test_a_group_of_one_commits_only_what_its_disk_has_and_keeps_it() -> None:
    disk = SimDisk(Random(1))
    engine = Engine(alone(), disk, draw=lambda low, high: low, now_ms=0)
    lead(engine)
    engine.step(Propose((b"a", b"b"), 1), 10)
    assert engine.take_resolved() == []
    persist(engine)
    assert engine.take_resolved() == [
        (1, Committed(EntryId(Term(1), Index(2)), EntryId(Term(1), Index(3))))
    ]
    disk.crash(keep=0.0)
    again = Engine(alone(), disk, draw=lambda low, high: low, now_ms=20)
    assert again.node.term == 1
    lead(again)
    assert [each.body for each in again.take_committed(1 << 20)] == [
        START,
        b"a",
        b"b",
        START,
    ]


def test_a_leader_whose_disk_fails_answers_its_callers_with_an_unknown_outcome() -> None:
    disk = SimDisk(Random(1))
    engine = Engine(alone(), disk, draw=lambda low, high: low, now_ms=0)
    lead(engine)
    engine.step(Propose((b"a",), 1), 10)
    disk.fail_sync()
    job = engine.begin_persist()
    assert job is not None
    with pytest.raises(DiskFailedError) as caught:
        job.run()
    engine.fail_persist(job, caught.value, 10)
    ((token, outcome),) = engine.take_resolved()
    assert token == 1
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LeadershipLostError)
    assert engine.node.role is Role.FOLLOWER
    assert not outcome.error.definite


def test_a_follower_confirms_entries_only_when_they_are_durable() -> None:
    source = scripted()
    give(source, AppendEntries((entry(1, body=b"x"),)))
    sealed = source.log.entries(Index(1), Index(2))
    request = AppendRequest(Term(1), N1, Index(0), Term(0), tuple(sealed), Index(0), 1)
    disk = SimDisk(Random(1))
    engine = Engine(config(), disk, draw=lambda low, high: low, now_ms=0)
    engine.step(Received(request), 1)
    assert engine.take_outbox() == []
    persist(engine)
    ((to, answer),) = engine.take_outbox()
    assert to == N1
    assert isinstance(answer, AppendResponse)
    assert answer.success
    assert answer.match_index == 1
    # The same request again changes nothing, so the answer leaves at once.
    engine.step(Received(replace(request, round=2)), 2)
    assert len(engine.take_outbox()) == 1


# A state that came from another member.


def test_behind_a_state_from_elsewhere_only_what_follows_is_handed_out() -> None:
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


def test_a_restored_state_is_continued_behind_its_entry() -> None:
    engine = scripted()
    engine.start_behind(Index(1))
    give(engine, AppendEntries((entry(1), entry(2))), Commit(Index(2)))
    assert [each.index for each in engine.take_committed(1 << 20)] == [2]


def test_entries_of_the_same_terms_and_another_history_are_not_taken() -> None:
    """A node that ran alone may have led the very term that its group led without it: index and term are the same."""

    def sealed(*bodies: bytes, term: int = 1) -> list[Entry]:
        source = scripted()
        give(source, AppendEntries((entry(1, body=b"x"),)))
        place = source.log.layout.end_position
        for index, body in enumerate(bodies, 2):
            give(source, AppendEntries((entry(index, term, body, place),)))
            place = source.log.layout.end_position
        return source.log.entries(Index(1), Index(len(bodies) + 2))

    def request(entries: list[Entry], first: int, prev_term: int) -> Received:
        behind = tuple(entries[first - 1 :])
        return Received(
            AppendRequest(Term(5), N1, Index(first - 1), Term(prev_term), behind, Index(0), 1)
        )

    engine = Engine(config(), SimDisk(Random(1)), draw=lambda low, high: low, now_ms=0)
    own, theirs = sealed(b"own", b"own", term=2), sealed(b"led", b"led", b"led", term=2)
    engine.step(request(own, 1, 0), 1)
    assert engine.log.last_id == EntryId(Term(2), Index(3))
    for first, prev_term in ((2, 1), (3, 2), (4, 2)):
        with pytest.raises(ForkedError, match="n1 leads term 5 with another history"):
            engine.step(request(theirs, first, prev_term), 2)
    assert engine.failure is None
    assert engine.log.last_id == EntryId(Term(2), Index(3))
    for first, prev_term in ((1, 0), (2, 1), (3, 2)):
        engine.step(request(own, first, prev_term), 3)
    assert engine.failure is None
