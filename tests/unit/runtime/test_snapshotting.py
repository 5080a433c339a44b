"""A member takes snapshots and starts from them; damaged and foreign ones are refused."""

from __future__ import annotations

import errno
import io
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgpack
import msgspec
import pytest
import trio
from crc32c import crc32c

from dledger.errors import CompactedError, CorruptionError, EntryDamagedError, OutOfRangeError
from dledger.raft.entry import EntryKind
from dledger.raft.ids import NO_INDEX, Index
from dledger.runtime.clock import now_s
from dledger.runtime.snapshotting import Snapshotter
from dledger.starting_state import restore_newest
from dledger.state_machine import (
    KeptPart,
    PreparingMachine,
    SealedPart,
    SealingMachine,
    SnapshotMachine,
    SnapshotOvertakenError,
    SnapshotRefusedError,
    StoredPart,
)
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.snapshots import SnapshotStore
from dledger.testing.check_log_store import flush, new_entries
from tests.unit.runtime.conftest import BodiesMachine, Group, Member

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
S = 60.0


class KeptBodies(BodiesMachine):
    """Bodies that can be written down."""

    def digest(self) -> int:
        return int(crc32c(repr((self.applied_index, self.bodies)).encode()))

    def snapshot(self) -> Iterator[bytes]:
        data = msgspec.msgpack.encode((self.applied_index, self.bodies))
        return iter([data[:3], data[3:]])

    def restore(self, chunks: Iterator[bytes]) -> None:
        self.applied_index, self.bodies = NO_INDEX, []
        try:
            index, self.bodies = msgspec.msgpack.decode(
                b"".join(chunks), type=tuple[int, list[bytes]]
            )
        except msgspec.DecodeError as error:
            raise SnapshotRefusedError(str(error)) from error
        self.applied_index = Index(index)


async def fill_and_take(group: Group, count: int = 5) -> Member:
    leader = await group.leader()
    for number in range(count):
        await leader.server.appender.append(b"%d" % number, timeout_s=S)
    assert leader.server.reader.snapshotter is not None
    assert await leader.server.reader.snapshotter.take()
    return leader


def snapshot_files(member: Member) -> list[Path]:
    return list(Path(member.config.store_path, "snapshots").iterdir())


async def restarted(group: Group, member: Member) -> Member:
    await member.stop()
    again = await group.start(member.server.node_id, machine=KeptBodies())
    await group.leader()
    return again


async def test_a_restart_goes_on_from_the_snapshot(open_group: OpenGroup) -> None:
    assert isinstance(KeptBodies(), SnapshotMachine)
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        taken_index = member.machine.applied_index
        await member.server.appender.append(b"later", timeout_s=S)
        again = await restarted(group, member)
        assert again.machine.bodies == [b"0", b"1", b"2", b"3", b"4", b"later"]
        # Folded were only the entries after the snapshot.
        assert sum(again.machine.chunk_sizes) == again.machine.applied_index - taken_index


async def test_what_a_member_starts_with_can_be_read_before_anybody_leads(
    open_group: OpenGroup,
) -> None:
    """Its readers know from the state where everything is; what is not given to them they take for removed."""
    async with open_group(size=3) as group:
        for peer in group.peers:
            await group.start(peer.node_id, machine=KeptBodies())
        member = await fill_and_take(group)
        index = member.machine.applied_index
        for each in list(group.members.values()):
            await each.stop()
        again = await group.start(member.server.node_id, machine=KeptBodies())
        server = again.server
        assert server.reader.applied_index == server.reader.commit_index == index
        found = server.reader.get_range(Index(1), count_max=100, bytes_max=1 << 20)
        bodies = [entry.body for entry in found if entry.kind is EntryKind.NORMAL]
        assert bodies == again.machine.bodies
        assert server.reader.entry_at(found[-1].position) == found[-1]
        with pytest.raises(OutOfRangeError):
            server.reader.get(Index(index + 1))


async def test_what_a_fetched_state_contains_and_the_log_does_not_is_not_here_yet(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        server = member.server
        end_position = server.reader.committed_position
        last = server.reader.commit_index
        assert server._standing.driver is not None
        assert server.reader.is_current
        server._standing.driver.state_replaced(Index(last + 5), None)
        assert server.reader.is_current, "it has applied what is committed, and more"
        asks: tuple[Callable[[], object], ...] = (
            lambda: server.reader.get(Index(last + 1)),
            lambda: server.reader.entry_at(end_position),
        )
        for ask in asks:
            with pytest.raises(EntryDamagedError, match="has yet to come"):
                ask()
        with pytest.raises(OutOfRangeError):
            server.reader.get(Index(last + 6))
        assert server.reader.get(last).index == last
    assert not server.reader.is_current, "it has stopped"


async def test_a_damaged_snapshot_is_named_and_the_older_one_used(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        older_index = member.machine.applied_index
        await fill_and_take(group)
        await member.stop()
        newest = max(snapshot_files(member))
        data = bytearray(newest.read_bytes())
        data[-12] ^= 1
        newest.write_bytes(data)
        with caplog.at_level(logging.ERROR):
            again = await restarted(group, member)
        assert "snapshot-refused" in caplog.text
        assert newest.name in caplog.text
        assert "byte" in caplog.text
        assert len(again.machine.bodies) == 10
        assert sum(again.machine.chunk_sizes) == again.machine.applied_index - older_index


async def test_a_snapshot_that_fails_is_tried_again_later_and_later_and_told_when_it_works(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk without room for it fails each try, and the log has grown enough for one all the while."""
    passed_s = 0.0
    has_room = False
    real_s = now_s()

    def check_room(store: SnapshotStore, size_bytes: int) -> None:
        if not has_room:
            raise OSError(errno.ENOSPC, "no room")

    async def take_none(_: Snapshotter) -> None:
        await (
            trio.sleep_forever()
        )  # else it would look each second, and try between the tries of the test

    monkeypatch.setattr(Snapshotter, "run", take_none)
    monkeypatch.setattr(SnapshotStore, "check_room", check_room)
    async with open_group(size=1) as group:
        member = await group.start("n0", machine=KeptBodies())
        await (await group.leader()).server.appender.append(bytes(1000), timeout_s=S)
        snapshotter = member.server.reader.snapshotter
        assert snapshotter is not None
        monkeypatch.setattr("dledger.runtime.snapshotting.now_s", lambda: real_s + passed_s)
        monkeypatch.setattr(
            snapshotter, "_config", replace(snapshotter._config, snapshot_log_bytes=100)
        )
        with caplog.at_level(logging.WARNING):
            for pause_s in (30, 60, 120, 240, 300, 300):
                assert snapshotter._is_due()
                assert not await snapshotter.take()
                passed_s += pause_s - 0.5
                assert not snapshotter._is_due()
                passed_s += 1
            assert caplog.text.count("snapshot-given-up") == 6
            has_room = True
            assert await snapshotter.take()
        assert "snapshot-taken" in caplog.text


async def test_a_snapshot_that_came_while_an_own_one_was_written_stays_the_newest(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        snapshotter = member.server.reader.snapshotter
        assert snapshotter is not None
        assert snapshotter.newest is not None
        meta = snapshotter.newest.meta
        further = replace(snapshotter.newest, meta=replace(meta, index=Index(meta.index + 100)))
        await member.server.appender.append(b"later", timeout_s=S)
        wait = snapshotter._wait_durable

        async def wait_and_fetch(index: Index) -> None:
            await wait(index)
            snapshotter.fetched(further)

        monkeypatch.setattr(snapshotter, "_wait_durable", wait_and_fetch)
        assert await snapshotter.take()
        assert snapshotter.newest == further
        assert snapshotter.older is not None
        assert meta.index < snapshotter.older.meta.index < further.meta.index


async def test_without_any_good_snapshot_the_whole_log_is_folded(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        await member.stop()
        for path in snapshot_files(member):
            path.write_bytes(b"nonsense")
        again = await restarted(group, member)
        assert again.machine.bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert sum(again.machine.chunk_sizes) == again.machine.applied_index


async def test_a_snapshot_of_another_log_is_refused(
    open_group: OpenGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        await member.stop()
        (snapshot,) = snapshot_files(member)
        data = snapshot.read_bytes()
        shutil.move(member.config.store_path, tmp_path / "old")
        fresh = await group.start("n0", machine=KeptBodies())
        for _ in range(8):
            await (await group.leader()).server.appender.append(b"other", timeout_s=S)
        await fresh.stop()
        snapshot.write_bytes(data)
        with caplog.at_level(logging.ERROR):
            again = await restarted(group, fresh)
        assert "is another one" in caplog.text
        assert again.machine.bodies == [b"other"] * 8


async def test_a_machine_whose_digest_differs_afterwards_starts_anew(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(KeptBodies):
        def restore(self, chunks: Iterator[bytes]) -> None:
            super().restore(chunks)
            self.bodies = self.bodies[1:]

    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        await member.stop()
        with caplog.at_level(logging.ERROR):
            again = await group.start("n0", machine=Forgetful())
            await group.leader()
        assert "digest" in caplog.text
        assert again.machine.bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_log_without_its_beginning_goes_on_from_a_snapshot_that_reaches_it(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        bodies = await forgets_what_the_snapshot_has(group, member)
        again = await restarted(group, member)
        assert again.machine.bodies == bodies
        first = again.server.status.statistics().first_index
        assert first > 1
        with pytest.raises(CompactedError, match=f"the log starts at entry {first}"):
            again.server.reader.get(Index(first - 1))
        assert again.server.reader.get(Index(first)).index == first


async def test_a_log_without_its_beginning_and_without_a_snapshot_is_refused_with_what_to_do(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        member = await fill_and_take(group)
        await forgets_what_the_snapshot_has(group, member)
    for path in snapshot_files(member):
        path.unlink()
    disk = PosixDisk(member.config.store_path)
    log = SegmentedLog.open(disk)
    with pytest.raises(CorruptionError, match=r"no whole snapshot reaches it: put a copy"):
        restore_newest(SnapshotStore(disk), KeptBodies(), log)
    log.close()


async def forgets_what_the_snapshot_has(group: Group, member: Member) -> list[bytes]:
    """Stop a member whose log is dropped up to its snapshot, and rolls its segments often; return its bodies."""
    taken_index = member.machine.applied_index
    bodies = list(member.machine.bodies)
    await member.stop()
    disk = PosixDisk(member.config.store_path)
    log = SegmentedLog.open(disk, segment_size_bytes=200)
    for _ in range(4):
        log.append(new_entries(log, log.last_id.term, [150]))
        bodies.append(log.entries(log.last_id.index, Index(log.last_id.index + 1))[0].body)
        flush(log)
    drop = log.drop_before(Index(taken_index + 1))
    assert drop is not None
    drop.run()
    log.close()
    return bodies


class SealedBodies(KeptBodies):
    """Bodies of which every four are a part that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[SealedPart] = []
        self.known: list[StoredPart] = []

    def part(self, number: int) -> SealedPart:
        while number >= len(self.parts):
            place = 4 * len(self.parts)
            self.parts.append(
                SealedPart(
                    lambda place=place: (  # type: ignore[misc]  # it cannot infer the type
                        msgspec.msgpack.encode(body) for body in self.bodies[place : place + 4]
                    )
                )
            )
        return self.parts[number]

    def sealed_snapshot(self) -> Iterator[bytes | SealedPart]:
        count = len(self.bodies)
        yield msgspec.msgpack.encode(self.applied_index)
        for number in range(count // 4):
            yield self.part(number)
        for body in self.bodies[count - count % 4 :]:
            yield msgspec.msgpack.encode(body)

    def restore_sealed(self, chunks: Iterator[bytes | KeptPart]) -> None:
        self.applied_index, self.bodies = NO_INDEX, []
        for chunk in chunks:
            if not isinstance(chunk, bytes):
                self.known.append(chunk.stored)
                self.bodies += msgpack.Unpacker(io.BytesIO(b"".join(chunk.chunks())))
            elif not self.applied_index:
                self.applied_index = Index(msgspec.msgpack.decode(chunk, type=int))
            else:
                self.bodies.append(msgspec.msgpack.decode(chunk, type=bytes))


def part_files(member: Member) -> set[str]:
    return {path.name for path in snapshot_files(member) if not path.name.isdigit()}


async def test_parts_are_written_once_and_a_restart_knows_them(open_group: OpenGroup) -> None:
    assert isinstance(SealedBodies(), SealingMachine)
    async with open_group(size=1) as group:
        await group.start("n0", machine=SealedBodies())
        member = await fill_and_take(group, count=9)
        files = part_files(member)
        assert len(files) == 4
        member = await fill_and_take(group, count=4)
        assert part_files(member) > files
        assert len(part_files(member)) == 6
        bodies = member.machine.bodies
        await member.stop()
        machine = SealedBodies()
        again = await group.start("n0", machine=machine)
        assert again.machine.bodies == bodies
        assert [part.number for part in machine.known] == [1, 2, 3]


async def test_a_part_that_is_damaged_in_both_files_costs_the_snapshot_and_not_the_start(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=SealedBodies())
        member = await fill_and_take(group, count=9)
        older_parts = part_files(member)
        await fill_and_take(group, count=4)
        bodies = list(member.machine.bodies)
        await member.stop()
        for path in snapshot_files(member):
            if path.name in part_files(member) - older_parts:
                data = bytearray(path.read_bytes())
                data[-12] ^= 1
                path.write_bytes(data)
        # The background's look at parts would stop the node for one that is lost and held: here none is.
        disk = PosixDisk(member.config.store_path)
        log, store = SegmentedLog.open(disk), SnapshotStore(disk)
        restore_newest(store, SealedBodies(), log)
        log.close()
        assert not store.in_use.lost
        assert store.in_use.unverified() is None
        with caplog.at_level(logging.ERROR):
            again = await group.start("n0", machine=SealedBodies())
        assert "snapshot-refused" in caplog.text
        await group.leader()
        assert again.machine.bodies == bodies
        assert sum(again.machine.chunk_sizes) >= 4, "the older one was used"


class SlowlyGathered(KeptBodies):
    """Bodies that are gathered in steps, for the last of which the fold must stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.free_steps = 3
        self.held_at: list[int] = []
        self.fails_while_held = False

    def prepare_snapshot(self) -> Iterator[bool]:
        for _ in range(self.free_steps):
            yield False
        yield True
        for _ in range(50):
            self.held_at.append(self.applied_index)
            yield True
        if self.fails_while_held:
            raise SnapshotOvertakenError("as a test wants it")


async def test_entries_are_applied_while_a_state_is_gathered_but_not_at_its_moment(
    open_group: OpenGroup,
) -> None:
    machine = SlowlyGathered()
    assert isinstance(machine, PreparingMachine)
    async with open_group(size=1) as group:
        await group.start("n0", machine=machine)
        leader = await group.leader()
        snapshotter = leader.server.reader.snapshotter
        assert snapshotter is not None
        await leader.server.appender.append(b"before", timeout_s=S)
        machine.free_steps = 10**9
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshotter.take)
            await leader.server.appender.append(b"while it is gathered", timeout_s=S)
            nursery.cancel_scope.cancel()
        machine.free_steps = 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshotter.take)
            for number in range(20):
                nursery.start_soon(
                    partial(leader.server.appender.append, b"%d" % number, timeout_s=S)
                )
        assert len(machine.held_at) == 50
        assert len(set(machine.held_at)) == 1
        assert snapshotter.index == machine.held_at[0]
        assert snapshotter.held_ms > 0
        assert len(machine.bodies) == 22


async def test_the_fold_goes_on_where_the_state_could_not_be_gathered(
    open_group: OpenGroup,
) -> None:
    machine = SlowlyGathered()
    machine.fails_while_held = True
    async with open_group(size=1) as group:
        await group.start("n0", machine=machine)
        leader = await group.leader()
        await leader.server.appender.append(b"before", timeout_s=S)
        assert leader.server.reader.snapshotter is not None
        assert not await leader.server.reader.snapshotter.take()
        await leader.server.appender.append(b"after", timeout_s=S)
        assert machine.bodies == [b"before", b"after"]


class KeepsGathered(SlowlyGathered):
    """Notes what it has gathered until that is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[bytes] | None = None

    def prepare_snapshot(self) -> Iterator[bool]:
        yield from super().prepare_snapshot()
        self.gathered = list(super().snapshot())

    def snapshot(self) -> Iterator[bytes]:
        assert self.gathered is not None
        gathered, self.gathered = self.gathered, None
        return iter(gathered)


async def test_what_was_gathered_does_not_stay_with_the_machine_when_no_snapshot_comes_of_it(
    open_group: OpenGroup,
) -> None:
    """A state gathered keeps units from being released; the next try may be five minutes away."""
    machine = KeepsGathered()
    async with open_group(size=1) as group:
        await group.start("n0", machine=machine)
        member = await fill_and_take(group)
        server = member.server
        assert server.reader.snapshotter is not None
        assert server._standing.driver is not None
        ahead = Index(server.reader.commit_index + 5)
        server._standing.driver.state_replaced(ahead, None)
        machine.applied_index = ahead
        assert not await server.reader.snapshotter.take()
        assert len(machine.held_at) == 100, "it was gathered twice"
        assert machine.gathered is None
