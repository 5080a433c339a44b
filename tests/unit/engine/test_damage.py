"""Damaged entries while a member runs: read around, asked for, and no reason to lead on without them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from dledger.engine import Engine
from dledger.errors import (
    CorruptionError,
    DiskFailedError,
    EntryDamagedError,
    TransferFailedError,
)
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Failed,
    Resolve,
    Role,
    RoleChanged,
    SaveHardState,
    SendEntries,
)
from dledger.raft.entry import Entry
from dledger.raft.events import (
    StepDown,
    Tick,
    TransferRequested,
)
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import (
    AppendRequest,
    RepairAnswer,
    RepairRequest,
)
from dledger.repair.asking import ANSWER_TIMEOUT_MS, ROUND_PAUSE_MS
from dledger.repair.damage_policy import HAND_OVER_TOKEN
from dledger.repair.live_repair import HAND_OVER_MS, HAND_OVER_PAUSE_MS, REWRITE_PAUSE_MS
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import (
    N0,
    N1,
    ScriptedEngine,
    ScriptedNode,
    config,
    entry,
    events,
    give,
    persist,
    scripted,
)


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


def test_a_damaged_committed_entry_comes_back_before_anything_after_it_is_handed_out() -> None:
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
    engine.step(Tick(), HAND_OVER_MS)
    assert events(engine, TransferRequested) == [], "it does not lead"
    node.role = Role.LEADER
    node.effects = [RoleChanged(Role.LEADER, Term(1), N0)]
    engine.step(Tick(), HAND_OVER_MS)
    with pytest.raises(EntryDamagedError):
        read(engine, 1, HAND_OVER_MS)
    engine.step(Tick(), 2 * HAND_OVER_MS - 1)
    assert events(engine, TransferRequested) == [], "it has led for a moment only"
    engine.step(Tick(), 2 * HAND_OVER_MS)
    assert events(engine, TransferRequested) == [TransferRequested(None, HAND_OVER_TOKEN)]
    engine.step(Tick(), 2 * HAND_OVER_MS + HAND_OVER_PAUSE_MS - 1)
    assert len(events(engine, TransferRequested)) == 1, "perhaps nobody can have it"
    engine.step(Tick(), 2 * HAND_OVER_MS + HAND_OVER_PAUSE_MS)
    assert len(events(engine, TransferRequested)) == 2
    assert events(engine, StepDown) == []


def test_a_leader_whose_hand_over_fails_steps_down() -> None:
    engine, _, _ = with_a_damaged_entry()
    engine.node.role = Role.LEADER  # type: ignore[misc]
    give(engine, Resolve(HAND_OVER_TOKEN, Failed(TransferFailedError("nobody answers"))))
    [step_down] = events(engine, StepDown)
    assert isinstance(step_down, StepDown)
    assert "damaged" in step_down.reason
    assert engine.take_resolved() == [], "no caller asked"


def test_a_leader_that_cannot_apply_for_too_long_hands_over() -> None:
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
    engine.step(Tick(), HAND_OVER_MS)
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


def test_who_asks_for_entries_gets_those_that_are_whole() -> None:
    engine, _, entries = with_a_damaged_entry()
    engine.node.is_voter = True  # type: ignore[misc]
    asked = RepairRequest(N1, 7, Index(1), Index(2), engine.log.chain_crc_of(Index(2)))
    engine.repair(asked, 0)
    [(to, answer)] = engine.take_outbox()
    assert to == N1
    assert isinstance(answer, RepairAnswer)
    assert (answer.number, answer.entries, answer.lacks) == (7, tuple(entries[1:]), False)


def test_who_asks_for_entries_again_and_again_in_one_read_gets_them_once() -> None:
    """A packet has room for thousands of requests, and each answer may have a megabyte; the newest is waited for."""
    engine, _, _ = with_a_damaged_entry()
    engine.node.is_voter = True  # type: ignore[misc]
    asked = RepairRequest(N1, 7, Index(1), Index(2), engine.log.chain_crc_of(Index(2)))
    for number in range(1000):
        engine.repair(replace(asked, number=number), 0)
    engine.repair(replace(asked, source=N0), 0)
    assert [(to, answer.number) for to, answer in answers(engine)] == [(N1, 999), (N0, 7)]
    engine.repair(asked, 0)
    assert [(to, answer.number) for to, answer in answers(engine)] == [(N1, 7)]
    assert answers(engine) == []


def test_a_request_that_came_before_the_disk_failed_is_not_answered() -> None:
    engine, _, _ = with_a_damaged_entry()
    give(engine, SaveHardState(Term(2), None, is_voter=True))
    job = engine.begin_persist()
    assert job is not None
    engine.repair(RepairRequest(N1, 7, Index(1), Index(2), 0), 0)
    engine.fail_persist(job, DiskFailedError("EIO"), 0)
    assert answers(engine) == []


def answers(engine: Engine) -> list[tuple[NodeId, RepairAnswer]]:
    taken = engine.take_outbox()
    return [(to, message) for to, message in taken if isinstance(message, RepairAnswer)]


def test_damage_is_found_by_looking_before_anybody_needs_the_entry() -> None:
    engine, _, entries = with_a_damaged_entry()
    engine.look_for_damage(Index(1), Index(3), 0)
    assert engine.log.damaged(Index(1), Index(3)) == [Index(1)]
    give(engine)
    [(_, request)] = engine.take_outbox()
    assert isinstance(request, RepairRequest)
    assert (request.first_index, request.last_index) == (1, 1)
    node: ScriptedNode = engine.node  # type: ignore[assignment]
    node.role = Role.LEADER
    seen = list(node.events)
    engine.repair(RepairAnswer(N1, request.number, tuple(entries[:1]), lacks=False), 0)
    assert node.events == seen, "it has come back, and the leader goes on"
    assert read(engine, 1) == entries
