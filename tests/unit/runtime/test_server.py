"""LogServer: a group of three in one process, over loopback and real files."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from dledger import (
    ENTRY_HEADER_BYTES,
    NO_INDEX,
    Committed,
    ConfigError,
    DiskFailedError,
    DiskFullError,
    Entry,
    EntryKind,
    Failed,
    Index,
    LeadershipLostError,
    ListenError,
    LogConfig,
    LogServer,
    NodeId,
    NotLeaderError,
    OutOfRangeError,
    Position,
    RaftConfig,
    ReadTimeoutError,
    Role,
    RoleView,
    StoppingError,
    StoreLockedError,
    TooLargeError,
    parse_peers,
)
from dledger.runtime.driver import APPLY_BYTES_MAX
from dledger.storage.posix import PosixDisk, PosixFile
from tests.unit.runtime.conftest import wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Any]]
S = 60.0
MEBI = 1024 * 1024


class Nothing:
    """A fold that keeps nothing."""

    applied_index = Index(0)

    def apply(self, entries: Sequence[Entry]) -> None:
        self.applied_index = entries[-1].index


async def test_a_group_elects_one_leader_and_replicates(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        ids = [await leader.server.appender.append(b"%d" % i, timeout_s=S) for i in range(5)]
        assert [each.index for each in ids] == list(range(ids[0].index, ids[0].index + 5))
        await group.wait_applied(ids[-1].index)
        for member in group.members.values():
            assert member.machine.bodies == [b"%d" % i for i in range(5)]
            assert member.server.leader_id == leader.server.node_id
            assert member.server.is_leader == (member is leader)


async def test_a_group_of_one_serves_alone(open_group: OpenGroup) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        entry_id = await leader.server.appender.append(b"alone", timeout_s=S)
        assert leader.server.reader.get(entry_id.index).body == b"alone"
        assert await leader.server.reader.barrier(timeout_s=S) >= entry_id.index


async def test_propose_knows_its_place_and_answers_after_apply(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        server = (await group.leader()).server
        seen: list[tuple[int, Committed | Failed, Index]] = []
        expected: list[tuple[int, Position]] = []
        for number in range(20):
            place = server.appender.end_position

            def done(outcome: Committed | Failed, number: int = number) -> None:
                seen.append((number, outcome, server.reader.applied_index))

            entry_id = server.appender.propose(b"b" * number, done)
            assert server.appender.end_position == place + ENTRY_HEADER_BYTES + number
            expected.append((entry_id.index, place))
        assert server.appender.pending_count == 20
        with trio.fail_after(S):
            while len(seen) < 20:
                await trio.lowlevel.checkpoint()
        assert [number for number, _, _ in seen] == list(range(20))
        for number, outcome, applied in seen:
            assert isinstance(outcome, Committed)
            index, place = expected[number]
            assert outcome.last.index == index <= applied
            assert server.reader.entry_at(place) == server.reader.get(Index(index))
            assert server.reader.entry_at(Position(place + ENTRY_HEADER_BYTES - 1)).index == index
        assert server.appender.pending_count == 0
        assert server.reader.committed_position == server.appender.end_position


async def test_old_entries_are_read_in_a_thread_and_by_nobody_once_it_has_stopped(
    open_group: OpenGroup,
) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(30)]
    async with open_group() as group:
        await group.start_all(cache_bytes_max=0)
        member = await group.leader()
        server, places = member.server, []
        for body in bodies:
            places.append(server.appender.end_position + ENTRY_HEADER_BYTES)
            server.appender.propose(body, lambda _: None)
        await group.wait_applied(Index(server.reader.applied_index + len(bodies)))
        reader = server.reader
        for place, body in zip(places, bodies, strict=True):
            where = Position(place + 70_000)
            loaded = trio.Event()
            reader.load([(where, 10)], loaded.set)
            with trio.fail_after(S):
                await loaded.wait()
            span = reader.span_at(where, 10, only_memory=True)
            assert span is not None
            assert span.data[where - span.position :][:10] == body[:10]
        assert reader.running_cold.load_count < len(bodies), "some were read ahead"
        await member.stop()
        stopped: list[bool] = []
        reader.load([(places[0], 10)], lambda: stopped.append(True))
        assert stopped == [True]


async def test_a_follower_refuses_and_says_who_leads(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        await group.wait_applied(leader.server.reader.applied_index)
        follower = await group.follower()
        with pytest.raises(NotLeaderError) as refused:
            follower.server.appender.propose(b"x", lambda _: None)
        assert refused.value.leader_id == leader.server.node_id
        with pytest.raises(NotLeaderError):
            await follower.server.reader.barrier(timeout_s=S)
        with pytest.raises(NotLeaderError):
            await follower.server.transfer(None, timeout_s=S)


async def test_reads_are_bounded_by_what_is_committed(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        server = (await group.leader()).server
        last = await server.appender.append(b"x", timeout_s=S)
        with pytest.raises(OutOfRangeError):
            server.reader.get(Index(last.index + 1))
        with pytest.raises(OutOfRangeError):
            server.reader.get(Index(0))
        with pytest.raises(OutOfRangeError):
            server.reader.entry_at(server.appender.end_position)
        assert [
            each.index for each in server.reader.get_range(Index(1), count_max=99, bytes_max=MEBI)
        ] == [*range(1, last.index + 1)]
        assert server.reader.get(Index(1)).kind is EntryKind.CONFIGURATION
        with pytest.raises(TooLargeError):
            await server.appender.append(bytes(64 * MEBI + 1), timeout_s=S)


async def test_barrier_sees_what_was_confirmed_before(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        server = (await group.leader()).server
        entry_id = await server.appender.append(b"x", timeout_s=S)
        await wait_until(server.has_lease)  # a lease is short, and a test may stand still
        assert await server.reader.barrier(timeout_s=S) >= entry_id.index
        with pytest.raises(ReadTimeoutError, match="not confirmed within 0 s"):
            await server.reader.barrier(timeout_s=0)


async def test_watchers_learn_of_roles_and_of_serving(open_group: OpenGroup) -> None:
    async with open_group() as group:
        views: dict[NodeId, list[RoleView]] = {}
        applied: list[int] = []
        for peer in group.peers:
            member = await group.start(peer.node_id)
            views[peer.node_id] = []
            member.server.watch_role(views[peer.node_id].append)
            member.server.reader.watch_applied(
                lambda server=member.server: applied.append(server.reader.applied_index)
            )
        leader = await group.leader()
        heard = views[leader.server.node_id]
        assert heard[-1] == RoleView(
            Role.LEADER, leader.server.term, leader.server.node_id, is_serving=True
        )
        assert not heard[-2].is_serving
        await group.wait_applied(leader.server.reader.applied_index)
        assert applied


async def test_members_learn_each_others_attributes(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        server = (await group.leader()).server
        with trio.fail_after(S):
            while len(server.status.peers_connected()) < 2:
                await trio.lowlevel.checkpoint()
        for peer in group.peers:
            assert server.status.attributes(peer.node_id)["service_address"] == f"{peer.node_id}:1"
        assert server.status.attributes(NodeId("n9")) == {}
        assert server.status.statistics().peers_connected == tuple(server.status.peers_connected())


async def test_members_name_a_committed_entry_alike(open_group: OpenGroup) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        leader = (await group.leader()).server
        first = await leader.appender.append(b"1", timeout_s=60)
        second = await leader.appender.append(b"2", timeout_s=60)
        await group.wait_applied(second.index)
        servers = [member.server for member in group.members.values()]
        for entry_id in (first, second):
            (name,) = {server.reader.committed_fingerprint(entry_id.index) for server in servers}
            assert name is not None
            assert name.term == entry_id.term
        assert leader.reader.committed_fingerprint(
            first.index
        ) != leader.reader.committed_fingerprint(second.index)
        assert leader.reader.committed_fingerprint(Index(second.index + 9)) is None
        assert leader.reader.committed_fingerprint(NO_INDEX) is None


async def test_what_is_to_be_shown_stands_in_the_status(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start_all()
        server = (await group.leader()).server
        server.status.show("went_back", "x" * 2000)
        assert server.status.attributes(server.node_id)["went_back"] == "x" * 1024


async def test_leadership_is_handed_over(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        old = await group.leader()
        await old.server.appender.append(b"before", timeout_s=S)
        target = (await group.follower()).server.node_id
        assert await old.server.transfer(target, timeout_s=S) == target
        with trio.fail_after(S):
            while not group.members[target].server.is_serving:
                await trio.lowlevel.checkpoint()
        await group.members[target].server.appender.append(b"after", timeout_s=S)


async def test_drain_hands_over_and_then_refuses(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        old = await group.leader()
        await old.server.drain()
        with pytest.raises(StoppingError):
            old.server.appender.propose(b"x", lambda _: None)
        await old.stop()
        new = await group.leader()
        assert new is not old
        await new.server.appender.append(b"after", timeout_s=S)


async def test_pending_proposals_of_a_deposed_leader_are_of_unknown_outcome(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        # Others that stop take their time, in which it might notice that it is alone before the append.
        links = leader.server._transport.links
        monkeypatch.setattr(links, "post", lambda _to, _message: None)
        with pytest.raises(LeadershipLostError):
            await leader.server.appender.append(b"nobody hears", timeout_s=S)
        assert not leader.server.is_leader


async def test_the_others_elect_a_leader_when_it_dies_and_it_catches_up_later(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        await group.start_all()
        old = await group.leader()
        await old.server.appender.append(b"one", timeout_s=S)
        await old.stop()
        new = await group.leader()
        assert new is not old
        last = await new.server.appender.append(b"two", timeout_s=S)
        back = await group.start(old.server.node_id)
        await group.wait_applied(last.index)
        assert back.machine.bodies == [b"one", b"two"]


async def test_a_restart_replays_the_log_in_chunks(open_group: OpenGroup) -> None:
    """A long replay must leave turns for heartbeats in between."""
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        for _ in range(12):
            last = await leader.server.appender.append(bytes(300_000), timeout_s=S)
        await leader.stop()
        back = await group.start(leader.server.node_id)
        await group.wait_applied(last.index)
        assert len(back.machine.bodies) == 12
        assert max(back.machine.chunk_bytes) <= APPLY_BYTES_MAX


async def test_a_large_entry_reaches_everybody(open_group: OpenGroup) -> None:
    async with open_group() as group:
        # All three members write it and sync it in this one thread, and say nothing meanwhile.
        await group.start_all(election_timeout_min_ms=1500, election_timeout_max_ms=2000)
        body = os.urandom(9 * MEBI)
        last = await (await group.leader()).server.appender.append(body, timeout_s=S)
        await group.wait_applied(last.index)
        assert [member.machine.bodies for member in group.members.values()] == [[body]] * 3


class BrokenFile(PosixFile):
    """Syncs and writes until told not to."""

    error: OSError | None = None

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        if BrokenFile.error is not None and BrokenFile.error.errno == errno.ENOSPC:
            raise BrokenFile.error
        super().write_at(offset, parts)

    def sync(self) -> None:
        if BrokenFile.error is not None:
            raise BrokenFile.error
        super().sync()


class FullFile(PosixFile):
    """Has no room while told so."""

    is_full = False

    def preallocate(self, size: int) -> None:
        if FullFile.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().preallocate(size)


class FillableDisk(PosixDisk):
    def open(self, path: str, *, create: bool = False) -> PosixFile:
        file = super().open(path, create=create)
        return FullFile(file._path, file._descriptor)


async def test_a_full_disk_costs_leadership_and_nothing_else(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no room for the next segment; once there is, the node goes on where it was."""
    async with open_group() as group:
        settings = {"segment_size_bytes": 8192}
        for peer in group.peers:
            disk = PosixDisk(group.config(peer.node_id).store_path)
            if peer.node_id == "n0":
                disk = FillableDisk(group.config(peer.node_id).store_path)
            await group.start(
                peer.node_id, disk=disk, preferred_leaders=(NodeId("n0"),), **settings
            )
        full = group.members[NodeId("n0")]
        with trio.fail_after(S):
            while not full.server.is_serving:
                await trio.lowlevel.checkpoint()
        with caplog.at_level(logging.WARNING, logger="dledger"):
            monkeypatch.setattr(FullFile, "is_full", True)
            outcomes: list[Committed | Failed] = []
            for _ in range(4):
                full.server.appender.propose(bytes(4000), outcomes.append)
            with trio.fail_after(S):
                while full.server.is_leader or len(outcomes) < 4:
                    await trio.lowlevel.checkpoint()
            other = await group.leader()
            assert other is not full
            last = await other.server.appender.append(b"the others go on", timeout_s=S)
            assert not full.has_ended.is_set()
            monkeypatch.setattr(FullFile, "is_full", False)
            await group.wait_applied(last.index)
        assert full.machine.bodies == other.machine.bodies
        events = [line.split()[0] for line in caplog.messages]
        assert events.count("disk-full") == 1
        assert "disk-has-room" in events


async def test_a_leader_whose_followers_have_no_room_names_them_when_its_term_is_lost(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own disk has room: only they can tell it why no majority answers."""
    async with open_group() as group:
        for peer in group.peers:
            disk = PosixDisk(group.config(peer.node_id).store_path)
            if peer.node_id != "n0":
                disk = FillableDisk(group.config(peer.node_id).store_path)
            await group.start(
                peer.node_id,
                disk=disk,
                preferred_leaders=(NodeId("n0"),),
                segment_size_bytes=8192,
            )
        leader = group.members[NodeId("n0")].server
        await wait_until(lambda: leader.is_serving)
        monkeypatch.setattr(FullFile, "is_full", True)
        outcomes: list[Committed | Failed] = []
        for _ in range(4):
            leader.appender.propose(bytes(4000), outcomes.append)
        await wait_until(lambda: len(outcomes) == 4)
        lost = outcomes[-1]
        assert isinstance(lost, Failed)
        assert isinstance(lost.error, LeadershipLostError)
        assert "the disks of n1 and n2 are full" in str(lost.error)
        assert leader.full_disks.leave_no_majority
        for name in (NodeId("n1"), NodeId("n2")):
            shown = group.members[name].server.status.attributes(name)
            assert shown["disk"].startswith("full: "), shown
        monkeypatch.setattr(FullFile, "is_full", False)
        serving = (await group.leader()).server
        last = await serving.appender.append(b"there is room", timeout_s=S)
        await group.wait_applied(last.index)
        await wait_until(
            lambda: not any(each.server.full_disks.full for each in group.members.values())
        )


class BreakableDisk(PosixDisk):
    def open(self, path: str, *, create: bool = False) -> PosixFile:
        file = super().open(path, create=create)
        return BrokenFile(file._path, file._descriptor) if path.startswith("data/") else file


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EIO, DiskFailedError), (errno.ENOSPC, (DiskFailedError, DiskFullError))],
)
async def test_a_failed_disk_stops_the_node_and_nothing_is_acknowledged(
    open_group: OpenGroup,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[Exception] | tuple[type[Exception], ...],
) -> None:
    async with open_group() as group:
        for peer in group.peers:
            disk = BreakableDisk(group.config(peer.node_id).store_path)
            await group.start(peer.node_id, disk=disk)
        leader = await group.leader()
        await leader.server.appender.append(b"fine", timeout_s=S)
        outcomes: list[Any] = []
        monkeypatch.setattr(BrokenFile, "error", OSError(code, os.strerror(code)))
        leader.server.appender.propose(b"doomed", outcomes.append)
        with trio.fail_after(S):
            await leader.has_ended.wait()
        assert isinstance(leader.failure, kind)  # type: ignore[arg-type]  # a class or several
        assert [type(each) for each in outcomes] == [Failed]
        assert not outcomes[0].error.definite
        with pytest.raises(StoppingError):
            leader.server.appender.propose(b"x", lambda _: None)


async def test_a_fold_that_fails_stops_the_node_with_its_error(open_group: OpenGroup) -> None:
    class Failing:
        applied_index = Index(0)

        def apply(self, entries: Sequence[Entry]) -> None:
            raise ZeroDivisionError("in the fold")

    async with open_group(size=1) as group:
        member = await group.start("n0", machine=Failing())
        with trio.fail_after(S):
            await member.has_ended.wait()
        assert isinstance(member.failure, ZeroDivisionError)


async def test_syncs_of_a_slow_disk_run_in_a_thread(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        driver = leader.server._standing.running
        for _ in range(40):
            driver.pace.add(50.0)
        assert driver.pace.is_slow
        for i in range(10):
            await leader.server.appender.append(b"%d" % i, timeout_s=S)
        await group.wait_applied(leader.server.reader.applied_index)
        assert leader.machine.bodies == [b"%d" % i for i in range(10)]


async def test_the_store_and_the_port_belong_to_one_process(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start_all()
        config = group.config("n0")
        with pytest.raises(StoreLockedError):
            await LogServer(config, group.members[NodeId("n0")].machine).run()
        disk = PosixDisk(config.store_path + "-other")
        with pytest.raises(ListenError, match="does another process already run"):
            await LogServer(config, group.members[NodeId("n0")].machine, disk=disk).run()


async def test_a_store_that_cannot_be_is_a_matter_of_configuration(
    open_group: OpenGroup, tmp_path: Path
) -> None:
    (tmp_path / "n0").write_text("a file, no folder")
    async with open_group(size=1) as group:
        with pytest.raises(ConfigError, match="no store can be kept"):
            await LogServer(group.config("n0"), Nothing()).run()


async def test_garbage_on_the_port_is_one_line_and_harms_nobody(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group() as group:
        await group.start_all()
        leader = await group.leader()
        peer = next(each for each in group.peers if each.node_id == leader.server.node_id)
        with caplog.at_level(logging.WARNING, logger="dledger"):
            for said in (b"GET / HTTP/1.1\r\n\r\n", bytes(40), b"\xff" * 40):
                async with await trio.open_tcp_stream(peer.host, peer.port) as stream:
                    await stream.send_all(said)
                    assert await stream.receive_some() == b""
        refusals = [line for line in caplog.messages if line.startswith("connection-refused")]
        assert len(refusals) == 3
        await leader.server.appender.append(b"fine", timeout_s=S)


async def test_who_says_nothing_is_counted_and_dropped(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.runtime.transport.UNTRUSTED_COUNT_MAX", 4)
    monkeypatch.setattr("dledger.runtime.transport.HANDSHAKE_TIMEOUT_S", 0.05)
    async with open_group(size=1) as group:
        await group.start_all()
        address = (group.peers[0].host, group.peers[0].port)
        silent = [socket.create_connection(address) for _ in range(8)]
        for sock in silent:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream:
                assert await stream.receive_some() == b""
        leader = await group.leader()
        await leader.server.appender.append(b"fine", timeout_s=S)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group": ""}, "group ''"),
        ({"secret": ""}, "secret is empty"),
        ({"service_attributes": {"a": "x" * 20_000}}, "service_attributes"),
        ({"peers": parse_peers("n0-127.0.0.1:1;n1-127.0.0.1:2")}, "are not the voters"),
    ],
)
def test_a_contradictory_configuration_is_refused(change: dict[str, object], reason: str) -> None:
    config = LogConfig(
        "g", parse_peers("n0-127.0.0.1:1"), "unused", RaftConfig(NodeId("n0"), (NodeId("n0"),))
    )
    with pytest.raises(ConfigError, match=reason):
        LogServer(replace(config, **change), Nothing())
