"""Traces by hand: promises that are covered by a sync, and those that left before it."""

from __future__ import annotations

from random import Random
from struct import Struct

import pytest

from dledger.codec.client_rpc import AppendAnswer
from dledger.codec.frame import encode_frame
from dledger.codec.hard_state import encode_hard_state
from dledger.codec.rpc import encode_message
from dledger.codec.wire_types import encode_header
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId
from dledger.raft.ids import Term as RaftTerm
from dledger.raft.messages import VoteResponse
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import new_entries
from dledger.testing.sim_disk import SimDisk
from jepsen.durability import (
    Acknowledged,
    Confirmed,
    Fact,
    Renamed,
    Synced,
    SystemCall,
    Term,
    Voted,
    Wrote,
    facts_of,
    promised_too_early,
    read_calls,
)

LOG = "data/00000000000000000000"
NEXT = "data/00000000000000004096"


def stored(who: str, first: int, last: int, path: str = LOG) -> list[Fact]:
    return [Wrote(who, path, first, last), Synced(who, path)]


def test_what_is_synced_may_be_told() -> None:
    facts: list[Fact] = [
        *stored("n1", 1, 3),
        Confirmed("n1", 3),
        *stored("n0", 1, 3),
        Acknowledged("n0", 3),
        Wrote("n1", LOG, 4, 4),
        Confirmed("n1", 3),  # what came later is not told
    ]
    assert promised_too_early(facts, members=3) == []


@pytest.mark.parametrize(
    "facts",
    [
        [Confirmed("n1", 1)],
        [Wrote("n1", LOG, 1, 2), Confirmed("n1", 2)],
        [*stored("n1", 1, 2), Wrote("n1", NEXT, 3, 3), Synced("n1", LOG), Confirmed("n1", 3)],
        [Wrote("n1", LOG, 1, 1), *stored("n1", 2, 2, NEXT), Confirmed("n1", 2)],
        [*stored("n1", 1, 5), Wrote("n1", LOG, 3, 3), Confirmed("n1", 3)],  # overwritten
        [Wrote("n1", LOG, 1, 1), Synced("n2", LOG), Confirmed("n1", 1)],
    ],
    ids=["nothing", "unsynced", "other-file", "hole", "overwritten", "other-member"],
)
def test_a_confirmation_before_its_sync_is_found(facts: list[Fact]) -> None:
    (early,) = promised_too_early(facts, members=3)
    assert "n1 confirmed entry" in early


def test_a_client_is_told_once_a_majority_has_it() -> None:
    facts = [*stored("n0", 1, 1), Wrote("n1", LOG, 1, 1), Acknowledged("n0", 1)]
    assert promised_too_early(facts, members=3) == ["n0 acknowledged entry 1, durable on 1 of 3"]
    without_the_leader = [*stored("n1", 1, 1), *stored("n2", 1, 1), Acknowledged("n0", 1)]
    assert promised_too_early(without_the_leader, members=3) == []


def test_a_vote_needs_its_term_under_its_name_and_the_name_durable() -> None:
    steps: list[Fact] = [
        Term("n1", "hard_state.aside", 4),
        Synced("n1", "hard_state.aside"),
        Renamed("n1", "hard_state.aside", "hard_state"),
        Synced("n1", ""),
    ]
    assert promised_too_early([*steps, Voted("n1", 4)], members=3) == []
    for missing in steps:
        facts = [step for step in steps if step is not missing]
        assert promised_too_early([*facts, Voted("n1", 4)], members=3), missing


def test_calls_become_facts() -> None:
    log = SegmentedLog.open(SimDisk(Random(0)), segment_size_bytes=4096)
    log.append(new_entries(log, 1, [10, 0, 30]))
    entries = log.entries(Index(1), Index(4))
    written = b"".join(entry.header + entry.body for entry in entries)
    vote = VoteResponse(RaftTerm(7), NodeId("n1"), granted=True)
    frames = encode_frame(encode_message(vote)) + encode_frame(
        encode_header(AppendAnswer(9, 7, 3, 0))
    )
    calls = [
        SystemCall("n1", "written", LOG, 0, written + bytes(20)),
        SystemCall("n1", "written", "index/0", 0, b"anything"),
        SystemCall("n1", "synced", LOG),
        SystemCall(
            "n1", "written", "hard_state.aside", 0, encode_hard_state(HardState(RaftTerm(7), None))
        ),
        SystemCall("n1", "renamed", "hard_state.aside", 0, b"hard_state"),
        SystemCall("n1", "sent", "17", 0, frames[:30]),
        SystemCall("n1", "sent", "18", 0, frames[:5]),
        SystemCall("n1", "sent", "17", 0, frames[30:]),
    ]
    assert list(facts_of(calls)) == [
        Wrote("n1", LOG, 1, 3),
        Synced("n1", LOG),
        Term("n1", "hard_state.aside", 7),
        Renamed("n1", "hard_state.aside", "hard_state"),
        Voted("n1", 7),
        Acknowledged("n1", 3),
    ]


def test_a_record_that_a_kill_cut_short_is_left_out() -> None:
    def record(kind: int, path: bytes, data: bytes) -> bytes:
        return Struct("=IIIIq").pack(kind, 2, len(path), len(data), 5) + b"n1" + path + data

    whole = record(1, b"data/0", b"abc") + record(2, b"", b"")
    told = [SystemCall("n1", "written", "data/0", 5, b"abc"), SystemCall("n1", "synced", "", 5)]
    assert list(read_calls(whole)) == told
    assert list(read_calls(whole[:-1])) == told[:1]
    assert list(read_calls(whole + record(4, b"1", b"abc")[:-2])) == told
