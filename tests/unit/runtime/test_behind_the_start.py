"""Members that are behind the leader's start are brought up by its snapshot and the rest of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from dledger.engine import Engine
from dledger.errors import CompactedError, DLedgerError
from dledger.raft.effects import Role
from dledger.raft.ids import Index
from dledger.runtime import snapshot_fetch
from dledger.runtime.snapshot_fetch import TransferPace
from dledger.state_machine import SnapshotRefusedError
from tests.unit.runtime.conftest import Group, Member, wait_until
from tests.unit.runtime.test_snapshot_fetch import damaged, empty
from tests.unit.runtime.test_snapshotting import KeptBodies, S, fill_and_take, snapshot_files

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
SEGMENT_BYTES = 600


async def start(group: Group, node_id: str) -> Member:
    return await group.start(node_id, machine=KeptBodies(), segment_size_bytes=SEGMENT_BYTES)


def engine_of(member: Member) -> Engine:
    driver = member.server._standing.driver
    assert driver is not None
    return driver.engine


def forget(member: Member) -> Index:
    """Let a member drop what its newest snapshot contains; return the first entry that is left."""
    engine, snapshotter = engine_of(member), member.server.reader.snapshotter
    assert snapshotter is not None
    drop = engine.forget_before(Index(snapshotter.index + 1))
    assert drop is not None
    drop.run()
    engine.dropped()
    return engine.log.layout.first_index


async def group_that_forgets(group: Group) -> tuple[Member, Member]:
    """Start a group; a follower is stopped, and the leader forgets more than that one has. Return both."""
    for peer in group.peers:
        await start(group, peer.node_id)
    await fill_and_take(group, 5)
    away = await group.follower()
    await away.stop()
    leader = await fill_and_take(group, 60)
    assert forget(leader) > away.machine.applied_index + 1
    return leader, away


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_who_was_away_too_long_or_has_lost_its_store_is_brought_up(
    open_group: OpenGroup, *, is_wiped: bool
) -> None:
    async with open_group() as group:
        leader, away = await group_that_forgets(group)
        if is_wiped:
            empty(away)
        again = await start(group, away.server.node_id)
        entry_id = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        assert again.machine.bodies == leader.machine.bodies
        await wait_until(lambda: engine_of(again).node.is_voter)
        first = engine_of(leader).log.layout.first_index
        kept = engine_of(again).log
        assert kept.layout.first_index == first > 1, "what the state shows stands from there on"
        end = Index(entry_id.index + 1)
        assert kept.entries(first, end) == engine_of(leader).log.entries(first, end)
        with pytest.raises(CompactedError, match=f"the log starts at entry {first}"):
            again.server.reader.get(Index(1))
        await again.stop()
        once_more = await start(group, away.server.node_id)
        entry_id = await leader.server.appender.append(b"and after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        assert once_more.machine.bodies == leader.machine.bodies
        assert engine_of(once_more).log.layout.first_index == first


async def without_snapshots(group: Group) -> tuple[Member, Member]:
    """Return the leader, and a follower that was stopped, whose log begins late and whose snapshots are gone."""
    for peer in group.peers:
        await start(group, peer.node_id)
    leader = await fill_and_take(group, 60)
    away = await group.follower()
    snapshotter = away.server.reader.snapshotter
    assert snapshotter is not None
    await wait_until(lambda: away.machine.applied_index == leader.machine.applied_index)
    assert await snapshotter.take()
    assert forget(away) > 1
    await away.stop()
    for path in snapshot_files(away):
        path.unlink()
    return leader, away


async def test_who_has_lost_all_snapshots_keeps_its_log_and_vote_and_gets_the_state(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group() as group:
        leader, away = await without_snapshots(group)
        await leader.server.appender.append(b"meanwhile", timeout_s=S)
        with caplog.at_level(logging.ERROR):
            again = await start(group, away.server.node_id)
        assert "state-lost" in caplog.text
        assert "the log begins with entry" in caplog.text
        assert engine_of(again).node.is_voter
        first = engine_of(again).log.layout.first_index
        entry_id = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        assert again.machine.bodies == leader.machine.bodies
        assert engine_of(again).log.layout.first_index == first > 1, "it was not begun anew"
        await again.stop()
        once_more = await start(group, away.server.node_id)
        assert once_more.machine.applied_index >= first


async def test_who_has_only_damaged_snapshots_gets_a_state_that_ends_before_them(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it fetched was removed for those as soon as it was there, and fetched again, for as long as nobody sent."""
    monkeypatch.setattr(snapshot_fetch, "BEHIND_PAUSE_S", 0.01)
    async with open_group() as group:
        leader, away = await with_later_snapshots(group)
        given = leader.server.reader.snapshotter
        assert given is not None
        for path in snapshot_files(away):
            assert int(path.name) > given.index
            path.write_bytes(damaged(path.read_bytes()))
        with caplog.at_level(logging.ERROR):
            again = await start(group, away.server.node_id)
        assert "state-lost" in caplog.text
        await wait_until(lambda: again.machine.applied_index == leader.machine.applied_index > 0)
        assert again.machine.bodies == leader.machine.bodies
        await again.stop()
        once_more = await start(group, away.server.node_id)
        assert once_more.machine.applied_index >= given.index


async def with_later_snapshots(group: Group) -> tuple[Member, Member]:
    """Return the leader, and a follower that was stopped, whose log begins late and whose snapshots end later."""
    for peer in group.peers:
        await start(group, peer.node_id)
    leader = await fill_and_take(group, 60)
    away = await group.follower()
    snapshotter = away.server.reader.snapshotter
    assert snapshotter is not None
    await wait_until(lambda: away.machine.applied_index == leader.machine.applied_index)
    assert await snapshotter.take()
    assert forget(away) > 1
    for _ in range(2):
        entry_id = await leader.server.appender.append(b"more", timeout_s=S)
        await wait_until(lambda: away.machine.applied_index >= entry_id.index)  # noqa: B023  it is awaited at once
        assert await snapshotter.take()
    await away.stop()
    return leader, away


async def test_who_has_lost_its_state_gets_it_while_nobody_leads_and_then_leads(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log may be the longest of those that are there: then nobody leads before it has a state."""
    monkeypatch.setattr(snapshot_fetch, "BEHIND_PAUSE_S", 0.01)
    async with open_group() as group:
        leader, away = await without_snapshots(group)
        other = next(each for each in group.members.values() if each not in {leader, away})
        await other.stop()
        engine_of(leader).node.let_lead(may_lead=False)
        await wait_until(lambda: engine_of(leader).node.role is Role.FOLLOWER)
        again = await start(group, away.server.node_id)
        await wait_until(lambda: again.server.is_serving)
        assert again.machine.bodies == leader.machine.bodies
        await again.server.appender.append(b"by the one that had lost its state", timeout_s=S)


async def test_who_has_lost_its_state_gets_it_though_it_never_stops_saving(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log comes all the time, other than that of a member which is behind the leader's start."""
    async with open_group() as group:
        leader, away = await without_snapshots(group)
        monkeypatch.setattr(Engine, "may_begin_anew", False)
        again = await start(group, away.server.node_id)
        await wait_until(lambda: again.machine.applied_index == leader.machine.applied_index > 0)
        assert again.machine.bodies == leader.machine.bodies


async def test_without_a_state_a_member_confirms_and_does_not_lead_and_says_what_it_waits_for(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No leader has a snapshot to give for a while."""
    monkeypatch.setattr(snapshot_fetch, "BEHIND_PAUSE_S", 0.01)
    async with open_group() as group:
        leader, away = await without_snapshots(group)
        other = next(each for each in group.members.values() if each not in {leader, away})
        given = leader.server.reader.snapshotter
        assert given is not None
        newest, given.newest = given.newest, None
        with caplog.at_level(logging.WARNING):
            again = await start(group, away.server.node_id)
            await wait_until(lambda: "waits-for-a-state" in caplog.text)
        assert "put a copy" in caplog.text
        await other.stop()
        entry_id = await leader.server.appender.append(b"confirmed by its log", timeout_s=S)
        assert engine_of(again).log.layout.last_index >= entry_id.index
        assert again.machine.applied_index == 0
        with pytest.raises(DLedgerError):
            await leader.server.transfer(again.server.node_id, timeout_s=S)
        given.newest = newest
        await wait_until(lambda: again.machine.applied_index >= entry_id.index)
        assert again.machine.bodies == leader.machine.bodies
        leadership = engine_of(leader).node._leader
        assert leadership is not None
        told = leadership.replication.peers[again.server.node_id]
        await wait_until(lambda: told.may_lead)
        await leader.server.transfer(again.server.node_id, timeout_s=S)
        await wait_until(lambda: again.server.is_serving)


class RefusesStates(KeptBodies):
    """Of an older version, which does not know the states that the others write."""

    def __init__(self) -> None:
        super().__init__()
        self.refused_count = 0

    def restore(self, chunks: Iterator[bytes]) -> None:
        self.applied_index, self.bodies = Index(0), []
        self.refused_count += bool(b"".join(chunks))
        raise SnapshotRefusedError("of a later version")


async def test_a_state_that_is_refused_is_not_fetched_again_at_once(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be gigabytes, and will be refused again."""
    monkeypatch.setattr(snapshot_fetch, "BEHIND_PAUSE_S", 0.01)
    monkeypatch.setattr(snapshot_fetch, "RETRY_S", 1e6)
    async with open_group() as group:
        leader, away = await without_snapshots(group)
        machine = RefusesStates()
        with caplog.at_level(logging.WARNING):
            again = await group.start(
                away.server.node_id, machine=machine, segment_size_bytes=SEGMENT_BYTES
            )
            await wait_until(lambda: "snapshot-not-fetched" in caplog.text)
        assert "of a later version" in caplog.text
        assert machine.refused_count == 1
        entry_id = await leader.server.appender.append(b"confirmed by its log", timeout_s=S)
        await wait_until(lambda: engine_of(again).log.layout.last_index >= entry_id.index)


async def test_a_group_goes_on_with_a_member_that_was_brought_up(open_group: OpenGroup) -> None:
    """It votes, confirms, and leads."""
    async with open_group() as group:
        leader, away = await group_that_forgets(group)
        again = await start(group, away.server.node_id)
        entry_id = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        await leader.stop()
        other = next(each for each in group.members.values() if each not in {leader, again})
        await group.leader()
        if not again.server.is_serving:
            await other.server.transfer(again.server.node_id, timeout_s=S)
        await wait_until(lambda: again.server.is_serving)
        entry_id = await again.server.appender.append(b"by the one that was away", timeout_s=S)
        await wait_until(lambda: other.machine.applied_index >= entry_id.index)
        assert again.machine.bodies == other.machine.bodies


async def test_a_fetch_is_no_faster_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 256 KiB that take 0.1 s each, at 1 MiB/s: the rest of their time is waited."""
    now, slept = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(snapshot_fetch, "now_s", lambda: now)
    monkeypatch.setattr(trio, "sleep", sleep)
    pace = TransferPace(1024 * 1024)
    for _ in range(8):
        now += 0.1
        await pace.after(256 * 1024)
    assert now == pytest.approx(2.0)
    assert slept == [pytest.approx(0.15)] * 8
    slept.clear()
    await TransferPace(0).after(256 * 1024)
    assert slept == [], "0: as fast as it comes"
