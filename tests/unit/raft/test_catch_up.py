"""A member that is far behind gets a bounded slice for each answer; the others hear of new entries at once."""

from __future__ import annotations

from collections import deque

import pytest

from dledger.config import RaftConfig
from dledger.raft.effects import Effect, Role, SendEntries
from dledger.raft.events import EntriesLoaded, Propose, Tick
from dledger.raft.ids import Index
from dledger.raft.replication import LOAD_BYTES_MAX, NEAR_BYTES, SLICE_REQUESTS
from dledger.testing.core_group import CoreGroup, CoreMember
from dledger.testing.make_roles import N0, N1, N2, make_role, receive, requests, success

BODY = b"x" * 400
REQUEST_BYTES = 1000
COUNT = 200


def to(effects: list[Effect], peer: str) -> list[SendEntries]:
    return [each for each in requests(effects) if each.to == peer and each.first < each.end]


def bytes_of(member: CoreMember, sent: list[SendEntries]) -> int:
    position_of = member.node.log.position_of
    return sum(position_of(each.end) - position_of(each.first) for each in sent)


@pytest.fixture
def leading() -> tuple[CoreGroup, CoreMember]:
    """A leader with entries of which N1 has confirmed none, since its requests were lost; N2 has them all."""
    group, member = make_role(Role.LEADER)
    member.node._core.config = RaftConfig(
        N0, (N0, N1, N2), entries_bytes_max=REQUEST_BYTES, inflight_requests_max=8
    )
    receive(member, success(member, N2, 1))
    for token in range(COUNT):
        member.step(Propose((BODY,), token))
        member.sync()
        receive(member, success(member, N2, member.node.log.last_index))
    return group, member


def test_an_answer_is_followed_by_one_slice_and_the_window_fills_slowly(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    _, member = leading
    window: deque[SendEntries] = deque()
    match, largest, deepest = 1, 0, 0
    while match < member.node.log.last_index:
        effects = receive(member, success(member, N1, match))
        sent = to(effects, N1)
        largest = max(largest, bytes_of(member, sent))
        window.extend(sent)
        deepest = max(deepest, len(window))
        match = window.popleft().end - 1
    assert largest < (SLICE_REQUESTS + 1) * REQUEST_BYTES, "the last of them began within the slice"
    assert deepest == 8, "each answer is followed by two requests, until the window is full"
    assert not to(receive(member, success(member, N1, match)), N1)


def test_new_entries_send_no_backlog_to_a_member_that_is_behind(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    _, member = leading
    first = to(receive(member, success(member, N1, 1)), N1)
    effects = member.step(Propose((BODY,), COUNT))
    assert to(effects, N1) == [], "its own answers bring it on"
    assert len(to(effects, N2)) == 1
    assert to(receive(member, success(member, N1, first[0].end - 1)), N1)


def test_a_member_behind_that_lost_everything_goes_on_after_a_heartbeat(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    """None of its answers comes any more, so only the heartbeats can bring it on."""
    group, member = leading
    receive(member, success(member, N1, 1))
    end_ms = group.now_ms + 2000
    found: list[SendEntries] = []
    while not found and group.now_ms < end_ms:
        group.now_ms = member.node.next_deadline_ms()
        heartbeats = [each for each in requests(member.step(Tick())) if each.to == N1]
        receive(member, success(member, N2, member.node.log.last_index))
        if member.node.progress()[N1].inflight_count == 0:
            found = to(receive(member, success(member, N1, 1, round_=heartbeats[-1].round)), N1)
    assert found


def test_who_was_far_behind_gets_what_memory_has_at_the_same_rate_until_it_is_nearly_there(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    _, member = leading
    member.node._core.config = RaftConfig(N0, (N0, N1, N2))
    log, big = member.node.log, b"x" * (LOAD_BYTES_MAX // 2)
    in_memory = log.last_index + 1
    for token in range(COUNT, COUNT + 3 * NEAR_BYTES // len(big)):
        member.step(Propose((big,), token))
        member.sync()
        receive(member, success(member, N2, log.last_index))
    member.first_in_memory = Index(in_memory)
    end_position = log.position_of(log.last_index) + len(big)
    receive(member, success(member, N1, 1))
    loaded_to: int = 1
    while member.loads:
        load = member.loads.pop()
        assert load.first == loaded_to + 1
        lacks_bytes = end_position - log.position_of(load.first)
        assert load.first < in_memory or lacks_bytes > NEAR_BYTES
        loaded_to = load.end - 1
        sent = to(member.step(EntriesLoaded(load.to, load.term, load.first, load.end)), N1)
        if not member.loads and len(sent) == 1:  # the window is full
            sent = to(receive(member, success(member, N1, loaded_to)), N1)
    assert end_position - log.position_of(loaded_to) < NEAR_BYTES + 3 * LOAD_BYTES_MAX
    assert [each.first for each in sent][-1:] > [loaded_to], "the rest goes out at once"


def test_who_missed_only_what_memory_has_gets_it_at_once(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    _, member = leading
    assert to(receive(member, success(member, N1, 1)), N1)
    assert not member.loads


def test_old_entries_are_asked_for_in_smaller_pieces_than_new_ones_are_sent_in(
    leading: tuple[CoreGroup, CoreMember],
) -> None:
    _, member = leading
    member.node._core.config = RaftConfig(N0, (N0, N1, N2))
    log, last = member.node.log, member.node.log.last_index
    big = b"x" * (LOAD_BYTES_MAX // 2)
    for token in range(COUNT, COUNT + 9):
        member.step(Propose((big,), token))
        member.sync()
        receive(member, success(member, N2, log.last_index))
    member.first_in_memory = log.last_index
    match, sizes = 1, []
    while match < log.last_index - 1:
        loads = member.loads[-1:] if member.loads else []
        if not loads:
            receive(member, success(member, N1, match))
            loads = member.loads[-1:]
        (load,) = loads
        sizes.append(log.position_of(load.end) - log.position_of(load.first))
        member.loads.clear()
        sent = to(member.step(EntriesLoaded(load.to, load.term, load.first, load.end)), N1)
        assert [(each.first, each.end) for each in sent[:1]] == [(load.first, load.end)]
        match = load.end - 1
    assert last < match
    assert max(sizes) <= LOAD_BYTES_MAX
    assert len([size for size in sizes if size > LOAD_BYTES_MAX // 2]) >= 9
