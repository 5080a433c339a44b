"""Members drop what the group has forgotten, as far as their snapshots and their followers allow."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dledger import Entry, ForgettingMachine
from dledger.errors import DiskFullError
from dledger.forgetting import ForgettingBounds, covered_index, first_to_keep
from dledger.raft.ids import Index
from dledger.runtime import forgetting, snapshotting
from dledger.runtime.forgetting import Forgetting
from dledger.runtime.snapshotting import Snapshotter
from dledger.storage.log_start import FrontDrop
from dledger.storage.snapshots import SnapshotFile, SnapshotStore
from dledger.storage.whole_snapshot import WholeSnapshot
from tests.unit.runtime.conftest import Group, Member, wait_until
from tests.unit.runtime.test_behind_the_start import engine_of
from tests.unit.runtime.test_snapshotting import KeptBodies, S, fill_and_take, snapshot_files

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
SEGMENT_BYTES = 600
KEPT = 10
FORGET, TAKE = Forgetting.run, Snapshotter.run


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members neither take snapshots nor forget by themselves: the tests do it for them."""

    async def nothing(_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Snapshotter, "run", nothing)
    monkeypatch.setattr(Forgetting, "run", nothing)


class ForgetsBodies(KeptBodies):
    """Needs its last entries only."""

    keep_from = Index(1)

    def apply(self, entries: Sequence[Entry]) -> None:
        super().apply(entries)
        self.keep_from = Index(max(self.keep_from, self.applied_index - KEPT))

    def restore(self, chunks: Iterator[bytes]) -> None:
        super().restore(chunks)
        self.keep_from = Index(max(1, self.applied_index - KEPT))


async def start(group: Group, node_id: str) -> Member:
    return await group.start(node_id, machine=ForgetsBodies(), segment_size_bytes=SEGMENT_BYTES)


def snapshotter_of(member: Member) -> Snapshotter:
    snapshotter = member.server.reader.snapshotter
    assert snapshotter is not None
    return snapshotter


def forgetting_of(member: Member, *, catch_up_bytes_max: int = 1 << 30) -> Forgetting:
    machine = member.machine
    assert isinstance(machine, ForgetsBodies)
    config = replace(member.config, catch_up_bytes_max=catch_up_bytes_max)
    return Forgetting(config, machine, engine_of(member), snapshotter_of(member))


def first_of(member: Member) -> Index:
    return engine_of(member).log.layout.first_index


async def test_only_what_both_snapshots_contain_is_dropped(open_group: OpenGroup) -> None:
    """One of them may turn out to be damaged, also where nobody else has the state."""
    async with open_group(size=1) as group:
        await start(group, "n0")
        member = await fill_and_take(group, 20)
        forgets = forgetting_of(member)
        assert isinstance(member.machine, ForgettingMachine)
        older_index = snapshotter_of(member).index
        assert not await forgets.forget()
        await fill_and_take(group, 40)
        assert await forgets.forget()
        assert 1 < first_of(member) <= older_index + 1
        assert forgets.dropped_bytes == engine_of(member).log.layout.first_position
        assert not await forgets.forget()
        await fill_and_take(group, 1)
        assert await forgets.forget()
        machine = member.machine
        assert isinstance(machine, ForgetsBodies)
        assert older_index < first_of(member) <= machine.keep_from
        await member.stop()
        again = await start(group, "n0")
        await group.leader()
        assert again.machine.bodies == member.machine.bodies
        assert snapshotter_of(again).older is not None, "known again after a start"


async def test_a_snapshot_is_asked_for_where_one_is_in_the_way(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await start(group, "n0")
        leader = await group.leader()
        for number in range(60):
            await leader.server.appender.append(b"%d" % number, timeout_s=S)
        snapshotter = snapshotter_of(leader)
        forgets = forgetting_of(leader)
        assert not snapshotter._is_due()
        assert not await forgets.forget()
        assert snapshotter._is_due(), "though the log has not grown by 256 MiB"
        assert await snapshotter.take()
        assert not snapshotter._is_due()
        await leader.server.appender.append(b"more", timeout_s=S)
        assert not await forgets.forget()
        assert await snapshotter.take()
        assert await forgets.forget()


async def test_a_leader_keeps_what_a_connected_follower_lacks_up_to_a_bound(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        for peer in group.peers:
            await start(group, peer.node_id)
        await fill_and_take(group, 30)
        leader = await fill_and_take(group, 30)
        engine = engine_of(leader)
        last = engine.log.last_id.index
        await group.wait_applied(last)
        view = next(iter(engine.node.progress().values()))
        slow = replace(view, match_index=Index(3))
        views = {view.node_id: slow}

        def first(bytes_max: int, now_ms: int) -> Index:
            bounds = ForgettingBounds(bytes_max, connected_ms=1000)
            return first_to_keep(engine, last, covered=last, bounds=bounds, now_ms=now_ms)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.node, "progress", lambda: views)
            assert first(1 << 30, slow.answered_ms) == 4
            assert first(100, slow.answered_ms) == last, "it gets a snapshot"
            assert first(1 << 30, slow.answered_ms + 1001) == last, "it is away"


async def test_followers_drop_by_themselves_and_the_group_goes_on(open_group: OpenGroup) -> None:
    async with open_group() as group:
        for peer in group.peers:
            await start(group, peer.node_id)
        leader = await group.leader()
        for turn in range(3):
            for number in range(30):
                entry_id = await leader.server.appender.append(b"%d" % number, timeout_s=S)
            await group.wait_applied(entry_id.index)
            await wait_until(
                lambda: all(
                    engine_of(each).log.durable_index >= each.machine.applied_index
                    for each in group.members.values()
                )
            )
            for member in group.members.values():
                assert await snapshotter_of(member).take(), turn
                await forgetting_of(member).forget()
        assert all(first_of(member) > 30 for member in group.members.values())
        entry_id = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        bodies = [member.machine.bodies for member in group.members.values()]
        assert bodies[0] == bodies[1] == bodies[2]


async def test_a_disk_that_does_not_take_the_new_start_is_tried_again(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Full, or failing: the files stay, and so does the member."""
    failures: list[Exception] = [DiskFullError("no room"), OSError(errno.EIO, "broken")]
    run = FrontDrop.run

    def fail_first(drop: FrontDrop) -> None:
        if failures:
            raise failures.pop()
        run(drop)

    monkeypatch.setattr(FrontDrop, "run", fail_first)
    monkeypatch.setattr(forgetting, "RETRY_S", 0.01)
    async with open_group(size=1) as group:
        await start(group, "n0")
        await fill_and_take(group, 30)
        member = await fill_and_take(group, 30)
        with caplog.at_level(logging.WARNING):
            assert await forgetting_of(member).forget()
        assert caplog.text.count("not-forgotten") == 2
        assert first_of(member) > 1
        await member.stop()
        again = await start(group, "n0")
        await group.leader()
        assert first_of(again) == first_of(member)


async def test_a_damaged_snapshot_is_given_up_before_another_member_gets_it(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        _, snapshotter, newest, older = await with_two_snapshots(group)
        with pytest.MonkeyPatch.context() as patch:
            whole = snapshotter._store.whole

            def damaged(snapshot: SnapshotFile) -> WholeSnapshot:
                if snapshot == newest:
                    raise OSError(errno.EIO, "unreadable")
                return whole(snapshot)

            patch.setattr(snapshotter._store, "whole", damaged)
            part = await snapshotter.part(Index(0), 0)
        assert part.index == older.meta.index
        assert snapshotter._is_due(), "another one is taken soon"
        assert await snapshotter.take()


async def test_a_snapshot_that_was_given_up_does_not_cost_the_good_one_before_it(
    open_group: OpenGroup,
) -> None:
    """The log was dropped up to the older one: with the next one there must be two good ones again."""
    async with open_group(size=1) as group:
        member, snapshotter, newest, good = await with_two_snapshots(group)
        damage(member, newest)
        assert (await snapshotter.part(Index(0), 0)).index == good.meta.index
        await fill_and_take(group, 1)
        assert snapshotter.older == good
        assert Path(good.path).name in {path.name for path in snapshot_files(member)}
        await fill_and_take(group, 1)
        names = {path.name for path in snapshot_files(member)}
        wanted = (*kept(snapshotter), good)  # which somebody fetches
        assert names == {f"{each.meta.index:020d}" for each in wanted}


async def test_a_snapshot_that_is_damaged_while_it_is_given_out_is_given_up(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        member, snapshotter, newest, older = await with_two_snapshots(group)
        assert (await snapshotter.part(Index(0), 0)).index == newest.meta.index
        damage(member, newest)
        assert (await snapshotter.part(Index(0), 0)).index == 0
        assert (await snapshotter.part(Index(0), 0)).index == older.meta.index
        assert snapshotter._is_due(), "another one is taken soon"


async def test_a_snapshot_is_not_given_up_for_want_of_descriptors(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(store: SnapshotStore, snapshot: SnapshotFile) -> WholeSnapshot:
        raise OSError(errno.EMFILE, "too many open files")

    async with open_group(size=1) as group:
        _, snapshotter, newest, _ = await with_two_snapshots(group)
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotStore, "whole", none_left)
            assert (await snapshotter.part(Index(0), 0)).index == 0
        assert (await snapshotter.part(Index(0), 0)).index == newest.meta.index


def damage(member: Member, snapshot: SnapshotFile) -> None:
    """Flip a bit of a snapshot's state."""
    path = Path(member.config.store_path, snapshot.path)
    data = bytearray(path.read_bytes())
    data[-12] ^= 1
    path.write_bytes(data)


async def with_two_snapshots(
    group: Group,
) -> tuple[Member, Snapshotter, SnapshotFile, SnapshotFile]:
    """Start a group of one, and let it take two; return it, and the newer and the older of them."""
    await start(group, "n0")
    await fill_and_take(group, 5)
    member = await fill_and_take(group, 5)
    snapshotter = snapshotter_of(member)
    newest, older = snapshotter.newest, snapshotter.older
    assert newest is not None
    assert older is not None
    return member, snapshotter, newest, older


def kept(snapshotter: Snapshotter) -> list[SnapshotFile]:
    """The snapshots that a member relies on."""
    return [each for each in (snapshotter.newest, snapshotter.older) if each is not None]


async def test_a_place_that_cannot_be_looked_up_ends_neither_forgetting_nor_snapshots(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forgetting, "CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(forgetting, "RETRY_S", 0.001)
    monkeypatch.setattr(snapshotting, "CHECK_INTERVAL_S", 0.001)
    asked = Counter[str]()

    def refused(name: str) -> bool:
        asked[name] += 1
        raise OSError(errno.EMFILE, "Too many open files")

    async def forget() -> bool:
        return refused("forgetting")

    async with open_group(size=1) as group:
        await start(group, "n0")
        member = await fill_and_take(group, 5)
        snapshotter, forgets = snapshotter_of(member), forgetting_of(member)
        monkeypatch.setattr(forgets, "forget", forget)
        monkeypatch.setattr(snapshotter, "_is_due", lambda: refused("snapshots"))
        with caplog.at_level(logging.WARNING):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FORGET, forgets)
                nursery.start_soon(TAKE, snapshotter)
                await wait_until(lambda: min(asked["forgetting"], asked["snapshots"]) > 2)
                nursery.cancel_scope.cancel()
        assert "not-forgotten" in caplog.text
        assert "Too many open files" in caplog.text


async def test_a_full_disk_does_not_stay_full_for_want_of_a_second_snapshot(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(store: SnapshotStore, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    async with open_group(size=1) as group:
        await start(group, "n0")
        member = await fill_and_take(group, 40)
        snapshotter, forgets = snapshotter_of(member), forgetting_of(member)
        await member.server.appender.append(b"more", timeout_s=S)
        assert not await forgets.forget()
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotStore, "check_room", no_room)
            assert not await snapshotter.take()
            patch.setattr(SnapshotStore, "whole", no_room)
            assert not await forgets.forget(), "not by one that cannot be read"
        await snapshotter.take()
        await member.server.appender.append(b"more", timeout_s=S)
        monkeypatch.setattr(SnapshotStore, "check_room", no_room)
        assert not await snapshotter.take()
        assert await forgets.forget()
        assert first_of(member) > 1


def test_one_snapshot_covers_nothing() -> None:
    assert covered_index(None, None) == 0
