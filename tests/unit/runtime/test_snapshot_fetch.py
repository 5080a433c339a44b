"""A member with an empty store takes the leader's snapshot; what does not fit is refused, and it folds the log."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dledger.config import Peer
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.log_layout import LogLayout
from dledger.runtime import snapshotting
from dledger.runtime.clock import now_s
from dledger.runtime.snapshot_fetch import SnapshotFetch
from dledger.runtime.snapshotting import LENT_S, SnapshotPart
from dledger.state_machine import KeptPart
from dledger.storage.snapshots import KEPT_COUNT, SnapshotCopy, SnapshotFile, SnapshotStore
from dledger.storage.whole_snapshot import WholeSnapshot
from dledger.testing.sim_disk import SimDisk
from tests.unit.runtime.conftest import Group, Member, wait_until
from tests.unit.runtime.test_snapshotting import (
    KeptBodies,
    S,
    SealedBodies,
    fill_and_take,
    snapshot_files,
)

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]


@dataclass
class FakeDriver:
    """The part of a driver that a fetch sees: a member that follows n0."""

    applied_index: Index = NO_INDEX
    replaced: list[tuple[int, int | None]] = field(default_factory=list)
    is_voter: bool = False
    is_fold_held: bool = False

    @property
    def engine(self) -> Any:
        log = SimpleNamespace(layout=LogLayout())
        return SimpleNamespace(node=self, log=log, start_of_leader=None, lacks_state=False)

    leader_id = NodeId("n0")

    def hold_fold(self) -> None:
        assert not self.is_fold_held
        self.is_fold_held = True

    def release_fold(self) -> None:
        assert self.is_fold_held
        self.is_fold_held = False

    def state_replaced(self, index: Index, chain_crc: int | None) -> None:
        assert self.is_fold_held
        self.applied_index = index
        self.replaced.append((index, chain_crc))


class Snapshots:
    """The part of a snapshotter that a fetch sees."""

    newest: SnapshotFile | None = None

    def fetched(self, snapshot: SnapshotFile) -> None:
        self.newest = snapshot


class Fetching:
    """A fetch by n1 from the real n0."""

    def __init__(self, group: Group, source: Member) -> None:
        peers = (*group.peers, Peer(NodeId("n1"), "127.0.0.1", 1))
        config = source.config
        self.disk = SimDisk(Random(1))
        self.driver = FakeDriver()
        self.machine = KeptBodies()
        self.store = SnapshotStore(self.disk)
        self.snapshotter = Snapshots()
        raft = SimpleNamespace(node_id=NodeId("n1"))
        settings = SimpleNamespace(
            group=config.group,
            secret=config.secret,
            tls=config.tls,
            peers=peers,
            raft=raft,
            snapshot_fetch_bytes_per_s=0,
        )
        self.fetch = SnapshotFetch(
            settings,  # type: ignore[arg-type] # has what a fetch uses
            self.driver,  # type: ignore[arg-type]
            self.machine,
            store=self.store,
            snapshotter=self.snapshotter,  # type: ignore[arg-type]
            peer_of=lambda name: next((peer for peer in peers if peer.node_id == name), None),
        )

    async def run(self) -> None:
        with trio.fail_after(S):
            await self.fetch.spare_fold()


async def test_the_state_comes_over_and_is_kept(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        source = await fill_and_take(group)
        fetching = Fetching(group, source)
        await fetching.run()
        assert fetching.machine.bodies == source.machine.bodies
        (kept,) = snapshot_files(source)
        file = fetching.disk.open(f"snapshots/{kept.name}")
        assert file.read_at(0, file.size()) == kept.read_bytes()
        assert source.server.reader.snapshotter is not None
        newest = source.server.reader.snapshotter.newest
        assert newest is not None
        assert fetching.driver.replaced == [(newest.meta.index, newest.meta.chain_crc)]
        assert fetching.snapshotter.newest is not None
        assert fetching.snapshotter.newest.meta == newest.meta


async def test_a_state_with_parts_comes_as_one_file(open_group: OpenGroup) -> None:
    """A member of the version before could take it in as well: here one that knows of no parts does."""
    async with open_group(size=1) as group:
        await group.start("n0", machine=SealedBodies())
        source = await fill_and_take(group, count=9)
        fetching = Fetching(group, source)
        fetching.machine = machine = FramesOnly()
        fetching.fetch._machine = machine
        await fetching.run()
        assert machine.bodies == source.machine.bodies
        (name,) = fetching.disk.list("snapshots")
        assert fetching.disk.content(f"snapshots/{name}")[4:6] == (1).to_bytes(2, "big")


class FramesOnly(SealedBodies):
    """Takes in nothing but bytes."""

    def restore_sealed(self, chunks: Iterator[bytes | KeptPart]) -> None:
        given = list(chunks)
        assert all(isinstance(chunk, bytes) for chunk in given)
        super().restore_sealed(iter(given))


async def test_a_large_state_comes_in_parts(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        leader = await group.leader()
        for number in range(8):
            await leader.server.appender.append(bytes([number]) * 200_000, timeout_s=S)
        fetching = Fetching(group, await fill_and_take(group))
        await fetching.run()
        assert fetching.machine.bodies == leader.machine.bodies


async def test_what_is_fetched_is_kept_until_nobody_asks_for_it(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that began anew whenever two more were taken meanwhile would never end."""
    passed_s, real_s = 0.0, now_s()
    monkeypatch.setattr(snapshotting, "now_s", lambda: real_s + passed_s)
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        leader = await group.leader()
        for number in range(4):
            await leader.server.appender.append(bytes([number]) * 200_000, timeout_s=S)
        source = await fill_and_take(group)
        snapshotter = source.server.reader.snapshotter
        assert snapshotter is not None
        begun = await snapshotter.part(NO_INDEX, 0)
        wanted = next(Path(p) for p in snapshot_files(source)).read_bytes()
        got = begun.data
        while len(got) < begun.size_bytes:
            await fill_and_take(group, 1)
            passed_s += LENT_S - 1
            part = await snapshotter.part(begun.index, len(got))
            assert (part.index, part.offset) == (begun.index, len(got))
            got += part.data
        assert got == wanted
        assert snapshotter.index > begun.index
        passed_s += LENT_S + 1
        await fill_and_take(group, 1)
        assert begun.index not in {int(path.name) for path in snapshot_files(source)}
        part = await snapshotter.part(begun.index, 1)
        assert (part.index, part.offset) == (snapshotter.index, 0), "it begins anew"


async def test_who_asks_again_while_a_snapshot_is_read_waits_for_the_same_reading(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes longer than anybody waits for an answer: each try would take a thread, and read all of it."""
    reading, goes_on = threading.Event(), threading.Event()
    read: list[SnapshotFile] = []
    whole = SnapshotStore.whole

    def read_slowly(store: SnapshotStore, snapshot: SnapshotFile) -> WholeSnapshot:
        read.append(snapshot)
        reading.set()
        goes_on.wait(S)
        return whole(store, snapshot)

    monkeypatch.setattr(SnapshotStore, "whole", read_slowly)
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        source = await fill_and_take(group)
        snapshotter = source.server.reader.snapshotter
        assert snapshotter is not None
        parts: list[SnapshotPart] = []

        async def ask() -> None:
            parts.append(await snapshotter.part(NO_INDEX, 0))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await wait_until(reading.is_set)
            first = snapshotter.index
            for _ in range(3):  # it stays, however many come
                await fill_and_take(group, 1)
            goes_on.set()
        assert snapshotter.index > first
        assert [each.meta.index for each in read] == [first]
        assert [part.index for part in parts] == [first] * 3
        assert (await snapshotter.part(NO_INDEX, 0)).index == snapshotter.index


async def test_what_was_read_whole_is_forgotten_with_its_snapshot(open_group: OpenGroup) -> None:
    """Where nobody fetches, too: a node without room on its disk asks each second whether the newest one is whole."""
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        source = await fill_and_take(group)
        snapshotter = source.server.reader.snapshotter
        assert snapshotter is not None
        for _ in range(4):
            assert await snapshotter.whole_index() == snapshotter.index
            await fill_and_take(group, 1)
        assert len(snapshotter._whole) <= KEPT_COUNT


async def test_without_a_snapshot_or_with_an_older_one_nothing_happens(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        await group.leader()
        fetching = Fetching(group, group.members[NodeId("n0")])
        await fetching.run()
        assert not fetching.driver.replaced
        await fill_and_take(group)
        ahead = Fetching(group, group.members[NodeId("n0")])
        ahead.driver.applied_index = Index(1000)
        await ahead.run()
        assert not ahead.driver.replaced
        assert ahead.disk.list("snapshots") == []


async def test_a_voter_fetches_nothing(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        fetching = Fetching(group, await fill_and_take(group))
        fetching.driver.is_voter = True
        await fetching.run()
        assert not fetching.driver.replaced


async def test_a_disk_that_fails_at_the_end_leaves_nothing_aside_and_the_log_is_folded(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        fetching = Fetching(group, await fill_and_take(group))
        begin = fetching.store.begin_copy

        def begin_failing(index: Index) -> SnapshotCopy:
            copy = begin(index)
            fetching.disk.fail_sync()
            return copy

        monkeypatch.setattr(fetching.store, "begin_copy", begin_failing)
        with caplog.at_level(logging.WARNING):
            await fetching.run()
        assert "snapshot-not-fetched" in caplog.text
        assert not fetching.driver.replaced
        assert fetching.disk.list("snapshots") == []


@pytest.mark.parametrize(
    ("is_noticed", "event"), [(True, "snapshot-refused"), (False, "snapshot-not-fetched")]
)
async def test_a_damaged_file_is_refused_and_the_log_is_folded(
    open_group: OpenGroup,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_noticed: bool,
    event: str,
) -> None:
    if not is_noticed:  # by who gives it: it is damaged on the way
        part = WholeSnapshot.part
        monkeypatch.setattr(WholeSnapshot, "part", lambda *given: damaged(part(*given)))
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        source = await fill_and_take(group)
        if is_noticed:
            (kept,) = snapshot_files(source)
            kept.write_bytes(damaged(kept.read_bytes()))
        fetching = Fetching(group, source)
        with caplog.at_level(logging.WARNING):
            await fetching.run()
        assert event in caplog.text
        assert not fetching.driver.replaced
        assert fetching.machine.applied_index == NO_INDEX
        assert fetching.disk.list("snapshots") == []


async def test_a_copy_that_cannot_be_read_back_leaves_an_empty_machine_that_knows_it(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It had folded some entries already: the next one to be given is the first again."""

    def no_more_files(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        fetching = Fetching(group, await fill_and_take(group))
        fetching.machine.applied_index = fetching.driver.applied_index = Index(1)
        monkeypatch.setattr(fetching.store, "chunks", lambda _: map(no_more_files, [1]))
        with caplog.at_level(logging.WARNING):
            await fetching.run()
        assert "Too many open files" in caplog.text
        assert fetching.machine.applied_index == fetching.driver.applied_index == NO_INDEX


def damaged(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[60] ^= 1
    return bytes(changed)


async def test_a_wiped_member_of_a_real_group_has_the_same_state_again(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        for peer in group.peers:
            await group.start(peer.node_id, machine=KeptBodies())
        leader = await fill_and_take(group, 50)
        victim = await group.follower()
        await victim.stop()
        empty(victim)
        again = await group.start(victim.server.node_id, machine=KeptBodies())
        entry_id = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(entry_id.index)
        assert again.machine.bodies == leader.machine.bodies


def empty(member: Member) -> None:
    for path in sorted(Path(member.config.store_path).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
