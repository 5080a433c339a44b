"""A member that is short of descriptors or memory goes without what it cannot read, and takes nothing for damaged."""

from __future__ import annotations

import errno
from random import Random

import pytest

from dledger.engine import Engine
from dledger.errors import EntryDamagedError
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    LoadEntries,
    Role,
    SaveHardState,
    SendEntries,
)
from dledger.raft.entry import Entry
from dledger.raft.events import EntriesLoaded, Received, StepDown, Tick, TransferRequested
from dledger.raft.ids import Index, Term
from dledger.raft.messages import AppendRequest, PeerMessage, RepairAnswer, RepairRequest
from dledger.repair.asking import ANSWER_TIMEOUT_MS
from dledger.repair.live_repair import HAND_OVER_MS, HAND_OVER_PAUSE_MS, REWRITE_PAUSE_MS
from dledger.storage.shortage import PULSE_MS
from dledger.testing.sim_disk import SimDisk, SimFile
from tests.unit.engine.scripted import (
    N1,
    ScriptedEngine,
    config,
    entry,
    events,
    give,
    persist,
)

BODY = b"x" * 900
PER_SEGMENT = 4
COUNT = 10
LATER_MS = 10 * PULSE_MS


class ShortDisk(SimDisk):
    """A disk of a process that has no descriptor left, or no memory, while `error` is set."""

    error: int = 0

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if self.error in {errno.EMFILE, errno.ENFILE}:
            raise OSError(self.error, "simulated", path)
        return super().open(path, create=create)

    def count_read(self, path: str) -> None:
        if self.error == errno.ENOMEM:
            raise OSError(self.error, "simulated", path)
        super().count_read(path)


def filled(peers: str = "n0-127.0.0.1:1;n1-127.0.0.1:2") -> tuple[ScriptedEngine, ShortDisk]:
    """A member with entries in several segments and none in memory, started again: no file of old ones is open."""
    disk = ShortDisk(Random(1))
    for is_first in (True, False):
        engine = ScriptedEngine(
            config(peers, cache_bytes_max=0), disk, draw=lambda low, _high: low, now_ms=0
        )
        engine.node.term, engine.node.is_voter = Term(1), True  # type: ignore[misc]  # a scripted one
        if is_first:
            entries = tuple(entry(n + 1, body=BODY) for n in range(COUNT))
            give(engine, SaveHardState(Term(1), None), AppendEntries(entries))
            while engine.has_unsaved:
                persist(engine)
            engine.close()
    assert engine.log.layout.open_index > PER_SEGMENT
    return engine, disk


def indexes(entries: list[Entry]) -> list[int]:
    return [each.index for each in entries]


def outbox(engine: Engine) -> list[PeerMessage]:
    return [message for _, message in engine.take_outbox()]


def pulse(engine: Engine, now_ms: int = LATER_MS) -> None:
    """Let the time until the next pulse pass."""
    engine.step(Tick(), now_ms)
    engine.step(Tick(), now_ms + PULSE_MS)


def noted(engine: Engine) -> list[str]:
    return [event for event, _ in engine.live_repair.notes]


@pytest.mark.parametrize("peers", ["n0-127.0.0.1:1;n1-127.0.0.1:2", "n0-127.0.0.1:1"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_committed_entries_are_handed_out_after_the_shortage(peers: str, number: int) -> None:
    engine, disk = filled(peers)
    before = {path: disk.content(path) for path in disk.paths()}
    give(engine, Commit(Index(COUNT)))
    disk.error = number
    assert engine.take_committed(1 << 20) == []
    assert not engine.has_committed, "or it would be tried again at once, and for ever"
    assert engine.next_deadline_ms() == 0
    disk.error = 0
    pulse(engine)
    assert engine.has_committed
    handed: list[Entry] = []
    while engine.has_committed:
        handed += engine.take_committed(1 << 20)
    assert indexes(handed) == list(range(1, COUNT + 1))
    assert (engine.failure, outbox(engine), engine.live_repair.missing_count) == (None, [], 0)
    assert noted(engine) == ["entries-not-read"]
    assert {path: disk.content(path) for path in disk.paths()} == before


def test_a_request_whose_entries_cannot_be_read_now_is_lost_and_nobody_resigns() -> None:
    engine, disk = filled()
    engine.node.role = Role.LEADER  # type: ignore[misc]
    send = SendEntries(N1, Term(1), Index(0), Term(0), Index(1), Index(3), Index(0), 1)
    disk.error = errno.EMFILE
    give(engine, send)
    assert outbox(engine) == []
    assert events(engine, StepDown) == []
    disk.error = 0
    give(engine, send)
    [request] = outbox(engine)
    assert isinstance(request, AppendRequest)
    assert indexes(list(request.entries)) == [1, 2]


def test_a_read_is_refused_for_now_and_names_no_damage() -> None:
    engine, disk = filled()
    disk.error = errno.EMFILE
    with pytest.raises(EntryDamagedError, match="entry 2 cannot be read now"):
        engine.read(Index(2), Index(4), 1 << 20, 0)
    assert engine.live_repair.missing_count == 0
    disk.error = 0
    assert indexes(engine.read(Index(2), Index(4), 1 << 20, 0)) == [2, 3]
    assert outbox(engine) == []


def test_a_load_that_is_refused_in_its_thread_is_asked_for_again() -> None:
    engine, disk = filled()
    want = LoadEntries(N1, engine.node.term, Index(1), Index(3))
    give(engine, want)
    [load] = engine.take_loads()
    disk.error = errno.EMFILE
    load.run()
    engine.loaded(load, LATER_MS)
    assert events(engine, EntriesLoaded) == [EntriesLoaded(N1, want.term, Index(1), Index(1))]
    assert engine.failure is None
    pulse(engine)
    assert noted(engine) == ["entries-not-read"]


def test_a_load_of_which_nobody_knows_the_place_now_is_refused_at_the_next_pulse() -> None:
    engine, disk = filled()
    want = LoadEntries(N1, engine.node.term, Index(2), Index(4))
    disk.error = errno.EMFILE
    give(engine, want)
    assert engine.take_loads() == []
    assert events(engine, EntriesLoaded) == []
    pulse(engine)
    assert events(engine, EntriesLoaded) == [EntriesLoaded(N1, want.term, Index(2), Index(2))]
    assert engine.failure is None


def test_what_cannot_be_verified_now_is_not_asked_for() -> None:
    engine, disk = filled()
    disk.error = errno.EMFILE
    engine.look_for_damage(Index(1), Index(4), 0)
    asked = RepairRequest(N1, 7, Index(1), Index(3), 0)
    engine.repair(asked, 0)
    [answer] = outbox(engine)
    assert isinstance(answer, RepairAnswer)
    assert (answer.entries, answer.lacks) == ((), False)
    assert (engine.failure, engine.live_repair.missing_count) == (None, 0)


def test_a_request_of_which_the_history_cannot_be_compared_now_is_lost() -> None:
    engine, disk = filled()
    [first, *_] = engine.log.entries(Index(2), Index(3))
    engine, disk = filled()
    request = AppendRequest(Term(1), N1, Index(1), Term(1), (first,), Index(0), 1, 0)
    disk.error = errno.EMFILE
    engine.step(Received(request), 0)
    assert events(engine, Received) == []
    disk.error = 0
    engine.step(Received(request), 0)
    assert len(events(engine, Received)) == 1
    assert engine.failure is None


def test_an_entry_that_comes_back_at_a_shortage_is_asked_for_again() -> None:
    engine, disk = filled()
    [whole] = engine.log.entries(Index(2), Index(3))
    engine, disk = filled()
    disk.flip_bit("data/" + "0" * 20, whole.position + 60)
    with pytest.raises(EntryDamagedError, match="entry 2 is damaged"):
        engine.read(Index(2), Index(3), 1 << 20, 0)
    engine.step(Tick(), 0)
    [asked] = outbox(engine)
    assert isinstance(asked, RepairRequest)
    engine.log._row.close()
    disk.error = errno.EMFILE
    engine.repair(RepairAnswer(N1, asked.number, (whole,), lacks=False), 0)
    assert engine.failure is None, "nothing was written"
    assert engine.live_repair.missing_count == 1
    engine.step(Tick(), REWRITE_PAUSE_MS)
    [asked] = outbox(engine)
    assert isinstance(asked, RepairRequest)
    disk.error = 0
    engine.repair(RepairAnswer(N1, asked.number, (whole,), lacks=False), ANSWER_TIMEOUT_MS)
    assert engine.live_repair.missing_count == 0
    assert engine.read(Index(2), Index(3), 1 << 20, 0) == [whole]


def test_a_leader_that_is_short_for_too_long_hands_over_once_in_a_while() -> None:
    engine, disk = filled()
    engine.node.role = Role.LEADER  # type: ignore[misc]
    disk.error = errno.EMFILE
    for now_ms in range(0, HAND_OVER_MS + HAND_OVER_PAUSE_MS, PULSE_MS):
        with pytest.raises(EntryDamagedError):
            engine.read(Index(2), Index(4), 1 << 20, now_ms)
        engine.step(Tick(), now_ms)
        if now_ms < HAND_OVER_MS:
            assert events(engine, TransferRequested) == []
    assert len(events(engine, TransferRequested)) == 1
    assert noted(engine).count("hands-over") == 1
