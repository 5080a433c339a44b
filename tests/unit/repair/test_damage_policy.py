"""What a member decides about its damaged entries; the engine's tests show it carried out."""

from __future__ import annotations

from random import Random

import pytest

from dledger.errors import CorruptionError, EntryDamagedError, TransferFailedError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import StepDown, TransferRequested
from dledger.raft.ids import Index, NodeId, Position, Term
from dledger.raft.messages import RepairRequest
from dledger.repair.damage_policy import HAND_OVER_TOKEN, DamagePolicy
from dledger.repair.live_repair import HAND_OVER_MS
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush
from dledger.testing.sim_disk import SimDisk

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
BODY = b"x" * 52
ENTRY_BYTES = 48 + len(BODY)


def log_of(count: int, *, damaged: int) -> SegmentedLog:
    """A log whose entry `damaged` has a flipped byte on disk, and is not in memory."""
    disk = SimDisk(Random(1))
    log = SegmentedLog.open(disk, "", segment_size_bytes=4096, cache_bytes_max=0)
    places = [(n, Position((n - 1) * ENTRY_BYTES)) for n in range(1, count + 1)]
    log.append([Entry(Index(n), Term(1), at, EntryKind.NORMAL, BODY) for n, at in places])
    flush(log)
    disk.flip_bit("data/" + "0" * 20, (damaged - 1) * ENTRY_BYTES + 60, 0)
    return log


def policy_of(log: SegmentedLog, *others: NodeId) -> DamagePolicy:
    return DamagePolicy(N0, others, log)


def indexes(entries: list[Entry]) -> list[int]:
    return [entry.index for entry in entries]


def test_what_stands_before_the_damage_is_read_and_the_rest_is_asked_for() -> None:
    policy = policy_of(log_of(5, damaged=3), N1)
    assert indexes(policy.read(Index(1), Index(6))) == [1, 2]
    assert policy.read(Index(3), Index(6)) == []
    asked = policy.next_request(0)
    assert asked is not None
    to, request = asked
    assert (to, request.first_index, request.last_index) == (N1, 3, 3)
    assert indexes(policy.read(Index(4), Index(6))) == [4, 5]


def test_who_waits_is_refused_and_notes_since_when() -> None:
    policy = policy_of(log_of(5, damaged=3), N1)
    with pytest.raises(EntryDamagedError):
        policy.read_now(Index(3), Index(4), bytes_max=1000, now_ms=7)
    assert policy.hand_over(None, 7 + HAND_OVER_MS - 1) is None
    assert policy.hand_over(None, 7 + HAND_OVER_MS) == TransferRequested(None, HAND_OVER_TOKEN)


def test_alone_or_after_the_disk_has_failed_nothing_is_asked_for() -> None:
    alone = policy_of(log_of(5, damaged=3))
    with pytest.raises(CorruptionError):
        alone.read(Index(1), Index(6))
    stopped = policy_of(log_of(5, damaged=3), N1)
    stopped.stop()
    with pytest.raises(CorruptionError):
        stopped.read(Index(1), Index(6))
    assert stopped.live_repair.missing_count == 0


def test_a_leader_that_cannot_send_or_hand_over_resigns_once() -> None:
    policy = policy_of(log_of(5, damaged=3), N1)
    assert not policy.must_resign
    policy.cannot_send()
    assert policy.must_resign
    assert policy.take_resignation() == StepDown("an entry to be sent is damaged")
    assert not policy.must_resign
    policy.hand_over_failed(TransferFailedError("nobody answers"))
    assert "does not come back" in policy.take_resignation().reason


def test_others_get_what_is_whole_and_learn_what_was_never_here() -> None:
    log = log_of(5, damaged=3)
    policy = policy_of(log, N1)
    named = RepairRequest(N1, 9, Index(1), Index(5), log.chain_crc_of(Index(5)))
    answer = policy.give(named, is_voter=True)
    assert ([entry.index for entry in answer.entries], answer.lacks) == ([4, 5], False)
    other = RepairRequest(N1, 9, Index(1), Index(5), log.chain_crc_of(Index(5)) ^ 1)
    assert policy.give(other, is_voter=True).lacks
    assert not policy.give(other, is_voter=False).lacks, "its store may have been another one"


def test_what_was_forgotten_here_is_told_apart_from_what_never_was() -> None:
    """Otherwise the one that asks would cut off what was committed, or doubt what it has."""
    log = log_of(150, damaged=1)
    named = RepairRequest(N1, 9, Index(1), Index(3), log.chain_crc_of(Index(3)))
    assert log.drop_before(Index(70)) is not None
    assert log.layout.first_index > 3
    answer = policy_of(log, N1).give(named, is_voter=True)
    assert (answer.entries, answer.lacks, answer.has_forgotten) == ((), False, True)
