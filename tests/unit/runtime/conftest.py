"""Whole groups in one process: real sockets on free ports, real files, short election times.

Short, yet ten times what a loaded machine lets a whole process stand still: a test may take it that leadership
stays where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dledger import (
    NO_INDEX,
    Entry,
    EntryKind,
    Index,
    LogConfig,
    LogServer,
    NodeId,
    Peer,
    RaftConfig,
)
from dledger.runtime.handshake import dial_member
from dledger.storage.api import Disk
from jepsen.ports import free_ports

PATIENCE_S = 120
"""Nothing here takes that long; a test that waits for more has failed."""


class BodiesMachine:
    """Keeps the bodies of normal entries."""

    def __init__(self) -> None:
        self.applied_index: Index = NO_INDEX
        self.bodies: list[bytes] = []
        self.chunk_sizes: list[int] = []
        self.chunk_bytes: list[int] = []

    def apply(self, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self.applied_index + 1
        self.bodies += [entry.body for entry in entries if entry.kind is EntryKind.NORMAL]
        self.chunk_sizes.append(len(entries))
        self.chunk_bytes.append(sum(entry.size_bytes for entry in entries))
        self.applied_index = entries[-1].index


class Member:
    """One server with its machine, and its life."""

    def __init__(self, config: LogConfig, disk: Disk | None, machine: BodiesMachine | None) -> None:
        self.config = config
        self.machine = machine or BodiesMachine()
        self.server = LogServer(config, self.machine, disk=disk)
        self.failure: Exception | None = None
        self.has_ended = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            try:
                await self.server.run(task_status=task_status)
            except Exception as error:  # noqa: BLE001  # tests look at it
                self.failure = error
        self.has_ended.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self.has_ended.wait()


class Group:
    """Members of one group; a member may be stopped and started again on its folder."""

    def __init__(self, folder: Path, nursery: trio.Nursery, size: int, secret: str | None) -> None:
        self.peers = tuple(
            Peer(NodeId(f"n{number}"), "127.0.0.1", port)
            for number, port in enumerate(free_ports(size))
        )
        self.secret = secret
        self.members: dict[NodeId, Member] = {}
        self._folder = folder
        self._nursery = nursery

    def config(
        self,
        node_id: str,
        *,
        segment_size_bytes: int = 4 * 1024 * 1024,
        cache_bytes_max: int = 64 * 1024 * 1024,
        scrub_bytes_per_s: int = 0,
        **raft: object,
    ) -> LogConfig:
        settings = RaftConfig(
            NodeId(node_id),
            tuple(peer.node_id for peer in self.peers),
            heartbeat_interval_ms=25,
            lease_ms=250,
            election_timeout_min_ms=300,
            election_timeout_max_ms=600,
            transfer_timeout_ms=30_000,  # it takes several syncs
            slow_disk_ms=60_000,  # all have one disk: where it is slow nobody is to hand over for it
        )
        return LogConfig(
            group="g",
            peers=self.peers,
            store_path=str(self._folder / node_id),
            raft=replace(settings, **raft),  # type: ignore[arg-type]
            secret=self.secret,
            segment_size_bytes=segment_size_bytes,
            cache_bytes_max=cache_bytes_max,
            scrub_bytes_per_s=scrub_bytes_per_s,
            service_attributes={"service_address": f"{node_id}:1"},
        )

    async def start(
        self,
        node_id: str,
        *,
        disk: Disk | None = None,
        machine: BodiesMachine | None = None,
        **raft: object,
    ) -> Member:
        member = Member(self.config(node_id, **raft), disk, machine)
        self.members[NodeId(node_id)] = member
        await self._nursery.start(member.run)
        return member

    async def start_all(self, **raft: object) -> None:
        for peer in self.peers:
            await self.start(peer.node_id, **raft)

    async def leader(self) -> Member:
        """The member that serves."""
        found: list[Member] = []

        def is_there() -> bool:
            found[:] = [
                member
                for member in self.members.values()
                if not member.has_ended.is_set() and member.server.is_serving
            ]
            return bool(found)

        await wait_until(is_there)
        return max(found, key=lambda member: member.server.term)

    async def follower(self) -> Member:
        leader = await self.leader()
        return next(member for member in self.members.values() if member is not leader)

    async def wait_applied(self, index: int) -> None:
        await wait_until(
            lambda: all(member.machine.applied_index >= index for member in self.members.values())
        )


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll: what is waited for has no event of its own. Each poll is a turn for everybody else."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


OpenGroup = Callable[..., Awaitable[Group]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members and clients wait for each other: all are in this one process, which may stand still."""
    for name in (
        "client_port.MEMBERS_TIMEOUT_S",
        "client_port.READ_TIMEOUT_S",
        "client_port.TRANSFER_TIMEOUT_S",
        "handshake.CONNECT_TIMEOUT_S",
        "member_connection.HANDSHAKE_TIMEOUT_S",
        "snapshot_fetch.ASK_TIMEOUT_S",
        "sockets.CONNECT_TIMEOUT_S",
        "transport.HANDSHAKE_TIMEOUT_S",
    ):
        monkeypatch.setattr(f"dledger.runtime.{name}", float(PATIENCE_S))
    # Less than the tests give a call, so that another member is asked in the end.
    monkeypatch.setattr("dledger.runtime.client.ATTEMPT_TIMEOUT_S", PATIENCE_S / 4)
    monkeypatch.setattr("dledger.runtime.sockets.DEAD_AFTER_MS", 1000 * PATIENCE_S)
    monkeypatch.setitem(dial_member.__kwdefaults__, "timeout_s", float(PATIENCE_S))


@pytest.fixture
def open_group(tmp_path: Path, patient: None) -> Callable[..., object]:
    """`async with open_group(size=3) as group`: members are stopped at its end."""

    @asynccontextmanager
    async def opened(
        size: int = 3, secret: str | None = "geheim"
    ) -> AsyncIterator[Group]:  # for tests
        with trio.fail_after(4 * PATIENCE_S):
            async with trio.open_nursery() as nursery:
                group = Group(tmp_path, nursery, size, secret)
                yield group
                for member in group.members.values():
                    await member.stop()

    return opened
