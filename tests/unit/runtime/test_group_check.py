"""Members of other groups and with other histories: refused by name on both sides, and loudly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dledger import ConfigError, Peer
from dledger.codec.frame import encode_frames
from dledger.codec.rpc import encode_message
from dledger.errors import HandshakeRefusedError, PeerProtocolError
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import AppendRequest
from dledger.runtime.group_check import EntryFingerprint, GroupCheck
from dledger.runtime.handshake import Identity, dial_member
from dledger.runtime.roster import Roster
from dledger.storage.member_file import MEMBER_NAME
from tests.unit.runtime.conftest import Group, wait_until
from tests.unit.runtime.test_handshake import shake

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
MEMBERS = frozenset({N0, N1, N2})
S = 60.0
OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]

LOG = {
    1: EntryFingerprint(Term(1), 11),
    2: EntryFingerprint(Term(1), 22),
    3: EntryFingerprint(Term(2), 33),
}
FORK = {**LOG, 3: EntryFingerprint(Term(4), 44), 4: EntryFingerprint(Term(4), 55)}


def group_check(
    node_id: NodeId,
    committed: dict[int, EntryFingerprint],
    members: frozenset[NodeId] = MEMBERS,
    *,
    lease_ms: int = 300,
) -> GroupCheck:
    last = Index(max(committed, default=0))
    peers = tuple(Peer(name, "127.0.0.1", 1) for name in sorted(members | {node_id}))
    roster = Roster(node_id, peers, joins=False)
    return GroupCheck(roster, lambda: last, lambda index: committed.get(index), lease_ms=lease_ms)


def identity(node_id: NodeId, part: GroupCheck) -> Identity:
    return Identity("g", node_id, 7, MEMBERS, None, group_check=part)


async def reasons(near: GroupCheck, far: GroupCheck) -> list[str]:
    """What n1 as the dialer and n0 come out with; the far side refuses first."""
    results = await shake(identity(N1, near), identity(N0, far))
    return [str(each) for each in results if isinstance(each, HandshakeRefusedError)]


async def test_members_of_one_group_that_are_differently_far_meet() -> None:
    empty: dict[int, EntryFingerprint] = {}
    for near, far in (
        (LOG, LOG),
        (LOG, empty),
        (empty, LOG),
        ({1: LOG[1]}, LOG),
        (LOG, {1: LOG[1]}),
    ):
        assert await reasons(group_check(N1, near), group_check(N0, far)) == []


async def test_other_members_are_refused_on_both_sides() -> None:
    said = await reasons(group_check(N1, LOG), group_check(N0, LOG, frozenset({N0})))
    assert len(said) == 2
    for each in said:
        assert "n1 is configured with the members (n0, n1, n2), n0 with (n0)" in each


async def test_another_lease_is_refused_on_both_sides() -> None:
    said = await reasons(group_check(N1, LOG, lease_ms=301), group_check(N0, LOG))
    assert len(said) == 2
    for each in said:
        assert "n1 has a lease of 301 ms, n0 one of 300 ms" in each
        assert "give all members the same (raftLeaseMs)" in each
    assert await reasons(group_check(N1, LOG, lease_ms=90), group_check(N0, LOG, lease_ms=90)) == []


def test_a_member_of_a_version_that_sends_no_lease_has_the_one_of_then() -> None:
    attributes = dict(group_check(N1, LOG).own_attributes())
    del attributes["dledger.lease_ms"]
    assert group_check(N0, LOG).why_not("n1", 7, attributes) is None
    longer = group_check(N0, LOG, lease_ms=400).why_not("n1", 7, attributes)
    assert longer is not None
    assert "n1 has a lease of 300 ms, n0 one of 400 ms" in longer


@pytest.mark.parametrize(("near", "far"), [(LOG, FORK), (FORK, LOG)])
async def test_other_committed_entries_are_refused_on_both_sides(
    near: dict[int, EntryFingerprint], far: dict[int, EntryFingerprint]
) -> None:
    said = await reasons(group_check(N1, near), group_check(N0, far))
    # The longer one's last entry is not known to the other as committed; seen from there it is.
    assert said
    for each in said:
        assert "have committed different entries: up to entry 3" in each
        assert "start it with an empty folder" in each


@pytest.mark.parametrize("text", ["", "[]", "[1,2]", '{"a":1}', "[-1,2,3]", '["n0",7]', "null"])
def test_nothing_else_is_understood(text: str) -> None:
    for name in ("dledger.members", "dledger.committed", "dledger.lease_ms"):
        with pytest.raises(PeerProtocolError, match=name):
            group_check(N0, LOG).why_not("n1", 7, {name: text})


def lose(record: Path) -> None:
    record.unlink(missing_ok=True)


async def append(group: Group, count: int = 3) -> None:
    leader = await group.leader()
    for number in range(count):
        last = await leader.server.appender.append(b"%d" % number, timeout_s=S)
    await group.wait_applied(last.index)


@pytest.mark.slow
async def test_who_leads_with_another_history_is_refused_until_it_is_started_again(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that was forked by a version before: nothing in it says so, until it leads."""
    async with open_group(size=3, secret=None) as group:
        for name in ("n1", "n2"):
            await group.start(name)
        await group.start("n0")  # a new group needs all
        await append(group)
        await group.members.pop(N0).stop()
        leader = await group.leader()
        victim = next(each for each in group.members.values() if each is not leader)
        peer = next(each for each in group.peers if each.node_id == victim.server.node_id)
        lease = {"dledger.lease_ms": str(leader.server.config.raft.lease_ms)}
        me = Identity("g", N0, 7, MEMBERS, None, lease)
        term = Term(leader.server.term + 5)
        message = AppendRequest(term, N0, Index(2), term, (), Index(0), 1)
        frames = encode_frames(encode_message(message), b"")
        with caplog.at_level(logging.ERROR, "dledger"):
            stream, _ = await dial_member(peer, me)
            await stream.send(b"".join(frames))
            await wait_until(lambda: "forked" in caplog.text)
            assert await stream.receive() == []
            stream.close()
        assert f"node={peer.node_id} peer=n0" in caplog.text
        assert "has term" in caplog.text
        assert "docs/repair.md" in caplog.text
        with pytest.raises(HandshakeRefusedError, match="start it with an empty folder"):
            await dial_member(peer, me)
        again, _ = await dial_member(peer, replace(me, process=8))
        again.close()
        await append(group)


@pytest.mark.slow
async def test_a_store_that_never_had_a_leader_keeps_its_members_and_an_old_one_gets_them_from_its_log(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start("n0")
        await group.members.pop(N0).stop()
        everybody, group.peers = group.peers, group.peers[:1]
        with trio.fail_after(S), pytest.raises((ConfigError, RuntimeError)):
            await group.start("n0")
        assert "belongs to a group of n0, n1, n2" in str(group.members.pop(N0).failure)
        group.peers = everybody
        await group.start_all()
        await append(group)
        victim = group.members.pop(N0)
        await victim.stop()
        record = Path(victim.config.store_path, MEMBER_NAME)
        for _ in range(2):
            group.peers = everybody[:1]
            lose(record)
            with trio.fail_after(S), pytest.raises((ConfigError, RuntimeError)):
                await group.start("n0")
            assert "continued, with entry" in str(group.members.pop(N0).failure)
            group.peers = everybody
            await group.start("n0")
            await append(group)
            await group.members.pop(N0).stop()
