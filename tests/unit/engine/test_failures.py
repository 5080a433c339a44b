"""After a failed write or sync the engine does nothing more; what breaks the protocol changes nothing."""

from __future__ import annotations

from random import Random

import pytest

from dledger.engine import NEVER_MS, Engine
from dledger.errors import (
    DiskFailedError,
    DiskFullError,
    LeadershipLostError,
    NotLeaderError,
    PeerProtocolError,
)
from dledger.raft.effects import (
    AppendEntries,
    Failed,
    Resolve,
    Role,
    SaveHardState,
    Send,
)
from dledger.raft.events import (
    PeerUnreachable,
    Persisted,
    Propose,
    Received,
    StepDown,
    Tick,
)
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.messages import (
    VoteResponse,
)
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import (
    N1,
    alone,
    config,
    entry,
    give,
    lead,
    leave,
    scripted,
    word,
)


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
    own = VoteResponse(Term(1), NodeId("n0"), granted=True)
    with pytest.raises(PeerProtocolError):
        engine.step(Received(own), 0)
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
